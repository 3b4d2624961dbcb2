"""The limit of memory: in force while an object is decoded, and never longer; what needs more is a bad object."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
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

    before, bounded, made = limits(), BoundedMemory(256 * MB), items()
    with bounded:
        first = next(made)
    for number in bounded.each(made, first):
        assert limits() == before
        if number == 1:
            break
    assert number == 1
    assert before not in seen[:2]


def test_a_generator_that_is_closed_or_forgotten_leaves_no_limit() -> None:
    before = limits()
    for way in ("close", "forget"):
        items = BoundedMemory(256 * MB).each(iter(range(1, 3)), 0)
        assert [next(items), next(items)] == [0, 1]
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


def test_each_gives_every_item_and_holds_none_while_the_next_is_made() -> None:
    class Item:
        pass

    alive: list[int] = []

    def items() -> Iterator[Item]:
        for _ in range(3):
            gc.collect()
            alive.append(sum(isinstance(one, Item) for one in gc.get_objects()))
            yield Item()

    made = items()
    count = 0
    for item in BoundedMemory(256 * MB).each(made, next(made)):
        count += 1
        del item
    assert (count, alive) == (3, [0, 0, 0])
    assert list(BoundedMemory(256 * MB).each(iter(()), None)) == []


def test_the_usual_limit_is_back_where_an_error_leaves_no_memory_at_all() -> None:
    code = f"""
import resource, sys
from queue_source.errors import BadObject
from queue_source.storage.memory import BoundedMemory
before = resource.getrlimit(resource.RLIMIT_DATA)
def fill(bounded):
    kept = []  # alive in the traceback while the block is left
    with bounded:
        for size in (1 << 20, 4096, 600, *range(512, 0, -16)):
            piece = None
            try:
                while True:
                    piece = [bytes(size), piece]
            except MemoryError:
                kept.append(piece)
        kept.append(object())
        while True:
            kept = [kept, (1, kept), {{1: kept}}]
for limit in range(64, 74):
    try:
        fill(BoundedMemory(limit << 20))
    except (BadObject, MemoryError):  # the second, once the process holds much in pieces
        pass
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray({256 * MB})) == {256 * MB}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_limit_that_the_system_refuses_leaves_the_block_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pa.default_memory_pool().backend_name
    with monkeypatch.context() as patched:
        patched.setattr(memory._PROCESS, "_apply", _refuse)
        with pytest.raises(OSError, match="refused"), BoundedMemory(64 * MB):
            raise AssertionError
    assert pa.default_memory_pool().backend_name == pool
    with BoundedMemory(256 * MB):
        pass


def _refuse() -> None:
    if memory._PROCESS.is_bounded:
        raise OSError("refused")


def test_two_threads_decode_by_turns_and_neither_lifts_the_limit_of_the_other() -> None:
    before = limits()
    broken: list[str] = []

    def decode(limit: int) -> None:
        for number in range(200):
            try:
                with BoundedMemory(limit):
                    end = limits()
                    if end == before:
                        broken.append("no limit in a block")
                    if number % 3 == 0:
                        raise KeyError
                    with BoundedMemory(limit // 2):
                        time.sleep(0)
                    if limits() != end:
                        broken.append("another limit at the end of a block")
            except KeyError:
                pass

    threads = [threading.Thread(target=decode, args=(limit * MB,)) for limit in (128, 256, 512)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not broken


_CHILD = """
import os, resource, threading
from queue_source.storage import memory
from queue_source.storage.memory import BoundedMemory, room_for_reading
before = resource.getrlimit(resource.RLIMIT_DATA)
entered, leave = threading.Event(), threading.Event()
def hold():
    with BoundedMemory(256 << 20), BoundedMemory(128 << 20), room_for_reading():
        entered.set()
        leave.wait(60)
def child(check):
    number = os.fork()
    if not number:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(number, 0)[1] == 0
def free():
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert not memory._PROCESS.is_bounded
    with BoundedMemory(256 << 20):
        assert resource.getrlimit(resource.RLIMIT_DATA) != before
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
"""


def test_a_child_that_is_forked_while_another_thread_is_in_a_block_has_no_limit() -> None:
    code = (
        _CHILD
        + """
thread = threading.Thread(target=hold)
thread.start()
entered.wait(60)
child(free)
assert resource.getrlimit(resource.RLIMIT_DATA) != before
leave.set()
thread.join()
free()
"""
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_child_that_is_forked_in_a_block_leaves_it_as_its_parent_does() -> None:
    code = (
        _CHILD
        + """
def leave_it():
    block.__exit__(None, None, None)
    free()
block = BoundedMemory(256 << 20)
block.__enter__()
child(leave_it)
assert resource.getrlimit(resource.RLIMIT_DATA) != before
block.__exit__(None, None, None)
free()
child(free)
"""
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_small_object_is_opened_and_decoded_under_one_limit_and_ends_under_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"a": range(20)}), tmp_path / "a.parquet")
    ends: list[int] = []
    begin = memory._PROCESS.begin

    def noted(end: int) -> None:
        ends.append(end)
        begin(end)

    monkeypatch.setattr(memory._PROCESS, "begin", noted)
    batches = read_object(
        str(tmp_path / "a.parquet"), pa.schema([("a", pa.int64())]), FormatOptions("parquet"), BadRecords("FAILFAST")
    )
    assert sum(batch.num_rows for batch in batches) == 20
    assert len(ends) == 2


def test_how_much_was_freed_is_seldom_counted_where_that_takes_long() -> None:
    counts = []

    def slow() -> SimpleNamespace:
        counts.append(1)
        time.sleep(0.02)
        return SimpleNamespace(fordblks=7)

    library = memory._Library()
    library._info = slow
    assert [library.freed(100 * MB) for _ in range(50)] == [7] * 50
    assert len(counts) == 1
    library.freed(120 * MB)  # an object may have left something
    assert len(counts) == 2
    library.freed(100 * MB)
    assert len(counts) == 3


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


@pytest.mark.parametrize(
    ("change", "limited"),
    [
        ("sys.platform = 'darwin'; sys.modules['resource'] = None", False),
        ("sys.platform = 'win32'; sys.modules['resource'] = None; del os.sysconf", False),
        ("os.access = lambda *_: False", False),
        ("ctypes.CDLL = lambda _: object()", True),  # a C library that tells nothing of its memory
    ],
)
def test_objects_are_read_where_the_system_or_its_c_library_is_another(
    change: str, limited: bool, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"a": range(1000)}), tmp_path / "a.parquet")
    code = f"""
import ctypes, os, resource, sys
import pyarrow.compute, pyarrow.parquet
from queue_source.errors import BadObject
from queue_source.schema.columns import parse_columns
kept = resource
{change}
from queue_source.formats.base import BadRecords
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.storage import memory
before = kept.getrlimit(kept.RLIMIT_DATA)
with memory.BoundedMemory({256 * MB}):
    assert (kept.getrlimit(kept.RLIMIT_DATA) != before) is {limited}
options, path = FormatOptions("parquet"), {str(tmp_path / "a.parquet")!r}
batches = read_object(path, parse_columns("a BIGINT"), options, BadRecords("FAILFAST"))
assert sum(batch.num_rows for batch in batches) == 1000
memory.release_memory()
with memory.room_for_reading():
    pass
assert kept.getrlimit(kept.RLIMIT_DATA) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_limit_beyond_all_memory_is_none() -> None:
    with BoundedMemory(1 << 70):
        assert len(bytearray(MB)) == MB
