"""Reads the store for requests: in a few threads, for a limited time, once for equal requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Expired
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from shard_store.errors import StoreUnavailable
from shard_store.operators.status import PipelineStatus
from shard_store.shards.recording import Receiver, Waiting
from shard_store.store import ShardStore


class Routed(NamedTuple):
    """All receivers that were ever started with the store, and what waits for each source, where anything does."""

    receivers: tuple[Receiver, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    @classmethod
    def read(cls, store: ShardStore) -> Routed:
        return cls(store.receivers(), store.waiting())

    def first(self, number: int) -> Routed:
        """Return the first receivers and sources by their names: pages and scrapes are bounded."""
        return Routed(self.receivers[:number], self.waiting[:number])


T = TypeVar("T")

THREADS = 4
WAITING = 32
"""Reads that are under way or wait for a thread; more are refused."""
FRESH = 1.0
"""Seconds for which one reading of all pipelines, or of all receivers, answers everybody: however many ask, the store
is read once."""


@dataclass(frozen=True, slots=True)
class _Shared:
    began: float
    future: Future[Any]

    def serves(self, now: float) -> bool:
        """Tell whether the result may be used for this request: a failure serves only requests that waited for it."""
        if not self.future.done():
            return True
        return now - self.began < FRESH and not self.future.cancelled() and self.future.exception() is None


class StoreReads:
    """A store behind a web server. `time_out`: seconds that a request waits for it.

    A read that takes longer continues until the database ends it, and holds one of a few threads: a store that hangs
    makes requests fail, and uses no more threads and connections than these.
    """

    def __init__(
        self, store: ShardStore, *, time_out: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._time_out = time_out
        self._clock = clock
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[ShardStore], Any]] | None] = SimpleQueue()
        for number in range(THREADS):  # a ThreadPoolExecutor's would keep the process from ending while the store hangs
            threading.Thread(target=self._work, name=f"cuesqueue-serve_{number}", daemon=True).start()
        self._room = threading.Semaphore(WAITING)
        self._lock = threading.Lock()
        self._shared: dict[str, _Shared] = {}
        self._file: tuple[int, int] | None = None

    def read(self, work: Callable[[ShardStore], T]) -> T:
        """Run `work` on the store, and return its result. Raises ShardStoreError, also when that takes too long."""
        return self._wait(self._submit(work))

    def status(self) -> tuple[PipelineStatus, ...]:
        """Return all pipelines, as they were a second ago or later."""
        return self._once("status", lambda store: store.status())

    def routed(self) -> Routed:
        """Return all receivers, and what waits for each source, as they were a second ago or later."""
        return self._once("routed", Routed.read)

    def _once(self, name: str, work: Callable[[ShardStore], T]) -> T:
        with self._lock:
            shared = self._shared.get(name)
            if shared is None or not shared.serves(self._clock()):
                shared = self._shared[name] = _Shared(self._clock(), self._submit(work))
        return cast(T, self._wait(shared.future, shared=True))

    def close(self) -> None:
        """Begin no more reads; a read that is under way is not waited for."""
        with suppress(Empty):
            while job := self._jobs.get_nowait():
                job[0].cancel()
        for _ in range(THREADS):
            self._jobs.put(None)

    def _work(self) -> None:
        while job := self._jobs.get():
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                # a SQLite file may be replaced by a restored one, or removed: a new connection would create a missing
                # one, empty, and an open connection reads the old file for ever
                if (file := self._store.database.file()) is not None:
                    try:
                        status = file.stat()
                    except OSError as error:
                        raise StoreUnavailable(f"database {self._store.database.name!r}: {error.strerror}") from error
                    with self._lock:
                        before, self._file = self._file, (status.st_dev, status.st_ino)
                        if before not in (None, self._file):
                            self._store.database.engine.dispose()
                result = work(self._store)
            except BaseException as error:  # noqa: BLE001 - raised by the request that waits for it
                future.set_exception(error)
            else:
                future.set_result(result)

    def _submit(self, work: Callable[[ShardStore], T]) -> Future[T]:
        if not self._room.acquire(blocking=False):
            raise StoreUnavailable("too many reads of the store are under way")
        future: Future[T] = Future()
        future.add_done_callback(lambda _: self._room.release())
        self._jobs.put((future, work))
        return future

    def _wait(self, future: Future[T], *, shared: bool = False) -> T:
        try:
            return future.result(self._time_out)
        except Expired:
            if not shared:
                future.cancel()  # if it has not begun
            raise StoreUnavailable(f"the store did not answer within {self._time_out:g} s") from None
