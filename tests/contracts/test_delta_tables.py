"""Delta tables that the sink makes, finds, adds columns to, or refuses by name before anything is written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from queue_source.errors import CuesqueueError, OptionError
from queue_source.sinks import splits
from support.delta_tables import DeltaLake, table_by_hand
from support.iceberg_tables import Query, by_id, table_of
from support.store_backends import StoreBackend

AT = datetime(2026, 3, 29, 1, 30, 5, 123456, timezone.utc)
LOCAL = datetime(2026, 3, 29, 2, 30, 5, 999999)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DeltaLake]:
    backend = StoreBackend("sqlite", f"sqlite:///{tmp_path / 'store.db'}")
    yield DeltaLake(backend.open(), {"store": backend.url, "delta": str(tmp_path / "table")})
    backend.close()


_queries = itertools.count()


def deliver(lake: DeltaLake, *tasks: pa.Table) -> None:
    """One batch of a query of its own."""
    Query(lake, f"query {next(_queries)}").batch(*tasks)


def every_type() -> dict[str, Any]:
    return {
        "bool": pa.array([True, None]),
        "byte": pa.array([1, None], pa.int8()),
        "short": pa.array([-2, None], pa.int16()),
        "int": pa.array([3, None], pa.int32()),
        "float": pa.array([1.5, None], pa.float32()),
        "double": pa.array([2.5, None], pa.float64()),
        "decimal": pa.array([Decimal("-0.05"), None], pa.decimal128(9, 2)),
        "long_decimal": pa.array([Decimal("12345678901234567890.5"), None], pa.decimal128(38, 10)),
        "text": pa.array(["ü", None]),
        "large": pa.array(["x", None], pa.large_string()),
        "bytes": pa.array([b"\0\xff", None]),
        "day": pa.array([date(1, 1, 1), None]),
        "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
        "local": pa.array([LOCAL, None], pa.timestamp("us")),
        "tags": pa.array([["a", None], None]),
        "attributes": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "part": pa.array([{"n": 7, "deep": [{"x": 1}]}, None]),
    }


def test_every_type_is_read_back_by_all_readers(lake: DeltaLake) -> None:
    deliver(lake, table_of([1, 2], **every_type()))
    first, second = lake.read()
    assert (first["at"], first["local"], first["day"]) == (AT, LOCAL, date(1, 1, 1))
    assert (first["decimal"], first["long_decimal"]) == (Decimal("-0.05"), Decimal("12345678901234567890.5"))
    assert (first["attributes"], first["part"]) == ({"k": 1}, {"n": 7, "deep": [{"x": 1}]})
    assert {second[name] for name in every_type()} == {None}
    assert lake.table().protocol().writer_features == ["timestampNtz"]
    (file,) = lake.folder.glob("*.parquet")
    assert pq.read_schema(file).field("large").type == pa.string(), "what readers of files see"


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([1], pa.time64("us")), "time64"),
        (pa.array([None], pa.null()), "null"),
        (pa.array([1], pa.duration("us")), "duration"),
        (pa.array([1], pa.uint8()), "uint8"),
    ],
)
def test_types_that_no_delta_table_has_are_refused_by_name(lake: DeltaLake, column: pa.Array, said: str) -> None:
    with pytest.raises(OptionError, match=rf"option 'delta': column 'gap' is of type {said}"):
        deliver(lake, table_of([1], gap=column))
    assert not lake.folder.exists()


def test_a_variant_is_refused_by_name(lake: DeltaLake) -> None:
    marked = pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})
    kind = pa.struct([pa.field("value", pa.binary()), marked])
    with pytest.raises(OptionError, match="column 'v' is of type VARIANT"):
        deliver(lake, table_of([1], v=pa.array([None], kind)))


@pytest.mark.parametrize("name", ["a b", "a;b", "a(b", "a=b"])
def test_names_that_no_delta_table_has_are_refused(lake: DeltaLake, name: str) -> None:
    with pytest.raises(OptionError, match=r"has .* in its name, which a Delta table cannot have"):
        deliver(lake, table_of([1], **{name: pa.array([1])}))
    assert not lake.folder.exists()
    deliver(lake, table_of([1]))
    with pytest.raises(OptionError, match=r"has .* in its name, which a Delta table cannot have"):
        deliver(lake, table_of([1], part=pa.array([{name: 1}])))
    with pytest.raises(OptionError, match=r"columns 'id' and 'ID' would differ in case alone"):
        deliver(lake, table_of([1], ID=pa.array([1])))


# partitions


PARTITIONED = {
    "country": pa.array(["a b/c=ü%:'\"{}", "", None]),
    "at": pa.array([AT, None, AT], pa.timestamp("us", "UTC")),
    "local": pa.array([LOCAL, LOCAL, None], pa.timestamp("us")),
    "day": pa.array([date(2026, 1, 2), date(1, 1, 1), None]),
    "flag": pa.array([True, False, None]),
    "n": pa.array([-1, 0, None], pa.int32()),
}


def test_partitions_are_read_back_by_all_readers_whatever_their_values(lake: DeltaLake) -> None:
    lake.options["partitionBy"] = ", ".join(PARTITIONED)
    deliver(lake, table_of([1, 2, 3], **PARTITIONED))
    rows = lake.read()
    expected = table_of([1, 2, 3], **PARTITIONED).to_pylist()
    expected[1]["country"] = None  # Delta has no empty text there
    assert rows == expected
    assert lake.table().metadata().partition_columns == list(PARTITIONED)
    assert len(lake.actions("add")) == 3
    found = lake.table().to_pyarrow_table(filters=[("country", "=", "a b/c=ü%:'\"{}")])
    assert found.column("id").to_pylist() == [1]


@pytest.mark.parametrize("value", ["x" * 251, "%" * 100, "\u4e2d" * 5000])
def test_a_value_that_no_folder_can_be_named_after_stops_no_stream(lake: DeltaLake, value: str) -> None:
    lake.options["partitionBy"] = "name"
    table = table_of([1, 2], name=pa.array([value, "y"]))
    deliver(lake, table)
    assert by_id(pa.table(lake.table().scan()).to_pylist()) == table.to_pylist()
    assert lake.table().to_pyarrow_table(filters=[("name", "=", value)]).column("id").to_pylist() == [1]


FAR = {  # beyond the years of Python, as of milliseconds that were taken for seconds
    pa.date32(): pa.array([-1_157_408, -1, 2_932_897, 20_000_000], pa.int32()),
    pa.timestamp("us"): pa.array([-(10**17), -1, 253_402_300_800 * 10**6, 17 * 10**17], pa.int64()),
    pa.timestamp("us", "UTC"): pa.array([-(10**17), -1, 253_402_300_800 * 10**6, 17 * 10**17], pa.int64()),
}


@pytest.mark.parametrize("kind", FAR, ids=str)
def test_a_time_that_python_does_not_have_is_a_partition(lake: DeltaLake, kind: pa.DataType) -> None:
    lake.options["partitionBy"] = "at"
    deliver(lake, table_of(range(4), at=FAR[kind].view(kind)))
    read = pa.table(lake.table().scan()).select(["id", "at"]).sort_by("id")
    assert read["at"].cast(kind).combine_chunks().view(FAR[kind].type).equals(FAR[kind])


def test_a_time_that_readers_of_delta_do_not_have_is_refused_by_name(lake: DeltaLake) -> None:
    """They would not even open the table."""
    lake.options["partitionBy"] = "at"
    for moment in (-(2**63), 2**63 - 1):
        with pytest.raises(CuesqueueError, match="by which no Delta table can be partitioned"):
            deliver(lake, table_of([1], at=pa.array([moment], pa.int64()).view(pa.timestamp("us"))))
    deliver(lake, table_of([1]))


def test_rows_of_one_task_are_one_file_for_each_partition_however_they_are_mixed(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.options["partitionBy"] = "name"
    deliver(lake, table_of(range(1000)))
    assert (len(lake.actions("add")), lake.ids()) == (3, list(range(1000)))
    monkeypatch.setattr(splits, "BUFFERED_BYTES", 1000)
    deliver(lake, pa.concat_tables([table_of(range(1000, 1500)), table_of(range(1500, 2000))]))
    assert (len(lake.actions("add")), lake.ids()) == (6, list(range(2000)))
    monkeypatch.setattr(splits, "OPEN_FILES", 0)
    deliver(lake, table_of(range(2000, 3000)))
    assert lake.ids() == list(range(3000))


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        ("day(at)", r"asks for day\(at\), and a Delta table is partitioned by columns alone"),
        ("gone", "there is no column 'gone' to partition by"),
        ("decimal", r"column 'decimal' of .* is of type DECIMAL\(9, 2\), by which this sink writes no partitions"),
        ("double", "by which this sink writes no partitions"),
        ("bytes", "by which this sink writes no partitions"),
        ("part", "by which this sink writes no partitions"),
    ],
)
def test_partitions_that_cannot_be_are_refused(lake: DeltaLake, partition_by: str, said: str) -> None:
    lake.options["partitionBy"] = partition_by
    with pytest.raises(OptionError, match=f"option 'partitionBy': .*{said}|option 'partitionBy'.*{said}"):
        deliver(lake, table_of([1, 2], **every_type()))
    assert not lake.folder.exists()


def test_an_existing_table_is_written_as_it_is_partitioned_and_another_wish_is_refused(lake: DeltaLake) -> None:
    write_deltalake(str(lake.folder), table_of([1, 2]), partition_by=["name"])
    deliver(lake, table_of([3, 4]))
    assert lake.ids() == [1, 2, 3, 4]
    lake.options["partitionBy"] = "id"
    with pytest.raises(OptionError, match=r"option 'partitionBy': asks for id, but .* is partitioned by name"):
        deliver(lake, table_of([5]))
    del lake.options["partitionBy"]
    deliver(lake, pa.table({"id": [6]}))
    assert lake.read()[-1] == {"id": 6, "name": None}
    with pytest.raises(OptionError, match="the rows have no column but those by which"):
        deliver(lake, pa.table({"name": ["n"]}))


# columns that come and go


def test_new_columns_are_added_and_missing_ones_are_null_also_inside(lake: DeltaLake) -> None:
    query = Query(lake)
    query.batch(table_of([1], part=pa.array([{"x": 1}]), list=pa.array([[{"y": 1}]])))
    more = {"part": pa.array([{"z": "z"}]), "list": pa.array([[{"v": 2}]]), "local": pa.array([LOCAL])}
    query.batch(table_of([2], **more))
    query.batch(pa.table({"id": [3]}))
    first, second, third = lake.read()
    assert (first["part"], second["part"], third["part"]) == ({"x": 1, "z": None}, {"x": None, "z": "z"}, None)
    assert (first["list"], second["list"]) == ([{"y": 1, "v": None}], [{"y": None, "v": 2}])
    assert (first["local"], second["local"], third["name"]) == (None, LOCAL, None)
    assert len(lake.commits()) == 3


def test_narrower_numbers_are_taken_and_wider_ones_refused_by_name(lake: DeltaLake) -> None:
    def row(number: int, n: pa.DataType, f: pa.DataType, d: pa.DataType) -> pa.Table:
        return table_of([number], n=pa.array([1], n), f=pa.array([1.5], f), d=pa.array([Decimal("1.25")], d))

    query = Query(lake)
    query.batch(row(1, pa.int32(), pa.float64(), pa.decimal128(9, 2)))
    query.batch(row(2, pa.int8(), pa.float32(), pa.decimal128(5, 2)))
    assert lake.read()[1] == {"id": 2, "name": "n2", "n": 1, "f": 1.5, "d": Decimal("1.25")}
    with pytest.raises(OptionError, match=r"column 'n' of .* is of type INT, and the rows have BIGINT; deltalake cann"):
        query.batch(row(3, pa.int64(), pa.float64(), pa.decimal128(9, 2)))
    with pytest.raises(
        OptionError, match=r"column 'd' of .* is of type DECIMAL\(9, 2\), and the rows have DECIMAL\(9, 3"
    ):
        query.batch(row(3, pa.int32(), pa.float64(), pa.decimal128(9, 3)))
    with pytest.raises(OptionError, match=r"column 'id' of .* is of type BIGINT, and the rows have STRING; cast it"):
        query.batch(pa.table({"id": ["x"]}))
    assert lake.ids() == [1, 2]


def test_what_must_not_be_null_is_not(lake: DeltaLake) -> None:
    inside = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]}
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long", "nullable": False},
        {"name": "part", "type": inside},
        {"name": "list", "type": {"type": "array", "elementType": "long", "containsNull": False}},
        {
            "name": "map",
            "type": {"type": "map", "keyType": "string", "valueType": inside, "valueContainsNull": True},
        },
    ]
    table_by_hand(lake.folder, fields=fields)
    of_map = pa.map_(pa.string(), pa.struct([("x", pa.int64())]))
    good: dict[str, Any] = {
        "id": pa.array([1, 2]),
        "part": pa.array([None, {"x": 1}]),
        "list": pa.array([[1], None]),
        "map": pa.array([[("a", {"x": 1}), ("b", None)], None], of_map),
    }
    deliver(lake, pa.table(good))
    assert lake.ids() == [1, 2]
    bad = {
        "id": pa.array([None, 1]),
        "part": pa.array([{"x": None}, {"x": 1}]),
        "list": pa.array([[1], [None]]),
        "map": pa.array([None, [("a", {"x": None})]], of_map),
    }
    for name, column in bad.items():
        with pytest.raises(CuesqueueError, match=rf"column '{name}.*' of the Delta table must not be null, and rows"):
            deliver(lake, pa.table({**good, name: column}))
    with pytest.raises(OptionError, match=r"column 'id' of .* must not be null, and the rows have none"):
        deliver(lake, pa.table({"list": [[1]]}))
    assert lake.ids() == [1, 2]


def test_an_empty_text_is_no_value_of_a_partition_that_must_not_be_null(lake: DeltaLake) -> None:
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string", "nullable": False},
    ]
    table_by_hand(lake.folder, fields=fields, partition_by=("name",))
    with pytest.raises(CuesqueueError, match="rows hold an empty text in it"):
        deliver(lake, pa.table({"id": [1], "name": [""]}))


# what tables ask of their writers

V7 = {"minReaderVersion": 3, "minWriterVersion": 7}
READER = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "typeWidening", "vacuumProtocolCheck"}


def with_features(*names: str) -> dict[str, Any]:
    return {**V7, "readerFeatures": [name for name in names if name in READER], "writerFeatures": list(names)}


def column(**metadata: str) -> list[dict[str, Any]]:
    return [{"name": "id", "type": "long"}, {"name": "name", "type": "string", "metadata": metadata}]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"configuration": {"delta.constraints.positive": "id > 0"}}, "has the constraint 'positive'"),
        ({"fields": column(**{"delta.invariants": "{}"})}, "has a column with an invariant: 'name'"),
        (
            {"fields": column(**{"delta.generationExpression": "x"})},
            "has a column with values that are generated: 'name'",
        ),
        ({"fields": column(**{"delta.identity.start": "1"})}, "has a column with values that count up"),
        ({"fields": column(CURRENT_DEFAULT="1")}, "has a column with a default value: 'name'"),
        ({"fields": column(__CHAR_VARCHAR_TYPE_STRING="varchar(3)")}, "has a column with a length"),
        (
            {
                "protocol": {"minReaderVersion": 2, "minWriterVersion": 5},
                "configuration": {"delta.columnMapping.mode": "name"},
                "fields": column(
                    **{"delta.columnMapping.id": "2", "delta.columnMapping.physicalName": "col-2"},
                ),
            },
            r"(maps its columns to other names in files \(delta.columnMapping.mode = name\)|cannot be opened)",
        ),
        ({"protocol": {"minReaderVersion": 2, "minWriterVersion": 6}}, "asks for writers of version 6"),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}, "asks for writers of version 8"),
        ({"protocol": {"minReaderVersion": 9, "minWriterVersion": 7}}, "cannot be opened"),
        *(
            ({"protocol": with_features(name)}, f"has the feature {name},")
            for name in (
                "identityColumns",
                "rowTracking",
                "domainMetadata",
                "icebergCompatV1",
                "clustering",
                "inCommitTimestamp",
                "typeWidening",
                "allowColumnDefaults",
                "vacuumProtocolCheck",
                "somethingNew",
            )
        ),
    ],
)
def test_a_table_whose_rules_this_sink_cannot_keep_is_refused_by_name(
    lake: DeltaLake, made: dict[str, Any], said: str
) -> None:
    table_by_hand(lake.folder, **made)
    with pytest.raises(OptionError, match=f"option 'delta': .* {said}"):
        deliver(lake, table_of([1]))
    assert sorted(file.name for file in lake.folder.iterdir()) == ["_delta_log"]
    assert len(list((lake.folder / "_delta_log").iterdir())) == 1


@pytest.mark.parametrize(
    "features",
    [
        ("appendOnly", "invariants"),
        ("checkConstraints", "generatedColumns", "columnMapping"),
        ("changeDataFeed",),
        ("deletionVectors",),
        ("timestampNtz",),
        ("v2Checkpoint",),
    ],
)
def test_features_that_ask_nothing_of_an_append_are_kept(lake: DeltaLake, features: tuple[str, ...]) -> None:
    table_by_hand(
        lake.folder,
        protocol=with_features(*features),
        configuration={"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"},
    )
    query = Query(lake)
    query.batch(table_of([1]))
    query.batch(table_of([2]))
    rows = pa.table(lake.table().scan()).to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert set(lake.table().protocol().writer_features or ()) == set(features)


def test_rows_beside_files_with_deletion_vectors_are_all_there(lake: DeltaLake) -> None:
    DeltaTable.create(str(lake.folder), table_of([1]).schema, configuration={"delta.enableDeletionVectors": "true"})
    query = Query(lake)
    query.batch(table_of(range(10)))
    lake.table().delete("id = 3")
    query.batch(table_of([10]))
    found = pa.table(lake.table().scan()).column("id").to_pylist()
    assert sorted(found) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_a_change_feed_has_the_rows_of_each_commit(lake: DeltaLake) -> None:
    properties = {"delta.enableChangeDataFeed": "true"}
    DeltaTable.create(str(lake.folder), table_of([1]).schema, configuration=properties)
    query = Query(lake)
    query.batch(table_of([1, 2]))
    query.batch(table_of([3]))
    changes = pa.table(lake.table().load_cdf(starting_version=1)).to_pylist()
    found = [(row["id"], row["_change_type"], row["_commit_version"]) for row in changes]
    assert sorted(found) == [(1, "insert", 1), (2, "insert", 1), (3, "insert", 2)]


def test_a_folder_with_other_files_is_not_made_a_table(lake: DeltaLake) -> None:
    lake.folder.mkdir()
    (lake.folder / "_checkpoint").mkdir()
    (lake.folder / "data.parquet").write_bytes(b"")
    with pytest.raises(OptionError, match=r"option 'delta': names .* is no Delta table and holds 'data.parquet'"):
        deliver(lake, table_of([1]))
    (lake.folder / "data.parquet").unlink()
    deliver(lake, table_of([1]))
    assert lake.ids() == [1]


@pytest.mark.parametrize("name", ["50%20off", "a?b", "a#b"])
def test_a_path_that_deltalake_misreads_is_refused(lake: DeltaLake, name: str) -> None:
    lake.options["delta"] += name
    with pytest.raises(OptionError, match=r"option 'delta': names .*: deltalake misreads"):
        deliver(lake, table_of([1]))


def test_a_path_may_hold_spaces_and_be_a_uri(lake: DeltaLake) -> None:
    deliver(DeltaLake(lake.store, {**lake.options, "delta": f"file://{lake.folder} ü"}), table_of([1]))
    named = DeltaLake(lake.store, {**lake.options, "delta": f"{lake.folder} ü"})
    deliver(named, table_of([2]))
    assert sorted(pa.table(named.table().scan()).column("id").to_pylist()) == [1, 2]  # polars finds no such files


# statistics


def statistics(lake: DeltaLake) -> dict[str, Any]:
    (add,) = lake.actions("add")
    told: dict[str, Any] = json.loads(add["stats"])
    return told


def test_statistics_bound_the_values_of_every_column_that_has_an_order(lake: DeltaLake) -> None:
    deliver(lake, table_of([5, 4], **every_type()))
    told = statistics(lake)
    assert told["numRecords"] == 2
    assert told["minValues"] == {
        "id": 4,
        "name": "n1",
        "bool": True,
        "byte": 1,
        "short": -2,
        "int": 3,
        "float": 1.5,
        "double": 2.5,
        "decimal": -0.05,
        "long_decimal": 12345678901234567890.5,
        "text": "ü",
        "large": "x",
        "day": "0001-01-01",
        "at": "2026-03-29T01:30:05.123Z",
        "local": "2026-03-29T02:30:05.999",
        "part": {"n": 7},
    }
    changed = {"id": 5, "name": "n2", "at": "2026-03-29T01:30:05.124Z", "local": "2026-03-29T02:30:06.000"}
    assert told["maxValues"] == {**told["minValues"], **changed}
    (add,) = lake.actions("add")
    assert '"long_decimal":12345678901234567890.5000000000' in add["stats"], "all digits, as Spark writes them"
    assert told["nullCount"]["part"] == {"n": 1}
    assert {told["nullCount"][name] for name in ("bool", "bytes", "long_decimal", "at")} == {1}
    assert "tags" not in told["nullCount"]


def test_statistics_hide_no_rows(lake: DeltaLake) -> None:
    """NaN is above all numbers to Spark, and Parquet's bounds leave it out; texts are cut so that they still bound."""
    columns = {
        "f": pa.array([1.0, float("nan")]),
        "g": pa.array([float("-inf"), 1.0]),
        "h": pa.array([float("nan"), float("nan")]),
        "long": pa.array(["b" * 100, "a" * 100]),
        "torn": pa.array([b"\xff", b"a"]).view(pa.string()),
        "empty": pa.array([None, None], pa.int64()),
    }
    deliver(lake, table_of([1, 2], **columns))
    told = statistics(lake)
    bounds = {name: (told["minValues"][name], told["maxValues"][name]) for name in "fgh"}
    assert bounds == {"f": (1.0, "Infinity"), "g": ("-Infinity", 1.0), "h": ("-Infinity", "Infinity")}
    assert told["minValues"]["long"] == "a" * 32
    assert told["maxValues"]["long"] == "b" * 32 + "\U0010ffff"
    assert (told["minValues"]["torn"], told["maxValues"]["torn"]) == ("", "\U0010ffff")
    assert "empty" not in told["minValues"]
    assert told["nullCount"]["empty"] == 2


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a" * 5000, "b"]),
        pa.array([20_000_000, 0], pa.int32()).view(pa.date32()),
        pa.array([-(10**17), 0], pa.int64()).view(pa.timestamp("us")),
        pa.array([10**18, 0], pa.int64()).view(pa.timestamp("us", "UTC")),
    ],
    ids=["long text", "day", "moment", "moment in UTC"],
)
def test_a_column_without_bounds_hides_no_rows(lake: DeltaLake, column: pa.Array) -> None:
    """A footer has no long texts, and Python no such times. To deltalake nothing is within a bound that is absent."""
    deliver(lake, table_of([1, 2], column=column))
    deliver(lake, table_of([3]))
    files = lake.table().to_pyarrow_dataset()
    for number, value in enumerate(column, 1):
        assert files.to_table(filter=ds.field("column") == value)["id"].to_pylist() == [number]


def decimals(precision: int, scale: int, *texts: str) -> pa.Array:
    return pa.array([Decimal(text) for text in texts], pa.decimal128(precision, scale))


NAN, INFINITE = float("nan"), float("inf")
FILTERED = {
    "bool": pa.array([False, True]),
    "one_bool": pa.array([True, True]),
    "byte": pa.array([-1, 5], pa.int8()),
    "long": pa.array([-(2**62), 2**62]),
    "float": pa.array([0.1, 2.7], pa.float32()),
    "nan": pa.array([1.5, NAN]),
    "infinite": pa.array([-INFINITE, INFINITE]),
    "decimal": decimals(9, 2, "-3.25", "1.10"),
    "tiny": decimals(15, 12, "0.000000000001", "0.1"),
    "long_decimal": decimals(38, 10, "12345678901234567890.5", "12345678901234567890.6"),
    "whole": decimals(38, 0, "-1", "9" * 38),
    "text": pa.array(["ä" * 100, "z"]),
    "bytes": pa.array([b"\0\xff", b"a"]),
    "day": pa.array([date(1, 1, 1), date(2026, 1, 1)]),
    "at": pa.array([AT, AT], pa.timestamp("us", "UTC")),
    "local": pa.array([LOCAL, AT.replace(tzinfo=None)], pa.timestamp("us")),
}


OWN_HIDE_ROWS = {"nan", "infinite", "tiny", "long_decimal", "whole"}


@pytest.mark.parametrize("name", FILTERED)
def test_filters_of_deltalake_find_the_rows_that_they_find_in_a_table_of_its_own(lake: DeltaLake, name: str) -> None:
    """And in the file alone. To its reader a column that lacks a bound has nulls alone; some of its own are wrong."""
    rows = table_of([1, 2], column=FILTERED[name])
    deliver(lake, rows)
    own = f"{lake.folder}-own"
    write_deltalake(own, rows)
    (file,) = lake.folder.glob("*.parquet")
    for create_checkpoint in (False, True):
        if create_checkpoint:
            lake.table().create_checkpoint()
        for value, sign in itertools.product(rows.column("column"), ("==", "!=", "<=", ">=", "<", ">")):
            asked = [("column", sign, value.as_py())]
            expected = set(pq.read_table(file, filters=asked).column("id").to_pylist())
            theirs = set(DeltaTable(own).to_pyarrow_table(filters=asked).column("id").to_pylist())
            found = set(lake.table().to_pyarrow_table(filters=asked).column("id").to_pylist())
            assert found >= expected, asked
            assert found == theirs or name in OWN_HIDE_ROWS, asked


def test_statistics_are_of_the_columns_that_the_table_names(lake: DeltaLake) -> None:
    write_deltalake(str(lake.folder), table_of([]), configuration={"delta.dataSkippingNumIndexedCols": "1"})
    deliver(lake, table_of([1]))
    assert statistics(lake)["minValues"] == {"id": 1}
    wide = {f"c{number}": pa.array([number]) for number in range(40)}
    other = DeltaLake(lake.store, {**lake.options, "delta": f"{lake.folder}-wide"})
    deliver(other, table_of([1], **wide))
    assert len(statistics(other)["nullCount"]) == 32
    named = DeltaLake(lake.store, {**lake.options, "delta": f"{lake.folder}-named"})
    table_by_hand(named.folder, configuration={"delta.dataSkippingStatsColumns": "name, id"})
    deliver(named, table_of([1], more=pa.array([2])))
    assert statistics(named)["maxValues"] == {"id": 1, "name": "n1"}


def test_readers_skip_files_by_statistics_and_lose_no_rows_by_it(lake: DeltaLake) -> None:
    query = Query(lake)
    moments = [datetime(2026, 1, 1, 0, 0, 0, 999 * number) for number in range(5)]
    for number, moment in enumerate(moments):
        query.batch(table_of([number], local=pa.array([moment], pa.timestamp("us"))))
    for number, moment in enumerate(moments):
        literal = moment.isoformat(sep=" ")
        found = pa.table(lake.table().scan(predicate=f"local >= TIMESTAMP '{literal}'"))
        assert sorted(found.column("id").to_pylist()) == list(range(number, 5))
        frame = pl.scan_delta(str(lake.folder)).filter(pl.col("local") == moment).collect()
        assert frame["id"].to_list() == [number]
