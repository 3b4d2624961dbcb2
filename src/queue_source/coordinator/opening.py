"""From received messages to open shards: receiving on threads, and opening what the messages announce."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from queue_source.announcements.contents import (
    Announced,
    announced_messages,
    announced_objects,
    with_separate_shards,
)
from queue_source.announcements.facts import Stat
from queue_source.coordinator.backfill import PrefixWatch
from queue_source.coordinator.errors import ErrorLog, ErrorQueue
from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.coordinator.recorded import Ownership
from queue_source.coordinator.room import Receive
from queue_source.coordinator.session import Session
from queue_source.coordinator.threads import Threads
from queue_source.messages import Received, key_of
from queue_source.queues.base import Capabilities, Queue
from queue_source.queues.leases import Terms, terms_of
from shard_store.model import BEGINNING, Content, Shard, ShardKey, ShardState, shard_key
from shard_store.shards.announcing import is_other_version
from shard_store.sql.database import ROWS_PER_STATEMENT

logger = logging.getLogger("cuesqueue")

_NAMED = 10  # objects of a batch of messages that are logged by name


@dataclass
class Opener:
    """Opens up to 1,000 messages in a transaction, all their shards in one statement."""

    _session: Session
    _stat: Stat
    _in_flight: InFlight
    _ownership: Ownership
    _errors: ErrorQueue
    _error_log: ErrorLog
    _prefixes: PrefixWatch

    def run(self) -> None:
        while not self._session.stopping.is_set():
            messages = self._in_flight.begin_opening(ROWS_PER_STATEMENT, 0.5)
            if messages:
                self._open(messages)
                self._in_flight.end_opening()

    def _open(self, messages: Sequence[Received]) -> None:
        """Parse messages, record errors, open shards, and let each message wait for the shards it announced."""
        received = self._parse(messages)
        announced = self._with_begun(received)
        self._record([announcement for announcement in announced if announcement.error is not None])
        self._prefixes.count(received)
        shards = self._find(announced)
        self._count(announced, shards)
        self._in_flight.announce([self._opened(announcement, shards) for announcement in announced])
        self._ownership.resolve(shards.values())

    def _parse(self, messages: Sequence[Received]) -> list[Announced]:
        options, queue_names = self._session.options, self._session.names.queues
        if options.content.kind.is_announced:
            announced = announced_objects(
                messages, options.notifications, self._stat, in_pieces=partial(may_come_in_pieces, options)
            )
        else:
            announced = announced_messages(messages, options.notifications, queue_names)
        if not self._session.semantics.keeps_shards:
            announced = [with_separate_shards(announcement, queue_names) for announcement in announced]
        if self._session.names.versionless:
            announced = self._without_versions(announced)
        return announced

    def _without_versions(self, announced: list[Announced]) -> list[Announced]:
        """Keep the URI as the id of objects that were begun before `allowOverwrites` was set.

        Only another version of them is a new shard.
        """
        session = self._session
        uris = {c.uri for announcement in announced for c in announcement.contents if c.shard_id != c.uri}
        keys = {uri: self._key(uri) for uri in uris}
        stored = session.store.look(set(keys.values()))
        unversioned = {
            uri: stored[key].content
            for uri, key in keys.items()
            if key in stored and stored[key].state is not ShardState.QUARANTINED
        }

        def named(content: Content) -> Content:
            before = unversioned.get(content.uri)
            return (
                content
                if before is None or is_other_version(content, before)
                else content._replace(shard_id=content.uri)
            )

        return (
            [announcement._replace(contents=tuple(map(named, announcement.contents))) for announcement in announced]
            if unversioned
            else announced
        )

    def _with_begun(self, announced: list[Announced]) -> list[Announced]:
        """Include objects that are begun already, whatever their age is by now: part of their rows would be missing."""
        session = self._session
        keys = {self._key(content.shard_id) for announcement in announced for content in announcement.left_out}
        if not keys:
            return announced
        if session.semantics.keeps_shards:
            begun = {key for key, shard in session.store.look(keys).items() if shard.state is ShardState.OPEN}
        else:
            begun = self._in_flight.awaited(keys)
        return [self._decided(announcement, begun) for announcement in announced]

    def _decided(self, announcement: Announced, begun: set[ShardKey]) -> Announced:
        going_on = tuple(content for content in announcement.left_out if self._key(content.shard_id) in begun)
        ignored = announcement.ignored + len(announcement.left_out) - len(going_on)
        return announcement._replace(contents=announcement.contents + going_on, ignored=ignored, left_out=())

    def _record(self, malformed: Sequence[Announced]) -> None:
        if malformed:
            options, names = self._session.options, self._session.names.queues
            errors = [announcement.error for announcement in malformed if announcement.error is not None]
            records = [replace(error, origin=names.get(error.queue, "")) for error in errors]
            self._session.store.record_errors(options.source, options.pipeline, records)
            self._error_log.of_messages(records)
            self._errors.forward()

    def _find(self, announced: Sequence[Announced]) -> dict[ShardKey, Shard]:
        """Return the shards of the announced contents; new ones are opened as ours."""
        session = self._session
        contents = [content for announcement in announced for content in announcement.contents]
        if not session.semantics.keeps_shards:
            return self._find_unkept(announced)
        return session.store.open_shards(session.token, session.options.source, contents) if contents else {}

    def _find_unkept(self, announced: Sequence[Announced]) -> dict[ShardKey, Shard]:
        """Build the shards where the store keeps none: each is new and ours, unless only its message was still awaited.

        A message without an id of its own cannot be distinguished from another that is equal.
        """
        keys = {
            self._key(content.shard_id): (announcement, content)
            for announcement in announced
            for content in announcement.contents
        }
        recalled = self._in_flight.recall_done(keys)
        return {
            key: Shard(
                key,
                content,
                BEGINNING,
                ShardState.DONE if key in recalled and announcement.message.has_id else ShardState.OPEN,
                self._session.token,
                stale=False,
            )
            for key, (announcement, content) in keys.items()
        }

    def _opened(self, announcement: Announced, shards: Mapping[ShardKey, Shard]) -> Opened:
        contents = {self._key(content.shard_id): content for content in announcement.contents}
        pending = {key: content for key, content in contents.items() if shards[key].state is ShardState.OPEN}
        return Opened(key_of(announcement.message), pending)

    def _key(self, shard_id: str) -> ShardKey:
        return shard_key(self._session.options.source, shard_id)

    def _count(self, announced: Sequence[Announced], shards: Mapping[ShardKey, Shard]) -> None:
        waited_for, token = self._in_flight.awaited(shards), self._session.token
        reopened = [shard for shard in shards.values() if shard.reopened]
        for shard in reopened[:_NAMED]:
            logger.info(
                "pipeline %s: %r is read again: nothing of it is published, and it was announced again",
                token,
                shard.content.uri,
            )
        changed = [shard for shard in shards.values() if shard.changed]
        for shard in changed[:_NAMED]:
            logger.warning(
                "pipeline %s: %r was announced in another version than the one that was read; it is not read again",
                token,
                shard.content.uri,
            )
        duplicates = sum(
            (shard.state is not ShardState.OPEN or key in waited_for or shard.token != token) and not shard.changed
            for key, shard in shards.items()
        )
        self._session.metrics.add(
            quarantined=sum(announcement.error is not None for announcement in announced),
            ignored=sum(announcement.ignored for announcement in announced),
            foreign=sum(announcement.foreign for announcement in announced),
            reopened=len(reopened),
            changed=len(changed),
            duplicates=sum(len(announcement.contents) for announcement in announced) - len(shards) + duplicates,
        )


_SHORT_WAIT = 0.2  # seconds of a receive while a caller waits for it


class _Cutoff:
    """Divides messages for AvailableNow into those of this run and of the next.

    This run leaves messages that were sent after its start (`since`), beyond the initial `depths`. Otherwise a queue
    that is written to all the time would never be empty. The depths, by queue, protect against clocks that disagree: as
    many messages as were there at the start are never left.
    """

    def __init__(self, since: float, depths: Counter[str]) -> None:
        self._since = since
        self._depths = depths
        self._lock = threading.Lock()

    def divide(self, messages: Sequence[Received]) -> tuple[list[Received], list[Received]]:
        """Divide the messages into those of this run, and those of the next."""
        kept: list[Received] = []
        late: list[Received] = []
        with self._lock:
            for message in messages:
                after = message.sent_at is not None and message.sent_at > self._since
                is_late = after and self._depths[message.queue] <= 0
                self._depths[message.queue] -= not is_late
                (late if is_late else kept).append(message)
        return kept, late


@dataclass
class Receivers:
    """Threads that take messages while there is room; each message's lease is kept from that moment on.

    `hurry` while a caller waits for the present messages: the queues are then polled with short waits. `clock` is that
    of the queues: seconds since 1970.
    """

    _session: Session
    _in_flight: InFlight
    _clock: Callable[[], float] = time.time
    _cutoff: _Cutoff | None = None
    hurry: bool = True

    @property
    def draining(self) -> bool:
        return self._cutoff is not None

    def start(self, threads: Threads) -> None:
        number = 0
        for name, queue in self._session.queues.items():
            for _ in range(self._session.options.queue.receive_threads):
                threads.start(f"receive-{number}", self._run, name, queue, number)
                number += 1

    def drain(self) -> None:
        """Ignore messages that are sent from now on, for AvailableNow.

        Only a receive that begins later proves a queue empty. Messages that a receive is bringing are in no count: none
        is under way meanwhile, where a queue can be counted.
        """
        session, in_flight = self._session, self._in_flight
        counted = {name: queue for name, queue in session.queues.items() if self._capabilities(queue).reports_depth}
        with in_flight.pausing(counted, until=session.stopping.is_set):
            if session.stopping.is_set():
                return
            depths = Counter({name: session.patiently(queue.depth).ready for name, queue in counted.items()})
            self._cutoff = _Cutoff(self._clock(), depths)
            in_flight.forget_proofs()

    def _capabilities(self, queue: Queue) -> Capabilities:
        """Return the queue's capabilities; some queues ask their service for them."""
        capabilities: Capabilities = self._session.patiently(getattr, queue, "capabilities")
        return capabilities

    def _run(self, name: str, queue: Queue, number: int) -> None:
        session, in_flight = self._session, self._in_flight
        capabilities = self._capabilities(queue)
        terms = terms_of(capabilities, session.lease, getattr(queue, "log_id_header", None))
        while not session.stopping.is_set():
            if self.hurry and not self.draining and capabilities.empty_is_certain and in_flight.proven_empty(name):
                # Spark announces AvailableNow soon after the start, and then needs one more receive
                in_flight.wait(_SHORT_WAIT, lambda: self.draining or session.stopping.is_set())
            receive = in_flight.begin_receive(name, number, capabilities.max_batch_size, 0.5)
            if receive is None:
                continue
            wait = self._wait_time(receive, capabilities)
            messages: list[Received] = session.patiently(queue.receive, receive.room, terms.period, wait)
            session.metrics.add(received=len(messages))
            self._end(receive, messages, terms)

    def _wait_time(self, receive: Receive, capabilities: Capabilities) -> float:
        longest = min(self._session.options.queue.wait_time.total_seconds(), capabilities.max_wait)
        if not (self.hurry or self.draining):
            return longest
        at_once = capabilities.empty_is_certain and not (self.draining and receive.empty)
        return 0.0 if at_once else min(longest, _SHORT_WAIT)

    def _end(self, receive: Receive, messages: Sequence[Received], terms: Terms) -> None:
        kept, late = (messages, []) if self._cutoff is None else self._cutoff.divide(messages)
        self._in_flight.end_receive(receive, kept, terms, late)
