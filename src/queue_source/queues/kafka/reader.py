"""A member of the group: one thread that polls, and what it holds for those who receive, acknowledge and give back.

librdkafka calls back about assignments on the thread that polls, so that thread polls all the time, also while no
caller receives: a rebalance never waits. What it brings waits in a buffer; when that is full the partitions are paused.
A partition that is taken away is a lost lease: all receipts of it are stale at once.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues.kafka.address import LASTING, REBALANCING, Address, error_of, translated
from queue_source.queues.kafka.messages import Held, Ledger, OffsetsGone, first_offset, received
from queue_source.queues.kafka.service import Service

logger = logging.getLogger("cuesqueue")

_ROOM = 2_000  # records in the buffer
_BYTES = 32 * 1024 * 1024  # of their bodies; what librdkafka has fetched besides is in queued.max.messages.kbytes
_CHUNK = 1_000
_POLL = 0.05  # seconds; librdkafka commits at once only on the thread that polls
_ENOUGH = 100  # records with which a receive returns at once
_GATHER = 0.1  # seconds for which records of other partitions are waited for once there are some
_FULL = 1.0  # seconds for which the buffer is full before partitions are paused, which throws away what was fetched
_COMMIT_AGAIN = 0.5
_HEARD = 1.0  # seconds after an answer for which the brokers are taken to be there
_ANSWER = 2.0  # seconds for an answer, before a commit, which librdkafka tries for all of the session's time-out
_JOINING = 60.0  # seconds for the group to let us in
_UNASSIGNED = 10.0  # seconds without an assignment after which there is none for us; others let go of theirs first
_SILENCE = 30.0  # seconds for which a partition may have records that do not come
_RESET = "or set failOnDataLoss to false to go on with the oldest that is left"


class Reader:
    """Reads with the group of an address. `start` begins, `close` ends; after a `failure` it is of no more use.

    `report`: called on the polling thread with what no call waits for. `starting`: `earliest` or `latest`, for a group
    without offsets. `fails`: whether messages that are gone before they were read are an error.
    """

    def __init__(
        self, address: Address, service: Service, report: Callable[[QueueError], None], *, starting: str, fails: bool
    ) -> None:
        self._address = address
        self._service = service
        self._report = report
        self._starting = starting
        self._fails = fails
        self._changed = threading.Condition()
        self._asked = 0  # how often a commit was asked for, and up to which of these it is answered
        self._answered = 0
        self._refused: QueueError | None = None
        self._uncommitted: set[int] = set()  # partitions whose offsets the brokers have refused, and not taken since
        self._heard = 0.0
        self._has_ended = False
        self._epochs = map(f"{secrets.token_hex(4)}-{{}}".format, itertools.count(1))
        self._numbers = itertools.count()
        self._ledgers: dict[int, Ledger] = {}
        self._buffer: deque[Any] = deque()
        self._bytes = 0  # in the buffer
        self._receipts: dict[Receipt, Held] = {}
        self._returned: list[tuple[float, int, Held]] = []  # a heap by the time at which they are visible
        self._paused: set[int] = set()
        self._full_since: float | None = None
        self._is_in_group = False
        self._hears_only_changes = False
        self._assigned_at = time.monotonic()  # when partitions came or went
        self._stopping = False
        self._consumer: Any = None
        self._thread: threading.Thread | None = None
        self.failure: QueueError | None = None

    def start(self) -> None:
        with self._service.mapped("joining the group"):
            settings = self._service.consumer_settings()
            # there the brokers assign, and a member that gets no partition is not called back
            self._hears_only_changes = settings.get("group.protocol", "classic").lower() == "consumer"
            if not self._hears_only_changes:
                settings["partition.assignment.strategy"] = "cooperative-sticky"
            settings["error_cb"] = self._on_error
            self._consumer = Consumer(settings)
            self._consumer.subscribe(
                [self._address.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        self._thread = threading.Thread(target=self._run, name=f"kafka {self._address.topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit what may be, leave the group, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def receive(self, most: int, lease: float, wait: float) -> list[Received]:
        """Hand out up to `most` messages; waits up to `wait` seconds for the first, and briefly for more.

        None: every record that was there when the wait was over has been handed out.
        """
        started = time.monotonic()
        taken: list[Received] = []
        until = started + wait
        while True:
            with self._changed:
                self._refuse_failed()
                had = bool(taken)
                taken += self._take(most - len(taken), started + lease)
                now = time.monotonic()
                if taken and not had:
                    until = min(until, now)
                if len(taken) >= min(most, _ENOUGH) or self._stopping or (taken and now > until + _GATHER):
                    return taken
                if now < until or not self._is_settled():
                    if not taken:
                        self._refuse_silence(now - started, wait)
                    self._changed.wait(min(_POLL, max(until - now, 0.01)))
                    continue
                ends = {ledger.partition: ledger.position for ledger in self._readable()}
            # whether there is nothing from there on; a question that fails would lose what was taken
            if taken or all(self._service.bounds(partition)[1] <= position for partition, position in ends.items()):
                return taken
            with self._changed:
                self._refuse_silence(time.monotonic() - started, wait)
                self._changed.wait(0.01)

    def _take(self, most: int, lease_until: float) -> list[Received]:
        taken: list[Received] = []
        now = time.monotonic()
        if any(ledger.committed is None for ledger in self._ledgers.values()):
            # where a group begins has to be known to the brokers first: else a second start begins later
            return taken
        while len(taken) < most and self._returned and self._returned[0][0] <= now:
            taken.append(self._deliver(heapq.heappop(self._returned)[2], lease_until))
        while len(taken) < most and self._buffer:
            raw = self._buffer.popleft()
            self._bytes -= len(raw)
            ledger = self._ledgers.get(raw.partition())
            if ledger is None:
                continue
            if raw.error() is not None:
                ledger.reach_end(raw.offset())
            elif (new := ledger.hand_out(raw.offset(), raw)) is not None:
                taken.append(self._deliver(new, lease_until))
        if taken:
            self._changed.notify_all()
        return taken

    def _deliver(self, held: Held, lease_until: float) -> Received:
        held.count += 1
        receipt = Receipt(f"{held.ledger.epoch}.{held.ledger.partition}.{held.offset}.{held.count}")
        held.receipt = receipt
        self._receipts[receipt] = held
        return received(held.raw, self._address.name, receipt, held.count, lease_until)

    def _readable(self) -> list[Ledger]:
        return [ledger for ledger in self._ledgers.values() if not ledger.is_wide]

    def _is_settled(self) -> bool:
        """Tell whether we are in the group, and have come to the end of each partition as far as is known."""
        ready = all(ledger.at_end and ledger.committed is not None for ledger in self._readable())
        is_assigned = self._ledgers or time.monotonic() - self._assigned_at > _UNASSIGNED
        return bool(self._is_in_group and is_assigned and ready and not self._buffer)

    def _refuse_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _refuse_silence(self, seconds: float, wait: float) -> None:
        if seconds > max(wait, _SILENCE if self._is_in_group else _JOINING) + _SILENCE / 2:
            what = "records are not delivered" if self._is_in_group else "the group does not let us in"
            raise QueueUnavailable(self._address.name, f"{what} in {seconds:.0f} seconds")

    # --- ending ------------------------------------------------------------------------------------------------------

    def stale(self, receipts: Iterable[Receipt]) -> set[Receipt]:
        """Return the receipts that hold no message: of a lost partition, given back, or done."""
        with self._changed:
            return {receipt for receipt in receipts if receipt not in self._receipts}

    def raw(self, receipt: Receipt) -> Any:
        """Return the record of a message that is held, None for a stale receipt."""
        with self._changed:
            held = self._receipts.get(receipt)
            return None if held is None else held.raw

    def finish(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        """Note that the messages are done, and wait until what may be is committed; return the stale receipts.

        A commit that falls between two assignments is made after the next one. Raises `QueueError` where the brokers
        refuse it.
        """
        with self._changed:
            stale = {receipt for receipt in receipts if receipt not in self._receipts}
            for receipt in receipts:
                if (held := self._receipts.pop(receipt, None)) is not None:
                    held.receipt = None
                    held.ledger.finish(held)
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= asked or self._has_ended)
            if self._answered >= asked and self._refused is not None:
                raise self._refused
            if self._answered < asked:
                self._refuse_failed()
        return stale

    def give_back(self, receipts: Iterable[Receipt], delay: float) -> None:
        """Make the messages visible again after `delay` seconds; they stay here, where no other member gets them."""
        visible = time.monotonic() + max(delay, 0.0)
        with self._changed:
            for receipt in receipts:
                if (held := self._receipts.pop(receipt, None)) is not None:
                    held.receipt = None
                    heapq.heappush(self._returned, (visible, next(self._numbers), held))
            self._changed.notify_all()

    def counts(self) -> tuple[dict[int, int], int, int]:
        """Return the position in each partition of ours; how many messages are held, and how many wait for a delay."""
        now = time.monotonic()
        with self._changed:
            positions = {partition: ledger.position for partition, ledger in self._ledgers.items()}
            delayed = 0
            for visible, _, held in self._returned:
                if visible > now:
                    delayed += 1
                else:  # it is as ready as one that was never handed out
                    positions[held.ledger.partition] -= 1
            return positions, len(self._receipts), delayed

    # --- the polling thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            again = 0.0
            while not self._stopping and self.failure is None:
                self._regulate()
                if self._hears_only_changes and time.monotonic() - self._assigned_at > _UNASSIGNED:
                    self._is_in_group = True
                if self._room() or self._paused:  # paused: for the callbacks, since nothing comes
                    self._fill(self._consumer.poll(_POLL))
                else:
                    with self._changed:
                        self._changed.wait(_POLL)
                if self._asked > self._answered or time.monotonic() >= again:
                    self._commit()
                    again = time.monotonic() + _COMMIT_AGAIN
        except KafkaException as error:
            self._fail(translated(error, self._address, "reading"))
        except QueueError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - of any kind: who receives would take its end for an empty topic
            text = self._address.hide(f"{type(error).__name__}: {error}")
            self._fail(QueueUnavailable(self._address.name, f"reading: {text}"))
        finally:
            try:
                self._consumer.close()  # calls `_on_revoke`
            finally:
                with self._changed:
                    self._stopping = self._has_ended = True
                    self._drop(self._ledgers.keys())
                    self._changed.notify_all()

    def _room(self) -> int:
        return _ROOM - len(self._buffer) if self._bytes < _BYTES else 0

    def _regulate(self) -> None:
        """Pause partitions while the buffer is full, and those whose oldest message keeps many from being committed."""
        now = time.monotonic()
        with self._changed:
            self._full_since = None if self._room() > 0 else self._full_since or now
            is_full = self._full_since is not None and now - self._full_since > _FULL
            pausing = {partition for partition, ledger in self._ledgers.items() if is_full or ledger.is_wide}
            paused = self._paused & self._ledgers.keys()
            self._paused = pausing
        if more := pausing - paused:
            self._consumer.pause([self._service.place(partition) for partition in more])
        if fewer := paused - pausing:
            self._consumer.resume([self._service.place(partition) for partition in fewer])

    def _fill(self, first: Any) -> None:
        if first is None:
            return
        self._arrive([first])  # before the next call, in which its partition may be taken away, with what waits of it
        self._arrive(self._consumer.consume(min(_CHUNK, max(self._room(), 1)), 0))

    def _arrive(self, raws: Iterable[Any]) -> None:
        arrived: list[Any] = []
        for raw in raws:
            error = raw.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                arrived.append(raw)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._go_on_with_the_oldest(raw.partition(), raw.offset())
                arrived = [before for before in arrived if before.partition() != raw.partition()]
            elif error.fatal() or error.code() in LASTING or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)
        with self._changed:
            self._buffer.extend(arrived)
            self._bytes += sum(map(len, arrived))
            self._changed.notify_all()

    def _go_on_with_the_oldest(self, partition: int, offset: int) -> None:
        """Continue in a partition that has no record at our offset, where that is allowed."""
        low, high = self._service.bounds(partition)
        problem = f"partition {partition} has messages {low} to {high - 1}, and {offset} was to be read next"
        if self._fails:
            raise self._gone(f"{problem}: they were deleted before they were read, or the topic was made anew")
        logger.warning("queue %r: %s; the oldest that is left is read next", self._address.name, problem)
        with self._changed:
            old = self._ledgers.get(partition)
            self._drop([partition])
            self._ledgers[partition] = Ledger(partition, next(self._epochs), low, old.committed if old else None)
        # librdkafka fetches nothing more there, and so seeks nothing
        self._consumer.incremental_unassign([self._service.place(partition)])
        self._consumer.incremental_assign([self._service.place(partition, low)])

    def _gone(self, problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(
            self._address.name, f"{problem}; list what is there (backfillPrefixes), {_RESET}"
        )

    def _fail(self, error: QueueError) -> None:
        with self._changed:
            is_first, self.failure = self.failure is None, self.failure or error
            self._changed.notify_all()
        if is_first:
            self._report(error)

    def _on_error(self, error: KafkaError) -> None:
        """Fail for what waiting does not mend, such as a refused login; the rest librdkafka tries again by itself.

        Once we were let in, a login or a handshake that fails is a broker that comes or goes.
        """
        if error.fatal() or (error.code() in LASTING and not self._is_in_group):
            self._fail(translated(error, self._address, "reading"))
        self._heard = 0.0

    def _commit(self) -> None:
        """Commit the offsets before which everything is done, and answer those who wait for it."""
        with self._changed:
            asked = self._asked
            ledgers = {ledger.partition: ledger for ledger in self._ledgers.values() if ledger.is_dirty}
            offsets = {partition: ledger.low for partition, ledger in ledgers.items()}
        places = [self._service.place(partition, offset) for partition, offset in offsets.items()]
        refused: QueueError | None = None
        answered: Sequence[Any] = ()
        if places and time.monotonic() - self._heard > _HEARD and not self._service.answers(_ANSWER):
            places = []
            refused = QueueUnavailable(self._address.name, "committing offsets: the brokers do not answer")
        try:
            answered = self._consumer.commit(offsets=places, asynchronous=False) if places else ()
        except KafkaException as error:
            if error_of(error).code() not in REBALANCING:
                refused = translated(error, self._address, "committing offsets")
        not_taken: list[QueueError] = []  # for each partition once, until it is taken; all are tried again
        with self._changed:
            for place in answered:
                if place.error is None:
                    self._heard = time.monotonic()
                    ledgers[place.partition].committed = place.offset
                    self._uncommitted.discard(place.partition)
                elif place.error.code() not in REBALANCING and place.partition not in self._uncommitted:
                    self._uncommitted.add(place.partition)
                    doing = f"committing partition {place.partition}"
                    not_taken.append(translated(place.error, self._address, doing))
            news = refused if self._answered == asked and self._refused is None else None
            self._answered, self._refused = asked, refused
            self._changed.notify_all()
        if news is not None:
            self._report(news)
        for problem in not_taken:
            logger.warning("%s; it is tried again, and what is done comes again if we end before", problem)
        for problem in not_taken[-1:]:
            self._report(problem)

    # --- assignments, on the polling thread --------------------------------------------------------------------------

    def _on_assign(self, consumer: Any, places: Sequence[Any]) -> None:
        """Begin in new partitions, where the group or `startingOffsets` says."""
        ledgers: dict[int, Ledger] = {}
        try:
            committed = self._service.committed() if places else {}
            is_new = all(offset is None for offset in committed.values())
            for partition in (place.partition for place in places):
                offset, bounds = committed.get(partition), self._service.bounds(partition)
                try:
                    first = first_offset(offset, bounds, is_new_group=is_new, starting=self._starting)
                except OffsetsGone as error:
                    if self._fails:
                        raise self._gone(f"partition {partition}: {error}") from None
                    logger.warning("queue %r: %s; the oldest that is left is read next", self._address.name, error)
                    first = bounds[0]
                ledgers[partition] = Ledger(partition, next(self._epochs), first, offset)
            begin = [self._service.place(partition, ledger.position) for partition, ledger in ledgers.items()]
            consumer.incremental_assign(begin)
        except (KafkaException, QueueError) as error:
            self._fail(
                error if isinstance(error, QueueError) else translated(error, self._address, "taking partitions")
            )
            return
        with self._changed:
            self._ledgers |= ledgers
            self._is_in_group = True
            self._assigned_at = time.monotonic()
            self._changed.notify_all()

    def _on_revoke(self, consumer: Any, places: Sequence[Any]) -> None:
        """Commit what is done in partitions that pass to another member, and let them go."""
        self._commit()
        self._let_go(consumer, places)

    def _on_lost(self, consumer: Any, places: Sequence[Any]) -> None:
        """Let partitions go that may be another member's already: what is committed is no longer ours to say."""
        self._is_in_group = False
        self._let_go(consumer, places)

    def _let_go(self, consumer: Any, places: Sequence[Any]) -> None:
        with self._changed:
            before = len(self._receipts)
            self._drop([place.partition for place in places])
            lost = before - len(self._receipts)
            self._assigned_at = time.monotonic()
            self._changed.notify_all()
        consumer.incremental_unassign(places)
        if lost and not self._stopping:
            text = f"{len(places)} partition(s) passed to other members of the group"
            self._report(QueueUnavailable(self._address.name, f"{text}; {lost} message(s) in flight come again there"))

    def _drop(self, partitions: Iterable[int]) -> None:
        """Forget partitions, with all their messages: their receipts are stale."""
        gone = [self._ledgers.pop(partition) for partition in list(partitions) if partition in self._ledgers]
        if gone:
            lost = {ledger.partition for ledger in gone}
            self._receipts = {r: held for r, held in self._receipts.items() if held.ledger not in gone}
            self._returned = [entry for entry in self._returned if entry[2].ledger not in gone]
            heapq.heapify(self._returned)
            self._buffer = deque(raw for raw in self._buffer if raw.partition() not in lost)
            self._bytes = sum(map(len, self._buffer))
