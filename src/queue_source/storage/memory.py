"""Limits the memory that this process takes while it decodes an object: a small stored object may become huge.

Linux only: there the system refuses more memory, which libraries turn into MemoryError. On other systems nothing is
limited, and an object that takes all memory is identified by the marks of dead readers (decision 0037).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from queue_source.errors import BadObject

if sys.platform == "linux":
    import resource

Item = TypeVar("Item")

MOST = 1 << 30
"""Bytes that decoding an object may take where `maxDecodeMemory` is not set; fewer on a machine that has few."""
LEAST = 256 << 20
FOR_READING = 64 << 20
"""Bytes beyond the limit for requests to an object store: libraries call it a failed request when they lack memory."""
FAIR = 64 << 20
"""Bytes that must have been left for an object before it is called too large."""
_NO_LIMIT = 1 << 60
_OTHER_DATA = 16 << 20
_AT_LEAST = 0.005  # seconds
_STATM = "/proc/self/statm"
_CAN_LIMIT = sys.platform == "linux" and os.access(_STATM, os.R_OK)
_M_ARENA_MAX = -8
_ARENAS = 2
_PAGE = os.sysconf("SC_PAGE_SIZE") if _CAN_LIMIT else 0


@cache
def usual_limit() -> int:
    """Return half of the memory that the machine or container has for each core, within `LEAST` and `MOST`."""
    if not _CAN_LIMIT:
        return MOST
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups, version 2 and 1
        try:
            total = min(total, int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # there is no such file, or it says `max`
            continue
    return min(max(total // len(os.sched_getaffinity(0)) // 2, LEAST), MOST)


class BoundedMemory:
    """Lets the process take `limit` bytes more, in a block, than it has when the block begins.

    Each block calls an object bad that needs more, and restores the limit that was in force before. A lower one, of the
    system or of Spark (`spark.executor.pyspark.memory`), stays in force. Blocks may be within each other. One thread at
    a time is in a block, since the limit is that of the process: its other threads fail with MemoryError if they need
    much meanwhile.

    In a block pyarrow takes memory from the system and gives it back. What its own allocator reserves, a gigabyte at
    once, would count as taken before; or as taken by the first object, however small. Some parts of pyarrow (Parquet's
    pages as they are decompressed) use that reserve in a block all the same, beside the limit: what fits into it is not
    refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._room = min(limit, _NO_LIMIT)

    def __enter__(self) -> None:
        if not _CAN_LIMIT:
            return
        _PROCESS.turn.acquire()
        try:
            self._room, end = _room(self._limit)
            _PROCESS.begin(end)
        except BaseException:
            _PROCESS.turn.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise BadObject("too-large-for-memory") for MemoryError, where enough was left for a fair trial."""
        if _CAN_LIMIT:
            _PROCESS.lift()  # before anything that needs memory, of which there may be none
            try:
                _PROCESS.end()
            finally:
                _PROCESS.turn.release()
        if isinstance(error, MemoryError) and self._room >= min(self._limit, FAIR):
            traceback.clear_frames(trace)  # they hold what was decoded
            raise BadObject(
                "too-large-for-memory",
                f"decoding it takes more than {self._room >> 20} MB of memory; if it can be trusted, give the "
                "executors more memory, and raise the reader's option maxDecodeMemory",
            ) from error

    def each(self, items: Iterator[Item], first: Item | None) -> Iterator[Item]:
        """Yield `first`, and the items after it, each made in a block; none is open while the caller has an item."""
        item = first
        del first  # or it would be held to the end
        while item is not None:
            yield item
            item = None  # before the next is made, which may be as large
            with self:
                item = next(items, None)


def room_for_reading() -> AbstractContextManager[None]:
    """Leave some memory beyond the limit, in any thread, for a request to an object store."""
    return room_for_reading_ahead() if _PROCESS.is_bounded else nullcontext()


def room_for_reading_ahead(ahead: int = 0) -> AbstractContextManager[None]:
    """Leave as much also in blocks that begin later: what is read ahead is not taken by the object in its turn.

    `ahead`: bytes that may be read ahead; where they are many, room is left for them, and for requests.
    """
    return _PROCESS.reading(max(ahead - FOR_READING // 2, 0))


def release_memory() -> None:
    """Give back to the system what was freed, by pyarrow and by Python."""
    pa.default_memory_pool().release_unused()
    _LIBRARY.trim()


def share_memory_of_threads() -> None:
    """Let threads that begin later take their memory from few places: each keeps some of what was freed there."""
    _LIBRARY.share_arenas()


class _Library:
    """What glibc knows of the memory of this process. Other C libraries do not, and pyarrow does not ask."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if _CAN_LIMIT else None
        self._trim = getattr(library, "malloc_trim", None)
        self._option = getattr(library, "mallopt", None)
        self._info = getattr(library, "mallinfo2", None) or getattr(library, "mallinfo", None)
        if self._info is not None:
            number = ctypes.c_size_t if hasattr(library, "mallinfo2") else ctypes.c_uint32
            names = (
                "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                "keepcost",
            )  # fmt: skip
            fields = [(name, number) for name in names]
            self._info.restype = type("mallinfo", (ctypes.Structure,), {"_fields_": fields})
        self._freed = self._data = 0
        self._until = -1.0

    def trim(self) -> None:
        if self._trim is not None:
            self._trim(0)

    def freed(self, data: int) -> int:
        """Return the bytes that were freed and that the process, which has so many bytes of data, keeps in pieces.

        A million pieces are counted in 0.1 s, so a count is used for 20 times as long. Where the process has other data
        by then it is counted again, since what an object left in pieces counts at once.
        """
        began = time.perf_counter()
        if began > self._until or abs(data - self._data) > _OTHER_DATA:
            self._freed = 0 if self._info is None else int(self._info().fordblks)
            self._data, now = data, time.perf_counter()
            self._until = now + max(_AT_LEAST, 20 * (now - began))
        return self._freed

    def share_arenas(self) -> None:
        if self._option is not None:
            self._option(_M_ARENA_MAX, _ARENAS)


_LIBRARY = _Library()


class _Process:
    """The limits of this process that are in force, the innermost last; and how many reads have more room."""

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.lift: Callable[[], object] = lambda: None
        """Puts the usual limit in force at once, and takes no memory for that."""
        self.state = threading.Lock()
        self._usual = (-1, -1)
        self._pool: pa.MemoryPool | None = None
        self._ends: list[int] = []
        self._reads = self._ahead = 0

    @property
    def is_bounded(self) -> bool:
        return bool(self._ends)

    def begin(self, end: int) -> None:
        with self.state:
            if not self._ends:
                self._usual = resource.getrlimit(resource.RLIMIT_DATA)
                self.lift = partial(resource.setrlimit, resource.RLIMIT_DATA, self._usual)
                self._pool = pa.default_memory_pool()
                pa.set_memory_pool(pa.system_memory_pool())
            self._ends.append(min([end, *self._ends[-1:]]))
            try:
                self._apply()
            except BaseException:
                self._leave()
                raise

    def end(self) -> None:
        with self.state:
            self._leave()

    def _leave(self) -> None:
        self._ends.pop()
        if not self._ends:
            pa.set_memory_pool(self._pool)
        self._apply()

    def after_fork_in_child(self) -> None:
        """Leave the blocks of a thread that is not in the child: nothing else would end them."""
        self._reads = self._ahead = 0
        if self.turn.acquire(blocking=False):
            self.turn.release()
        else:
            self.turn = threading.RLock()
            del self._ends[1:]
            if self._ends:
                self._leave()
        self.state.release()

    @contextmanager
    def reading(self, ahead: int = 0) -> Iterator[None]:
        self._read(1, ahead)
        try:
            yield
        finally:
            self._read(-1, -ahead)

    def _read(self, more: int, ahead: int) -> None:
        with self.state:
            self._reads = max(self._reads + more, 0)  # after a fork some of them are none of this process
            self._ahead = max(self._ahead + ahead, 0)
            if self._ends:
                self._apply()

    def _apply(self) -> None:
        soft, hard = self._usual
        if self._ends:
            end = self._ends[-1] + (FOR_READING if self._reads else 0) + self._ahead
            soft = end if soft == resource.RLIM_INFINITY else min(end, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


_PROCESS = _Process()
if _CAN_LIMIT:
    os.register_at_fork(
        before=_PROCESS.state.acquire,
        after_in_parent=_PROCESS.state.release,
        after_in_child=_PROCESS.after_fork_in_child,
    )


def _room(limit: int) -> tuple[int, int]:
    """Return how many of so many bytes the process may still take, and how many bytes of data it may have then.

    Freed and kept memory is used first, but it is in pieces: as much as the limit does not count, beyond it less
    remains. Where that is less than half of the limit, the process is unfit for a fair trial: 0.
    """
    _reserve(os.getpid())
    size, data = _taken()
    freed = _LIBRARY.freed(data)
    more = min(max(2 * limit - freed, limit // 4), limit)
    room = limit if more >= limit // 2 else 0
    remaining = _NO_LIMIT  # by the limits in force
    for kind, taken in ((resource.RLIMIT_AS, size + FOR_READING), (resource.RLIMIT_DATA, data)):
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY:
            remaining = min(remaining, max(soft - taken, 0))
    return min(room, remaining), data + min(more, remaining)


@cache
def _reserve(process: int) -> None:
    """Let pyarrow's own allocator take its reserve, a gigabyte: some parts use it in a block all the same."""
    pa.array([0])
    pa.allocate_buffer(1 << 10)


def _taken() -> tuple[int, int]:
    """Return the bytes of addresses that this process has, and its bytes of data."""
    descriptor = os.open(_STATM, os.O_RDONLY)  # each time: a fork would go on reading of its parent
    try:
        pages = os.read(descriptor, 256).split()
    finally:
        os.close(descriptor)
    return int(pages[0]) * _PAGE, int(pages[5]) * _PAGE
