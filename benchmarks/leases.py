"""What it costs to keep ten thousand messages of Amazon SQS invisible, over HTTP to a server on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from benchmarks.registry import Measurement, Settings, benchmark
from queue_source.coordinator.acknowledging import LeaseKeeper
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.ready import Limits
from queue_source.messages import Receipt
from queue_source.queues import Queue, open_queue
from queue_source.queues.leases import terms_of
from support.servers.ministack import KEYS, ministack_server, new_queue
from support.sessions import make_session

PERIODS = 5


class Counted:
    """The queue, with its extensions counted and its leases watched."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self.until: dict[Receipt, float] = {}
        self.calls = 0
        self.late = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        asked = time.monotonic()
        gone = self._queue.extend(receipts, lease)
        done = time.monotonic()
        with self._lock:
            self.calls += -(-len(receipts) // 10)  # what one request to SQS may hold
            for receipt in receipts:
                self.late += done > self.until[receipt]
                self.until[receipt] = asked + lease
        return gone


@benchmark("leases")
def leases(settings: Settings) -> Iterator[Measurement]:
    """calls, threads and CPU that keep 10,000 messages of SQS in flight for five extension periods"""
    messages, lease = (1_000, 8.0) if settings.quick else (10_000, 60.0)
    period = lease / 2  # a lease is extended when half of it is left
    with ministack_server() as server, open_queue(new_queue(server), **KEYS) as queue:
        counted: Any = Counted(queue)
        stopping, most_threads = threading.Event(), 0
        times: Any = dict.fromkeys(("visibilityTimeout", "commitTimeout"), f"{lease:.0f}s")
        session = make_session(None, {queue.name: counted}, stopping=stopping, **times)
        in_flight = InFlight(session.queues, Limits(messages, messages))
        terms = terms_of(counted.capabilities, lease)
        settings.say(f"{messages:,} messages are sent and received")
        queue.publish([f"s3://bucket/{number}" for number in range(messages)])
        thread = threading.Thread(target=LeaseKeeper(session, in_flight).run)
        thread.start()
        while receive := in_flight.begin_receive(queue.name, 0, 10):
            received = queue.receive(receive.room, lease, 1)
            for message in received:
                counted.until[message.receipt] = message.lease_until
            in_flight.end_receive(receive, received, terms)
        settings.say(f"they are held for {PERIODS} periods of {period:.0f} s")
        time.sleep(period)  # until each was extended once, and all come in batches
        before, cpu = counted.calls, _cpu()
        started = time.monotonic()
        for _ in range(int(PERIODS * period)):
            time.sleep(1)
            most_threads = max(most_threads, psutil.Process().num_threads())
        taken = time.monotonic() - started
        share = (_cpu() - cpu) / taken
        calls = (counted.calls - before) / (taken / period)
        stopping.set()
        thread.join()
    if (lost := messages - in_flight.counts().in_flight) or counted.late:
        raise AssertionError(f"{lost} leases lost, {counted.late} extended after their deadline")
    yield Measurement(
        f"{messages:,} held: {calls:,.0f} calls a period, {most_threads} threads, {share:.0%} of a core, 0 late",
        [taken],
    )


def _cpu() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
