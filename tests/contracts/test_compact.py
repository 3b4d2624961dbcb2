"""Contract: `cuesqueue compact` joins Parquet files, and every reader has the same rows before, meanwhile and after."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import cuesqueue
from queue_source.commands import compact as compacting
from queue_source.commands.compact import CompactResult, compact
from queue_source.commands.main import app
from queue_source.commands.vacuum import vacuum
from queue_source.formats.variants import VARIANT
from queue_source.options.connections import StorageOptions
from queue_source.sinks.splits import write_split
from queue_source.spark.process import spark_schema
from queue_source.spark.published import read_data_files
from shard_store.failpoints import COMPACTING_POINTS, VARIABLE
from shard_store.model import Split
from shard_store.store import ShardStore, open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support.servers.ministack import client, new_name
from support.store_backends import Pipeline, StoreBackend

UTC = timezone.utc
SMALL, TARGET = 1 << 20, 8 << 20
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)


def write(folder: str, table: pa.Table, storage: Any = None) -> Split:
    """A data file as the sink writes it."""
    (split,) = write_split(table.to_batches(), table.schema, folder, "split-" + "0" * 12, "zstd", storage)
    return split


def publish(us: Pipeline, folder: object, *tables: pa.Table) -> None:
    """Each table as a file of one batch."""
    splits = [write(str(folder), table) for table in tables]
    us.publish(us.planned(f"{us.token.pipeline}-{us.seq}"), *splits, row_schema=spark_schema(tables[-1].schema).json())
    us.confirm()


def numbers(first: int, count: int = 3) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "name": [f"n{first}"] * count})


def published_rows(store: ShardStore, **chosen: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = cuesqueue.published(store, **chosen).to_arrow().to_pylist()
    return sorted(rows, key=str)


def names_in(store: ShardStore) -> list[str]:
    return [path.rpartition("/")[2] for path in cuesqueue.published(store).paths()]


def run(url: str, *arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, ["compact", "--store", url, *arguments])
    assert done.exit_code == code, done.output
    return done


# --- the files ---


@on_sqlite
def test_files_of_all_types_and_of_columns_that_came_later_are_joined_and_no_column_is_lost(
    store: ShardStore, tmp_path: Path
) -> None:
    us = Pipeline.start(store)
    nested = pa.struct([("k", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int32()))])
    rich = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("price", pa.decimal128(30, 4)),
            ("raw", pa.binary()),
            ("nested", nested),
            ("gone", pa.float64()),
        ]
    )
    values = {
        "id": 1,
        "at": datetime(1, 1, 1, tzinfo=UTC),
        "local": datetime(9999, 12, 31, 23, 59, 59, 999999),
        "day": datetime(1582, 10, 15).date(),
        "price": Decimal("12345678901234567890123456.7891"),
        "raw": b"\0\xff",
        "nested": {"k": ["a", None], "m": [("x", 1)]},
        "gone": float("nan"),
    }
    first = pa.Table.from_pylist([values, {"id": 2}], rich)
    publish(us, tmp_path / "out", first)
    publish(us, tmp_path / "out", numbers(10))  # without most columns, and with a new one
    publish(us, tmp_path / "out", first.drop_columns(["gone"]).append_column("new", pa.array(["x", None])))
    before = published_rows(store)
    files = [*cuesqueue.published(store).files()]
    result = compact(store, smaller_than=SMALL, target=TARGET)
    assert (result.files, result.into, result.overtaken, result.failures) == (3, 1, 0, ())
    assert published_rows(store) == before
    (joined,) = cuesqueue.published(store).files()
    assert result.bytes_after == joined.bytes == Path(joined.path).stat().st_size
    assert (joined.rows, joined.delivery_hash, joined.published_at) == (7, None, files[-1].published_at)
    with pq.ParquetFile(joined.path) as opened:
        assert opened.schema_arrow.names == [*rich.names, "name", "new"]
        assert opened.metadata.row_group(0).column(0).compression == "ZSTD"
        table = opened.read()
    assert repr(table.slice(0, 2).select(rich.names).to_pylist()) == repr(first.to_pylist())
    assert table["id"].to_pylist() == [1, 2, 10, 11, 12, 1, 2]  # in their order
    for file in files:
        assert Path(file.path).exists()


@on_sqlite
def test_a_column_whose_name_has_another_case_since_keeps_its_values(store: ShardStore, tmp_path: Path) -> None:
    us = Pipeline.start(store)
    publish(us, tmp_path / "out", pa.table({"id": [1], "x": ["a"]}), pa.table({"id": [2], "x": ["b"]}))
    publish(us, tmp_path / "out", pa.table({"ID": [3], "X": ["c"]}), pa.table({"ID": [4], "X": ["d"]}))
    rows = [{"ID": number, "X": "abcd"[number - 1]} for number in range(1, 5)]
    assert published_rows(store) == rows
    assert compact(store, smaller_than=SMALL, target=TARGET).into == 2
    assert published_rows(store) == rows
    publish(us, tmp_path / "out", pa.table({"id": [5], "ID": [6]}))
    assert {"id": 1, "ID": None} in published_rows(store), "two columns are not one"


@on_sqlite
def test_a_type_that_became_wider_goes_into_another_file(store: ShardStore, tmp_path: Path) -> None:
    us = Pipeline.start(store)
    narrow, wide = pa.table({"id": pa.array([1], pa.int32())}), pa.table({"id": pa.array([1 << 40], pa.int64())})
    for table in (narrow, narrow, wide, wide, narrow):
        publish(us, tmp_path / "out", table)
    publish(us, tmp_path / "out", wide)
    before = published_rows(store)
    result = compact(store, smaller_than=SMALL, target=TARGET)
    assert (result.files, result.into) == (4, 2)
    assert published_rows(store) == before
    types = [pq.read_schema(path).field("id").type for path in cuesqueue.published(store).paths()]
    assert types == [pa.int32(), pa.int64(), pa.int32(), pa.int64()]


@pytest.mark.parametrize("within", [False, True])
@on_sqlite
def test_a_column_that_has_parts_which_are_never_null_goes_into_files_that_all_have_it(
    store: ShardStore, tmp_path: Path, within: bool
) -> None:
    us, data = Pipeline.start(store), {"value": b"\x0c\x01", "metadata": b"\x01\0\0"}
    inner = pa.struct([("n", pa.int64()), ("v", VARIANT)])
    before = pa.table({"id": [1], "s": pa.array([{"n": 1}], pa.struct([("n", pa.int64())]))})
    after = before.set_column(1, "s", pa.array([{"n": 1, "v": data}], inner)) if within else before
    after = after if within else after.append_column(pa.field("v", VARIANT), pa.array([data], VARIANT))
    for table in (before, before, after, after):
        publish(us, tmp_path / "out", table)
    rows = published_rows(store)
    result = compact(store, smaller_than=SMALL, target=TARGET)
    assert (result.files, result.into, result.failures) == (4, 2, ())
    assert published_rows(store) == rows


@on_sqlite
def test_files_of_one_pipeline_source_and_folder_are_joined_up_to_the_target(
    store: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    for number in range(4):
        publish(us, tmp_path / "a", numbers(number * 10))
        publish(other, tmp_path / "a", numbers(1000 + number))
    publish(us, tmp_path / "b", numbers(100), numbers(110))
    large = pa.table({"id": pa.array(range(1000)), "name": [os.urandom(2000).hex() for _ in range(1000)]})
    publish(us, tmp_path / "b", large, numbers(200))
    before = published_rows(store)
    monkeypatch.setattr(compacting, "_MOST_FILES", 3)
    dry = compact(store, "p", smaller_than=SMALL, target=TARGET, dry_run=True)
    assert (dry.files, dry.into, dry.bytes_after) == (6, 2, None)  # of 3 of the first folder, and of 3 of the other
    assert len(names_in(store)) == 12
    result = compact(store, "p", smaller_than=SMALL, target=TARGET)
    assert (result.files, result.into) == (dry.files, dry.into)
    assert published_rows(store) == before
    for pipeline in ("p", "other"):
        assert {r["id"] for r in published_rows(store, pipeline=pipeline)} <= {r["id"] for r in before}
    assert len([*cuesqueue.published(store, pipeline="other").paths()]) == 4
    assert sorted({Path(path).parent.name for path in cuesqueue.published(store, pipeline="p").paths()}) == ["a", "b"]
    monkeypatch.undo()
    size = cuesqueue.published(store, pipeline="other").files()
    two = sum(file.bytes for file, _ in zip(size, range(2), strict=False)) + 1
    assert compact(store, "other", smaller_than=SMALL, target=two).into == 2
    assert compact(store, smaller_than=SMALL, target=TARGET).files > 0  # what was joined is small, and joined again
    assert compact(store, smaller_than=SMALL, target=TARGET) == CompactResult(bytes_after=0)
    assert published_rows(store) == before


@on_sqlite
def test_files_in_s3_are_joined(store: ShardStore, ministack_url: str) -> None:
    bucket = new_name("bucket")
    s3 = client(ministack_url, "s3")
    s3.create_bucket(Bucket=bucket)
    storage = StorageOptions(ministack_url, "us-east-1", "test", "test")
    us = Pipeline.start(store)
    us.publish(us.planned("a"), *(write(f"s3://{bucket}/out", numbers(10 * n), storage) for n in range(5)))
    assert compact(store, smaller_than=SMALL, target=TARGET, storage=storage).into == 1
    (path,) = cuesqueue.published(store).paths()
    assert path.startswith(f"s3://{bucket}/out/split-")
    rows = pa.Table.from_batches(read_data_files([path], numbers(0).schema, storage))
    assert rows.equals(pa.concat_tables(numbers(10 * n) for n in range(5)).combine_chunks())
    s3.close()


# --- what goes wrong ---


@pytest.mark.parametrize("wrong", ["vanished", "cut", "changed"])
@on_sqlite
def test_a_file_that_is_not_as_it_was_published_is_named_and_stays_and_others_are_joined(
    backend: StoreBackend, tmp_path: Path, wrong: str
) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    publish(us, tmp_path / "out", numbers(1), numbers(2))
    publish(other, tmp_path / "out", numbers(3), numbers(4))
    bad = Path([*cuesqueue.published(store, pipeline="p").paths()][1])
    if wrong == "vanished":
        bad.unlink()
    elif wrong == "cut":
        bad.write_bytes(bad.read_bytes()[:100])
    else:
        pq.write_table(numbers(5, 2), bad)
    done = run(backend.url, "--json", code=1)
    result = json.loads(done.stdout)
    assert (result["files"], result["into"]) == (2, 1)
    (sentence,) = result["failures"]
    assert bad.name in sentence
    assert "stay as they are" in done.stderr
    assert len([*cuesqueue.published(store, pipeline="p").paths()]) == 2
    assert len(published_rows(store, pipeline="other")) == 6


@on_sqlite
def test_wrong_options_are_refused(store: ShardStore, backend: StoreBackend, tmp_path: Path) -> None:
    publish(Pipeline.start(store), tmp_path, numbers(1))
    assert "is not a size" in run(backend.url, "--smaller-than", "much", code=2).stderr
    assert "is below --smaller-than" in run(backend.url, "--target", "1m", code=2).stderr
    assert "no data files of 'other'" in run(backend.url, "--pipeline", "other", code=2).stderr


@on_sqlite
def test_the_command_says_what_it_did_or_would_do(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    publish(Pipeline.start(store), tmp_path, numbers(1), numbers(2))
    size = sum(file.bytes for file in cuesqueue.published(store).files())
    would = json.loads(run(backend.url, "--dry-run", "--json").stdout)
    assert would == {"files": 2, "into": 1, "bytes": size, "overtaken": 0, "failures": [], "dry_run": True}
    assert "would be joined" in run(backend.url, "--dry-run").stdout
    text = run(backend.url, "--pipeline", "p").stdout
    assert "bytes after" in text
    lines = CliRunner().invoke(app, ["status", "--store", backend.url]).stdout
    assert re.search(r"data files +1 of ", lines)


@pytest.mark.parametrize("point", ["split-written", *COMPACTING_POINTS])
def test_killed_at_each_step_the_rows_are_the_same_and_the_next_run_goes_on(
    backend: StoreBackend, tmp_path: Path, point: str
) -> None:
    store = backend.open(clock=None)
    us = Pipeline.start(store)
    publish(us, tmp_path / "out", numbers(0))
    past = datetime.now(UTC)
    for number in range(1, 6):
        publish(us, tmp_path / "out", numbers(number * 10))
    before = published_rows(store)
    two = str(max(file.bytes for file in cuesqueue.published(store).files()) * 2)
    command = [sys.executable, "-m", "queue_source.commands.main", "compact", "--store", backend.url, "--target", two]
    command += ["--smaller-than", str(int(two) - 1)]
    environment = {**os.environ, VARIABLE: f"{point}@2=exit"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert published_rows(store) == before
    assert len(names_in(store)) == {"files-compacted": 4}.get(point, 5)
    assert compact(store, smaller_than=SMALL, target=TARGET).into == 1
    assert published_rows(store) == before
    result = vacuum(store, str(tmp_path / "out"), older_than=timedelta(days=-1))  # also what was replaced a moment ago
    assert {file.name for file in (tmp_path / "out").iterdir()} == {*names_in(store)}
    assert (result.published, len(names_in(store))) == (1, 1)
    assert published_rows(store) == before
    with pytest.raises(cuesqueue.StoreConfigurationError, match="read what is published now, or was at"):
        cuesqueue.published(store, as_of=past)


# --- beside others ---


@on_sqlite
def test_what_was_replaced_goes_with_vacuum_when_it_was_so_for_as_long_as_it_says(
    backend: StoreBackend, tmp_path: Path
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    publish(us, tmp_path / "out", numbers(1), numbers(2))
    originals = {*names_in(store)}
    for name in originals:
        os.utime(tmp_path / "out" / name, (0, 0))
    compact(store, smaller_than=SMALL, target=TARGET)
    day = timedelta(days=1)
    kept = vacuum(store, str(tmp_path / "out"), older_than=day)
    assert (kept.files, kept.published, kept.removed) == (3, 3, 0)
    backend.clock.advance(86401)
    would = vacuum(store, str(tmp_path / "out"), older_than=day, dry_run=True)
    assert (would.published, would.removed) == (1, 2)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {*originals, *names_in(store)}
    assert vacuum(store, str(tmp_path / "out"), older_than=day) == would
    assert {file.name for file in (tmp_path / "out").iterdir()} == {*names_in(store)}
    assert len(published_rows(store)) == 6


def test_two_compactions_publishes_readers_pruning_and_vacuum_go_on_side_by_side(
    backend: StoreBackend, tmp_path: Path
) -> None:
    """No reader misses a row of what was published before it began, or has one twice."""
    store = backend.open()
    us = Pipeline.start(store)
    problems: list[str] = []
    published = 0
    ended = threading.Event()

    def again(work: Any) -> None:
        with open_store(backend.url, clock=backend.clock, patience=30.0) as own:
            while not ended.is_set():
                work(own)

    def read(own: ShardStore) -> None:
        least = published
        ids = cuesqueue.published(own).to_arrow(["id"])["id"].to_pylist() if least else []
        if sorted(ids) != [*range(len(ids))] or len(ids) < least:
            problems.append(f"{len(ids)} rows, {len(set(ids))} different, at least {least} expected")

    def join(own: ShardStore) -> None:
        result = compact(own, smaller_than=SMALL, target=TARGET)
        problems.extend(result.failures)

    def keep_clean(own: ShardStore) -> None:
        own.prune(RetentionPolicy(data=timedelta(days=100)))
        if published:
            vacuum(own, str(tmp_path / "out"), older_than=timedelta(days=1))

    works = [read, read, join, join, keep_clean]
    threads = [threading.Thread(target=again, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for _ in range(25):
        publish(us, tmp_path / "out", numbers(published, 2), numbers(published + 2, 2))
        published += 4
    ended.set()
    for thread in threads:
        thread.join(60)
    assert problems == []
    compact(store, smaller_than=SMALL, target=TARGET)
    assert sorted(cuesqueue.published(store).to_arrow()["id"].to_pylist()) == [*range(100)]
    assert len(names_in(store)) == 1
