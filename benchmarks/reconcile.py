"""Comparing a bucket with its store, as the command, page by page.

The database writes the shards by itself. One key in a thousand of the listing has no shard.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import sqlalchemy as sa

from benchmarks.registry import Measurement, Settings, benchmark
from benchmarks.store import databases
from queue_source.commands.reconcile import compare
from queue_source.messages import ListedObject
from queue_source.options import parse_listing_options
from queue_source.storage.buckets import PAGE, Page
from shard_store.model import end_at
from shard_store.store import ShardStore, open_store

SOURCE, PREFIX = "bench", "s3://bucket/landing/"
_AT = datetime(2026, 11, 1, tzinfo=timezone.utc)
_LOST = 1000
_ETAG = "d41d8cd98f00b204e9800998ecf8427e"
_INSERT = r"""
INSERT INTO cuesqueue_shards (shard_key, source, shard_id, size, etag, queue, message_id, receive_count, position,
    state, owner, incarnation, end_seq, opened_at, finished_at)
SELECT sha256(convert_to(CAST(:source AS text), 'UTF8') || CAST('\x00' AS bytea) || convert_to(:prefix || i, 'UTF8')),
    :source, :prefix || i, 1000, :etag, 'q', 'm' || i, 1, :position, 'done', 'pipeline', 1, 1, :at + i, :at + i
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS s(i) WHERE i % :lost <> 0
"""


@benchmark("reconcile")
def reconcile_sizes(settings: Settings) -> Iterator[Measurement]:
    """Keys a second: a listing, page by page, against so many shards on PostgreSQL"""
    sizes = (20_000, 100_000) if settings.quick else (1_000_000, 10_000_000)
    *_, (name, url) = databases(settings.folder)
    with url as given, open_store(given) as store:
        store.start(SOURCE, "pipeline")
        there = 0
        for size in sizes:
            began = time.perf_counter()
            _fill(store, there, size)
            settings.say(f"{size:,} shards are written ({time.perf_counter() - began:.0f} s)")
            there = size
            yield _command(settings, name, store, min(size, sizes[0]), size)


def _fill(store: ShardStore, first: int, end: int) -> None:
    """Shards `first` to `end`; the primary key is built at the end, as a load of so many does it."""
    at = round(_AT.timestamp() * 1_000_000)
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE cuesqueue_shards DROP CONSTRAINT cuesqueue_shards_pkey")
        connection.execute(
            sa.text(_INSERT),
            {
                "source": SOURCE,
                "prefix": PREFIX,
                "etag": _ETAG,
                "position": end_at(1000),
                "at": at,
                "first": first,
                "last": end - 1,
                "lost": _LOST,
            },
        )
        connection.exec_driver_sql("ALTER TABLE cuesqueue_shards ADD PRIMARY KEY (shard_key)")
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE cuesqueue_shards")


def _command(settings: Settings, name: str, store: ShardStore, keys: int, size: int) -> Measurement:
    """From memory: what a listing of a bucket costs is not in it."""
    options = parse_listing_options([PREFIX], {})
    now = _AT + timedelta(days=1)
    memory: list[int] = []

    def pages() -> Iterator[Page]:
        for first in range(0, keys, PAGE):
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            yield Page([ListedObject(f"{PREFIX}{i}", 1000, _ETAG, _AT) for i in range(first, first + PAGE)], "", now)
        yield Page((), None, now)

    began, busy = time.perf_counter(), time.process_time()
    report = compare(store, SOURCE, PREFIX, options, pages())
    taken, busy = time.perf_counter() - began, time.process_time() - busy
    settings.say(f"processor time of the command: {busy:.1f} s")
    assert report.tally.counts["missing"] == keys // _LOST
    settings.say(
        f"peak memory of the command: {memory[len(memory) // 10] >> 10} MB after a tenth, {memory[-1] >> 10} MB"
    )
    return Measurement(f"{name}, page by page, {keys:,} keys against {size:,} shards", [taken], keys, "keys")
