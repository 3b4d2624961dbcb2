"""From received messages to shards that are ready: receiving on threads, opening what is announced, and ownership."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from queue_source.announcements.contents import (
    OUTSIDE_PREFIXES,
    Announced,
    Stat,
    announced_messages,
    announced_objects,
    looked_up,
    with_facts,
    with_separate_shards,
)
from queue_source.coordinator.errors import PERIOD, ErrorLog, ErrorQueue
from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.ready import Receive, may_come_in_pieces
from queue_source.coordinator.session import Session, Threads
from queue_source.coordinator.sizes import Sizes
from queue_source.messages import Received, key_of
from queue_source.queues.base import Capabilities, Queue
from queue_source.queues.leases import Terms, terms_of
from shard_store.batches.takeover import Look
from shard_store.model import BEGINNING, STORE, Content, Shard, ShardKey, ShardState, shard_key
from shard_store.shards.activity import Intake
from shard_store.shards.announcing import is_other_version
from shard_store.sql.database import ROWS_PER_STATEMENT

logger = logging.getLogger("cuesqueue")

_SHORT_WAIT = 0.2  # seconds of a receive while a caller waits for it
_NAMED = 10  # objects of a batch of messages that are logged by name
_ABANDONED = 1000  # shards of stopped pipelines that are taken over at a time


@dataclass
class Receivers:
    """Threads that take messages while there is room; each message's lease is kept from that moment on.

    `hurry` while a caller waits for the present messages: the queues are then polled with short waits. `clock` is that
    of the queues: seconds since 1970. `draining` (AvailableNow) leaves to the next run what was sent `_since` its
    start, beyond the number of messages that were there: a queue that is written to all the time would never be empty,
    and clocks may disagree.
    """

    _session: Session
    _in_flight: InFlight
    _clock: Callable[[], float] = time.time
    hurry: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _since: float | None = None
    _depths: Counter[str] = field(default_factory=Counter)

    @property
    def draining(self) -> bool:
        return self._since is not None

    def start(self, threads: Threads) -> None:
        number = 0
        for name, queue in self._session.queues.items():
            for _ in range(self._session.options.queue.receive_threads):
                threads.start(f"receive-{number}", self._receive, name, queue, number)
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
            with self._lock:
                self._depths, self._since = depths, self._clock()
            in_flight.forget_proofs()

    def hold(self, receive: Receive, messages: Sequence[Received], terms: Terms) -> None:
        """Hold the messages that a receive has brought; with AvailableNow those of the next run wait for it."""
        kept: list[Received] = []
        late: list[Received] = []
        with self._lock:
            for message in messages:
                after = self._since is not None and message.sent_at is not None and message.sent_at > self._since
                is_late = after and self._depths[message.queue] <= 0
                self._depths[message.queue] -= not is_late
                (late if is_late else kept).append(message)
        self._in_flight.end_receive(receive, kept, terms, late)

    def _capabilities(self, queue: Queue) -> Capabilities:
        """Return the queue's capabilities; some queues ask their service for them."""
        capabilities: Capabilities = self._session.patiently(getattr, queue, "capabilities")
        return capabilities

    def _receive(self, name: str, queue: Queue, number: int) -> None:
        session, in_flight = self._session, self._in_flight
        capabilities = self._capabilities(queue)
        terms = terms_of(capabilities, session.lease, getattr(queue, "log_id_header", None))
        longest = min(session.options.queue.wait_time.total_seconds(), capabilities.max_wait)
        while not session.stopping.is_set():
            if self.hurry and not self.draining and capabilities.empty_is_certain and in_flight.proven_empty(name):
                # Spark announces AvailableNow soon after the start, and then needs one more receive
                in_flight.wait(_SHORT_WAIT, lambda: self.draining or session.stopping.is_set())
            receive = in_flight.begin_receive(name, number, capabilities.max_batch_size, 0.5)
            if receive is None:
                continue
            wait = longest
            if self.hurry or self.draining:
                at_once = capabilities.empty_is_certain and not (self.draining and receive.empty)
                wait = 0.0 if at_once else min(longest, _SHORT_WAIT)
            messages: list[Received] = session.patiently(queue.receive, receive.room, terms.period, wait)
            session.metrics.add(received=len(messages))
            self.hold(receive, messages, terms)


@dataclass
class Opener:
    """Opens up to 1,000 messages in a transaction, all their shards in one statement."""

    _session: Session
    _stat: Stat
    _sizes: Sizes
    _in_flight: InFlight
    _ownership: Ownership
    _errors: ErrorQueue
    _error_log: ErrorLog
    _prefixes: PrefixWatch

    def run(self) -> None:
        while not self._session.stopping.is_set():
            self.open(ROWS_PER_STATEMENT, 0.5)

    def open(self, most: int, seconds: float) -> None:
        """Open the next messages, and wait up to `seconds` for the first.

        What they announce is parsed, errors are recorded, shards are opened, and each message waits for its own.
        """
        session, in_flight = self._session, self._in_flight
        messages = in_flight.begin_opening(most, seconds)
        if not messages:
            return
        received = self._parse(messages)
        announced = self._with_begun(received)
        if bad := [announcement.error for announcement in announced if announcement.error is not None]:
            records = [replace(error, origin=session.names.queues.get(error.queue, "")) for error in bad]
            session.store.record_errors(session.options.source, session.options.pipeline, records)
            self._error_log.of_messages(records)
            self._errors.forward()
        self._prefixes.count(received)
        contents = [content for announcement in announced for content in announcement.contents]
        if not session.semantics.keeps_shards:
            look, shards = in_flight.look(), self._find_unkept(announced)
        else:  # new ones are ours
            look = in_flight.look()
            shards = session.store.open_shards(session.token, session.options.source, contents) if contents else {}
        self._count(announced, shards)
        opened = []
        for announcement in announced:
            waits_for = {self._key(content.shard_id): content for content in announcement.contents}
            pending = {key: content for key, content in waits_for.items() if shards[key].state is ShardState.OPEN}
            opened.append(Opened(key_of(announcement.message), pending))
        in_flight.announce(opened)
        self._ownership.resolve(shards.values(), look)
        in_flight.end_opening()

    def _parse(self, messages: Sequence[Received]) -> list[Announced]:
        options, queue_names = self._session.options, self._session.names.queues
        if options.content.kind.is_announced:
            in_pieces = partial(may_come_in_pieces, options)
            announced = announced_objects(
                messages, options.notifications, self._stat, in_pieces=in_pieces, sizes=not self._sizes.spares
            )
            announced = self._with_sizes(announced)
        else:
            announced = announced_messages(messages, options.notifications, queue_names)
        if not self._session.semantics.keeps_shards:
            announced = [with_separate_shards(announcement, queue_names) for announcement in announced]
        if self._session.names.versionless:
            announced = self._without_versions(announced)
        return announced

    def _with_sizes(self, announced: list[Announced]) -> list[Announced]:
        """Look up objects of unknown size, unless they are spared.

        Those that were announced before are not: their versions tell what is new.
        """
        unsized = {c.uri: self._key(c.shard_id) for a in announced for c in a.contents if c.size is None}
        if not unsized or not self._sizes.spares:
            return announced
        stored = self._session.store.look(unsized.values())
        stated = self._sizes.stat(unsized, {uri for uri, key in unsized.items() if key in stored})
        return [a._replace(contents=tuple(with_facts(c, stated.get(c.uri)) for c in a.contents)) for a in announced]

    def _without_versions(self, announced: list[Announced]) -> list[Announced]:
        """Keep the URI as the id of objects that were begun before `allowOverwrites` was set.

        Only another version of them is a new shard.
        """
        uris = {c.uri for announcement in announced for c in announcement.contents if c.shard_id != c.uri}
        keys = {uri: self._key(uri) for uri in uris}
        stored = self._session.store.look(set(keys.values()))
        unversioned = {
            uri: stored[key].content
            for uri, key in keys.items()
            if key in stored and stored[key].state is not ShardState.QUARANTINED
        }

        def named(content: Content) -> Content:
            before = unversioned.get(content.uri)
            if before is None or is_other_version(content, before):
                return content
            return content._replace(shard_id=content.uri)

        return [announcement._replace(contents=tuple(map(named, announcement.contents))) for announcement in announced]

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
        decided = []
        for announcement in announced:
            left_out = announcement.left_out
            going_on = tuple(content for content in left_out if self._key(content.shard_id) in begun)
            ignored = announcement.ignored + len(left_out) - len(going_on)
            decided.append(
                announcement._replace(contents=announcement.contents + going_on, ignored=ignored, left_out=())
            )
        return decided

    def _find_unkept(self, announced: Sequence[Announced]) -> dict[ShardKey, Shard]:
        """Build the shards where the store keeps none: each is new and ours, unless only its message was still awaited.

        A message without an id of its own cannot be distinguished from another that is equal.
        """
        by_key = {
            self._key(content.shard_id): (announcement.message.has_id, content)
            for announcement in announced
            for content in announcement.contents
        }
        recalled, token = self._in_flight.recall_done(by_key), self._session.token
        return {
            key: Shard(
                key,
                content,
                BEGINNING,
                ShardState.DONE if key in recalled and has_id else ShardState.OPEN,
                token,
                stale=False,
            )
            for key, (has_id, content) in by_key.items()
        }

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


@dataclass
class Ownership:
    """Routes shards. Finished: its messages are acknowledged. Ours: ready. Stale: acquired. Another's: watched.

    Any thread may call it.
    """

    _session: Session
    _in_flight: InFlight
    _stat: Stat
    sizes: Sizes
    _look: Look = lambda stopped: "its reader does not know how to look there"
    _acquiring: threading.Lock = field(default_factory=threading.Lock)
    _has_taken: bool = False  # what stopped pipelines have left
    waits: Mapping[str, str] = field(default_factory=dict)  # stopped pipelines, and why none takes their shards

    def resolve(self, shards: Iterable[Shard], look: int) -> None:
        """Route these shards, as this look at the store has found them (`InFlight.look`).

        Raises ShardStoreError when stale ones cannot be acquired; then they are watched.
        """
        finished: list[ShardKey] = []
        ours: list[Shard] = []
        others: list[Shard] = []
        for shard in shards:
            if shard.state is not ShardState.OPEN:
                finished.append(shard.key)
            else:
                (ours if shard.token == self._session.token else others).append(shard)
        self._in_flight.watch(others, look)  # first: a shard of ours in an ordered group may have to wait for them
        self._offer(ours)
        self.finish(finished, look)
        if not (stale := self._settled({shard.key: shard for shard in others if shard.stale})):
            return
        token, store = self._session.token, self._session.store
        with self._acquiring:  # two threads may have seen the same shards: they count once
            before = {key for key, shard in store.look(list(stale)).items() if shard.token == token}
            won = store.acquire(token, {key: shard.token for key, shard in stale.items()})
        # what a receiver has recorded is taken from no one, and found again by the next look at the store
        recorded = {key for key, shard in stale.items() if shard.token is None and shard.content.queue == STORE}
        if acquired := len(won - before - recorded):
            self._session.metrics.add(acquired=acquired)
            logger.info("pipeline %s: acquired %d shard(s) whose owner's heartbeats stopped", token, acquired)
        self._offer(shard for key, shard in stale.items() if key in won)
        lost = [shard for key, shard in stale.items() if key not in won and key not in recorded]
        # taken by another pipeline, or pruned just now, unread: then it is new
        if free := [shard.content for shard in lost if shard.token is None]:
            look = self._in_flight.look()
            self.resolve(store.open_shards(token, self._session.options.source, free).values(), look)

    def finish(self, keys: Iterable[ShardKey], look: int) -> None:
        """Note that shards were finished when the store was looked at; those that may be open since are resolved."""
        self.get_again(self._in_flight.finish(keys, look).again)

    def _settled(self, stale: Mapping[ShardKey, Shard]) -> Mapping[ShardKey, Shard]:
        """Leave out the shards of stopped pipelines of which nothing tells whether their last batch is in a target."""
        owners = {key: shard.token.pipeline for key, shard in stale.items() if shard.token is not None}
        if not owners:
            return stale
        session = self._session
        waits = session.store.settle(
            sorted({*owners.values()}),
            self._look,
            repeats=session.options.delivery.on_unknown_takeover == "repeat",
        )
        for pipeline, why in waits.items():
            logger.warning("pipeline %s: waits for objects of pipeline %s: %s", session.token, pipeline, why)
        others = {pipeline: why for pipeline, why in self.waits.items() if pipeline not in owners.values()}
        self.waits = {**others, **waits}
        return {key: shard for key, shard in stale.items() if owners.get(key) not in waits}

    def get_again(self, keys: Sequence[ShardKey]) -> None:
        """Resolve shards as they are in the store now. Those that are missing there were finished, and pruned since."""
        if not keys:
            return
        session, look = self._session, self._in_flight.look()
        shards = session.store.look(keys)
        self.resolve(shards.values(), look)
        if missing := [key for key in keys if key not in shards]:
            # in an emptied store everything is missing: then this raises PipelineTakenOver
            session.store.heartbeat(session.token, session.stale_after)
            self.finish(missing, look)

    def get_renewed(self) -> None:
        """Resolve shards that no message announces to us.

        They were reopened by an operator, or by a newer version that was announced to another pipeline.
        """
        if self._session.semantics.keeps_shards:
            look = self._in_flight.look()
            self.resolve(self._session.store.renewed(self._session.token).values(), look)

    def take_abandoned(self) -> bool:
        """Take over shards that stopped pipelines opened by listing: no message leads to them. True: there may be more.

        Also a reader that no longer lists does so once: an earlier run of it may have left some.
        """
        session, shards = self._session, []
        if session.semantics.keeps_shards and (session.options.backfill.prefixes or not self._has_taken):
            look = self._in_flight.look()
            shards = session.store.abandoned(session.options.source, _ABANDONED)
            self.resolve(shards, look)
        self._has_taken = len(shards) < _ABANDONED
        return not self._has_taken

    def with_facts(self, shards: Sequence[Shard]) -> list[Shard]:
        """Give shards the facts that the store lacks, and leave out what only rows of references need."""
        options, contents = self._session.options, [shard.content for shard in shards]
        if options.content.kind.is_announced:
            if not options.notifications.by_reference:  # first, since the version of a reference is not looked up
                contents = [c if c.reference is None else c._replace(reference=None) for c in contents]
            in_pieces = partial(may_come_in_pieces, options)
            contents = list(looked_up(contents, self._stat, in_pieces, sizes=not self.sizes.spares))
            if unsized := [content.uri for content in contents if content.size is None and self.sizes.spares]:
                begun = {shard.content.uri for shard in shards if shard.position != BEGINNING}  # so it is in pieces
                stated = self.sizes.stat(unsized, begun)
                contents = [with_facts(content, stated.get(content.uri)) for content in contents]
        both = zip(shards, contents, strict=True)
        return [shard if shard.content is content else shard._replace(content=content) for shard, content in both]

    def _offer(self, ours: Iterable[Shard]) -> None:
        """Offer shards, and release those whose message has gone: the next pipeline that gets it would wait for us."""
        shards = self.with_facts(list(ours))
        if released := self._in_flight.offer(shards, self.sizes.usual_of([shard.content for shard in shards])):
            self._session.store.release(self._session.token, released)


WINDOW = 3600.0
"""Seconds. What came in this one and the one before counts; a time in which nothing comes is none."""


class PrefixWatch:
    """Counts the recent messages, on the opener's thread; others read the counts.

    `before` is what the incarnation before has reported. It counts until something comes to this one, since a query
    that runs now and then ends before the next message; from then on only if the prefixes are the `same`.
    """

    def __init__(self, session: Session, before: Intake, *, same: bool = False) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._windows = [before, Intake()]
        self._same = same
        self._began: float | None = None  # of the newer window; None: no message has come to this reader
        self._told: float | None = None

    @property
    def intake(self) -> Intake:
        with self._lock:
            return self._windows[0] + self._windows[1]

    def count(self, announced: Sequence[Announced]) -> None:
        """Count these messages. While all of them are refused, log that once a minute."""
        outside = [
            announcement.error
            for announcement in announced
            if announcement.error is not None and announcement.error.cause == OUTSIDE_PREFIXES
        ]
        came = Intake(
            sum(bool(announcement.contents or announcement.left_out) for announcement in announced), len(outside)
        )
        if not came:
            return
        now = self._session.clock()
        with self._lock:
            if self._began is None or now - self._began >= WINDOW:
                older = self._windows[1] if self._began is not None else self._windows[0] if self._same else Intake()
                self._windows = [older, Intake()]
                self._began = now
            self._windows[1] += came
            lately = self._windows[0] + self._windows[1]
            due = self._told is None or now - self._told >= PERIOD
            if not (outside and lately.all_outside and due):
                return
            self._told = now
        logger.error(
            "pipeline %s: nothing is read: all %d message(s) that came lately announce objects outside of "
            "allowedPrefixes; %s",
            self._session.token,
            lately.all_outside,
            outside[0].detail,
        )
