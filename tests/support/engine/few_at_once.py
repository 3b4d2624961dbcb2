"""At most two tests run a Spark at once, however many workers pytest has: each wants more than one core.

The other workers fill the time in which these wait. Where three Sparks share two cores, Spark's own time-outs end tests
that are right. A worker that waits for a place does nothing else: so files with a Spark stand among the others.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for file in spread(files, _runs_spark(files)) for item in files[file]]


def _runs_spark(files: Mapping[Path, Sequence[pytest.Item]]) -> set[Path]:
    return {path for path, items in files.items() if any(item.get_closest_marker("engine") for item in items)}


def spread(files: Iterable[Path], some: set[Path]) -> list[Path]:
    """The files with `some` of them at even distances; otherwise in their order."""
    kinds: dict[bool, list[Path]] = {True: [], False: []}
    for file in files:
        kinds[file in some].append(file)
    places = {file: (number + 0.5) / len(kind) for kind in kinds.values() for number, file in enumerate(kind)}
    return sorted(places, key=places.__getitem__)


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
