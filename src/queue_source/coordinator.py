"""The reader process's engine: receives ahead, opens shards, hands out snapshots, confirms, acknowledges.

    receivers (threads) -> inbox -> opener (thread) -> tracker <- latest / plan / confirm (Spark's calls)
    lease keeper (thread): visibility extensions          housekeeper (thread): heartbeats, foreign shards, pruning

Any failure on a thread stops the coordinator and is raised by Spark's next call (invariant 8).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import tenacity

from queue_source.errors import QueueError, QueueUnavailable
from queue_source.intake import Intake, Stat, take_in
from queue_source.leases import LeaseKeeper, MessageKey, by_queue, key_of
from queue_source.messages import Received
from queue_source.metrics import Metrics
from queue_source.options import ReaderOptions
from queue_source.queues.base import Queue
from queue_source.tracking import Tracker
from shard_store.database import ROWS_PER_STATEMENT
from shard_store.errors import LostProgress, ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import Plan, PublishToken, Shard, ShardKey, ShardState, Snapshot, shard_key
from shard_store.prune import RetentionPolicy
from shard_store.store import ShardStore

logger = logging.getLogger("cuesqueue")

_TAKEOVER_PAUSE = 2.0  # see start(): longer than any planning of a micro-batch stands still in a live driver
_SHORT_WAIT = 0.2  # of a receive that somebody waits for
_FIRST_GATHER = 10.0
_STOP_PATIENCE = 5.0


class Coordinator:
    """One running pipeline of a source. Spark's calls come from one thread, one at a time.

    `queues` by name, `store` already open: both are closed by `stop`. `driver` identifies the driver that runs us.
    """

    def __init__(
        self,
        options: ReaderOptions,
        store: ShardStore,
        queues: Mapping[str, Queue],
        stat: Stat,
        *,
        driver: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._store = store
        self._queues = queues
        self._stat = stat
        self._driver = driver
        self._clock = clock
        self._lease = options.leases.visibility_timeout.total_seconds()
        self._stale_after = 2 * options.leases.commit_timeout.total_seconds()
        self._heartbeat = options.leases.heartbeat.total_seconds()
        self.metrics = Metrics()
        self._leases = LeaseKeeper(queues, self._lease, self._lost_leases, clock)
        self._changed = threading.Condition()  # guards everything below
        self._tracker = Tracker()
        self._inbox: deque[Received] = deque()
        self._opening = 0  # messages that the opener works on
        self._aside: list[MessageKey] = []  # AvailableNow: newer than its start, given back at the end
        self._emptied: dict[int, bool] = {}  # receiver -> its last receive since `_round` brought nothing
        self._round = 0
        self._drain_until: float | None = None  # AvailableNow: wall-clock seconds of its start
        self._drain_depth = 0
        self._gathered = False
        self._fatal: BaseException | None = None
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._token: PublishToken
        self._confirmed = 0
        self._last_seq = 0
        self._planned_end: int | None = None
        self._reoffered: int | None = None

    # Spark's calls

    def start(self) -> None:
        """Start-up recovery (design.md section 2), then the threads. Idempotent over process deaths."""
        started = self._store.start(
            self._options.source, self._options.pipeline, driver=self._driver, stale_after=self._stale_after
        )
        self._token = started.token
        if started.previous_alive:
            # Another query of this driver may be between its plan and its sink's planning, where it would find ours.
            # From here on it finds neither, and fails; we plan only after it had the time to.
            self._stopping.wait(_TAKEOVER_PAUSE)
        self._confirmed, self._last_seq = started.confirmed_seq, started.last_seq
        now = self._clock()
        for snapshot in started.unconfirmed:
            self._tracker.plan(snapshot)
        for shard in reversed(started.unfinished):
            self._tracker.offer(shard, now, first=True)
        number = 0
        for queue in self._queues.values():
            for _ in range(self._options.queue.receive_threads):
                self._emptied[number] = False
                self._spawn(f"cuesqueue-receive-{number}", self._receive, queue, number)
                number += 1
        self._spawn("cuesqueue-open", self._open)
        self._spawn("cuesqueue-leases", self._leases.run, self._stopping)
        self._spawn("cuesqueue-housekeeping", self._keep_house)

    def check(self) -> None:
        """Raise what has ended us, if anything has."""
        self._check()

    def latest(self, start: int | None) -> int:
        """The offset up to which there is work (Spark's latestOffset). `start`: all up to it is done; None on 4.0/4.1.

        Without new shards it is `start`, or the last offset again.
        """
        self._check()
        if start is not None and start > self._last_seq:
            self._adopt(start)
        done = self._done_by_order() if start is None else start
        if self._last_seq > max(done, self._confirmed):
            self._confirm(done)
            self._reoffered = self._last_seq
            return self._last_seq
        if self._must_gather():
            self._confirm(done)
            self._gather()
        batches = self._options.batches
        with self._changed:
            ranges = self._tracker.take(batches.max_files_per_trigger, batches.max_bytes_per_trigger)
        if not ranges:
            self._confirm(done)
            return self._last_seq if start is None else start
        snapshot = Snapshot(self._last_seq + 1, tuple(ranges))
        self._confirm(done, snapshot)
        return snapshot.seq

    def plan(self, start: int, end: int) -> Plan:
        """The plan of one micro-batch; Spark's call proves that everything up to `start` is done."""
        self._check()
        reach("offset-logged")
        if end > self._last_seq or start > self._last_seq:
            self._adopt(max(start, end))
        self._confirm(start)
        plan = self._store.plan(self._token, start, end)
        self._planned_end = end
        if plan.lost:
            self.metrics.add(lostShards=len(plan.lost))
            logger.warning("pipeline %s: %d shard(s) passed to another pipeline", self._token, len(plan.lost))
        reach("plan-made")
        return plan

    def confirm(self, end: int) -> None:
        """Spark says that everything up to `end` is done."""
        self._check()
        self._confirm(end)

    def drain(self) -> None:
        """AvailableNow: take what is there now, and end. Later messages are left for the next run."""
        self._check()
        depth = sum(queue.depth().ready for queue in self._queues.values())
        with self._changed:
            self._drain_until = time.time()
            self._drain_depth = depth
            self._start_round()

    def report(self) -> dict[str, int | str]:
        """Counters for the query's progress."""
        with self._changed:
            state = {
                "ready": len(self._tracker.ready),
                "inFlight": self._in_flight(),
                "awaitingCommit": len(self._tracker.planned),
                "held": len(self._tracker.foreign),
            }
        return {"pipeline": self._options.pipeline, "seq": self._last_seq, **state, **self.metrics.snapshot()}

    def stop(self) -> None:
        """A graceful end: what is in no plan becomes visible at once, what is planned gets a last extension."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_STOP_PATIENCE)
        try:
            self._let_go()
        finally:
            for queue in self._queues.values():
                queue.close()
            self._store.close()

    # confirming

    def _done_by_order(self) -> int:
        """Spark 4.0 and 4.1 do not say what is done, but a further latestOffset comes only after the batch before.

        An old snapshot that was offered again and not planned since is one that Spark had already finished.
        """
        if self._planned_end is not None:
            return self._planned_end
        return self._reoffered if self._reoffered is not None else self._confirmed

    def _confirm(self, seq: int, snapshot: Snapshot | None = None) -> None:
        """Make everything up to `seq` final and `snapshot` durable, in one transaction; then acknowledge."""
        if seq <= self._confirmed and snapshot is None:
            return
        with self._changed:
            keys = self._tracker.keys_until(seq)
        confirmed = self._store.advance(
            self._token,
            confirm=seq if seq > self._confirmed else None,
            keys=keys,
            snapshot=None if snapshot is None else (snapshot.seq, snapshot.ranges),
        )
        with self._changed:
            if snapshot is not None:
                self._tracker.plan(snapshot)
                self._last_seq = snapshot.seq
        if snapshot is not None:
            reach("snapshot-written")
        if seq > self._confirmed:
            self._confirmed = seq
            if confirmed.lost:
                self.metrics.add(lostShards=len(confirmed.lost))
                logger.error(
                    "pipeline %s: %d shard(s) passed to another pipeline while their batch ran; with a sink that is "
                    "not cuesqueue's their rows may be published twice; raise 'commitTimeout'",
                    self._token,
                    len(confirmed.lost),
                )
            self._settle(seq, confirmed.finished)

    def _settle(self, seq: int, finished: frozenset[ShardKey]) -> None:
        reach("confirmed")
        with self._changed:
            keys = self._tracker.settle(seq)
            complete = self._tracker.finish(finished)
        self._acknowledge(complete)
        reach("acknowledged")
        unfinished = [key for key in keys if key not in finished]
        if unfinished:  # lost to another pipeline, or to be continued
            self._route(self._store.look(unfinished).values())

    def _adopt(self, seq: int) -> None:
        """Spark knows an offset that the store never gave."""
        if self._options.delivery.fail_on_data_loss:
            raise LostProgress(
                f"pipeline {self._options.pipeline!r}: the checkpoint is at offset {seq}, but the store "
                f"{self._options.store} knows offsets only up to {self._last_seq}: the store was lost or exchanged "
                "under a live checkpoint; restore the store, or name the right one in option 'store', or set "
                "'failOnDataLoss' to false to go on without what is missing"
            )
        logger.warning("pipeline %s: the store knows nothing of offset %d, going on after it", self._token, seq)
        self._store.adopt_offset(self._token, seq)
        with self._changed:
            keys = self._tracker.settle(seq)
        self._confirmed = self._last_seq = seq
        self._route(self._store.look(keys).values())

    def _acknowledge(self, keys: Sequence[MessageKey]) -> None:
        """Delete the messages for good. Never tried again: redelivery is the retry, and finds the shards at EOF."""
        for queue, receipts in by_queue(keys).items():
            try:
                stale = self._queues[queue].acknowledge(receipts)
            except QueueUnavailable as error:
                self.metrics.add(acknowledgeFailures=len(receipts))
                logger.warning("%s; %d messages will be delivered again", error, len(receipts))
            else:
                self.metrics.add(acknowledged=len(receipts) - len(stale), lostLeases=len(stale))
        self._leases.stop(keys)
        with self._changed:
            self._tracker.drop(keys)
            self._changed.notify_all()

    # receiving

    def _receive(self, queue: Queue, number: int) -> None:
        """A receiver thread: takes messages while there is room in the holding pen."""
        most = min(queue.capabilities.largest_batch, self._options.queue.max_in_flight_messages)
        receive = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(QueueUnavailable),
            wait=tenacity.wait_random_exponential(multiplier=1.0, max=30.0),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(6), tenacity.stop_when_event_set(self._stopping)),
            sleep=tenacity.sleep_using_event(self._stopping),
            reraise=True,
        )
        while not self._stopping.is_set():
            with self._changed:
                room = min(most, self._options.queue.max_in_flight_messages - self._in_flight())
                if room <= 0:
                    self._changed.wait(0.5)
                    continue
                began = self._round
                wait = _SHORT_WAIT if self._hurried() else self._options.queue.wait_time.total_seconds()
            messages = receive(queue.receive, room, self._lease, wait)
            self._leases.hold(messages)
            with self._changed:
                if began == self._round:
                    self._emptied[number] = not messages
                self._inbox.extend(messages)
                self._changed.notify_all()
            self.metrics.add(received=len(messages))

    def _hurried(self) -> bool:
        """Somebody waits for this receive: the first latestOffset, or AvailableNow."""
        return not self._gathered or self._drain_until is not None

    def _in_flight(self) -> int:
        return len(self._tracker.messages) + len(self._inbox) + self._opening + len(self._aside)

    def _open(self) -> None:
        """The opener thread: turns the inbox into shards, up to 1,000 messages a transaction."""
        while not self._stopping.is_set():
            with self._changed:
                while not self._inbox and not self._stopping.is_set():
                    self._changed.wait(0.5)
                messages = [self._inbox.popleft() for _ in range(min(len(self._inbox), ROWS_PER_STATEMENT))]
                self._opening = len(messages)
            try:
                self._open_messages(self._put_aside(messages))
            finally:
                with self._changed:
                    self._opening = 0
                    self._changed.notify_all()

    def _put_aside(self, messages: Sequence[Received]) -> Sequence[Received]:
        """AvailableNow leaves what was sent after its start; what was there by count is never left."""
        until = self._drain_until
        if until is None:
            return messages
        kept: list[Received] = []
        for message in messages:
            if self._drain_depth <= 0 and message.sent_at is not None and message.sent_at > until:
                with self._changed:
                    self._aside.append(key_of(message))
            else:
                self._drain_depth -= 1
                kept.append(message)
        return kept

    def _open_messages(self, messages: Sequence[Received]) -> None:
        """Parse, quarantine, open, and hang each message on what it announced."""
        intake = take_in(messages, self._options.notifications, self._stat)
        self._store.record_errors(self._options.source, self._options.pipeline, list(intake.errors.values()))
        source = self._options.source
        contents = [content for some in intake.contents.values() for content in some]
        found = self._store.open_shards(self._token, source, contents) if contents else {}
        self._count(intake, contents, found)
        complete = [key_of(messages[place]) for place in (*intake.errors, *intake.ignored)]
        now = self._clock()
        with self._changed:
            for place, announced in intake.contents.items():
                message = key_of(messages[place])
                keys = {shard_key(source, content.shard_id) for content in announced}
                pending = {key for key in keys if found[key].state is ShardState.OPEN}
                self._tracker.hang(message, pending, now)
                if not pending:
                    complete.append(message)
        self._route(found.values())
        self._acknowledge(complete)

    def _count(self, intake: Intake, contents: Sequence[object], found: Mapping[ShardKey, Shard]) -> None:
        with self._changed:
            known = sum(
                1
                for key, shard in found.items()
                if shard.state is not ShardState.OPEN or key in self._tracker.waiting or shard.token != self._token
            )
        self.metrics.add(
            quarantined=len(intake.errors),
            ignored=intake.ignored_records,
            duplicates=len(contents) - len(found) + known,
        )

    def _route(self, shards: Iterable[Shard]) -> None:
        """Decide by owner and position (design.md section 4)."""
        stale: dict[ShardKey, PublishToken | None] = {}
        finished: list[ShardKey] = []
        now = self._clock()
        shards = list(shards)
        with self._changed:
            for shard in shards:
                if shard.state is not ShardState.OPEN:
                    finished.append(shard.key)
                elif shard.token == self._token:
                    self._tracker.offer(shard, now)
                elif shard.stale:
                    stale[shard.key] = shard.token
                else:
                    self._tracker.watch(shard)
            complete = self._tracker.finish(finished)
            self._changed.notify_all()
        self._acknowledge(complete)
        if stale:
            won = self._store.acquire(self._token, stale)
            with self._changed:
                for shard in shards:
                    if shard.key in won:
                        self._tracker.offer(shard, now, first=True)
                    elif shard.key in stale:
                        self._tracker.watch(shard)
                self._changed.notify_all()

    # waiting for messages

    def _must_gather(self) -> bool:
        return self._drain_until is not None or not self._gathered

    def _start_round(self) -> None:
        """From here on a receiver counts as emptied only by a receive that begins now or later."""
        self._round += 1
        for number in self._emptied:
            self._emptied[number] = False

    def _gather(self) -> None:
        """Wait until a whole batch is ready or the queues gave all they had.

        AvailableNow ends at the first latestOffset that brings nothing new, and on Spark 4.0 and 4.1 has but one: so
        the first one of a reader waits as well, for a while.
        """
        deadline = None if self._drain_until is not None else self._clock() + _FIRST_GATHER
        batches = self._options.batches
        with self._changed:
            while self._fatal is None and not self._stopping.is_set():
                if len(self._tracker.ready) >= batches.max_files_per_trigger:
                    break
                if 0 < (batches.max_bytes_per_trigger or 0) <= self._tracker.ready_bytes():
                    break
                if self._dry() or (deadline is not None and self._clock() > deadline):
                    break
                self._changed.wait(0.1)
            self._gathered = True
        self._check()

    def _dry(self) -> bool:
        """Nothing more will become ready by waiting: all receivers came back empty, or the pen is full."""
        if self._inbox or self._opening:
            return False
        full = self._in_flight() >= self._options.queue.max_in_flight_messages
        return full or all(self._emptied.values())

    # housekeeping

    def _keep_house(self) -> None:
        """The housekeeper thread: heartbeats, shards of others, the replay timer, pruning."""
        leases, deduplication = self._options.leases, self._options.deduplication
        policy = RetentionPolicy(
            deduplication.deduplication_window, deduplication.deduplication_max_shards, self._options.source
        )
        interval = deduplication.prune_interval.total_seconds()
        beat_at = self._clock() + self._heartbeat
        prune_at = self._clock()
        tick = min(1.0, self._heartbeat / 2)
        while not self._stopping.wait(tick):
            now = self._clock()
            if now >= beat_at:
                self._store.heartbeat(self._token, self._stale_after)
                beat_at = now + self._heartbeat
                self._look_again()
            self._replay(now - leases.pending_timeout.total_seconds())
            if now >= prune_at:
                prune_at = now + interval
                self._prune(policy, interval)

    def _look_again(self) -> None:
        """One statement for all shards that others own: finished ones end their messages, stale ones are acquired."""
        with self._changed:
            keys = list(self._tracker.foreign)
        if keys:
            self._route(self._store.look(keys).values())

    def _replay(self, before: float) -> None:
        """Onyx's replay timer: what is ready but was not planned within `pendingTimeout` is given back."""
        with self._changed:
            if self._drain_until is not None:
                return  # AvailableNow will take them; given back, they would only come again
            overdue = self._tracker.overdue(before)
            released = self._tracker.forget(self._tracker.drop(overdue))
        if overdue:
            self._store.release(self._token, released)
            self._give_back(overdue)

    def _prune(self, policy: RetentionPolicy, interval: float) -> None:
        if not self._store.win_interval(f"prune {self._options.source}", interval):
            return
        result = self._store.prune(policy)
        self.metrics.add(pruned=result.shards)
        if result.total:
            logger.info("pruned %s", result)

    def _give_back(self, keys: Sequence[MessageKey]) -> None:
        self._leases.stop(keys)
        for queue, receipts in by_queue(keys).items():
            self._queues[queue].give_back(receipts)
        self.metrics.add(givenBack=len(keys))

    def _lost_leases(self, keys: Sequence[MessageKey]) -> None:
        """Messages that will be delivered again. Their shards stay ours by the token, so nothing is published twice."""
        self.metrics.add(lostLeases=len(keys))
        logger.warning("pipeline %s: lost the lease of %d message(s)", self._token, len(keys))
        with self._changed:
            self._tracker.drop(keys)
            self._changed.notify_all()

    def _let_go(self) -> None:
        """After the threads have ended: give messages back, and release shards that nothing else remembers."""
        with self._changed:
            inbox = [key_of(message) for message in self._inbox]
            self._inbox.clear()
            unplanned = self._tracker.unplanned()
            planned = [key for key in self._tracker.messages if key not in set(unplanned)]
            released = self._tracker.forget(self._tracker.drop(unplanned))
        try:
            self._store.release(self._token, released)
            self._store.retire(self._token)
        except ShardStoreError as error:
            logger.warning("pipeline %s: %s", self._options.pipeline, error)  # they go stale by themselves
        try:
            self._give_back([*inbox, *self._aside, *unplanned])
            self._leases.extend_last(planned, self._stale_after)
        except QueueError as error:
            logger.warning("%s; its messages become visible when their leases end", error)

    # threads

    def _spawn(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - kept, and raised by Spark's next call
                self._fail(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._fatal is None:
                self._fatal = error
            self._changed.notify_all()
        self._stopping.set()

    def _check(self) -> None:
        if self._fatal is not None:
            raise self._fatal
