"""Receivers, which take messages of a queue for the sources of routes: one, and those that a reader runs by itself.

A message is acknowledged when what it announces is recorded for every source that a route leads to, in one transaction:
before that it comes again, and finds what is recorded already. Any number of receivers may work on one queue.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from queue_source.announcements.contents import Announced, announced_objects, message_error
from queue_source.announcements.routes import Routes, read_routes
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.recorded import Recorded
from queue_source.coordinator.session import Session, with_back_off
from queue_source.coordinator.threads import Threads
from queue_source.errors import OptionError, QueueError
from queue_source.messages import Received
from queue_source.options import NotificationOptions, ReceiverOptions
from queue_source.queues.base import Capabilities, Queue
from queue_source.queues.leases import longest_lease
from shard_store.failpoints import reach
from shard_store.model import Content, ErrorRecord
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
        memory: A file that says how many messages it has had, also after a restart (invariant 11).
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
                self._take(messages, capabilities)
                received += len(messages)
                if most is not None and received >= most:
                    return
                continue
            self.on_empty()
            if until_empty:
                return
            self._note()
            self._prune()

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

    def _take(self, messages: Sequence[Received], capabilities: Capabilities) -> None:
        """Record what the messages announce, and acknowledge them; where that fails, give them back."""
        try:
            self._record(messages)
        except BaseException:
            self._give_back(messages, capabilities)
            raise
        reach("messages-recorded")
        for batch in chunks(messages, capabilities.max_batch_size):
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
            without_route = list(self._without_route(one_message, by_source))
            unrouted += len(without_route)
            if without_route and self.options.quarantines:
                errors.append(_no_route(one_message.message, without_route))
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

    def _without_route(self, announced: Announced, by_source: dict[str, list[Content]]) -> Iterator[str]:
        """Add the objects of a message to those of their sources; yield the URIs of those that no route takes."""
        for content in announced.contents:
            names = self.routes.sources_of(content.uri, announced.message.tag)
            if not names:
                yield content.uri
            for name in names:
                by_source.setdefault(name, []).append(content)

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

    def _note(self) -> None:
        with self._lock:
            due = self.clock() - self._noted >= _NOTE_EVERY
            if due:
                self._noted = self.clock()
        if due:
            self.store.note_work(self.name, self._seen)

    def _prune(self) -> None:
        """Remove this receiver's errors that are older than the window, as no reader does; in an idle moment."""
        with self._lock:
            due = self.source is None and self.clock() - self._pruned >= _PRUNE_EVERY
            if due:
                self._pruned = self.clock()
        if due and self.store.win_interval(f"prune {self.name}", _PRUNE_EVERY):
            self.store.prune(RetentionPolicy(source=self.name), time_out=_PRUNE_FOR)

    def _give_back(self, messages: Sequence[Received], capabilities: Capabilities) -> None:
        try:
            for batch in chunks(messages, capabilities.max_batch_size):
                self.queue.nack([message.receipt for message in batch])
        except QueueError as error:
            logger.warning("%s; %d message(s) come again when their leases end", error, len(messages))


def _no_route(message: Received, uris: Sequence[str]) -> ErrorRecord:
    more = f" and of {len(uris) - 1} more object(s)" if len(uris) > 1 else ""
    return message_error(
        message,
        NO_ROUTE,
        f"no route takes {uris[0][:300]!r}{more}; add a route to the file, start the receiver again, and send the "
        f"message once more with `cuesqueue errors requeue --cause {NO_ROUTE}`",
    )


_EXPECTED = "routes"


class OwnReceivers:
    """One receiver for each queue of the reader; none without the option.

    The reader takes what they record as if others had recorded it. `queues`: by name, closed by `close`.
    """

    def __init__(self, session: Session, queues: Mapping[str, Queue], in_flight: InFlight, recorded: Recorded) -> None:
        self._session = session
        self._in_flight = in_flight
        self._recorded = recorded
        self._queues = queues
        self._pausing = threading.Event()
        self._running: list[threading.Event] = []
        self._receivers: list[Receiver] = []
        options = session.options
        if options.queue.routes is None:
            return
        routes = read_routes(options.queue.routes)
        if options.source not in routes.sources:
            raise OptionError(
                "routes",
                f"no route of {options.queue.routes} leads to source {options.source!r}, which this reader reads; add "
                "one, or let `cuesqueue route` receive",
            )
        for queue in queues.values():
            self._receivers.append(
                Receiver(
                    options.pipeline,
                    queue,
                    routes,
                    self._options,
                    session.store,
                    session.stopping,
                    session.clock,
                    source=options.source,
                    on_recorded=self._look,
                    on_empty=self._expect_nothing,
                )
            )
        in_flight.expect_listing(True, of=_EXPECTED)

    @property
    def _options(self) -> ReceiverOptions:
        options = self._session.options
        chosen = options.notifications
        return ReceiverOptions(
            url=options.queue.urls[0],
            connections=options.queue.connections,
            notifications=NotificationOptions(
                allowed_prefixes=("",),
                path_rewrites=chosen.path_rewrites,
                notification_format=chosen.notification_format,
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

    def start(self, threads: Threads) -> None:
        """Make the receivers known, and let them begin with the other threads. Raises ShardStoreError."""
        for receiver in self._receivers:
            receiver.begin()
            for _ in range(self._session.options.queue.receive_threads):
                ended = threading.Event()
                threads.start(f"route-{len(self._running)}", self._run, receiver, ended)
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

    def _run(self, receiver: Receiver, ended: threading.Event) -> None:
        try:
            receiver.run(ending=self._pausing)
        finally:
            ended.set()

    def _look(self, sources: Mapping[str, object]) -> None:
        if self._session.options.source in sources:
            self._recorded.look()

    def _expect_nothing(self) -> None:
        """Note that a queue was empty: a first batch waits no longer for it."""
        self._in_flight.expect_listing(False, of=_EXPECTED)
