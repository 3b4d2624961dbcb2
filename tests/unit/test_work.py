"""A worker's end, and its queue's failures; what it does with messages is in the contract of all queues."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from queue_source.errors import QueueConfigurationError
from queue_source.messages import Received
from queue_source.queues import programs as work_module
from queue_source.queues.sim import Fault, SimQueue


@pytest.fixture
def queue(tmp_path: Path) -> SimQueue:
    return SimQueue(f"sim://jobs?dir={tmp_path}")


def test_stopping_lets_the_running_handlers_end_and_gives_the_rest_back(queue: SimQueue) -> None:
    queue.send([str(number) for number in range(5)])
    stop, together = threading.Event(), threading.Barrier(2)

    def handle(_: Received) -> None:
        together.wait(30)
        stop.set()

    with queue:
        queue.work(handle, parallelism=2, stop=stop)
        assert (queue.depth().ready, queue.depth().in_flight) == (3, 0)


@pytest.mark.parametrize("verb", ["receive", "extend", "acknowledge"])
def test_an_unavailable_queue_is_asked_again(queue: SimQueue, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setattr(work_module, "_AWAY", 1.0)
    queue.send(["one", "two"])
    queue.order(Fault.DISCONNECT, verb=verb)
    handled: list[bytes] = []
    stop, lock = threading.Event(), threading.Lock()

    def handle(message: Received) -> None:
        if verb == "extend" and not handled:
            threading.Event().wait(1.5)  # its lease has to be extended
        with lock:
            handled.append(message.body)
        if len(handled) == (3 if verb == "acknowledge" else 2):
            stop.set()

    with queue:
        queue.work(handle, lease=2.0, stop=stop)
        assert queue.ordered() == {}
        assert queue.depth().total == 0
    assert set(handled) == {b"one", b"two"}


def test_a_queue_that_refuses_and_a_program_that_ends_in_a_handler_end_the_work(queue: SimQueue) -> None:
    queue.send(["x"])

    def leave(_: Received) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        queue.work(leave)
    assert queue.depth().ready == 1, "the message was not given back"
    with pytest.raises(ValueError, match="parallelism=0"):
        queue.work(leave, parallelism=0)
    queue.close()
    with pytest.raises(QueueConfigurationError, match="is closed"):
        queue.work(leave)
