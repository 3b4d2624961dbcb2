"""A listing of a million objects that are all known: objects a second, memory, and what is left for batches meanwhile.

The listing is fed from memory, so that nothing is measured but what is ours: no object store answers as fast. All else
is what a reader does: the same threads, pages, statements and filters. The batches are of 1,000 new shards by a reader
that also lists, against the same reader without `backfillPrefixes`: from a queue in a file of its own, in Spark's
order of calls without Spark, one batch right after the other, and all in one process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from benchmarks.registry import Measurement, Role, Settings, benchmark
from benchmarks.store import databases
from queue_source.coordinator import Coordinator, prepare
from queue_source.messages import ListedObject
from queue_source.options import parse_reader_options
from queue_source.queues.sql import SqlQueue
from queue_source.storage.buckets import PAGE, Bucket, Known, Outcome, Page
from shard_store.sql.database import chunks
from shard_store.store import open_store
from support.driver_loop import DriverLoop, reader_options

_PREFIX = "s3://landing/orders/"
_PAUSE = 5.0  # seconds of batches, which are counted
_WARM = 2  # batches before
_MESSAGES = 60_000
_ENDLESS = 1_000_000_000  # objects: a listing that lasts longer than the batches


class Generated(Bucket):
    """`count` objects that are made when they are listed; their names come again after `known` of them."""

    def __init__(self, count: int, known: int) -> None:
        self._count, self._known = count, known
        self._modified = datetime.now(timezone.utc) - timedelta(days=2)
        self.resident: list[int] = []

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        first = 0 if cursor is None else int(cursor)
        last = min(first + PAGE, self._count)
        objects = [
            ListedObject(name_of(i % self._known), 1000, f"etag-{i % self._known}", self._modified)
            for i in range(first, last)
        ]
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
                store.adopt("listing", [name_of(i) for i in numbers], "benchmark")
            seconds, grown = [], []
            for _ in range(1 if settings.quick else 3):
                bucket = Generated(count, count)
                coordinator = _reader(address, bucket)
                seconds.append(_listed(coordinator, count))
                coordinator.stop()
                pages = bucket.resident
                early = statistics.median(pages[: len(pages) // 10])
                grown.append(max(pages[len(pages) // 10 :]) / early - 1)
            case = f"{name}, all known; memory {max(grown):+.1%}"
            yield Measurement(case, seconds, count, "objects")
            yield from _meanwhile(settings, name, address, settings.folder / name, count)


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
    store = open_store(address)
    coordinator = prepare(options, store, {}, lambda uris: [None for _ in uris], open_bucket=lambda prefix: bucket)
    coordinator.begin()
    return coordinator


def _listed(coordinator: Coordinator, count: int) -> float:
    began = time.perf_counter()
    while coordinator.report()["listed"] < count:
        coordinator.check()
        time.sleep(0.005)
    return time.perf_counter() - began


def _meanwhile(settings: Settings, name: str, address: str, folder: Path, count: int) -> Iterator[Measurement]:
    """The same reader in turn: without a listing, and while one runs."""
    alone, beside = [], []
    for number in range(settings.repetitions):
        prefix = _PREFIX[: -1 - number]  # of which no listing was made before: it is due
        listing = {"backfillPrefixes": prefix, "backfillInterval": "1h"}
        bucket = Generated(_ENDLESS, count)
        alone.append(_batch(address, folder / f"{number}-alone", bucket, {}))
        beside.append(_batch(address, folder / f"{number}-beside", bucket, listing))
    case = f"{name}, batches of 1,000 beside a listing"
    yield Measurement(case, beside, 1000, "messages", "alone", alone, reference_role=Role.BASELINE)


def _batch(address: str, folder: Path, bucket: Bucket, listing: Mapping[str, str]) -> float:
    """Seconds for a batch of a reader that has more messages than it reads."""
    folder.mkdir(parents=True)
    queue_url = f"sql+sqlite:///{folder}/queue.db?queue=landing"
    with SqlQueue(queue_url) as queue:
        for first in range(0, _MESSAGES, 1000):
            queue.publish([f"s3://landing/new/{folder.name}-{n:06}" for n in range(first, first + 1000)])
    options = reader_options(
        queue_url,
        address,
        source="listing",
        visibilityTimeout="5m",
        commitTimeout="60s",
        maxFilesPerTrigger="1000",
        **listing,
    )
    loop = DriverLoop(options, folder / "checkpoint", folder / "output", open_bucket=lambda prefix: bucket)
    try:
        for _ in range(_WARM):
            _next_batch(loop)
        began, batches = time.perf_counter(), 0
        while time.perf_counter() - began < _PAUSE and batches < _MESSAGES // 1000 - _WARM:
            _next_batch(loop)
            batches += 1
        taken = time.perf_counter() - began
        if listing and not loop.coordinator.report()["listed"]:
            raise AssertionError("nothing was listed meanwhile")
        return taken / batches
    finally:
        loop.stop()


def _next_batch(loop: DriverLoop) -> None:
    while not loop.batch():
        time.sleep(0.001)
