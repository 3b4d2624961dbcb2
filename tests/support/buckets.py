"""An object store in memory, with a clock and troubles of its own: what a listing of it says, and nothing else."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from queue_source.messages import ListedObject
from queue_source.storage.buckets import PAGE, Bucket, Known, Outcome, Page


@dataclass
class MemoryStore:
    """Objects by URI.

    `ahead`: the seconds by which its clock is ahead of this machine's. `failing`: what its next pages raise.
    `before_page` is called with the prefix and the cursor, before anything is looked at. `calls` are all of these.
    """

    clock: Callable[[], float] = time.time
    ahead: float = 0.0
    page_size: int = PAGE
    failing: list[Exception] = field(default_factory=list)
    before_page: Callable[[str, str | None], None] = lambda prefix, cursor: None
    calls: list[tuple[str, str | None]] = field(default_factory=list)
    opened: int = 0
    _objects: dict[str, ListedObject] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock() + self.ahead, timezone.utc)

    def put(
        self, *uris: str, age: float = 60.0, size: int = 10, etag: str | None = None, appeared: float | None = None
    ) -> None:
        """As if written `age` seconds ago. Each has an ETag of its own content: here the size, unless it is given.

        `appeared`: seconds since it has its name, for stores that tell.
        """
        modified = datetime.fromtimestamp(self.clock() + self.ahead - age, timezone.utc)
        named = None
        if appeared is not None:
            named = datetime.fromtimestamp(self.clock() + self.ahead - appeared, timezone.utc)
        with self._lock:
            for uri in uris:
                if uri not in self._objects:
                    bisect.insort(self._names, uri)
                self._objects[uri] = ListedObject(uri, size, etag or f"etag-{size}", modified, appeared=named)

    def remove(self, *uris: str) -> None:
        with self._lock:
            for uri in uris:
                del self._objects[uri]
                self._names.remove(uri)

    def open(self, prefix: str) -> Bucket:
        self.opened += 1
        return _Opened(self)

    def page(self, prefix: str, cursor: str | None) -> Page:
        self.before_page(prefix, cursor)
        with self._lock:
            self.calls.append((prefix, cursor))
            if self.failing:
                raise self.failing.pop(0)
            first = bisect.bisect_left(self._names, prefix)
            if cursor is not None:
                first = max(first, bisect.bisect_right(self._names, cursor))
            end = first
            while end < len(self._names) and end - first < self.page_size and self._names[end].startswith(prefix):
                end += 1
            more = end < len(self._names) and self._names[end].startswith(prefix)
            objects = [self._objects[name] for name in self._names[first:end]]
            return Page(objects, self._names[end - 1] if more else None, self.now())


class _Opened(Bucket):
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._closed = False

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        assert not self._closed
        return self._store.page(prefix, cursor)

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        raise NotImplementedError

    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        raise NotImplementedError

    def close(self) -> None:
        self._closed = True
