"""At most two tests run a Spark at once, however many workers pytest has: each wants more than one core.

A third worker fills the time in which the others wait. Where three Sparks share two cores, Spark's own time-outs end
tests that are right.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

AT_ONCE = 2
_LOOK = 0.2  # seconds


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout, which does not count the wait then
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("engine") is None:
        return (yield)
    with place([Path(sys.prefix) / f"engine-tests-{number}.lock" for number in range(AT_ONCE)]):
        return (yield)


@contextmanager
def place(files: list[Path]) -> Iterator[None]:
    """Holds one of the files; waits until one is free. The system frees those of a process that dies."""
    with ExitStack() as opened:
        places = [opened.enter_context(file.open("w")).fileno() for file in files]
        while not any(_taken(place) for place in places):
            time.sleep(_LOOK)
        yield


def _taken(place: int) -> bool:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
