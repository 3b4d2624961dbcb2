"""What goes on by itself: heartbeats, pruning, cleaning, and what is reported of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from queue_source.common.logs import tell_left_out
from queue_source.coordinator.acknowledging import Acknowledger
from queue_source.coordinator.errors import ErrorLog
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.opening import Ownership, PrefixWatch
from queue_source.coordinator.session import Session
from queue_source.errors import QueueError
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError, StoreUnavailable
from shard_store.model import MICROSECOND
from shard_store.redaction import redact_text
from shard_store.shards.activity import Report
from shard_store.upkeep.pruning import RetentionPolicy
from shard_store.upkeep.timing import LASTING

logger = logging.getLogger("cuesqueue")

_DEPTH_EVERY = 10.0  # seconds; a call to each queue's service
_RETRY = 30.0  # seconds, at most, after a failure


class _Task(NamedTuple):
    """A task to repeat: `work` returns True when it continues at once; else it runs again after `every` seconds.

    Or after `pause_factor` times as long as it took: counting a queue of millions must not keep its database busy.
    """

    name: str
    work: Callable[[], bool | None]
    every: float
    pause_factor: float = 0.0


class Maintenance:
    """Runs the tasks on one thread, and reports what the reader does.

    Failures are logged, counted (`maintenanceFailures`) and tried again; they end no query. Only a newer incarnation
    (PipelineTakenOver) does, or a store that went back in time (LostProgress). `before`: the counters that the
    incarnations before this one have reported, which go on from there. Errors by cause are not among them: the store
    counts those itself, when they are final.
    """

    def __init__(
        self,
        session: Session,
        in_flight: InFlight,
        ownership: Ownership,
        acknowledger: Acknowledger,
        error_log: ErrorLog,
        prefixes: PrefixWatch,
        before: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._session = session
        self._in_flight = in_flight
        self._ownership = ownership
        self._acknowledger = acknowledger
        self._error_log = error_log
        self._prefixes = prefixes
        self._before = before
        self._pruning = False
        self._clock_is_ahead = False
        # of all queues that report it, at the last count; None: unknown
        self.depth: int | None = None
        self._elsewhere: int | None = None  # in flight, and not ours

    def run(self) -> None:
        session, in_flight, ownership = self._session, self._in_flight, self._ownership

        def take_abandoned() -> None:
            if in_flight.wait_for_listed(0.0):
                ownership.take_abandoned()

        def make_room() -> None:
            if idle := in_flight.make_room():
                self._acknowledger.nack(idle, session.stale_after)

        def tell_what_is_left_out() -> None:
            self._error_log.flush()
            tell_left_out()

        tasks = (
            # in one statement: finished ones end their messages, stale ones are acquired
            _Task("the shards of other pipelines", lambda: ownership.get_again(in_flight.foreign()), session.heartbeat),
            _Task("shards to be read anew", ownership.get_renewed, session.heartbeat),
            _Task("shards of listings", take_abandoned, session.heartbeat),
            _Task("room for new messages", make_room, session.heartbeat),
            _Task("pruning", self._prune, self._prune_every),
            _Task("the depth of the queues", self._get_depth, _DEPTH_EVERY, pause_factor=20.0),
            _Task("the log of errors", tell_what_is_left_out, session.heartbeat),
        )
        due = dict.fromkeys(tasks, session.clock())
        while not session.stopping.wait(self._slice):
            for task in tasks:
                began = session.clock()
                if began < due[task]:
                    continue
                try:
                    pause = 0.0 if task.work() else max(task.every, task.pause_factor * (session.clock() - began))
                except (PipelineTakenOver, LostProgress):
                    raise
                except (QueueError, ShardStoreError) as error:
                    session.metrics.add(maintenanceFailures=1)
                    logger.warning("pipeline %s: %s: %s; it is tried again", session.token, task.name, error)
                    pause = min(task.every, _RETRY)
                due[task] = began + pause

    def report(self, *, stopped: bool = False, failure: BaseException | None = None) -> Report:
        """Return what the reader holds and has done, for the store. `failure`: what has ended it."""
        counts = self._in_flight.counts()
        now = {name: count for name, count in self._session.metrics.snapshot().items() if isinstance(count, int)}
        return Report(
            in_flight=counts.in_flight,
            ready=counts.ready,
            awaiting_commit=counts.planned,
            held=counts.held,
            depth=self.depth,
            counters={name: now.get(name, 0) + self._before.get(name, 0) for name in {**self._before, **now}},
            stopped=stopped,
            intake=self._prefixes.intake,
            window=self._session.options.deduplication.deduplication_window // MICROSECOND,
            waits=self._ownership.waits,
            elsewhere=self._elsewhere,
            failure=None if failure is None else redact_text(str(failure) or type(failure).__name__),
        )

    @property
    def _slice(self) -> float:
        """Seconds between two rounds, and for one slice of long work."""
        return min(1.0, self._session.heartbeat / 2)

    @property
    def _prune_every(self) -> float:
        return self._session.options.deduplication.prune_interval.total_seconds()

    def _prune(self) -> bool:
        """Prune for one slice of time. Of all pipelines of the source one wins each interval, by a row of the store."""
        session, kept = self._session, self._session.options.deduplication
        source = session.options.source
        if not self._pruning:
            self._pruning = session.store.win_interval(f"prune {source}", self._prune_every)
        if self._pruning:
            policy = RetentionPolicy(kept.deduplication_window, kept.deduplication_max_shards, source)
            result = session.store.prune(policy, time_out=self._slice)
            self._pruning = result.timed_out
            session.metrics.add(pruned=result.shards)
            if result.ahead is not None and not self._clock_is_ahead:  # once for each jump
                logger.warning(
                    "source %s: the store's clock is %s ahead of the last pruning; nothing is forgotten by it, and no "
                    "object cleaned, before it has been so for %s",
                    source,
                    result.ahead,  # it may only be the time for which nothing has run
                    LASTING,
                )
            self._clock_is_ahead = result.ahead is not None
            if result.total:
                logger.info("source %s: %s", source, result)
        return self._pruning

    def _get_depth(self) -> None:
        self.depth = self._elsewhere = None
        if self._session.options.queue.from_store:
            self.depth = self._session.store.count_waiting(self._session.options.source)
            return
        queues = [queue for queue in self._session.queues.values() if queue.capabilities.reports_depth]
        depths = [queue.depth() for queue in queues]
        if queues:
            self.depth = sum(depth.ready for depth in depths)
        # where a connection ends what is in flight, a queue counts what this one holds
        if queues and all(queue.capabilities.ends_leases for queue in queues):
            in_flight = sum(depth.in_flight for depth in depths)
            self._elsewhere = max(0, in_flight - self._in_flight.counts().in_flight)


_BEAT_AGAIN = 1.0  # seconds


def send_heartbeats(session: Session, started: float, report: Callable[[], Report | None] = lambda: None) -> None:
    """Report that this reader lives, and what it holds. `started`: the clock's time when the store began it.

    Raises PipelineTakenOver when a newer incarnation runs: the query then stops. While the store is unavailable it
    tries again until the moment at which others may take our shards over, and raises StoreUnavailable then.
    """
    fresh_until = started + session.stale_after
    pause = session.heartbeat
    while not session.stopping.wait(pause):
        asked = session.clock()
        try:
            session.store.heartbeat(session.token, session.stale_after, report())
        except StoreUnavailable as error:
            if session.clock() >= fresh_until:
                raise
            logger.warning("pipeline %s: a heartbeat failed and is tried again: %s", session.token, error)
            pause = min(_BEAT_AGAIN, session.heartbeat)
        else:
            fresh_until = asked + session.stale_after
            pause = session.heartbeat
