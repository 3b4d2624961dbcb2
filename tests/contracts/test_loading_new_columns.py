"""Columns that objects have and the table lacks: each one is loaded, or it is said and counted."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from queue_source.errors import SchemaChanged
from queue_source.options.connections import StorageOptions
from queue_source.schema.location import SchemaLocation
from support.delta_tables import DeltaLake
from support.iceberg_tables import Lake
from support.registering import Loading
from support.store_backends import StoreBackend


@pytest.fixture(params=["table", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, iceberg_threads: None) -> Iterator[Lake | DeltaLake]:
    backend = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'store.db'}")
    options = {"store": backend.url}
    if request.param == "delta":
        yield DeltaLake(backend.open(), {**options, "delta": str(tmp_path / "table")})
    else:
        options |= {"table": "db.events", "warehouse": str(tmp_path / "warehouse")}
        yield Lake(backend.open(), options, {"type": "sql", "uri": backend.url})
    backend.close()


def kept(lake: Any, folder: Path, name: str = "p", **options: str) -> Loading:
    """A query that keeps the columns that it infers in a folder."""
    query = Loading(lake, name, options={"schemaLocation": str(folder / "schemas"), **options})
    del query.options["schema"]
    return query


def written(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(records)), path)
    elif path.suffix == ".csv":
        path.write_text("\n".join([",".join(records[0]), *(",".join(map(str, r.values())) for r in records)]))
    else:
        path.write_text("\n".join(map(json.dumps, records)))
    return path


def day(query: Loading, *objects: Path) -> list[str]:
    """Load objects as the command does: new columns end the query, which is started again; returns what they are."""
    query.announce(*objects)
    found = list[str]()
    while True:
        try:
            query.attempt(query.references(objects))
        except SchemaChanged as error:
            found.append(str(error))
            query.restart()
        else:
            query.end()
            return found


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_load_that_has_run_without_a_schema_location_goes_on_with_the_columns_of_its_table_and_the_new_ones(
    lake: Lake, tmp_path: Path, format: str
) -> None:
    """The types of the table stay, whatever the objects look like: nobody has declared them for the next run."""
    header = {"header": "true"} if format == "csv" else {}
    query = Loading(lake, options={"load": format, "schema": "id BIGINT, name STRING, n INT", **header})
    folder, row = tmp_path / "in", {"id": 1, "name": "a", "n": 1}
    day(query, written(folder / f"1.{format}", row))
    del query.options["schema"]
    query.options["schemaLocation"] = str(tmp_path / "schemas")
    assert day(query, written(folder / f"2.{format}", {"id": 2, "name": "b", "n": 7, "channel": "web"})) == []
    (said,) = day(query, written(folder / f"3.{format}", {"id": 3, "name": "c", "n": 8, "channel": "", "more": "x"}))
    assert "lacks: more STRING" in said
    rows = [{name: value for name, value in row.items() if value not in (None, "")} for row in lake.read()]
    assert rows == [
        row,
        {"id": 2, "name": "b", "n": 7, "channel": "web"},
        {"id": 3, "name": "c", "n": 8, "more": "x"},
    ]
    assert query.causes() == {}


def rescued(row: dict[str, Any]) -> dict[str, Any] | None:
    text = row["_rescued_data"]
    return None if text is None else {name: v for name, v in json.loads(text).items() if name != "_file_path"}


def test_the_types_of_a_table_that_others_have_made_stay_and_what_does_not_fit_is_rescued(
    lake: Lake, tmp_path: Path
) -> None:
    maker = Loading(lake, "maker", options={"schema": "id BIGINT, Total DECIMAL(10, 2), name STRING"})
    maker.objects([written(tmp_path / "in" / "0.json", {"id": 0, "Total": 1, "name": "n"})])
    query, other = kept(lake, tmp_path), {"id": 2, "total": "much", "more": 1}
    day(query, written(tmp_path / "in" / "1.json", {"id": 1, "total": 1.25, "name": {"first": "x"}}, other))
    rows = [(str(row["Total"]), row["name"], rescued(row), row["more"]) for row in lake.read()]
    assert rows == [
        ("1.00", "n", None, None),
        ("1.25", '{"first": "x"}', None, None),
        ("None", None, {"total": "much"}, 1),
    ]


def test_an_object_without_columns_to_infer_is_loaded_in_those_of_the_table(lake: Lake, tmp_path: Path) -> None:
    Loading(lake, "maker").objects([written(tmp_path / "in" / "0.json", {"id": 0, "name": "n"})])
    query = kept(lake, tmp_path)
    assert day(query, written(tmp_path / "in" / "1.json")) == []
    assert day(query, written(tmp_path / "in" / "2.json", {"id": 2, "name": "x"})) == []
    assert [row["id"] for row in lake.read()] == [0, 2]


def test_columns_that_the_format_has_no_values_for_are_left_to_other_writers(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = Loading(lake, "maker", options={"schema": "id BIGINT, tags ARRAY<STRING>"})
    maker.objects([written(tmp_path / "in" / "0.json", {"id": 0, "tags": ["a"]})])
    query = kept(lake, tmp_path, load="csv", header="true")
    day(query, written(tmp_path / "in" / "1.csv", {"id": 1, "name": "x"}))
    assert caplog.messages == []
    day(query, written(tmp_path / "in" / "2.csv", {"id": 2, "tags": "b"}))
    assert [(row["tags"], row["name"]) for row in lake.read()] == [(["a"], None), (None, "x"), (None, None)]
    (line,) = caplog.messages
    assert line.startswith("pipeline p: 1 value(s) of this batch are not loaded, of column tags: column 'tags' of ")


def drop_column(lake: Any, name: str) -> None:
    if isinstance(lake, DeltaLake):
        rest = pa.table(lake.table().scan()).drop_columns([name])
        write_deltalake(str(lake.folder), rest, mode="overwrite", schema_mode="overwrite")
        return
    with lake.catalog() as catalog, catalog.load_table(lake.name).update_schema() as update:
        update.delete_column(name)


def test_a_column_that_was_removed_from_the_table_stays_away_and_its_values_are_counted(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = kept(lake, tmp_path)
    day(query, written(tmp_path / "in" / "1.json", {"id": 1, "secret": "s"}))
    drop_column(lake, "secret")
    for number in (2, 3):
        with caplog.at_level(logging.WARNING, "cuesqueue"):
            caplog.clear()
            objects = written(tmp_path / "in" / f"{number}.json", {"id": number, "secret": "s"}, {"id": 10 + number})
            assert day(query, objects) == []
        (line,) = [record.getMessage() for record in caplog.records if "secret" in record.getMessage()]
        assert line.startswith(
            "pipeline p: 1 value(s) of this batch are not loaded, of column secret: it was removed from "
        )
    assert {name for row in lake.read() for name in row} == {"id", "_rescued_data"}


@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_what_the_table_cannot_take_is_left_out_and_said_with_the_reason(
    lake: DeltaLake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Loading(lake, "maker", options={"schema": "id BIGINT, part STRUCT<a: INT>"}).objects([
        written(tmp_path / "in" / "0.json", {"id": 0, "part": {"a": 1}})
    ])  # fmt: skip
    query = kept(lake, tmp_path)
    record = {"id": 1, "unit price": 1, "good": 2, "part": {"a": 3, "b c": [4]}}
    with caplog.at_level(logging.WARNING, "cuesqueue"):
        day(query, written(tmp_path / "in" / "1.json", record, {"id": 2, "unit price": 2}))
    lines = sorted(record.getMessage() for record in caplog.records)
    assert [line.split(": ")[1] for line in lines] == [
        "1 value(s) of this batch are not loaded, of column part.b c",
        "2 value(s) of this batch are not loaded, of column unit price",
    ]
    assert all("a Delta table cannot have" in line for line in lines)
    rows = [(row["id"], row["part"], row["good"]) for row in lake.read()]
    assert rows == [(0, {"a": 1}, None), (1, {"a": 3}, 2), (2, None, None)]


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("options", [{}, {"schemaEvolutionMode": "none", "schemaLocation": "schemas"}])
def test_a_column_that_nobody_has_declared_is_said_once_and_counted_where_none_is_added(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture, format: str, options: dict[str, str]
) -> None:
    options = options | {"load": format} | ({"header": "true"} if format == "csv" else {})
    query = Loading(lake, f"query {uuid.uuid4()}")
    query.options = {"schema": "id BIGINT", **options}
    query.options.pop("schemaLocation", "")
    query.options.pop("schemaEvolutionMode", "")
    day(query, written(tmp_path / "in" / f"0.{format}", {"id": 0, "declared": "x"}))
    assert caplog.messages == []
    query.options = {**options}
    if "schemaLocation" in options:
        query.options["schemaLocation"] = str(tmp_path / "schemas")
        SchemaLocation(str(tmp_path / "schemas"), StorageOptions()).record(pa.schema([("id", pa.int64())]))
    for batch in (1, 3):
        rows = [{"id": number, "channel": "x"} for number in (batch, batch + 1)]
        day(query, *(written(tmp_path / "in" / f"{row['id']}.{format}", row) for row in rows))
    assert [row["id"] for row in lake.read()] == [0, 1, 2, 3, 4]
    assert caplog.messages == [
        f"pipeline {query.name}: 2 object(s) of a batch, or parts of them, have a column that is not read: channel, as "
        "schemaEvolutionMode is none"
    ]
