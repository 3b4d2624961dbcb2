"""Receiving ahead: the receiver threads, and the question whether the queues have given all they had."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import tenacity

from queue_source.coordinator.crew import Crew
from queue_source.coordinator.holding_pen import HoldingPen
from queue_source.coordinator.leases import LeaseKeeper, longest_lease
from queue_source.coordinator.metrics import Metrics
from queue_source.errors import QueueUnavailable
from queue_source.messages import Received
from queue_source.options import QueueOptions
from queue_source.queues.base import Queue

_SHORT_WAIT = 0.2  # seconds of a receive for which somebody waits
_TRIES = 6  # in a row: with waits of at most 1, 2, 4, 8 and 16 s, half of it on average


def with_back_off(stopping: threading.Event) -> tenacity.Retrying:
    """Calls that wait longer and longer while a queue is unavailable (design section 6), until `stopping`.

    Base 1 s, doubled, at most 30 s, full jitter; then the error of the last call, which names the queue.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(QueueUnavailable),
        wait=tenacity.wait_random_exponential(multiplier=1.0, max=30.0),
        stop=tenacity.stop_any(tenacity.stop_after_attempt(_TRIES), tenacity.stop_when_event_set(stopping)),
        sleep=tenacity.sleep_using_event(stopping),
        reraise=True,
    )


class _Drought:
    """Whether one queue has given all that it had. A receive that came back empty proves it, once every other that was
    under way at that moment has ended and brought nothing: what was visible before is in somebody's hands by then.
    """

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        self._awaited: set[int] | None = None  # None: no proof; else the receives whose end is waited for

    def begin(self, receiver: int) -> None:
        self._under_way.add(receiver)

    def end(self, receiver: int, *, brought: bool, proves: bool) -> None:
        self._under_way.discard(receiver)
        if brought:
            self._awaited = None
        elif self._awaited is not None:
            self._awaited.discard(receiver)
        elif proves:
            self._awaited = set(self._under_way)

    def forget(self) -> None:
        self._awaited = None

    def proven(self) -> bool:
        return self._awaited is not None and not self._awaited

    def calm(self) -> bool:
        return not self._under_way


class Receivers:
    """Threads that take messages while there is room in the pen; each message's lease is kept from that moment.

    AvailableNow (`drain`) takes what was in the queues at its start: later messages are put aside.
    """

    def __init__(
        self,
        queues: Mapping[str, Queue],
        options: QueueOptions,
        lease: float,
        pen: HoldingPen,
        leases: LeaseKeeper,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queues = queues
        self._options = options
        self._lease = lease
        self._pen = pen
        self._leases = leases
        self._metrics = metrics
        self._clock = clock
        self._droughts = {name: _Drought() for name in queues}
        self._round = 0
        self._draining_since: float | None = None
        self._expected: Counter[str] = Counter()
        self.hurried = True  # somebody waits for what is there: poll, do not wait long

    @property
    def draining(self) -> bool:
        return self._draining_since is not None

    def start(self, crew: Crew) -> None:
        number = 0
        for name, queue in self._queues.items():
            for _ in range(self._options.receive_threads):
                crew.start(f"receive-{number}", self._run, crew, name, queue, number)
                number += 1

    def drain(self) -> None:
        """From here on nothing newer counts, and a queue is dry only by a receive that begins later."""
        telling = {name: queue for name, queue in self._queues.items() if queue.capabilities.reports_depth}
        depth = Counter({name: queue.depth().ready for name, queue in telling.items()})
        with self._pen.changed:
            self._draining_since = self._clock()
            self._expected = depth
            self._round += 1
            for drought in self._droughts.values():
                drought.forget()
            self._pen.changed.notify_all()

    def dry(self) -> bool:
        """Waiting brings nothing more: the queues are dry, or there is no room. Needs the pen's lock."""
        return self._pen.idle() and (
            self._pen.full()
            or all(
                drought.proven() or (drought.calm() and self._pen.room(name) == 0)
                for name, drought in self._droughts.items()
            )
        )

    def sort_out(self, messages: Sequence[Received]) -> Sequence[Received]:
        """Put aside what AvailableNow leaves for the next run: sent after its start, and beyond what was there.

        The count protects from clocks that disagree: as many messages as were there are never left.
        """
        if self._draining_since is None:
            return messages
        late = []
        kept = []
        for message in messages:
            if self._late(message):
                late.append(message)
            else:
                self._expected[message.queue] -= 1
                kept.append(message)
        with self._pen.changed:
            self._pen.put_aside(late)
        return kept

    def _late(self, message: Received) -> bool:
        """AvailableNow leaves it: or a queue that is written to all the time would never be empty."""
        since = self._draining_since
        if since is None or message.sent_at is None:
            return False
        return self._expected[message.queue] <= 0 and message.sent_at > since

    def _run(self, crew: Crew, name: str, queue: Queue, number: int) -> None:
        patiently = with_back_off(crew.stopping)
        capabilities = patiently(getattr, queue, "capabilities")  # some queues ask their service for them
        lease = longest_lease(self._lease, capabilities)
        drought = self._droughts[name]
        longest = min(self._options.wait_time.total_seconds(), capabilities.max_wait)
        while crew.working:
            with self._pen.changed:
                if self.hurried and not self.draining and capabilities.empty_is_certain and drought.proven():
                    # AvailableNow is told soon after the start, and then asks for one more look
                    self._pen.changed.wait_for(lambda: self.draining or not crew.working, _SHORT_WAIT)
                room = self._pen.reserve(name, capabilities.max_batch_size)
                if room == 0:
                    self._pen.changed.wait(0.5)
                    continue
                began = self._round
                drought.begin(number)
                wait = longest
                if self.hurried or self.draining:
                    known_dry = self.draining and drought.proven()
                    at_once = capabilities.empty_is_certain and not known_dry
                    wait = 0.0 if at_once else min(longest, _SHORT_WAIT)
            messages = patiently(queue.receive, room, lease, wait)
            self._leases.hold(messages)
            self._metrics.add(received=len(messages))
            with self._pen.changed:
                brought = not all(self._late(message) for message in messages)
                drought.end(number, brought=brought, proves=began == self._round)
                self._pen.put(name, messages, room)
