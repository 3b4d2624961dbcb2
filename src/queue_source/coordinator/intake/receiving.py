"""Receiving ahead: threads that take messages from the queues while there is room for them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.holding.room import Receive
from queue_source.coordinator.session import Session
from queue_source.coordinator.threads import Threads
from queue_source.messages import Received
from queue_source.queues.base import Capabilities, Queue
from queue_source.queues.leases import Terms, terms_of

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
