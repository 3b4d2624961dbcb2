"""Contract: `cuesqueue.published` and `cuesqueue files` show one published state, as the view `data` does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType
from typer.testing import CliRunner, Result

import cuesqueue
from queue_source.commands.main import app
from queue_source.options import parse_view_options
from queue_source.options.connections import StorageOptions
from queue_source.spark.process import spark_schema
from queue_source.spark.published import read_data_files
from queue_source.spark.views import CuesqueueViewReader, view_schema
from shard_store.model import Split
from shard_store.operators import views
from shard_store.sql.schema import splits
from shard_store.store import ShardStore
from support.servers.s3 import s3_server
from support.store_backends import SERVERS, Pipeline, StoreBackend

UTC = timezone.utc


def publish(us: Pipeline, file: Path, table: pa.Table, row_schema: StructType | None = None) -> str:
    """Publish a table as one file, as the sink does; return the attempt."""
    pq.write_table(table, file)
    split = Split(str(file), table.num_rows, file.stat().st_size)
    schema = spark_schema(table.schema) if row_schema is None else row_schema
    plan = us.planned(file.stem)
    us.publish(plan, split, row_schema=schema.json())
    us.confirm()
    return plan.identity.delivery_hash


def view_table(store: str, **options: str) -> pa.Table:
    """Read the view `data` by the class that Spark calls for it."""
    view = parse_view_options({"storeUrl": store, **options})
    reader = CuesqueueViewReader(view, view_schema(view))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, batches[0].schema) if batches else None


# --- which files ---


def test_paths_are_listed_in_the_order_of_publication_and_chosen_as_by_the_views(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    us.publish(us.planned("a"), *(Split(f"/{name}", 1, 1) for name in "zyx"))
    us.confirm()
    at = datetime.fromtimestamp(backend.clock.now, UTC)
    backend.clock.advance(1)
    last = other.deliver("b").identity.delivery_hash
    us.deliver("c")

    def paths(**chosen: Any) -> list[str]:
        return list(cuesqueue.published(store, **chosen).paths())

    assert paths() == ["/z", "/y", "/x", "/split-1", "/split-2"]
    assert paths(pipeline="p") == ["/z", "/y", "/x", "/split-2"]
    assert paths(source="t") == ["/split-1"]
    assert paths(pipeline="p", source="t") == paths(pipeline="unknown") == []
    assert paths(as_of=at) == paths(as_of=at.replace(tzinfo=None)) == paths(as_of=at.isoformat()) == ["/z", "/y", "/x"]
    assert paths(as_of_attempt=last) == ["/z", "/y", "/x", "/split-1"]
    assert list(cuesqueue.published(backend.url, pipeline="p").paths()) == paths(pipeline="p")


def test_the_result_stays_as_it_was_while_others_are_published(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PAGE", 2)
    us = Pipeline.start(store)
    us.publish(us.planned("a"), *(Split(f"/{n}", 1, 1) for n in range(5)))
    us.confirm()
    published = cuesqueue.published(store)
    paths, files = published.paths(), published.files()
    first = next(paths), next(files).path
    us.deliver("b")
    assert first == ("/0", "/0")
    assert [*paths] == [file.path for file in files] == [f"/{n}" for n in range(1, 5)]
    assert [*published.paths()] == [f"/{n}" for n in range(5)]


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("by", ["now", "time", "attempt"])
def test_a_publish_that_is_under_way_is_waited_for(backend: StoreBackend, by: str) -> None:
    """Its files have their ids and their time before its commit: else they appear among those that were listed."""
    store = backend.open()
    slow, quick = Pipeline.start(store, "slow"), Pipeline.start(store, "quick")
    plan = slow.planned("a")
    seen: list[list[str]] = []

    def look() -> None:
        at = datetime.fromtimestamp(backend.clock.now, UTC)
        moments: dict[str, dict[str, Any]] = {"now": {}, "time": {"as_of": at}, "attempt": {"as_of_attempt": digest}}
        published = cuesqueue.published(backend.open(), **moments[by])
        seen.append(list(published.paths()))

    with store.database.begin() as connection:
        slow.publish(plan, Split("/slow", 1, 1), connection=connection)
        digest = quick.deliver("b").identity.delivery_hash
        looking = threading.Thread(target=look)
        looking.start()
        looking.join(0.5)
        connection.commit()
    looking.join(30)
    look()
    assert seen == [["/slow", "/split-1"]] * 2


def test_files_are_read_a_page_at_a_time(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE", 2)
    us = Pipeline.start(store)
    us.publish(us.planned("a"), *(Split(f"/{n}", 1, 1) for n in range(5)))
    published = cuesqueue.published(store)
    files = published.files()
    assert next(files).path == "/0"
    store.database.write(lambda transaction: transaction.execute(splits.delete()))
    assert [file.path for file in files] == ["/1"]  # the rest of the first page


def test_each_file_has_the_numbers_of_the_view_splits(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, Split("s3://lake/a.parquet", 7, 512))
    assert list(cuesqueue.published(store).files()) == [
        cuesqueue.PublishedFile(
            path="s3://lake/a.parquet",
            rows=7,
            bytes=512,
            published_at=datetime.fromtimestamp(round(backend.clock.now, 6), UTC),
            delivery_hash=plan.identity.delivery_hash,
            source="s",
            pipeline="p",
        )
    ]


def test_wrong_names_times_and_attempts_are_refused(store: ShardStore, tmp_path: Path) -> None:
    with pytest.raises(cuesqueue.OptionError, match="is not a time"):
        cuesqueue.published(store, as_of="yesterday")
    with pytest.raises(cuesqueue.OptionError, match="both say which past is meant"):
        cuesqueue.published(store, as_of="2026-11-20", as_of_attempt="ab" * 32)
    with pytest.raises(cuesqueue.StoreConfigurationError, match="has no attempt"):
        cuesqueue.published(store, as_of_attempt="ab" * 32)
    with pytest.raises(cuesqueue.OptionError, match=r"did you mean 's3\.region'"):
        cuesqueue.published(store, options={"s3.regoin": "eu-central-1"})
    with pytest.raises(cuesqueue.StoreConfigurationError, match="there is no such file"):
        cuesqueue.published(f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()


# --- the rows ---


def test_rows_have_the_columns_published_last_and_are_those_of_the_view(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    first = publish(us, tmp_path / "1.parquet", pa.table({"id": pa.array([1], pa.int32()), "x": pa.array([0.5], "f4")}))
    backend.clock.advance(60)
    nested = pa.struct([("k", pa.string())])
    newest = pa.schema(
        [
            ("id", pa.int64()),
            ("x", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("nested", nested),
            ("price", pa.decimal128(10, 2)),
        ]
    )
    row = {"id": 1 << 40, "x": 1e300, "at": datetime(2026, 11, 20, tzinfo=UTC), "nested": {"k": "v"}}
    publish(us, tmp_path / "2.parquet", pa.Table.from_pylist([row], newest))

    table = cuesqueue.published(store).to_arrow()
    empty = dict.fromkeys(newest.names)
    assert table.to_pylist() == [{**empty, "id": 1, "x": 0.5}, {**empty, **row}]
    assert table.schema.types == newest.types
    assert table.equals(view_table(backend.url))
    assert cuesqueue.published(store).to_batches().read_all().equals(table)
    assert cuesqueue.published(backend.url).to_arrow().equals(table)
    chosen = cuesqueue.published(store, as_of_attempt=first)
    assert chosen.to_arrow().equals(view_table(backend.url, asOfAttempt=first))
    assert chosen.to_arrow(["nested", "id"]).to_pylist() == [{"nested": None, "id": 1}]
    assert chosen.to_batches(["x"]).schema.names == ["x"]
    with pytest.raises(cuesqueue.OptionError, match="the rows have no column 'ID'; choose among"):
        chosen.to_arrow(["ID"])


def test_a_source_has_the_columns_of_its_own_pipelines(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    publish(us, tmp_path / "1.parquet", pa.table({"id": [1]}))
    backend.clock.advance(1)
    publish(other, tmp_path / "2.parquet", pa.table({"name": ["x"]}))
    for name, row in (("s", {"id": 1}), ("t", {"name": "x"})):
        table = cuesqueue.published(store, source=name).to_arrow()
        assert table.to_pylist() == [row]
        assert table.equals(view_table(backend.url, source=name))


def test_files_whose_types_do_not_go_together_are_refused_by_name(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    publish(us, tmp_path / "1.parquet", pa.table({"id": ["a", "2"]}))
    backend.clock.advance(1)
    publish(Pipeline.start(store, "other"), tmp_path / "2.parquet", pa.table({"id": [1]}))
    published = cuesqueue.published(store)
    message = r"column 'id' of '.*/1\.parquet' is string and cannot be read as int64.*name the pipeline"
    with pytest.raises(cuesqueue.OptionError, match=message):
        published.to_arrow()
    with pytest.raises(cuesqueue.OptionError, match=message):
        published.to_batches().read_all()
    assert cuesqueue.published(store, pipeline="p").to_arrow().num_rows == 2


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (pa.array([0.1]), pa.float32()),
        (pa.array([datetime(2026, 1, 1, 10)], pa.timestamp("us")), pa.date32()),
        (pa.array([[{"x": 0.1}]]), pa.list_(pa.struct([("x", pa.float32())]))),
        (pa.array([1 << 53 | 1]), pa.float64()),
    ],
)
def test_wide_values_lose_nothing_where_a_driver_with_a_narrower_type_publishes_last(
    tmp_path: Path, wide: pa.Array, narrow: pa.DataType
) -> None:
    path = str(tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": wide}), path)
    with pytest.raises(cuesqueue.OptionError, match="as published last"):
        list(read_data_files([path], pa.schema([("a", narrow)]), StorageOptions()))


def test_rows_of_no_file_have_columns_once_a_sink_has_published_any(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    assert list(cuesqueue.published(store).paths()) == []
    with pytest.raises(cuesqueue.OptionError, match="no sink has published rows to it yet"):
        cuesqueue.published(store).to_arrow()
    before = datetime.fromtimestamp(backend.clock.now - 1, UTC)
    publish(us, tmp_path / "1.parquet", pa.table({"id": [1]}))
    table = cuesqueue.published(store, as_of=before).to_arrow()
    assert (table.num_rows, table.schema.names) == (0, ["id"])
    with pytest.raises(cuesqueue.OptionError, match="no sink has published rows of pipeline 'unknown' to it yet"):
        cuesqueue.published(store, pipeline="unknown").to_batches()


def test_files_in_s3_are_read_with_the_options_of_a_view(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    table = pa.table({"id": [1, 2], "name": ["a", None]})
    with s3_server() as s3:
        pq.write_table(table, tmp_path / "a b.parquet")
        s3.objects["lake/orders/a b.parquet"] = (tmp_path / "a b.parquet").read_bytes()
        split = Split("s3://lake/orders/a b.parquet", 2, 1)
        us.publish(us.planned("a"), split, row_schema=spark_schema(table.schema).json())
        published = cuesqueue.published(store, options=s3.options)
        assert list(published.paths()) == [split.path]
        assert published.to_arrow().equals(table)
        assert view_table(backend.url, **s3.options).equals(table)


# --- the command ---


def files(url: str, *arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, ["files", "--store", url, *arguments])
    assert done.exit_code == code, done.output
    return done


def test_the_command_prints_a_path_a_line_or_an_object_a_line(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    signed = "s3://lake/a b?X-Amz-Signature=\x7f.parquet"
    first = us.planned("a")
    us.publish(first, Split(signed, 7, 512), Split("/b.parquet", 1, 10))
    at = datetime.fromtimestamp(round(backend.clock.now, 6), UTC)
    backend.clock.advance(1)
    other.deliver("b")

    done = files(backend.url)
    assert (done.stdout.split("\n"), done.stderr) == ([signed, "/b.parquet", "/split-1", ""], "")
    one, two, three = (json.loads(line) for line in files(backend.url, "--json").stdout.splitlines())
    assert one == {
        "path": signed,
        "rows": 7,
        "bytes": 512,
        "published_at": at.isoformat(timespec="microseconds"),
        "delivery_hash": first.identity.delivery_hash,
        "source": "s",
        "pipeline": "p",
    }
    assert (two["path"], three["pipeline"]) == ("/b.parquet", "other")
    assert files(backend.url, "--pipeline", "other").stdout == "/split-1\n"
    assert files(backend.url, "--source", "t").stdout == "/split-1\n"
    assert files(backend.url, "--as-of", at.isoformat()).stdout == f"{signed}\n/b.parquet\n"
    assert files(backend.url, "--as-of-attempt", first.identity.delivery_hash).stdout == f"{signed}\n/b.parquet\n"


def test_the_command_says_that_no_file_is_published_and_refuses_mistakes(
    store: ShardStore, backend: StoreBackend
) -> None:
    for arguments in ((), ("--pipeline", "unknown", "--json")):
        done = files(backend.url, *arguments)
        assert (done.stdout, done.stderr.split(";")[0]) == ("", "no such file is published")
    assert "is not a time" in files(backend.url, "--as-of", "yesterday", code=2).stderr
    assert "has no attempt" in files(backend.url, "--as-of-attempt", "ab" * 32, code=2).stderr


def test_a_reader_of_the_list_may_end_before_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with cuesqueue.open_store(url) as store:
        us = Pipeline.start(store)
        us.publish(us.planned("a"), *(Split(f"/{n}-{'x' * 200}", 1, 1) for n in range(5_000)))
    command = [sys.executable, "-m", "queue_source.commands.main", "files", "--store", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("/0-")
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)
