"""Loading what cannot be read or written: a clear error or one bad object, and nothing lost or twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructType, VariantType

from queue_source.errors import BadObject, ObjectStoreError, OptionError, QueueNotFound
from queue_source.options import parse_reader_options
from queue_source.queues import open_queue
from queue_source.queues.sql import SqlQueue
from queue_source.sinks.splits import SplitSink
from queue_source.spark.load import LoadQuery, preview
from shard_store.store import open_store
from support.iceberg_tables import Lake
from support.registering import Loading
from support.servers.s3 import DENIED, s3_server
from support.sessions import LEAST
from support.store_backends import STALE, Pipeline, StoreBackend


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    backend = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'store.db'}")
    yield Lake(backend.open(), {"store": backend.url, "path": str(tmp_path / "out")}, {})
    backend.close()


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return written(tmp_path / "in" / "good.json", '{"id": 1, "name": "n1"}')


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return written(tmp_path / "in" / "bad.json", '{"id": 2, "name": "n2"}\n{"id": ')


def start_reader(query: Loading, **options: str) -> None:
    given = {**LEAST, "content": "reference", "fileFormat": "json", "store": query.lake.options["store"], **options}
    settings = parse_reader_options(given).settings
    query.lake.store.start(query.pipeline.source, "other", driver="", stale_after=STALE, settings=settings)
    started = query.lake.store.start(query.pipeline.source, query.name, driver="", stale_after=STALE, settings=settings)
    query.pipeline.token = started.token


def test_the_mode_of_the_sink_decides_whatever_that_of_the_reader_is(lake: Lake, good: Path, bad: Path) -> None:
    query = Loading(lake, options={"mode": "FAILFAST"})
    start_reader(query)
    query.objects([good, bad])
    assert (query.ids(), query.causes()) == ([1], {"bad.json": "corrupt-object"})


def test_a_sink_that_fails_fast_and_quarantines_nothing_ends_the_batch(lake: Lake, good: Path, bad: Path) -> None:
    query = Loading(lake, options={"mode": "FAILFAST", "onCorruptObject": "fail"})
    start_reader(query)
    query.announce(good, bad)
    with pytest.raises(BadObject, match=r"corrupt-object: .*record at byte 24"):
        query.attempt(query.references([good, bad]))
    assert query.ids() == []
    query.restart()
    bad.write_text('{"id": 2, "name": "n2"}\n       ')
    query.attempt(query.references([good, bad]))
    query.end()
    assert (query.ids(), query.causes()) == ([1, 2], {})


@pytest.mark.parametrize("schema", ["id BIGINT, v VARIANT", "id BIGINT, s STRUCT<v: VARIANT>"])
def test_a_column_of_variants_is_refused_by_name(lake: Lake, schema: str) -> None:
    with pytest.raises(OptionError, match=r"option 'schema': 'VARIANT' is not a type that is known here; write one of"):
        Loading(lake, options={"schema": schema}).sink()


@pytest.mark.parametrize("kind", [VariantType(), ArrayType(VariantType())], ids=["column", "array"])
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_column_of_variants_in_a_schema_of_spark_is_refused_too(lake: Lake, kind: Any, format: str) -> None:
    """Arrow has them as structs of bytes, which no object holds."""
    schema = StructType().add("v", kind)
    with pytest.raises(OptionError, match=r"option 'schema': 'VARIANT' is not a type that is known here"):
        LoadQuery.of(None, "/out/", format, "file:///in/", schema, lake.options["store"], {"source": "files"})


def test_one_variant_column_cannot_be_loaded(lake: Lake) -> None:
    with pytest.raises(
        OptionError, match=r"'singleVariantColumn': makes a VARIANT, which load cannot write; read rows"
    ):
        Loading(lake, options={"singleVariantColumn": "v"}).sink()


@pytest.mark.parametrize("target", ["path", "delta"])
def test_a_bucket_that_refuses_what_is_written_ends_the_batch_and_blames_no_object(
    lake: Lake, good: Path, target: str
) -> None:
    query = Loading(lake)
    query.announce(good)
    with s3_server() as s3:
        s3.refusals["lake/"] = DENIED
        local, lake.options = lake.options, {"store": lake.options["store"], **s3.options, target: "s3://lake/out"}
        refused = (OSError, ObjectStoreError, OptionError)
        for _ in range(3):
            with pytest.raises(refused, match=r"(?is)lake.*(access.?denied|403 forbidden)"):
                query.attempt(query.references([good]))
            query.restart()
    lake.options = local
    query.attempt(query.references([good]))
    query.end()
    assert (query.ids(), query.causes()) == ([1], {})


def test_an_object_that_is_replaced_while_it_is_read_is_read_again_from_its_beginning(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of it was written is in no file that a publication names."""
    count = 300_000
    lines = "\n".join(f"{number:07},old" for number in range(count))
    large = written(tmp_path / "in" / "large.csv", lines)
    query = Loading(lake, options={"load": "csv"})
    query.announce(large)
    write = SplitSink.write

    def replacing(sink: SplitSink, batches: Iterator[Any], *more: Any) -> Any:
        def once() -> Iterator[Any]:
            yield next(batches)
            large.write_text(lines.replace("old", "new"))
            yield from batches

        return write(sink, once(), *more)

    with monkeypatch.context() as patch:
        patch.setattr(SplitSink, "write", replacing)
        with pytest.raises(ObjectStoreError, match=r"large.csv' was written to while it was read; announce"):
            query.attempt(query.references([large]))
    assert query.rows() == []
    query.restart()
    query.attempt(query.references([large]))
    query.end()
    assert [row["name"] for row in query.rows()] == ["new"] * count
    assert query.causes() == {}


def test_rows_without_a_column_uri_are_refused_before_anything_is_read(lake: Lake, good: Path) -> None:
    query = Loading(lake)
    query.announce(good)
    for column in ("uri", "size", "etag"):
        with pytest.raises(OptionError, match=rf"needs a column '{column}' of type \w+, and the rows have none; read"):
            query.attempt(query.references([good]).drop_columns([column]))
    query.attempt(query.references([good]))
    query.end()
    assert query.ids() == [1]


def test_rows_that_a_join_has_repeated_are_loaded_once_or_refused(lake: Lake, good: Path) -> None:
    query = Loading(lake)
    query.announce(good)
    joined = query.references([good]).append_column("day", pa.array(["mon"]))
    other = query.references([good]).append_column("day", pa.array(["tue"]))
    with pytest.raises(OptionError, match=r"by two tasks of a batch: a join, a union or a repartitioning has repeated"):
        query.attempt(joined, other)
    query.attempt(pa.concat_tables([joined, other]))
    query.end()
    assert query.ids() == [1]


def load_of(folder: Path, **options: str) -> LoadQuery:
    queue, store = f"sql+sqlite:///{folder}/jobs.db?queue=files", f"sqlite:///{folder}/store.db"
    return LoadQuery.of(queue, "db.files", "json", f"file://{folder}/in/", None, store, options)


def test_an_option_that_load_does_not_know_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'Waerhouse': is unknown to load; did you mean 'warehouse'\?"):
        load_of(tmp_path, Waerhouse="lake")


def test_a_preview_without_objects_or_a_table_says_how_to_get_columns(tmp_path: Path) -> None:
    query = load_of(tmp_path)
    with pytest.raises(QueueNotFound, match="it does not exist; send to it, or correct its URL"):
        preview(query)
    with SqlQueue(query.reading["queueUrl"]) as queue:
        assert not queue.exists(), "a preview makes nothing"
        queue.create()
    with pytest.raises(OptionError, match=r"no object is announced or listed.*; announce one .*, or write --schema"):
        preview(query)


@pytest.mark.parametrize("listed", [False, True])
def test_a_preview_names_only_what_the_store_does_not_have(tmp_path: Path, listed: bool) -> None:
    """Done or given up; what is open will be loaded. No store is made."""
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / f"{name}.json").write_text('{"id": 1}\n', "utf-8")
    names = [(tmp_path / "in" / f"{name}.json").as_uri() for name in "abcd"]
    query = load_of(tmp_path, source="files")
    if listed:
        store = f"sqlite:///{tmp_path}/store.db"
        query = LoadQuery.of(None, "db.files", "json", f"file://{tmp_path}/in/", None, store, {"source": "files"})
    else:
        with open_queue(query.reading["queueUrl"]) as queue:
            queue.publish(names)
    assert preview(query)["next_objects"] == names
    assert not (tmp_path / "store.db").exists()
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        us = Pipeline.start(opened, "files", "files")
        us.deliver(*names[:2])
        us.open(names[2])
        assert preview(query)["next_objects"] == names[2:]
        us.deliver(*names[2:])
    seen = preview(query)
    assert (seen["next_objects"], seen["problems"]) == ([], [])
    assert seen["columns"] == "`id` BIGINT"
    assert seen.get("messages_waiting") == (None if listed else 4)
