"""What is loaded is what the reader gives as rows, of the same objects with the same options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from queue_source.common.times import machine_time_zone
from queue_source.formats.base import may_be_cut
from queue_source.options import in_zone, parse_reader_options
from queue_source.read.fixed_rows import default_columns
from queue_source.read.partitions import MIN_PIECE, partition
from queue_source.read.task import Work, read_work
from queue_source.schema.columns import parse_columns
from shard_store.model import BEGINNING, Range, end_at, position_at
from support.iceberg_tables import Lake
from support.reading import plan_store
from support.registering import Loading
from support.sessions import LEAST
from support.store_backends import StoreBackend, rows

METADATA = (
    "_metadata STRUCT<file_path: STRING, file_name: STRING, file_size: BIGINT, file_block_start: BIGINT, "
    "file_block_length: BIGINT, file_modification_time: TIMESTAMP, message_id: STRING, queue: STRING>"
)


def text(*lines: str) -> Callable[[Path], object]:
    return lambda path: path.write_text("".join(f"{line}\n" for line in lines))


def nested(number: int) -> dict[str, Any]:
    return {"id": number, "tags": ["a", None], "at": "2024-05-06T07:08:09", "in": {"x": 1.5, "m": {"k": 2}}}


def typed(write: Callable[[pa.Table, str], object]) -> Callable[[Path], object]:
    when = pa.array([datetime(2024, 5, 6, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC"))
    table = pa.table({"id": [1, 2], "name": ["a", None], "price": pa.array(["1.50", "2.25"]), "at": when})
    table = table.set_column(2, "price", table["price"].cast(pa.decimal128(9, 2)))
    return lambda path: write(table, str(path))


def records(path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"id": 1, "name": "a"}, {"id": 2, "name": None}])


COLUMNS = "id BIGINT, name STRING"
NESTED = "id BIGINT, tags ARRAY<STRING>, at TIMESTAMP, `in` STRUCT<x: DOUBLE, m: MAP<STRING, INT>>"
TYPED = "id BIGINT, name STRING, price DECIMAL(9,2), at TIMESTAMP"
BAD = ['{"id": 1, "name": "a", "more": 1}', '{"id": ', '{"id": "x", "name": "b"}', "[]", '{"name": 5}']
CASES: dict[str, tuple[str, str, dict[str, str], list[Callable[[Path], object]]]] = {
    "csv with a header": ("csv", COLUMNS, {"header": "true"}, [text("name,id", "a,1"), text("id,name", "2,b", "x,c")]),
    "csv, bad records kept": (
        "csv",
        f"{COLUMNS}, _corrupt_record STRING, {METADATA}",
        {},
        [text("1,a", "x,b", "3"), text("4,d,e")],
    ),
    "json, bad records": ("json", COLUMNS, {}, [text(*BAD), text(json.dumps({"id": 7}))]),
    "json, bad records dropped": ("json", COLUMNS, {"mode": "DROPMALFORMED"}, [text(*BAD)]),
    "json, FAILFAST": ("json", COLUMNS, {"mode": "FAILFAST"}, [text(*BAD), text('{"id": 8, "name": "h"}')]),
    "json, rescued": (
        "json",
        f"{COLUMNS}, _rescued_data STRING",
        {"rescuedDataColumn": "_rescued_data"},
        [text(*BAD)],
    ),
    "json, nested, in a zone": ("json", NESTED, {}, [text(json.dumps(nested(1))), text(json.dumps(nested(2)))]),
    "json with columns of paths": (
        "json",
        f"{COLUMNS}, number INT",
        {"partitionColumns": "number"},
        [text('{"id": 1}'), text('{"id": 2}')],
    ),
    "json with metadata": ("json", f"{COLUMNS}, {METADATA}", {}, [text('{"id": 1}'), text(*BAD), text()]),
    "json documents": ("json", COLUMNS, {"multiLine": "true"}, [text('[{"id": 1},', '{"id": 2}]'), text('{"id": 3')]),
    "json records in documents": (
        "json",
        f"{COLUMNS}, {METADATA}",
        {"recordsPath": "Records"},
        [text('{"Records": [{"id": 1},', '{"id": "x"}]}', '{"Records": []}'), text('{"Records": [{"id": 3}]')],
    ),
    "json without line ends": ("json", COLUMNS, {}, [text('{"id": 1}{"id": 2}{"id": "x"} {"id": 4}')]),
    "text": ("text", f"value STRING, {METADATA}", {}, [text("a", "", "b"), text("c")]),
    "whole text": ("text", "value STRING", {"wholeText": "true"}, [text("a", "b"), text("c")]),
    "binaryFile": (
        "binaryFile",
        "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY",
        {},
        [text("a"), text("b")],
    ),
    "parquet": ("parquet", f"{TYPED}, {METADATA}", {}, [typed(pq.write_table), text("no parquet")]),
    "parquet of other types": ("parquet", "id STRING, name BIGINT", {}, [typed(pq.write_table)]),
    "avro": ("avro", COLUMNS, {}, [records, text("no avro")]),
    "orc": ("orc", TYPED, {}, [typed(orc.write_table), text("no orc")]),
}


@pytest.fixture(params=["path", "table"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[Lake]:
    backend = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'store.db'}")
    options = {"store": backend.url}
    if request.param == "path":
        options["path"] = str(tmp_path / "out")
    else:
        options |= {"table": "db.events", "warehouse": str(tmp_path / "warehouse")}
    yield Lake(backend.open(), options, {"type": "sql", "uri": backend.url})
    backend.close()


def tasks_of(query: Loading, options: dict[str, str], schema: pa.Schema | None = None) -> list[pa.Table]:
    """The rows of each of the reader's tasks; without a schema those of the objects by reference."""
    parsed = parse_reader_options({**LEAST, "store": query.lake.options["store"], **options})
    content, plan = in_zone(parsed.content, machine_time_zone()), query.pipeline.plan()
    schema = schema or default_columns(content)
    assert schema is not None
    tasks = partition(plan, 2, 128 << 20, lambda entry: may_be_cut(entry.content.uri, content))
    works = [Work(plan.identity, pieces, content, plan_store(parsed)) for pieces in tasks]
    return [pa.Table.from_batches(read_work(work, schema, repeated=False), schema) for work in works]


def sorted_texts(some: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in some)


def told(query: Loading) -> list[tuple[Any, ...]]:
    columns = ("scope", "cause", "subject", "position", "detail", "input")
    return sorted((tuple(repr(row.get(name)) for name in columns)) for row in query._rows("errors"))


@pytest.mark.parametrize("case", CASES)
def test_what_is_loaded_is_what_the_reader_gives(lake: Lake, tmp_path: Path, case: str) -> None:
    format, columns, options, writers = CASES[case]
    paths = [tmp_path / "in" / f"number={n}" / f"{n}.data" for n in range(len(writers))]
    for path, write in zip(paths, writers, strict=True):
        path.parent.mkdir(parents=True)
        write(path)
    paths.append(tmp_path / "in" / "number=9" / "missing.data")
    query = Loading(lake, options={"load": format, "schema": columns, **options})
    reader = Loading(lake, "reader")
    query.announce(*paths)
    reader.announce(*paths)
    tasks = tasks_of(reader, {"fileFormat": format, **options}, parse_columns(columns))
    expected = [row for task in tasks for row in task.to_pylist()]
    query.attempt(*tasks_of(query, {"fileFormat": format, "content": "reference"}))
    query.end()
    assert bool(expected) == (case != "parquet of other types")
    assert sorted_texts(stored(query)) == sorted_texts(expected)
    assert told(query) == told(reader)


def stored(query: Loading) -> list[dict[str, Any]]:
    if "table" in query.lake.options:
        some: list[dict[str, Any]] = query.lake.table().scan().to_arrow().to_pylist()
        return some
    return [row for split in rows(query.lake.store, "splits") for row in pq.read_table(split["path"]).to_pylist()]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_large_object_is_loaded_in_parts_by_several_tasks_and_batches(
    lake: Lake, tmp_path: Path, format: str
) -> None:
    """Every part is cut within a record, and one of the batches ends in the middle of the object."""
    count, columns = 3 * MIN_PIECE // 64, f"id BIGINT, name STRING, {METADATA}"
    path = tmp_path / "in" / "large.data"
    path.parent.mkdir()
    record = {"csv": "{0},{0:080}\n", "json": '{{"id": {0}, "name": "{0:080}"}}\n'}[format]
    path.write_text(("id,name\n" if format == "csv" else "") + "".join(map(record.format, range(count))))
    size, options = path.stat().st_size, {"header": "true"} if format == "csv" else {}
    query = Loading(lake, options={"load": format, "schema": columns, **options})
    content = query._content(f"file://{path}")
    (shard,) = query.pipeline.store.open_shards(query.pipeline.token, query.pipeline.source, [content]).values()
    middle = position_at(size // 5 * 3 + 1)
    seen = 0
    for bounds in ((BEGINNING, middle), (middle, end_at(size))):
        query.batch_id += 1
        query.pipeline.write(Range(shard.key, shard.content, *bounds))
        tasks = tasks_of(query, {"fileFormat": format, "content": "reference"})
        query.attempt(*tasks)
        query.end()
        seen += sum(task.num_rows for task in tasks)
    found = stored(query)
    assert sorted(row["id"] for row in found) == list(range(count))
    assert len({row["_metadata"]["file_block_start"] for row in found}) == seen >= 4
    assert query.states() == {"large.data": "done"}
