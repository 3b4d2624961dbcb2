"""Registering: Parquet objects that become data files of an Iceberg table, beside PyIceberg's own `add_files`.

The footers are those of real files of 64 MB: one such file has many names (hard links), so that the disk holds it once.
`add_files` trusts every footer, and ends at the first bad one. The last case has as many objects with the same columns
and a thousandth of the rows: the cost is one of footers, not of rows.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

from benchmarks.registry import Measurement, Role, Settings, benchmark
from benchmarks.sinks import rows_of
from queue_source.options import parse_sink_options
from queue_source.read.fixed_rows import REFERENCE_SCHEMA
from queue_source.sinks.base import Batch, open_sink
from shard_store.model import BEGINNING, Content, Range, Reference, end_at
from shard_store.store import ShardStore, open_store

TASKS = 2
_SIZE = 64 << 20
_GROUP = 1 << 20
"""Rows of a row group, as pyarrow writes them."""


@benchmark("registering")
def registering(settings: Settings) -> Iterator[Measurement]:
    """objects of 64 MB a second into an Iceberg table, registered, and added by PyIceberg"""
    count = 50 if settings.quick else 1000
    size = 4 << 20 if settings.quick else _SIZE
    large, rows = _file(settings.folder / "large.parquet", size)
    small, few = _file(settings.folder / "small.parquet", 0)
    with open_store(f"sqlite:///{settings.folder / 'store.db'}") as store:
        run = partial(_run, store, settings.folder)
        cases: dict[str, list[float]] = {"registered": [], "added": [], "small": []}
        for number in range(1 + settings.repetitions):
            taken = {
                "registered": run(f"large {number}", large, count),
                "added": _added(settings.folder, f"added {number}", large, count),
                "small": run(f"small {number}", small, count),
            }
            settings.say(f"{number}: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in taken.items())}")
            for name, seconds in taken.items() if number else ():
                cases[name].append(seconds)
    about = f"{count} objects of {large.stat().st_size >> 20} MB, {rows:,} rows each"
    added, registered = cases["added"], cases["registered"]
    yield Measurement(f"{about}: PyIceberg's add_files", added, count, "objects", role=Role.PEER)
    yield Measurement(f"{about}: registered", registered, count, "objects", "add_files", added)
    yield Measurement(
        f"{count} objects of {few:,} rows each: registered",
        cases["small"],
        count,
        "objects",
        "registered, 64 MB",
        registered,
        reference_role=Role.OURS,
    )
    settings.say(f"the footer has {pq.read_metadata(large).serialized_size:,} bytes, {_groups(large)} row groups")
    settings.say(f"one object: {statistics.median(registered) / count * 1000:.1f} ms")


def _file(path: Path, size: int) -> tuple[Path, int]:
    """A file of at least so many bytes, and its rows. Without a size it has a thousandth of a row group in each."""
    table = rows_of(0, _GROUP if size else _GROUP // 1000)
    rows = 0
    with pq.ParquetWriter(path, table.schema, compression="snappy") as writer:
        while not rows or (size and path.stat().st_size < size):
            writer.write_table(table, row_group_size=_GROUP)
            rows += len(table)
    return path, rows


def _groups(path: Path) -> int:
    return int(pq.read_metadata(path).num_row_groups)


@contextmanager
def _named(folder: Path, name: str, file: Path, count: int) -> Iterator[list[str]]:
    """So many names of one file."""
    objects = folder / name
    objects.mkdir()
    for number in range(count):
        os.link(file, objects / f"{number}.parquet")
    try:
        yield [f"file://{path}" for path in objects.iterdir()]
    finally:
        shutil.rmtree(objects)


def _added(folder: Path, name: str, file: Path, count: int) -> float:
    """Seconds that PyIceberg takes for as many objects, into a table of its own that exists."""
    catalog = load_catalog("bench", type="sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"{folder}/lake")
    try:
        catalog.create_namespace_if_not_exists("db")
        table = catalog.create_table(f"db.{name.replace(' ', '_')}", pq.read_schema(file))
        with _named(folder, name, file, count) as uris:
            begun = time.perf_counter()
            table.add_files(uris, check_duplicate_files=False)
            return time.perf_counter() - begun
    finally:
        catalog.close()


def _run(store: ShardStore, folder: Path, name: str, file: Path, count: int) -> float:
    """Seconds of one micro-batch of so many objects, into a table of its own."""
    with _named(folder, name, file, count) as uris:
        return _micro_batch(store, folder, name, uris)


def _micro_batch(store: ShardStore, folder: Path, name: str, uris: Sequence[str]) -> float:
    begun = time.perf_counter()
    started = store.start(name, name)
    size = Path(uris[0].removeprefix("file://")).stat().st_size
    contents = [Content(uri, uri, size, reference=Reference()) for uri in uris]
    shards = store.open_shards(started.token, name, contents).values()
    ranges = [Range(shard.key, shard.content, BEGINNING, end_at(size)) for shard in shards]
    store.advance(started.token, snapshot=(1, ranges))
    batch = Batch((store.plan(started.token, 0, 1).identity,))
    given = {"table": f"db.{name.replace(' ', '_')}", "warehouse": str(folder / "lake"), "register": "uri"}
    options = parse_sink_options({"pipeline": name, "store": f"sqlite:///{folder / 'store.db'}", **given})
    sink = open_sink(options)
    sink.prepare(store, REFERENCE_SCHEMA, batch.plans)
    written = [sink.write(_rows(uris[task::TASKS], size), REFERENCE_SCHEMA, batch) for task in range(TASKS)]
    sink.commit(store, batch, written, row_schema="{}", batch_id=0)
    store.advance(started.token, confirm=1)
    seconds = time.perf_counter() - begun
    assert sum(len(task.registered) for task in written) == len(uris)
    return seconds


def _rows(uris: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
    known: dict[str, Callable[[], list[object]]] = {"uri": lambda: list(uris), "size": lambda: [size] * len(uris)}
    columns = [
        pa.array(known[field.name]() if field.name in known else [None] * len(uris), field.type)
        for field in REFERENCE_SCHEMA
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=REFERENCE_SCHEMA)
