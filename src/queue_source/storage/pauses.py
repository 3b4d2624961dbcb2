"""Other tries of requests: how many there were, and pauses before them. Those of a task's threads end with the task."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

from queue_source.errors import ObjectStoreError

PATIENCE = 120.0
"""Seconds of pauses for which a bucket may throttle a request: S3 takes about as long to serve more of them."""
_LONGEST = 8.0

_of_thread = threading.local()
_counting = threading.Lock()
_retries = 0


def count_retries(retries: int) -> None:
    """Count requests that are sent again."""
    global _retries
    with _counting:
        _retries += retries


def retries_so_far() -> int:
    """Return how many requests this process has sent again; a worker of Spark has one task at a time."""
    return _retries


def ends_with(task: threading.Event) -> None:
    """Let the pauses of this thread end when the event is set, and other tries."""
    _of_thread.task = task


def back_off() -> Iterator[float]:
    """Yield pauses in seconds, each anywhere below a bound that doubles, so that many threads do not go on at once."""
    slept = 0.0
    most = 0.2
    while slept < PATIENCE:
        yield (seconds := random.uniform(0, most))
        slept += seconds
        most = min(2 * most, _LONGEST)


def pause(seconds: float) -> None:
    """Wait. Raises ObjectStoreError when the thread's task has ended."""
    if _task() is None:
        time.sleep(seconds)
    else:
        check_task(seconds)


def check_task(seconds: float = 0) -> None:
    """Raise ObjectStoreError if the thread's task has ended, or does so within these seconds."""
    if (task := _task()) is not None and task.wait(seconds):
        raise ObjectStoreError("the task has ended")


def _task() -> threading.Event | None:
    return getattr(_of_thread, "task", None)
