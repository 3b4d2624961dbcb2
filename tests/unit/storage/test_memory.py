"""The limit of memory: in force while an object is decoded, and never longer; what needs more is a bad object."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_source.errors import BadObject
from queue_source.storage import memory
from queue_source.storage.memory import FOR_READING, BoundedMemory, room_for_reading, usual_limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is limited elsewhere")
MB = 1 << 20


def limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_DATA)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = limits()
    yield
    assert limits() == before
    assert not memory._PROCESS.is_bounded


def test_what_needs_more_is_too_large_and_what_needs_less_is_not() -> None:
    with BoundedMemory(256 * MB):
        assert len(bytearray(16 * MB)) == 16 * MB
    with pytest.raises(BadObject, match="more than 256 MB") as caught, BoundedMemory(256 * MB):
        bytearray(512 * MB)
    assert caught.value.cause == "too-large-for-memory"
    assert len(bytearray(512 * MB)) == 512 * MB


def test_other_errors_leave_as_they_are() -> None:
    with pytest.raises(KeyError), BoundedMemory(256 * MB):
        raise KeyError


def test_what_the_caller_holds_leaves_no_less_for_the_next_block() -> None:
    bounded = BoundedMemory(256 * MB)
    kept = []
    for _ in range(4):
        with bounded:
            kept.append(bytearray(128 * MB))
    assert len(kept) == 4


def test_what_was_freed_is_limited_too() -> None:
    """A process keeps what Python frees; else each object could take more than the one before it."""
    code = f"""
from queue_source.errors import BadObject
from queue_source.storage.memory import BoundedMemory, release_memory
from pathlib import Path
def fill():
    pieces = []
    while True:
        pieces.append({{number: number for number in range(1000)}})
for _ in range(8):
    try:
        with BoundedMemory({200 * MB}):
            fill()
    except (BadObject, MemoryError):
        pass
    keeps = [bytes(5000) for _ in range(100)]  # at the end of the heap: so it cannot shrink
    release_memory()
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
assert peak < 700, peak
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_limit_is_in_force_while_the_caller_has_an_item() -> None:
    seen: list[tuple[int, int]] = []

    def items() -> Iterator[int]:
        try:
            for number in range(3):
                seen.append(limits())
                yield number
        finally:
            seen.append(limits())

    before = limits()
    for number in BoundedMemory(256 * MB).each(items()):
        assert limits() == before
        if number == 1:
            break
    assert seen[0] != before
    assert seen[0] == seen[1]


def test_a_generator_that_is_closed_or_forgotten_leaves_no_limit() -> None:
    before = limits()
    for way in ("close", "forget"):
        items = BoundedMemory(256 * MB).each(iter(range(3)))
        assert next(items) == 0
        if way == "close":
            items.close()  # type: ignore[attr-defined]
        del items
        assert limits() == before


def test_blocks_may_be_within_each_other_and_the_smaller_limit_counts() -> None:
    with BoundedMemory(256 * MB):
        outer = limits()
        with BoundedMemory(1 << 40):
            assert limits() == outer
        with BoundedMemory(64 * MB):
            assert limits()[0] < outer[0]
        assert limits() == outer


def test_a_lower_limit_of_the_system_stays_in_force_also_as_a_hard_one() -> None:
    code = f"""
import resource
from queue_source.errors import BadObject
from queue_source.storage.memory import BoundedMemory, _taken
_, data = _taken()
for kind, extra in ((resource.RLIMIT_DATA, {300 * MB}),):
    resource.setrlimit(kind, (data + extra, data + extra))
before = resource.getrlimit(resource.RLIMIT_DATA)
with BoundedMemory(1 << 40):
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] <= before[0]
try:
    with BoundedMemory(1 << 40):
        bytearray({600 * MB})
except BadObject as error:
    assert error.cause == "too-large-for-memory", error
else:
    raise AssertionError
assert resource.getrlimit(resource.RLIMIT_DATA) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_limit_of_spark_for_a_worker_is_respected_and_too_little_is_no_verdict() -> None:
    code = f"""
import resource
from queue_source.errors import BadObject
from queue_source.storage import memory
from queue_source.storage.memory import BoundedMemory
import os
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
def decode(extra):
    resource.setrlimit(resource.RLIMIT_AS, (size + extra, -1))
    with BoundedMemory({1024 * MB}):
        bytearray({800 * MB})
for extra, expected in (({600 * MB}, BadObject), ({90 * MB}, MemoryError)):
    try:
        decode(extra)
    except expected:
        pass
    else:
        raise AssertionError(extra)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reads_have_some_memory_more_in_any_thread() -> None:
    with room_for_reading():
        pass
    with BoundedMemory(256 * MB):
        usual = limits()[0]

        def read() -> None:
            with room_for_reading():
                seen.append(limits()[0])

        seen: list[int] = []
        read()
        other = threading.Thread(target=read)
        other.start()
        other.join()
        assert seen == [usual + FOR_READING] * 2
        assert limits()[0] == usual


def test_threads_take_turns() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with BoundedMemory(256 * MB):
            entered.set()
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(10)
    assert not memory._PROCESS.turn.acquire(blocking=False)
    leave.set()
    holder.join()
    with BoundedMemory(256 * MB):
        pass


@pytest.mark.parametrize(
    ("machine", "cores", "expected"),
    [(64 << 30, 4, 1 << 30), (4 << 30, 4, 512 * MB), (1 << 30, 8, 256 * MB)],
)
def test_the_usual_limit_is_that_of_the_machine(
    machine: int, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": machine}.__getitem__)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "max\n")
    assert usual_limit.__wrapped__() == expected
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"{2 << 30}\n")  # of a container
    assert usual_limit.__wrapped__() == min(max((2 << 30) // cores // 2, 256 * MB), expected)


def test_elsewhere_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CAN_LIMIT", False)
    before = limits()
    with BoundedMemory(64 * MB):
        assert limits() == before
        assert len(bytearray(128 * MB)) == 128 * MB


def test_a_limit_beyond_all_memory_is_none() -> None:
    with BoundedMemory(1 << 70):
        assert len(bytearray(MB)) == MB
