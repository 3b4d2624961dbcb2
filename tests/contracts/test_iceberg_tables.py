"""What an Iceberg table looks like: its columns, partitions, files and places."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, IsNaN, IsNull, LessThanOrEqual
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from queue_source.errors import CuesqueueError, OptionError
from queue_source.options import AzureOptions, StorageOptions, parse_sink_options
from queue_source.sinks import splits
from queue_source.sinks.base import open_sink
from queue_source.sinks.iceberg.tables import file_properties, storage_of
from shard_store.store import open_store
from support.iceberg_tables import Lake, Query, by_id, read_with_rust, table_of
from support.servers.ministack import client, new_name


@pytest.fixture
def lake(tmp_path: Path, iceberg_threads: None) -> Iterator[Lake]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    options = {"store": url, "table": "db.events", "warehouse": str(tmp_path / "a warehouse")}
    with open_store(url) as store:
        yield Lake(store, options, {"type": "sql", "uri": url})


@pytest.mark.parametrize(
    "storage",
    [
        StorageOptions(),
        StorageOptions(endpoint="http://localhost:9000", access_key="a", secret_key="b", anonymous=True),
        StorageOptions(azure=AzureOptions(account_name="lake", sas_token="sv=1", domains=("a.b", "c.d"))),
    ],
)
def test_the_storage_options_reach_the_files_of_a_catalog_as_they_are(storage: StorageOptions) -> None:
    assert storage_of(file_properties(storage)) == storage


@pytest.mark.parametrize("name", ["write.py-location-provider.impl", "py-io-impl"])
def test_a_table_names_no_code(lake: Lake, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg imports and calls what these name; other writers of the table may set them."""
    query = Query(lake)
    query.batch(table_of([1]))
    lake.table().transaction().set_properties({"harmless": "x"}).commit_transaction()
    with sqlite3.connect(lake.store.database.file() or "") as connection:
        (place,) = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    connection.close()
    metadata = Path(place.removeprefix("file://"))
    changed = json.loads(metadata.read_text())
    changed["properties"][name] = "webbrowser.Mozilla"
    metadata.write_text(json.dumps(changed))
    monkeypatch.setitem(sys.modules, "webbrowser", None)  # importing it fails
    with pytest.raises(CuesqueueError, match=f"property '{name}', which names Python code"):
        query.batch(table_of([2]))


NOON = datetime(2026, 3, 29, 12, 30, 15, 123456)
INNER = pa.struct([("a", pa.int16()), ("b c", pa.string())])
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [1.5, float("inf")]),
    "double": (pa.float64(), [1e300, -0.5]),
    "decimal9": (pa.decimal128(9, 2), [Decimal("-1234567.89"), Decimal("0.01")]),
    "decimal18": (pa.decimal128(18, 3), [Decimal("-123456789012345.678"), Decimal("0.001")]),
    "decimal38": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal("1E-10")]),
    "string": (pa.string(), ["", "grüße 🎈"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "date": (pa.date32(), [date(1969, 12, 31), date(9999, 12, 31)]),
    "utc": (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=timezone.utc), datetime(1960, 1, 1, tzinfo=timezone.utc)]),
    "ntz": (pa.timestamp("us"), [NOON, datetime(1960, 1, 1)]),
    "list": (pa.list_(pa.int8()), [[1, None], []]),
    "structs": (pa.list_(INNER), [[{"a": 1, "b c": "x"}, None], []]),
    "struct": (INNER, [{"a": 1, "b c": None}, {"a": None, "b c": "y"}]),
    "map": (pa.map_(pa.string(), INNER), [[("k", {"a": 1, "b c": "x"}), ("l", None)], []]),
    "a.b, c": (pa.string(), ["dots", "and spaces"]),
}


def test_each_type_of_spark_comes_back_equal_from_both_readers(lake: Lake) -> None:
    """Two rows with values, and one of nulls; null lists of structs are empty for PyIceberg 0.12, not for the other."""
    columns = {name: pa.array([*values, None], kind) for name, (kind, values) in VALUES.items()}
    rows = table_of([0, 1, 2], **columns)
    Query(lake).batch(rows)
    assert by_id(read_with_rust(lake.table()).to_pylist()) == rows.to_pylist()
    with_pyiceberg = by_id(lake.table().scan().to_arrow().to_pylist())
    assert with_pyiceberg == [*rows.to_pylist()[:2], rows.to_pylist()[2] | {"structs": [], "map": []}]


def test_a_time_of_day_is_kept_to_the_microsecond(lake: Lake) -> None:
    """As Spark hands it: in nanoseconds. Without the second reader, whose core cannot read a time yet."""
    Query(lake).batch(table_of([0], at=pa.array([(12 * 3600 * 10**6 + 5) * 1000], pa.time64("ns"))))
    assert lake.table().scan().to_arrow().to_pylist()[0]["at"] == time(12, 0, 0, 5)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (pa.duration("us"), "duration"),
        (pa.null(), "null"),
        (pa.struct([("value", pa.binary()), pa.field("m", pa.binary(), metadata={"variant": "true"})]), "VARIANT"),
        (pa.list_(pa.struct([pa.field("wkb", pa.binary(), metadata={"geometry": "true"})])), "GEOMETRY"),
        (pa.struct([]), "struct<>"),
    ],
    ids=["interval", "void", "variant", "geometry", "empty struct"],
)  # fmt: skip
def test_a_type_that_iceberg_cannot_hold_is_refused_before_anything_is_made(
    lake: Lake, kind: pa.DataType, named: str
) -> None:
    query = Query(lake)
    query.begin()
    with pytest.raises(OptionError, match="column 'odd") as refused:
        query.attempt(table_of([1], odd=pa.nulls(1, kind)))
    assert named in str(refused.value)
    assert not Path(lake.options["warehouse"]).exists()


def test_new_columns_are_added_missing_ones_are_null_and_wider_numbers_widen_the_table(lake: Lake) -> None:
    query = Query(lake)
    query.batch(table_of([0], n=pa.array([1], pa.int32())))
    query.batch(table_of([1], n=pa.array([2**40], pa.int64())))
    query.batch(table_of([2], n=pa.array([3], pa.int8()), more=["m"]))
    query.batch(pa.table({"id": pa.array([3], pa.int64())}))
    assert lake.read() == [
        {"id": 0, "name": "n0", "n": 1, "more": None},
        {"id": 1, "name": "n1", "n": 2**40, "more": None},
        {"id": 2, "name": "n2", "n": 3, "more": "m"},
        {"id": 3, "name": None, "n": None, "more": None},
    ]
    assert len(lake.table().schemas()) == 3, "the last batch needed no change"


def test_new_fields_are_added_to_structs_wherever_they_stand(lake: Lake) -> None:
    """Without the second reader, whose core cannot read a struct that has changed yet."""
    one = pa.struct([("x", pa.int32())])
    two = pa.struct([("y", pa.string()), ("x", pa.int64())])
    query = Query(lake)
    query.batch(table_of([0], s=pa.array([{"x": 1}], one), l=pa.array([[{"x": 1}]], pa.list_(one))))
    new = {"y": "new", "x": 2**40}
    query.batch(table_of([1], s=pa.array([new], two), l=pa.array([[new]], pa.list_(two))))
    query.batch(table_of([2], s=pa.array([{"x": 3}], one), l=pa.array([[]], pa.list_(one))))
    rows = by_id(lake.table().scan().to_arrow().to_pylist())
    assert [row["s"] for row in rows] == [{"x": 1, "y": None}, new, {"x": 3, "y": None}]
    assert [row["l"] for row in rows] == [[{"x": 1, "y": None}], [new], []]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"id": pa.array(["text"])}, "'id' of db.events is of type long, and the rows have string"),
        ({"id": pa.array([1.5])}, "long, and the rows have double"),
        ({"ID": pa.array([1])}, "'ID'.*differ in case alone|'id' and 'ID'"),
        ({"name": pa.array([b"x"])}, "string, and the rows have binary"),
    ],
)
def test_another_type_or_a_name_in_another_case_is_refused(lake: Lake, columns: dict[str, Any], told: str) -> None:
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    with pytest.raises(OptionError, match=told):
        query.attempt(pa.table(columns))
    assert len(lake.table().schemas()) == 1


@pytest.mark.parametrize(("first", "second"), [((9, 2), (18, 4)), ((18, 4), (9, 2)), ((9, 4), (18, 2))])
def test_a_decimal_of_another_scale_is_refused(lake: Lake, first: tuple[int, int], second: tuple[int, int]) -> None:
    """Its digits stand in files without their point: readers would put it into another place."""
    query = Query(lake)
    query.batch(table_of([1], d=pa.array([Decimal("1.25")], pa.decimal128(*first))))
    query.begin()
    with pytest.raises(OptionError, match=r"'d' of db\.events is of type decimal"):
        query.attempt(table_of([2], d=pa.array([Decimal("1.25")], pa.decimal128(*second))))
    assert len(lake.table().schemas()) == 1


def test_a_mandatory_column_stays_mandatory_and_takes_no_null(lake: Lake) -> None:
    Query(lake, "first").batch(table_of([0]))
    fields = NestedField(1, "id", IntegerType(), required=True), NestedField(2, "name", StringType())
    with lake.catalog() as catalog:
        catalog.create_table("db.strict", Schema(*fields), location=f"file://{lake.options['warehouse']}/strict")
    strict = Lake(lake.store, {**lake.options, "table": "db.strict"}, lake.reading, "db.strict")
    query = Query(strict)
    query.batch(pa.table({"id": pa.array([1], pa.int32())}))
    query.begin()
    with pytest.raises(CuesqueueError, match="'id' of the Iceberg table must not be null"):
        query.attempt(pa.table({"id": pa.array([None], pa.int32())}))
    with pytest.raises(OptionError, match=r"'id' of db\.strict must not be null, and the rows have no such column"):
        query.attempt(pa.table({"name": ["x"]}))
    assert strict.read() == [{"id": 1, "name": None}]


PARTITIONED = "day(at), bucket(4, id), name, truncate(2, s.code), month(on), identity(flag)"


def partitioned_rows() -> pa.Table:
    ids = range(40)
    return table_of(
        ids,
        at=pa.array([NOON.replace(day=1 + i % 2) if i % 7 else None for i in ids], pa.timestamp("us", "UTC")),
        s=pa.array([{"code": f"{'äx'[i % 2]}y{i}"} for i in ids]),
        on=pa.array([date(1969 + i % 2, 12, 31) for i in ids]),
        flag=pa.array([i % 3 == 0 if i % 5 else None for i in ids]),
    )


def test_each_file_holds_rows_of_one_partition_and_readers_pass_over_the_others(lake: Lake) -> None:
    lake.options["partitionBy"] = PARTITIONED
    rows = partitioned_rows()
    Query(lake).batch(rows.slice(0, 20), rows.slice(20))
    assert lake.read() == by_id(rows.to_pylist())
    table = lake.table()
    names = ["at_day", "id_bucket", "name", "s.code_trunc", "on_month", "flag"]
    assert [field.name for field in table.spec().fields] == names
    for task in table.scan().plan_files():
        held = pq.read_table(task.file.file_path[len("file://") :]).to_pylist()
        assert len({(row["name"], row["flag"], row["s"]["code"][:2], row["on"], row["at"]) for row in held}) == 1
    found = table.scan(row_filter="name == 'n1'").plan_files()
    assert 0 < len(list(found)) < len(list(table.scan().plan_files()))
    late = table.scan(row_filter="at >= '2026-03-02T00:00:00+00:00'").to_arrow().to_pylist()
    assert by_id(late) == [r for r in rows.to_pylist() if r["at"] is not None and r["at"].day == 2]


@pytest.mark.parametrize("value", ["x" * 251, "\u4e2d" * 5000])
def test_a_value_that_no_folder_can_be_named_after_stops_no_stream(lake: Lake, value: str) -> None:
    lake.options["partitionBy"] = "name"
    table = table_of([1, 2], name=pa.array([value, "y"]))
    Query(lake).batch(table)
    assert lake.read() == by_id(table.to_pylist())
    (task,) = lake.table().scan(row_filter=f"name == '{value}'").plan_files()
    assert task.file.record_count == 1


def test_large_tasks_write_row_groups_early_and_lose_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.options["partitionBy"] = "bucket(8, id)"
    monkeypatch.setattr(splits, "BUFFERED_BYTES", 2_000)
    monkeypatch.setattr(splits, "OPEN_FILES", 3)
    batches = [table_of(range(first, first + 50)) for first in range(0, 1000, 50)]
    Query(lake).batch(pa.concat_tables(batches))
    found = list(lake.table().scan().plan_files())
    groups = [pq.read_metadata(task.file.file_path[len("file://") :]).num_row_groups for task in found]
    assert len(found) > 8
    assert max(groups) > 1
    assert lake.ids() == list(range(1000))


def _each(ids: range, values: pa.Array) -> pa.Table:
    """Rows in batches of one."""
    return pa.Table.from_batches([batch for i in ids for batch in table_of([i], value=values.slice(i, 1)).to_batches()])


FAR = pa.array([-(10**17), -1, 253402300800 * 10**6, 10**18], pa.int64())
BOUNDED = {
    "long text": pa.array(["a", "z" * 5000, "m", None]),
    "long bytes": pa.array([b"\xff" * 5000, b"a", b"b", None]),
    "cut text": pa.array(["\U0010ffff" * 20, "a", "\ud7ff" * 20, "x" * 16 + "y"]),
    "numbers": pa.array([1.5, float("nan"), -0.0, float("-inf")]),
    "decimals": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38), None, Decimal(0)], pa.decimal128(38, 0)),
    "days": pa.array([date(1, 1, 1), date(1582, 10, 5), None, date(9999, 12, 31)]),
}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("group_bytes", [1, splits.GROUP_BYTES])
def test_filters_find_each_row_by_its_own_value(
    lake: Lake, name: str, group_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of the file's groups of rows has no bounds: Parquet's writer leaves out those beyond 4 KB."""
    monkeypatch.setattr(splits, "GROUP_BYTES", group_bytes)
    values = BOUNDED[name]
    Query(lake).batch(_each(range(4), values))
    table = lake.table()
    for number, value in enumerate(values.to_pylist()):
        is_nan = isinstance(value, float) and value != value
        kinds: list[Any] = [IsNull] if value is None else [IsNaN] if is_nan else [EqualTo, LessThanOrEqual]
        for kind in kinds:
            asked = kind("value", value) if kind in (EqualTo, LessThanOrEqual) else kind("value")
            assert number in table.scan(row_filter=asked).to_arrow()["id"].to_pylist(), asked


def test_text_that_is_not_utf8_stops_no_stream(lake: Lake) -> None:
    """As a query makes it by a cast of bytes. The other columns keep their bounds."""
    torn = pa.array([b"\xff", b"a"]).view(pa.string())
    Query(lake).batch(table_of([1, 2], torn=torn))
    (task,) = lake.table().scan(row_filter="id == 2").plan_files()
    ids = {field.name: field.field_id for field in lake.table().schema().fields}
    assert task.file.lower_bounds.keys() == {ids["id"], ids["name"]}
    stored = pq.read_table(task.file.file_path[len("file://") :])["torn"]
    assert stored.cast(pa.large_binary()).to_pylist() == [b"\xff", b"a"]
    assert not list(lake.table().scan(row_filter="id == 3").plan_files())


@pytest.mark.parametrize("codec", ["snappy", "UNCOMPRESSED", "Gzip"])
def test_a_compression_is_taken_as_other_engines_take_it(lake: Lake, codec: str) -> None:
    """In any case; and its level counts where it has one."""
    query = Query(lake)
    query.batch(table_of([1]))
    properties = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": "3"}
    lake.table().transaction().set_properties(properties).commit_transaction()
    query.batch(table_of([2]))
    assert lake.ids() == [1, 2]


def test_a_table_whose_older_partitions_are_by_a_column_that_is_gone_is_written(lake: Lake) -> None:
    lake.options["partitionBy"] = "day"
    query = Query(lake)
    for number in range(3):
        query.batch(table_of([number], day=pa.array(["x"])))
    del lake.options["partitionBy"]
    with lake.table().update_spec() as spec:
        spec.remove_field("day")
    with lake.table().update_schema() as update:
        update.delete_column("day")
    for number in range(3, 6):
        query.batch(table_of([number]))
    assert lake.table().scan().to_arrow()["id"].sort().to_pylist() == list(range(6))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format-version": 3, "next-row-id": 0}, "which is of version 3 of Iceberg's format"),
        ({"transform": "zorder"}, "has a partition field 'part' of an unknown kind"),
        ({"source-id": 99, "transform": "void"}, "has a partition field 'part' of a column that was dropped"),
    ],
)
@pytest.mark.parametrize("is_written", [False, True])
def test_a_table_that_pyiceberg_cannot_write_to_is_refused_by_name(
    lake: Lake, change: dict[str, Any], reason: str, is_written: bool
) -> None:
    query = Query(lake)
    query.batch(table_of([1]))
    query.begin()
    written = query.written(table_of([2])) if is_written else None
    part = {"source-id": 1, "field-id": 1000, "name": "part", "transform": "identity"}
    part |= {name: value for name, value in change.items() if name in part}
    with sqlite3.connect(lake.store.database.file() or "") as connection:
        (place,) = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    connection.close()
    metadata = Path(place.removeprefix("file://"))
    before = json.loads(metadata.read_text())
    specs = before["partition-specs"] if "format-version" in change else [{"spec-id": 0, "fields": [part]}]
    metadata.write_text(json.dumps({**before, **change, "partition-specs": specs}))
    with pytest.raises(OptionError, match=reason):
        query.attempt(table_of([2])) if written is None else query.commit(*written)


@pytest.mark.parametrize("transform", ["identity", "year", "month", "day", "hour"])
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str)
def test_a_time_that_python_does_not_have_is_a_partition(lake: Lake, transform: str, kind: pa.DataType) -> None:
    """As of milliseconds that were taken for seconds."""
    lake.options["partitionBy"] = f"{transform}(at)"
    Query(lake).batch(table_of(range(4), at=FAR.view(kind)))
    read = read_with_rust(lake.table()).sort_by("id")
    assert read["at"].cast(kind).combine_chunks().view(pa.int64()).equals(FAR)
    late = lake.table().scan(row_filter=f"at >= '9999-12-31T00:00:00{'+00:00' if kind.tz else ''}'").plan_files()
    assert sum(task.file.record_count for task in late) == 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("day(name)", "day\\(name\\): the column is of type string"),
        ("nothing", "no column 'nothing'"),
        ("s", "struct"),
    ],
)
def test_a_partitioning_that_does_not_suit_the_columns_is_refused(lake: Lake, asked: str, told: str) -> None:
    lake.options["partitionBy"] = asked
    query = Query(lake)
    query.begin()
    with pytest.raises(OptionError, match=told):
        query.attempt(table_of([1], s=pa.array([{"x": 1}])))


def test_an_existing_table_must_have_the_partitioning_that_is_asked_for(lake: Lake) -> None:
    lake.options["partitionBy"] = "bucket(4, id)"
    Query(lake).batch(table_of([1]))
    lake.options["partitionBy"] = "bucket(8, id)"
    query = Query(lake, "other")
    query.begin()
    with pytest.raises(OptionError, match=r"asks for bucket\(8, id\), but db\.events is partitioned by bucket"):
        query.attempt(table_of([2]))
    del lake.options["partitionBy"]
    query.attempt(table_of([2]))
    assert lake.ids() == [1, 2]


def test_a_table_that_is_not_there_needs_a_warehouse(lake: Lake) -> None:
    del lake.options["warehouse"]
    query = Query(lake)
    query.begin()
    with pytest.raises(OptionError, match=r"'warehouse': is required to make the table db\.events"):
        query.attempt(table_of([1]))


def test_files_go_to_s3_with_the_options_of_the_path_sink(lake: Lake, ministack_url: str) -> None:
    bucket = new_name("lake")
    s3 = client(ministack_url, "s3")
    s3.create_bucket(Bucket=bucket)
    s3.close()
    keys = {"s3.region": "us-east-1"}
    secret = {"s3.accessKeyId": "test", "s3.secretAccessKey": "test"}
    lake.options |= {**keys, **secret, "s3.endpointUrl": ministack_url, "warehouse": f"s3://{bucket}/warehouse"}
    lake.options["partitionBy"] = "name"
    lake.reading |= {**keys, "s3.endpoint": ministack_url, "s3.access-key-id": "test", "s3.secret-access-key": "test"}
    query = Query(lake)
    query.batch(table_of(range(5)))
    query.batch(table_of([5]))
    assert lake.table().location() == f"s3://{bucket}/warehouse/db/events"
    assert [row["id"] for row in by_id(lake.table().scan().to_arrow().to_pylist())] == list(range(6))
    assert "'test'" not in repr(query.sink()._options)


def test_without_pyiceberg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("queue_source.sinks.iceberg")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    options = parse_sink_options({"pipeline": "p", "table": "db.events"})
    with pytest.raises(OptionError, match=r"pip install 'cuesqueue\[iceberg\]'"):
        open_sink(options)
