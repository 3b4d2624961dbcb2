"""A listing of a million objects that are all known: objects a second, memory, and what is left for batches meanwhile.

The listing is fed from memory, so that nothing is measured but what is ours: no object store answers as fast. All else
is what a reader does: the same threads, pages, statements and filters. The batches are those of the benchmark `store`,
of 1,000 new shards, by another pipeline in the same process: the reader's own part of a micro-batch, without Spark,
with which it shares the interpreter's lock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from benchmarks.registry import Measurement, Settings, benchmark
from benchmarks.store import Batches, databases
from queue_source.coordinator import Coordinator, start
from queue_source.messages import ListedObject
from queue_source.options import parse_reader_options
from queue_source.storage.buckets.base import PAGE, Bucket, Known, Outcome, Page
from shard_store.adopting import Adopted
from shard_store.sql.transaction import chunks
from shard_store.store import ShardStore, open_store

_PREFIX = "s3://landing/orders/"
_PAUSE = 2.0  # seconds of batches, which are counted


class Generated(Bucket):
    """`count` objects that are made when they are listed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._modified = datetime.now(timezone.utc) - timedelta(days=2)
        self.resident: list[int] = []

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        first = 0 if cursor is None else int(cursor)
        last = min(first + PAGE, self._count)
        objects = [ListedObject(name_of(i), 1000, f"etag-{i}", self._modified) for i in range(first, last)]
        self.resident.append(resident())
        return Page(objects, f"{last:09}" if last < self._count else None, datetime.now(timezone.utc))

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        raise NotImplementedError

    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        raise NotImplementedError

    def close(self) -> None: ...


def name_of(number: int) -> str:
    return f"{_PREFIX}2026/11/22/part-{number:09}.parquet"


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@benchmark("listing")
def listing(settings: Settings) -> Iterator[Measurement]:
    """Objects a second of a listing fed from memory, 1,000,000 of which are known; batches meanwhile, against none."""
    count = 50_000 if settings.quick else 1_000_000
    for name, url in databases(settings.folder):
        with url as address, open_store(address) as store:
            settings.say(f"{name}: {count:,} known objects")
            for numbers in chunks(range(count)):
                store.adopt("listing", [Adopted(name_of(i), 1000, f"etag-{i}") for i in numbers], "benchmark")
            seconds, grown = [], []
            for _ in range(1 if settings.quick else 3):
                bucket = Generated(count)
                coordinator = _reader(address, bucket)
                seconds.append(_listed(coordinator, count))
                coordinator.stop()
                pages = bucket.resident
                early = statistics.median(pages[: len(pages) // 10])
                grown.append(max(pages[len(pages) // 10 :]) / early - 1)
            case = f"{name}, all known; memory {max(grown):+.1%}"
            yield Measurement(case, seconds, count, "objects")
            yield from _meanwhile(settings, name, address, store, count)


def _reader(address: str, bucket: Bucket) -> Coordinator:
    options = parse_reader_options(
        {
            "storeUrl": address,
            "source": "listing",
            "fileFormat": "parquet",
            "backfillPrefixes": _PREFIX,
            "backfillInterval": "1h",
        }
    )
    return start(options, open_store(address), {}, lambda uris: [None for _ in uris], open_bucket=lambda prefix: bucket)


def _listed(coordinator: Coordinator, count: int) -> float:
    began = time.perf_counter()
    while coordinator.report()["listed"] < count:
        coordinator.check()
        time.sleep(0.005)
    return time.perf_counter() - began


def _meanwhile(settings: Settings, name: str, address: str, store: ShardStore, count: int) -> Iterator[Measurement]:
    """Batches in turn: alone, and while a listing runs."""
    batches = Batches(store)
    batches.run(1000)
    alone, beside = [], []
    for _ in range(settings.repetitions):
        alone.append(_batches(batches, lambda: False))
        coordinator = _reader(address, Generated(count))
        beside.append(_batches(batches, lambda c=coordinator: c.report()["listed"] >= count))  # type: ignore[misc]
        coordinator.stop()
    yield Measurement(f"{name}, batches of 1,000 beside a listing", beside, 1000, "messages", "alone", alone)


def _batches(batches: Batches, over: Callable[[], bool]) -> float:
    """The median seconds of a batch."""
    taken: list[float] = []
    deadline = time.perf_counter() + _PAUSE
    while time.perf_counter() < deadline and not over():
        began = time.perf_counter()
        batches.run(1000)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
