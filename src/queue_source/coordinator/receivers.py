"""Receivers take messages of a queue for the sources of routes; a reader takes what they have recorded for its source.

A message is acknowledged when what it announces is recorded for every source that a route leads to, in one transaction:
before that it comes again, and finds what is recorded already. Any number of receivers may work on one queue, each in a
process of its own, or in a reader.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from queue_source.announcements.contents import announced_objects, is_allowed, is_wanted, message_error
from queue_source.announcements.routes import Routes, read_routes
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.opening import Ownership
from queue_source.coordinator.session import Session, Threads, with_back_off
from queue_source.errors import OptionError, QueueError
from queue_source.messages import Received
from queue_source.options import NotificationOptions, ReceiverOptions
from queue_source.queues.base import Capabilities, Queue
from queue_source.queues.leases import longest_lease
from queue_source.uris import climbs
from shard_store.errors import StoreUnavailable
from shard_store.failpoints import reach
from shard_store.model import STORE, Content, ErrorRecord, Shard
from shard_store.shards.changes import Audit
from shard_store.shards.recording import Receipts
from shard_store.sql.database import ROWS_PER_STATEMENT, chunks
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy

logger = logging.getLogger("cuesqueue")

T = TypeVar("T")

NO_ROUTE = "no-route"
"""The cause of a message with an object that no route takes."""

_WAIT = 2.0  # seconds for which one receive waits: so long a receiver takes to end
_GATHER = 0.2  # seconds in which messages are gathered for one transaction
_NOTE_EVERY = 10.0  # seconds after which an idle receiver says that it works
_PRUNE_EVERY = 600.0  # seconds between two looks for errors that are older than the window
_PRUNE_FOR = 1.0  # seconds


@dataclass(slots=True)
class Totals:
    """What this receiver has done since it began, over its threads."""

    messages: int = 0
    recorded: int = 0
    duplicates: int = 0
    changed: int = 0
    ignored: int = 0
    unrouted: int = 0
    malformed: int = 0


@dataclass
class Receiver:
    """One receiver. `begin` comes first; then `run` on any number of threads, until `stopping` is set.

    Attributes:
        name: Its name in the store, for operators and for its errors.
        queue: The queue, open; the caller closes it.
        source: Whose errors bad messages are; None: they have the receiver's name, and are pruned by it.
        on_recorded: Called with the sources for which something was announced, once it is recorded.
        on_empty: Called when nothing was visible in the queue.
        memory: A file that says how many messages it has had, also after a restart (decision 0065).
    """

    name: str
    queue: Queue
    routes: Routes
    options: ReceiverOptions
    store: ShardStore
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic
    source: str | None = None
    on_recorded: Callable[[Mapping[str, object]], None] = lambda sources: None
    on_empty: Callable[[], None] = lambda: None
    memory: Path | None = None
    totals: Totals = field(default_factory=Totals)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _noted: float = float("-inf")
    _pruned: float = float("-inf")
    _seen: int = 0

    def begin(self) -> None:
        """Make it known in the store. Raises ShardStoreError, and OptionError for a queue that loses messages."""
        if self.queue.capabilities.loses_while_closed:
            raise OptionError(
                "queueUrl",
                f"{self.queue.name} is a listener: what is sent while no receiver is connected is lost; name a pool "
                "(pool=NAME instead of listener=true), which keeps its messages",
            )
        self._seen = self._remembered()
        self.store.start_receiver(self.name, self.queue.name, socket.gethostname(), self.routes.sources, self._seen)
        logger.info("receiver %s: %d route(s) to %d source(s)", self.name, len(self.routes), len(self.routes.sources))

    @property
    def present(self) -> int | None:
        """The messages that are in the queue now; None where it does not say."""
        if not self._patiently(lambda: self.queue.capabilities).reports_depth:
            return None
        return self._patiently(self.queue.depth).ready

    def run(self, *, until_empty: bool = False, most: int | None = None, ending: threading.Event | None = None) -> None:
        """Receive and record, until `stopping` or `ending` is set. Raises QueueError and ShardStoreError.

        With `until_empty` until nothing was visible, or `most` messages have come.
        """
        received = 0
        capabilities: Capabilities = self._patiently(lambda: self.queue.capabilities)
        wait = min(_WAIT, capabilities.max_wait)
        if until_empty and capabilities.empty_is_certain:
            wait = 0.0
        while not (self.stopping.is_set() or (ending is not None and ending.is_set())):
            messages = self._gather(capabilities, wait)
            if messages:
                self.take(messages, capabilities)
                received += len(messages)
                if most is not None and received >= most:
                    return
                continue
            self.on_empty()
            if until_empty:
                return
            self._idle()

    def _patiently(self, call: Callable[[], T]) -> T:
        seconds = self.options.retry_timeout.total_seconds()
        return with_back_off(self.stopping, seconds, self.clock)(call)

    def _gather(self, capabilities: Capabilities, wait: float) -> list[Received]:
        """Receive up to a thousand messages, as far as they come soon: queues give a few, and a transaction costs."""
        lease = longest_lease(self.options.lease.total_seconds(), capabilities)
        size = min(capabilities.max_batch_size, ROWS_PER_STATEMENT)
        messages = list(self._patiently(lambda: self.queue.receive(size, lease, wait)))
        deadline = self.clock() + _GATHER
        while messages and len(messages) + size <= ROWS_PER_STATEMENT and self.clock() < deadline:
            try:
                more = self.queue.receive(size, lease, 0.0)
            except QueueError:
                break  # the next receive says so, when what is here is recorded
            if not more:
                break
            messages += more
        return messages

    def take(self, messages: Sequence[Received], capabilities: Capabilities) -> None:
        """Record what the messages announce, and acknowledge them; where that fails, give them back."""
        batches = list(chunks(messages, capabilities.max_batch_size))
        try:
            self._record(messages)
        except BaseException:
            try:
                for batch in batches:
                    self.queue.nack([message.receipt for message in batch])
            except QueueError as error:
                logger.warning("%s; %d message(s) come again when their leases end", error, len(messages))
            raise
        reach("messages-recorded")
        for batch in batches:
            try:
                self.queue.acknowledge([message.receipt for message in batch])
            except QueueError as error:
                logger.warning("%s; %d message(s) will come again, and find that they are recorded", error, len(batch))
        reach("recorded-acknowledged")

    def _record(self, messages: Sequence[Received]) -> None:
        announced = announced_objects(messages, self.options.notifications, lambda uris: [None] * len(uris))
        reach("messages-routed")
        by_source: dict[str, list[Content]] = {}
        errors: list[ErrorRecord] = []
        malformed = unrouted = 0
        for one_message in announced:
            if one_message.error is not None:
                malformed += 1
                errors.append(one_message.error)
            without_route = []
            for content in one_message.contents:
                names = self.routes.sources_of(content.uri, one_message.message.tag)
                if not names:
                    without_route.append(content.uri)
                for name in names:
                    by_source.setdefault(name, []).append(content)
            unrouted += len(without_route)
            if without_route and self.options.quarantines:
                more = f" and of {len(without_route) - 1} more object(s)" if len(without_route) > 1 else ""
                detail = (
                    f"no route takes {without_route[0][:300]!r}{more}; add a route to the file, start the receiver "
                    f"again, and send the message once more with `cuesqueue errors requeue --cause {NO_ROUTE}`"
                )
                errors.append(message_error(one_message.message, NO_ROUTE, detail))
        if errors:
            self.store.record_errors(self.source or self.name, self.name, errors)
        ignored = sum(one_message.ignored for one_message in announced)
        receipts = Receipts(len(messages), ignored, unrouted, malformed)
        with self._lock:
            seen = self._seen
        recorded = self.store.record(self.name, by_source, receipts, seen)
        with self._lock:
            self._seen = max(self._seen, recorded.messages)
            self._remember()
            totals = self.totals
            totals.messages += len(messages)
            totals.recorded += recorded.new
            totals.duplicates += recorded.duplicates
            totals.changed += recorded.changed
            totals.ignored += ignored
            totals.unrouted += unrouted
            totals.malformed += malformed
            self._noted = self.clock()
        self.on_recorded(by_source)

    def _remembered(self) -> int:
        """Return how many messages the file knows of; 0 where there is none yet. Raises OptionError for another one."""
        if self.memory is None or not self.memory.exists():
            return 0
        own = [self.store.store_id(), self.name]
        try:
            *whose, messages = json.loads(self.memory.read_text("utf-8"))
            seen = int(messages)
        except (ValueError, TypeError) as error:
            raise OptionError("--memory", f"{self.memory} is no file of a receiver ({error}); name another") from error
        if whose != own:
            raise OptionError(
                "--memory",
                f"{self.memory} is of receiver {whose[-1:]} and store {whose[:1]}, and this is {own[1]!r} with the "
                f"store {own[0]!r}: name the store that it had, or another file; if the store is lost, `cuesqueue "
                "reconcile` with --send finds for each source of the routes what was recorded",
            )
        return seen

    def _remember(self) -> None:
        """Write down how many messages are recorded, before they are acknowledged. The caller holds the lock."""
        if self.memory is None:
            return
        new = self.memory.with_name(f"{self.memory.name}.new")
        with new.open("w", encoding="utf-8") as file:
            json.dump([self.store.store_id(), self.name, self._seen], file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.memory)

    def _idle(self) -> None:
        """Say in an idle moment that this receiver works, and prune its errors, which no reader does."""
        with self._lock:
            now = self.clock()
            says = now - self._noted >= _NOTE_EVERY
            prunes = self.source is None and now - self._pruned >= _PRUNE_EVERY
            if says:
                self._noted = now
            if prunes:
                self._pruned = now
        if says:
            self.store.note_work(self.name, self._seen)
        if prunes and self.store.win_interval(f"prune {self.name}", _PRUNE_EVERY):
            self.store.prune(RetentionPolicy(source=self.name), time_out=_PRUNE_FOR)


_POLL = 0.5  # seconds between two looks at the store, while nothing is there
_ROOM = 0.5  # seconds for which room is waited for at a time
_AT_A_TIME = 1000


class Recorded:
    """Looks again and again at what waits for the source, and takes as much of it as there is room for.

    Its shards are held as those of listings: no message leads to them, and a graceful end releases those in no batch.
    """

    def __init__(self, session: Session, in_flight: InFlight, ownership: Ownership) -> None:
        self._session = session
        self._in_flight = in_flight
        self._ownership = ownership
        self._until: int | None = None  # AvailableNow takes no more than is recorded at its start
        self._looks = 0  # how often `look` was called
        self._wanted = threading.Event()
        self.look()

    def start(self, threads: Threads) -> None:
        threads.on_stop(self._wanted.set)
        threads.start("recorded", self._run)

    def drain(self) -> None:
        """Take what is recorded now, and leave what comes later to the next run (AvailableNow)."""
        self._until = self._session.store.database_time()
        self.look()

    def look(self) -> None:
        """Look at once, since something was recorded; until then a batch that is waited for is not complete."""
        self._looks += 1
        self._in_flight.expect_listing(True, of=STORE)
        self._wanted.set()

    def _run(self) -> None:
        session = self._session
        while not session.stopping.is_set():
            if not self._in_flight.wait_for_listed(_ROOM):
                continue
            looks = self._looks
            self._wanted.clear()
            # a store that is away is waited for as long as the heartbeats do, which then end the query
            patiently = with_back_off(
                session.stopping, session.stale_after, session.clock, lambda error: isinstance(error, StoreUnavailable)
            )
            if not patiently(self.take):
                if looks == self._looks:  # else there may be something that this has not looked for
                    self._in_flight.expect_listing(False, of=STORE)
                self._wanted.wait(_POLL)

    def take(self) -> bool:
        """Take what there is room for; return whether there may be more."""
        session = self._session
        room = min(_AT_A_TIME, self._in_flight.room_for_listed())
        look = self._in_flight.look()
        waiting = session.store.recorded(session.options.source, room, self._until)
        if not waiting:
            return False
        chosen = self._choose(waiting)
        reach("recorded-found")
        self._ownership.resolve(chosen, look)
        reach("recorded-taken")
        return len(waiting) == room

    def _choose(self, waiting: Sequence[Shard]) -> list[Shard]:
        """Leave out what the options do not choose, and have given up, unread, what is outside of `allowedPrefixes`.

        What another pipeline has begun is read: part of its rows would be missing.
        """
        session, options = self._session, self._session.options.notifications
        ignores, foreign = options.on_foreign_object == "ignore", set()
        if outside := [shard for shard in waiting if not is_allowed(shard.content.uri, options)]:
            foreign = {
                shard.key for shard in outside if ignores and shard.token is None and not climbs(shard.content.uri)
            }
            # the next batch gives them up
            marked = [shard.key for shard in outside if shard.key not in foreign]
            reason = "it is outside of allowedPrefixes; name its prefix there, and run `cuesqueue shards reopen`"
            session.store.quarantine(marked, Audit(str(session.token), reason))
        left_out = {
            shard.key
            for shard in waiting
            if shard.token is None and not shard.position and not is_wanted(shard.content.uri, options)
        } - foreign
        if gone := foreign | left_out:
            session.store.decline(session.token, list(gone))
            session.metrics.add(ignored=len(left_out), foreign=len(foreign))
        return [shard for shard in waiting if shard.key not in gone]


_EXPECTED = "routes"


class OwnReceivers:
    """The receivers of a reader with `routes`, one for each of its queues (`queues`, by name, closed by `close`).

    The reader takes what they record as if others had recorded it.
    """

    def __init__(self, session: Session, queues: Mapping[str, Queue], in_flight: InFlight, recorded: Recorded) -> None:
        self._session = session
        self._in_flight = in_flight
        self._queues = queues
        self._pausing = threading.Event()
        self._running: list[threading.Event] = []
        options, chosen = session.options, session.options.notifications
        assert options.queue.routes is not None
        routes = read_routes(options.queue.routes)
        if options.source not in routes.sources:
            raise OptionError(
                "routes",
                f"no route of {options.queue.routes} leads to source {options.source!r}, which this reader reads; add "
                "one, or let `cuesqueue route` receive",
            )
        of_receiver = ReceiverOptions(
            url=options.queue.urls[0],
            connections=options.queue.connections,
            notifications=NotificationOptions(
                allowed_prefixes=("",),
                path_rewrites=chosen.path_rewrites,
                notification_format=chosen.notification_format,
                trust_notification=chosen.trust_notification,
                max_objects_per_message=chosen.max_objects_per_message,
                uri_path=chosen.uri_path,
                bucket_path=chosen.bucket_path,
                key_path=chosen.key_path,
                read_hidden_files=True,
                by_reference=True,
            ),
            threads=options.queue.receive_threads,
            lease=options.leases.visibility_timeout,
            retry_timeout=options.queue.retry_timeout,
            quarantines=options.queue.on_unrouted_object == "quarantine",
        )

        def look(sources: Mapping[str, object]) -> None:
            if options.source in sources:
                recorded.look()

        self._receivers = [
            Receiver(
                options.pipeline,
                queue,
                routes,
                of_receiver,
                session.store,
                session.stopping,
                session.clock,
                source=options.source,
                on_recorded=look,
                on_empty=lambda: in_flight.expect_listing(False, of=_EXPECTED),  # a first batch waits no longer for it
            )
            for queue in queues.values()
        ]
        in_flight.expect_listing(True, of=_EXPECTED)

    def start(self, threads: Threads) -> None:
        """Make the receivers known, and let them begin with the other threads. Raises ShardStoreError."""

        def run(receiver: Receiver, ended: threading.Event) -> None:
            try:
                receiver.run(ending=self._pausing)
            finally:
                ended.set()

        for receiver in self._receivers:
            receiver.begin()
            for _ in range(self._session.options.queue.receive_threads):
                ended = threading.Event()
                threads.start(f"route-{len(self._running)}", run, receiver, ended)
                self._running.append(ended)

    def drain(self) -> None:
        """Record what is in the queues now; what is sent later is left to the next run (AvailableNow)."""
        self._pausing.set()
        for ended in self._running:
            while not ended.wait(0.2) and not self._session.stopping.is_set():
                pass
        for receiver in self._receivers:
            receiver.run(until_empty=True, most=receiver.present)
        self._in_flight.expect_listing(False, of=_EXPECTED)

    def close(self) -> None:
        """Close the queues."""
        for queue in self._queues.values():
            queue.close()
