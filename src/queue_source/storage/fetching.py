"""The requests of one task for its objects, many of them under way before their turn.

A bucket answers after 20 to 40 ms, however small the object is: a task that waited for each would do little else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple

from queue_source.errors import BadObject, ObjectReplaced, ObjectStoreError
from queue_source.options.connections import StorageOptions
from queue_source.storage.files import open_object, open_version
from queue_source.storage.memory import room_for_reading_ahead, share_memory_of_threads
from queue_source.storage.open_files import ObjectFile, ObjectVersion, is_local, mapped
from queue_source.storage.pauses import ends_with, retries_so_far

WHOLE = 8 << 20
"""Bytes of the largest object that one request brings."""
_BLOCK = 16 << 20  # bytes that the parsers of text take at once
_AROUND = 64  # bytes before a part, which show where the line before it ends, and behind its first block
LEAST = 64 << 10
"""Bytes of the smallest request that is worth one."""
_COUNTED = 4 << 10  # bytes that an object counts at least
_MOMENT = 0.2  # seconds for which answers are waited for that are not needed yet
_USUAL = 256 << 10


class Requested(NamedTuple):
    """An object of a task: its announced size in bytes, if any, and what is read of it first.

    `start`: where reading begins; None: at the end of the object, as with formats that have a footer. `whole`: bytes of
    the largest object that is asked for as a whole.
    """

    uri: str
    size: int | None = None
    start: int | None = 0
    whole: int = WHOLE

    def range(self) -> tuple[int, int]:
        """Return the bytes that the first request asks for."""
        if self.size is None or self.size <= self.whole:
            return 0, self.whole if self.size is None else max(self.size, 1)
        if self.start is None:
            return self.size - LEAST, self.size
        return max(self.start - _AROUND, 0), min(self.start + min(_BLOCK + _AROUND, 2 * self.whole), self.size)


class _Threads(ThreadPoolExecutor):
    """Does with fewer threads where the system refuses another one, as for lack of addresses."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise
            self._max_workers = len(self._threads)


class Fetcher:
    """Opens the objects of a task in their order, and asks for those that come next meanwhile.

    Args:
        objects: All of them, in the order in which they are opened.
        storage: How stores are reached.
        requests: How many may be under way.
        ahead: Bytes that may be there, or under way, before their turn. The next object is asked for in any case.
        usual: Bytes that an object of unknown size is taken to have, until others were met; 0: not known.

    Close it, or use it in a `with` statement: then none of its threads is left. Local files are opened in their turn.
    Used in executors, by one thread.
    """

    def __init__(
        self,
        objects: Sequence[Requested],
        storage: StorageOptions | None,
        *,
        requests: int,
        ahead: int,
        usual: int = 0,
    ) -> None:
        self._objects, self._storage = objects, storage or StorageOptions()
        self._requests, self._most = requests, ahead
        self._waiting = deque(place for place, requested in enumerate(objects) if not is_local(requested.uri))
        self._under_way: dict[int, tuple[Future[ObjectVersion], int]] = {}
        self._arrived = deque[int]()
        self._bytes = 0
        self._met = [usual or _USUAL, 1]  # bytes, and of how many objects
        self._stack = ExitStack()
        self._ended = threading.Event()
        self._threads: ThreadPoolExecutor | None = None
        self._retries_before = retries_so_far()

    @property
    def retries(self) -> int:
        """Requests that were sent again."""
        return retries_so_far() - self._retries_before

    def __enter__(self) -> Fetcher:
        if self._waiting:
            most = min(self._requests, len(self._waiting) + 1)
            self._threads = _Threads(most, "cuesqueue-fetch", ends_with, (self._ended,))
            share_memory_of_threads()
            self._stack.enter_context(room_for_reading_ahead(self._most))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._waiting.clear()
        for place in [*self._under_way]:
            self._drop(place)
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._stack.close()

    @contextmanager
    def open(self, place: int) -> Iterator[ObjectFile]:
        """Open the object at this place of the task, which may be opened again until `leave`; after an error anew.

        Raises as `open_version` does.
        """
        requested = self._objects[place]
        if self._threads is None or is_local(requested.uri):
            with open_object(requested.uri, self._storage, size=requested.size) as local:
                yield local
            return
        self._ask(place)
        file = ObjectFile(self._objects[place].uri, self._take(place), self._threads)
        try:
            yield file
        except BaseException:
            self._drop(place)
            raise
        finally:
            file.closed = True

    def arrived(self, place: int) -> dict[int, ObjectVersion]:
        """Return the objects from this place on whose answers have come, of as many as may be under way, by place.

        The first one's answer is waited for, and those of the others a moment. What is missing may still be opened.
        """
        self._ask(place)
        asked = {ahead: future for ahead, (future, _) in self._under_way.items() if ahead >= place}
        wait(future for ahead, future in asked.items() if ahead == place)
        done, _ = wait(asked.values(), _MOMENT)
        good = {future for future in done if not future.cancelled() and future.exception() is None}
        return {ahead: future.result() for ahead, future in asked.items() if future in good}

    def leave(self, places: Sequence[int]) -> None:
        """Give back what is held of these objects, which are not opened any more."""
        for place in places:
            self._drop(place)

    def _take(self, place: int) -> ObjectVersion:
        if (asked := self._under_way.get(place)) is not None:
            if not asked[0].done() and asked[1] <= 1 << 16 and (later := self._under_way.get(place + 64)) is not None:
                wait([later[0]])
            try:
                version = asked[0].result()
            except MemoryError:  # others have taken it: once more, now that it is this one's turn
                self._drop(place)
            except (BadObject, ObjectStoreError):
                self._drop(place)
                raise
            else:
                return version
        opened = _fetch(self._objects[place].uri, self._storage, *self._objects[place].range())
        future = Future[ObjectVersion]()
        future.set_result(opened)
        self._under_way[place] = future, 0
        return opened

    def _ask(self, now: int) -> None:
        """Send requests as far as may be."""
        self._recount()
        while self._waiting and self._threads is not None:
            place = self._waiting[0]
            start, end = self._range(place, now)
            size = max(end - start, _COUNTED)
            if place > now and self._bytes + size > self._most:
                return
            self._waiting.popleft()
            if place >= now:
                self._bytes += size
                future = self._threads.submit(_fetch, self._objects[place].uri, self._storage, start, end)
                self._under_way[place] = future, size
                future.add_done_callback(lambda _, place=place: self._arrived.append(place))  # type: ignore[misc]

    def _range(self, place: int, now: int) -> tuple[int, int]:
        """Return the bytes to ask for: of an object of unknown size, before its turn, not many more than others had."""
        start, end = self._objects[place].range()
        if self._objects[place].size is None and place > now:
            end = min(end, max(2 * self._met[0] // self._met[1], self._most // self._requests, LEAST))
        return start, end

    def _recount(self) -> None:
        """Count what has arrived by its size."""
        while self._arrived:
            place = self._arrived.popleft()
            future, counted = self._under_way.get(place, (None, 0))
            if future is not None and counted and future.exception() is None:
                size = future.result().size
                self._met = [self._met[0] + min(size, WHOLE), self._met[1] + 1]
                now = min(counted, max(size, _COUNTED))
                self._bytes -= counted - now
                self._under_way[place] = future, now

    def _drop(self, place: int) -> None:
        future, size = self._under_way.pop(place, (None, 0))
        self._bytes -= size
        if future is not None and not future.cancel():
            future.add_done_callback(_close)


def _fetch(uri: str, storage: StorageOptions, start: int, end: int) -> ObjectVersion:
    """Open the object with these bytes, as far as there are any; where the library has no request for both, by two."""
    version = open_version(uri, storage, start, end)
    end = min(end, version.size)
    if start < end and not version.holds(start, end):
        with mapped(uri):
            version.hold(start, version.read_range(start, end))
            if start == 0 and end == version.size and not version.is_pinned:
                if not version.is_same():
                    raise ObjectReplaced(f"{uri!r} was written to while it was fetched")
                version.is_pinned = True  # nothing is asked for any more
    return version


def _close(future: Future[ObjectVersion]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
