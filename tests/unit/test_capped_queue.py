"""The options of `open_queue` for every queue: a cap of outstanding messages, and a hook for errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues import Queue, open_queue
from queue_source.queues.amqp.link import IoThread
from queue_source.queues.base import administered
from queue_source.queues.programs import CappedQueue
from queue_source.queues.sim import SimQueue


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sim://jobs?dir={tmp_path}"


@pytest.mark.parametrize("most", [0, -1, "3", 1.5])
def test_a_cap_that_is_no_number_is_refused(url: str, most: object) -> None:
    with pytest.raises(QueueConfigurationError, match="max_outstanding="):
        open_queue(url, max_outstanding=most)


def test_a_capped_queue_is_otherwise_the_queue_that_it_is(url: str) -> None:
    with open_queue(url) as plain, open_queue(url, max_outstanding=2) as capped:
        assert (capped.name, capped.identity, capped.capabilities) == (plain.name, plain.identity, plain.capabilities)
        manager = administered(capped)
        assert manager is not None
        manager.create()
        assert manager.exists()
        capped.send(["a"])
        assert capped.depth().ready == 1
        assert not hasattr(capped, "no_such_method")


def test_a_message_whose_lease_has_ended_or_was_lost_counts_no_more(url: str) -> None:
    now = [0.0]
    queue = SimQueue(url, clock=lambda: time.time() + now[0])
    with CappedQueue(queue, 2, clock=lambda: time.monotonic() + now[0]) as capped:
        capped.send(["a", "b", "c"])
        one, other = capped.receive(10, 60, 0)
        assert capped.receive(10, 60, 0) == []
        now[0] += 50
        assert capped.extend([other.receipt], 60) == set()
        now[0] += 15  # the first lease has ended
        assert len(capped.receive(10, 1000, 0)) == 1
        queue.nack([other.receipt])  # as another process cannot, but an operator can
        assert capped.extend([other.receipt], 60) == {other.receipt}
        assert capped.outstanding() == 1
        assert one.receipt


class Connection(SimQueue):
    """As with AMQP, messages are held as long as the connection."""

    lost: frozenset[Receipt] = frozenset()

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        return {receipt for receipt in receipts if receipt in self.lost}


def test_where_a_connection_holds_messages_they_count_until_it_is_lost(url: str) -> None:
    now = [0.0]
    queue = Connection(url)
    queue.capabilities = replace(queue.capabilities, ends_leases=False)
    with CappedQueue(queue, 1, clock=lambda: time.monotonic() + now[0]) as capped:
        capped.send(["a", "b"])
        (held,) = capped.receive(10, 60, 0)
        now[0] += 3600
        assert capped.receive(10, 60, 0) == []
        queue.lost = frozenset([held.receipt])
        assert len(capped.receive(10, 60, 0)) == 1


def test_a_receive_that_waits_for_room_goes_on_when_a_message_is_ended(url: str) -> None:
    with open_queue(url, max_outstanding=1) as queue:
        queue.send(["a", "b"])
        (held,) = queue.receive(10, 60, 0)
        timer = threading.Timer(0.1, queue.acknowledge, [[held.receipt]])
        timer.start()
        started = time.monotonic()
        assert [message.body for message in queue.receive(10, 60, 30)] == [b"b"]
        assert time.monotonic() - started < 10
        timer.join()


def test_threads_share_the_cap(url: str) -> None:
    with open_queue(url, max_outstanding=5) as queue:
        queue.send([str(number) for number in range(40)])
        taken: list[int] = []
        threads = [threading.Thread(target=lambda: taken.append(len(queue.receive(4, 60, 0)))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0 < sum(taken) <= 5


@pytest.mark.parametrize("ends_leases", [True, False])
def test_a_receive_that_waits_for_room_ends_empty_when_the_queue_is_closed(url: str, ends_leases: bool) -> None:
    queue = SimQueue(url)
    queue.capabilities = replace(queue.capabilities, ends_leases=ends_leases)
    capped = CappedQueue(queue, 1)
    capped.send(["a", "b"])
    assert len(capped.receive(1, 60, 0)) == 1
    timer = threading.Timer(0.1, capped.close)
    timer.start()
    assert capped.receive(1, 60, 30) == []
    timer.join()
    with pytest.raises(QueueConfigurationError, match="is closed"):
        capped.receive(1, 60, 0)


def test_a_call_that_failed_ends_no_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SimQueue(url)

    def unavailable(receipts: Sequence[Receipt]) -> set[Receipt]:
        raise QueueUnavailable("jobs", "away")

    with CappedQueue(queue, 1) as capped:
        capped.send(["a", "b"])
        (held,) = capped.receive(1, 60, 0)
        monkeypatch.setattr(queue, "acknowledge", unavailable)
        with pytest.raises(QueueUnavailable):
            capped.acknowledge([held.receipt])
        assert capped.receive(1, 60, 0) == []


# --- errors of the background


@pytest.mark.parametrize("fault", [RuntimeError("a fault of the program"), SystemExit(1)])
def test_the_hook_is_told_and_what_it_raises_stops_nothing(
    url: str, caplog: pytest.LogCaptureFixture, fault: BaseException
) -> None:
    told: list[QueueError] = []

    def hook(error: QueueError) -> None:
        told.append(error)
        raise fault

    queue: Queue = open_queue(url, on_error=hook)
    with queue, caplog.at_level(logging.ERROR, "cuesqueue"):
        assert isinstance(queue, SimQueue)
        queue.report(QueueUnavailable("jobs", "gone"))
        assert [str(error) for error in told] == ["queue 'jobs': gone"]
        assert "on_error of queue 'sim://jobs" in caplog.text
    queue.report(QueueUnavailable("jobs", "the connection was closed by us"))
    assert len(told) == 1


def test_a_hook_that_uses_the_queue_does_not_stop_its_thread() -> None:
    thread = IoThread("test of a hook")

    async def nothing() -> None: ...

    async def use() -> None:
        with pytest.raises(RuntimeError, match="on_error"):
            thread.run(nothing())

    async def close() -> None:
        thread.stop(nothing())

    thread.run(use())
    thread.run(close())
    for own in [one for one in threading.enumerate() if one.name == "test of a hook"]:
        own.join(10)
        assert not own.is_alive()
