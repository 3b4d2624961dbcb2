"""What becomes of a Parquet object by its footer alone: as both readers of the table see it, and its manifests."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from datafusion import SessionContext
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from shard_store.store import open_store
from support.iceberg_tables import Lake, Query, by_id, read_with_rust, table_of
from support.registering import Registering, bytes_of, parquet, with_ids

NOON = datetime(2026, 3, 29, 12, 30, 15, 123456)
LATER = datetime(2026, 3, 29, 23, 59, 59)
UTC = pa.timestamp("us", "UTC")


@pytest.fixture
def lake(tmp_path: Path, iceberg_threads: None) -> Iterator[Lake]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    options = {"store": url, "table": "db.events", "warehouse": str(tmp_path / "warehouse")}
    with open_store(url) as store:
        yield Lake(store, options, {"type": "sql", "uri": url})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The user's own, of which nothing is ever changed."""
    made = tmp_path / "in"
    made.mkdir()
    return made


def with_pyiceberg(lake: Lake) -> list[dict[str, Any]]:
    """Where a file without field ids has nested columns: the core of the other reader does not find what is in them."""
    return by_id(lake.table().scan().to_arrow().to_pylist())


INNER = pa.struct([("a", pa.int16()), ("b c", pa.string())])
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "unsigned byte": (pa.uint8(), [0, 255]),
    "unsigned short": (pa.uint16(), [0, 2**16 - 1]),
    "float": (pa.float32(), [1.5, float("inf")]),
    "double": (pa.float64(), [1e300, -0.5]),
    "decimal9": (pa.decimal128(9, 2), [Decimal("-1234567.89"), Decimal("0.01")]),
    "decimal18": (pa.decimal128(18, 3), [Decimal("-123456789012345.678"), Decimal("0.001")]),
    "decimal38": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal("1E-10")]),
    "string": (pa.string(), ["", "grüße 🎈"]),
    "large": (pa.large_string(), ["x" * 100, "\U0010ffff" * 20]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    "binary": (pa.binary(), [b"", b"\x00\xff" + b"\xff" * 20]),
    "fixed": (pa.binary(4), [b"abcd", b"\x00\xff\x00\xff"]),
    "date": (pa.date32(), [date(1969, 12, 31), date(9999, 12, 31)]),
    "utc": (UTC, [NOON.replace(tzinfo=timezone.utc), datetime(1960, 1, 1, tzinfo=timezone.utc)]),
    "ntz": (pa.timestamp("us"), [NOON, datetime(1960, 1, 1)]),
    "a.b, c": (pa.string(), ["dots", "and spaces"]),
}


@pytest.mark.parametrize("how", [{}, {"store_decimal_as_integer": True, "store_schema": False}], ids=["", "other"])
def test_each_type_comes_back_equal_from_both_readers_though_nobody_has_read_it(
    lake: Lake, folder: Path, how: dict[str, Any]
) -> None:
    rows = table_of([0, 1], **{name: pa.array(values, kind) for name, (kind, values) in VALUES.items()})
    file = parquet(folder / "a.parquet", rows, **how)
    before = bytes_of(folder)
    query = Registering(lake)
    query.objects([file])
    assert query.causes() == {}
    assert lake.read() == rows.to_pylist()
    assert list(query.files()) == [f"file://{file}"]
    assert bytes_of(folder) == before


NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.int8()), [[1, None], []]),
    "large": (pa.large_list(pa.string()), [["x"], []]),
    "deep": (pa.large_list(pa.list_(pa.int32())), [[[1]], [[]]]),
    "structs": (pa.list_(INNER), [[{"a": 1, "b c": "x"}, None], []]),
    "struct": (INNER, [{"a": 1, "b c": None}, {"a": None, "b c": "y"}]),
    "map": (pa.map_(pa.string(), INNER), [[("k", {"a": 1, "b c": "x"}), ("l", None)], []]),
}


def test_nested_columns_come_back_equal(lake: Lake, folder: Path) -> None:
    rows = table_of([0, 1], **{name: pa.array(values, kind) for name, (kind, values) in NESTED.items()})
    query = Registering(lake)
    query.objects([file := parquet(folder / "a.parquet", rows)])
    assert query.causes() == {}
    assert with_pyiceberg(lake) == rows.to_pylist()
    data = query.files()[f"file://{file}"]
    assert set(data.lower_bounds) == {1, 2}, "bounds of nested columns are none of rows"
    assert len(data.value_counts) == 2 + 1 + 1 + 1 + 2 + 2 + 3


def test_new_columns_missing_ones_other_orders_and_wider_numbers(lake: Lake, folder: Path) -> None:
    def write(number: int, **columns: Any) -> Path:
        table = table_of([number], **columns)
        return parquet(folder / f"{number}.parquet", table.select(table.column_names[::-1]))

    files = [
        write(0, n=pa.array([1], pa.int32()), f=pa.array([0.5], pa.float32())),
        write(1, n=pa.array([2**40], pa.int64()), d=pa.array([Decimal("1.25")], pa.decimal128(9, 2))),
        write(2, n=pa.array([3], pa.int8()), d=pa.array([Decimal("2.25")], pa.decimal128(20, 2)), f=[0.1]),
        parquet(folder / "3.parquet", {"id": pa.array([3], pa.int16())}),
    ]
    query = Registering(lake)
    query.objects(files[:1])
    query.objects(files[1:3], files[3:])
    assert query.causes() == {}
    assert lake.read() == [
        {"id": 0, "name": "n0", "n": 1, "f": 0.5, "d": None},
        {"id": 1, "name": "n1", "n": 2**40, "f": None, "d": Decimal("1.25")},
        {"id": 2, "name": "n2", "n": 3, "f": 0.1, "d": Decimal("2.25")},
        {"id": 3, "name": None, "n": None, "f": None, "d": None},
    ]


def test_new_fields_of_structs_wherever_they_stand(lake: Lake, folder: Path) -> None:
    one, two = pa.struct([("x", pa.int32())]), pa.struct([("y", pa.string()), ("x", pa.int64())])

    def write(number: int, kind: pa.DataType, value: Any) -> Path:
        columns = {"s": pa.array([value], kind), "l": pa.array([[value]], pa.list_(kind))}
        return parquet(folder / f"{number}.parquet", table_of([number], **columns))

    new = {"y": "new", "x": 2**40}
    query = Registering(lake)
    query.objects([write(0, one, {"x": 1})])
    query.objects([write(1, two, new), write(2, one, {"x": 3})])
    rows = with_pyiceberg(lake)
    assert [row["s"] for row in rows] == [{"x": 1, "y": None}, new, {"x": 3, "y": None}]
    assert [row["l"] for row in rows] == [[{"x": 1, "y": None}], [new], [{"x": 3, "y": None}]]


def instants(unit: str, zone: str | None = None) -> pa.Array:
    return pa.array([NOON.replace(microsecond=0)], pa.timestamp(unit, zone))


UNSUITABLE: dict[str, Callable[[], pa.Array]] = {
    "uint32": lambda: pa.array([2**31 + 1], pa.uint32()),
    "uint64": lambda: pa.array([2**63 + 1], pa.uint64()),
    "seconds": lambda: instants("s"),
    "milliseconds": lambda: instants("ms"),
    "nanoseconds": lambda: instants("ns"),
    "another zone": lambda: instants("us", "Europe/Berlin"),
    "time": lambda: pa.array([1000], pa.time32("ms")),
    "time in nanoseconds": lambda: pa.array([1000], pa.time64("ns")),
    "half": lambda: pa.array([1.5], pa.float16()),
    "duration": lambda: pa.array([1], pa.duration("us")),
    "decimal256": lambda: pa.array([Decimal("1")], pa.decimal256(50, 2)),
    "void": lambda: pa.nulls(1),
    "json": lambda: pa.array(["{}"], pa.json_()),
    "fixed list": lambda: pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
    "view": lambda: pa.array(["x"], pa.string_view()),
    "within": lambda: pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.uint32())]))),
}


@pytest.mark.parametrize("kind", UNSUITABLE)
def test_a_type_that_some_reader_takes_for_another_is_no_data_file(lake: Lake, folder: Path, kind: str) -> None:
    good = parquet(folder / "good.parquet", table_of([1]))
    odd = parquet(folder / "odd.parquet", table_of([2], odd=UNSUITABLE[kind]()))
    query = Registering(lake)
    query.objects([good, odd])
    assert query.causes() == {"odd.parquet": "wrong-columns"}
    assert "'odd" in query.details()[0]
    assert query.states() == {"good.parquet": "done", "odd.parquet": "quarantined"}
    assert lake.ids() == [1]


def test_int96_is_no_data_file(lake: Lake, folder: Path) -> None:
    file = parquet(
        folder / "a.parquet",
        table_of([1], at=pa.array([NOON], pa.timestamp("us"))),
        use_deprecated_int96_timestamps=True,
    )
    query = Registering(lake)
    query.objects([file])
    assert query.causes() == {"a.parquet": "wrong-columns"}
    assert "INT96" in query.details()[0]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"id": pa.array(["text"])}, "'id' of db.events is of type long, and the rows have string"),
        ({"id": pa.array([1.5])}, "long, and the rows have double"),
        ({"ID": pa.array([1])}, "'ID' and 'id'"),
        ({"id": [1], "name": pa.array([b"x"])}, "string, and the rows have binary"),
        ({"id": [1], "d": pa.array([Decimal("1.25")], pa.decimal128(9, 3))}, "decimal"),
        ({"id": [1], "at": pa.array([NOON], pa.timestamp("us"))}, "timestamptz, and the rows have timestamp"),
        ({"id": [1], "s": pa.array([1])}, "struct"),
    ],
)
def test_what_the_table_cannot_take_up_is_a_bad_object(
    lake: Lake, folder: Path, columns: dict[str, Any], told: str
) -> None:
    first = table_of(
        [1],
        d=pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
        at=pa.array([NOON], UTC),
        s=pa.array([{"x": 1}]),
    )
    query = Registering(lake)
    query.objects([parquet(folder / "first.parquet", first)])
    query.objects([parquet(folder / "other.parquet", columns), parquet(folder / "good.parquet", table_of([2]))])
    assert query.causes() == {"other.parquet": "wrong-columns"}
    assert told in query.details()[0]
    assert [row["id"] for row in with_pyiceberg(lake)] == [1, 2]


def test_with_fail_the_task_says_which_object_it_is(lake: Lake, folder: Path) -> None:
    query = Registering(lake, options={"onUnregistrable": "fail"})
    query.announce(file := parquet(folder / "odd.parquet", table_of([2], odd=pa.array([1], pa.uint32()))))
    with pytest.raises(Exception, match=r"wrong-columns: .*odd\.parquet"):
        query.attempt(query.references([file]))


# damage


def test_what_is_no_parquet_is_a_bad_object_and_what_has_no_rows_is_done(lake: Lake, folder: Path) -> None:
    good = parquet(folder / "good.parquet", table_of([1])).read_bytes()
    whole = parquet(folder / "groups.parquet", table_of(range(100)), row_group_size=10).read_bytes()
    bad = {
        "empty": b"",
        "text": b"id,name\n1,x\n" * 10,
        "cut": good[:-20],
        "begun": whole[len(whole) // 2 :],  # a good footer, of which the columns are beyond the object
        "no footer": b"PAR1" + b"\0" * 40 + b"PAR1",
        "long footer": b"PAR1" + b"\xff" * 4 + b"PAR1",
        "flipped": good[:-60] + bytes(byte ^ 0x55 for byte in good[-60:-8]) + good[-8:],
    }
    for name, data in bad.items():
        (folder / f"{name}.parquet").write_bytes(data)
    query = Registering(lake)
    none = parquet(folder / "none.parquet", table_of([]))
    query.objects([folder / f"{name}.parquet" for name in (*bad, "good")], [none, folder / "missing.parquet"])
    expected = {f"{name}.parquet": "corrupt-object" for name in bad}
    assert query.causes() == {**expected, "missing.parquet": "missing-object"}
    assert lake.ids() == [1]
    assert query.states() == dict.fromkeys(query.causes(), "quarantined") | {
        "good.parquet": "done",
        "none.parquet": "done",
    }


class Keys(pe.KmsClient):  # type: ignore[misc]
    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped)


@pytest.mark.parametrize("plain", [True, False], ids=["plain footer", "encrypted footer"])
def test_an_encrypted_object_says_so(lake: Lake, folder: Path, plain: bool) -> None:
    settings = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["name"]}, plaintext_footer=plain)
    keys = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), settings)
    file = parquet(folder / "a.parquet", table_of([1]), encryption_properties=keys)
    query = Registering(lake)
    query.objects([file])
    assert query.causes() == {"a.parquet": "encrypted-object"}
    assert set(query.states().values()) == {"quarantined"}


def test_an_object_that_was_replaced_waits_for_its_new_announcement(lake: Lake, folder: Path) -> None:
    file = parquet(folder / "a.parquet", table_of([1]))
    query = Registering(lake)
    query.announced[f"file://{file}"] = 5
    query.objects([file])
    assert query.causes() == {"a.parquet": "object-changed"}
    query.announced[f"file://{file}"] = file.stat().st_size
    query.objects([file])
    assert lake.ids() == [1]
    assert query.states() == {"a.parquet": "done"}


@pytest.mark.parametrize("name", ["a b", "a%20b", "[1]{x}*", "ü+&;=,@!'", "~$(x)"])
def test_unusual_names_are_found_by_both_readers(lake: Lake, folder: Path, name: str) -> None:
    Registering(lake).objects([parquet(folder / f"{name}.parquet", table_of([1]))])
    assert lake.ids() == [1]


@pytest.mark.parametrize("name", ["a#b", "a?b", "a\\b", "a\tb", "a\nb"])
def test_names_that_readers_take_for_others_are_bad(lake: Lake, folder: Path, name: str) -> None:
    parquet(folder / "a", table_of([7]))  # what a reader would read that cuts the name
    file = parquet(folder / name, table_of([1]))
    query = Registering(lake)
    query.objects([file, parquet(folder / "good", table_of([2]))])
    assert list(query.causes().values()) == ["unsupported-key"]
    assert lake.ids() == [2]


# field ids and names


def test_columns_with_field_ids_are_found_by_them_and_others_by_the_names_they_had(lake: Lake, folder: Path) -> None:
    Query(lake).batch(table_of([0]))  # written by the other sink: with ids, and without a name mapping
    first = parquet(folder / "first.parquet", table_of([1]))
    query = Registering(lake)
    query.objects([first])
    with lake.catalog() as catalog, catalog.load_table(lake.name).update_schema() as update:
        update.rename_column("name", "label")
    old_name = parquet(folder / "old-name.parquet", table_of([2]))
    by_ids = parquet(folder / "ids.parquet", with_ids(table_of([3]), id=1, name=2))
    new_name = parquet(folder / "new-name.parquet", {"id": [4], "label": ["new"]})
    both = parquet(folder / "both.parquet", table_of([5], label=["two"]))
    query.objects([old_name, by_ids], [new_name, both])
    assert query.causes() == {"both.parquet": "wrong-columns"}
    labels = {0: "n0", 1: "n1", 2: "n2", 3: "n0", 4: "new"}
    assert {row["id"]: row["label"] for row in lake.read()} == labels


def test_field_ids_of_another_table_are_not_believed(lake: Lake, folder: Path) -> None:
    Query(lake).batch(table_of([0], age=[10], year=[2000]))
    rows = table_of([1], age=[20], year=[2001])
    files = {
        "swapped": with_ids(rows, id=1, name=2, age=4, year=3),
        "unknown": with_ids(rows, id=1, name=2, age=3, year=9),
        "some": with_ids(rows, id=1, name=2, age=3),
        "twice": with_ids(rows, id=1, name=2, age=3, year=3),
        "right": with_ids(rows, id=1, name=2, age=3, year=4),
    }
    query = Registering(lake)
    query.objects([parquet(folder / f"{name}.parquet", file) for name, file in files.items()])
    assert query.causes() == {f"{name}.parquet": "wrong-columns" for name in files if name != "right"}
    assert lake.read()[1:] == rows.to_pylist()


def test_a_column_that_the_table_dropped_stays_dropped(lake: Lake, folder: Path) -> None:
    query = Registering(lake)
    query.objects([parquet(folder / "0.parquet", table_of([0], x=["old"]))])
    with lake.catalog() as catalog, catalog.load_table(lake.name).update_schema() as update:
        update.delete_column("x")
    query.objects([parquet(folder / "1.parquet", table_of([1], x=["again"]))])
    query.objects([parquet(folder / "2.parquet", with_ids(table_of([2], x=["id"]), id=1, name=2, x=3))])
    assert query.causes() == {}
    assert lake.read() == table_of([0, 1, 2]).to_pylist()
    assert lake.table().schema().column_names == ["id", "name"]


def test_a_column_that_the_mapping_gives_to_another_one_is_refused(lake: Lake, folder: Path) -> None:
    """An engine that does not keep the mapping has dropped the column, and added one of its name."""
    query = Registering(lake)
    query.objects([parquet(folder / "0.parquet", table_of([0], x=["old"]))])
    mapping = lake.table().properties["schema.name-mapping.default"]
    with lake.catalog() as catalog:
        for change in ("delete", "add"):
            with catalog.load_table(lake.name).update_schema() as update:
                update.delete_column("x") if change == "delete" else update.add_column("x", StringType())
        with catalog.load_table(lake.name).transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": mapping})
    query.objects([parquet(folder / "1.parquet", table_of([1], x=["new"]))])
    assert query.causes() == {"1.parquet": "wrong-columns"}
    assert "name mapping" in query.details()[0]
    assert with_pyiceberg(lake) == [{"id": 0, "name": "n0", "x": None}]


def test_columns_that_must_not_be_null(lake: Lake, folder: Path) -> None:
    Query(lake, "first").batch(table_of([0]))
    fields = NestedField(1, "id", LongType(), required=True), NestedField(2, "n", IntegerType(), required=True)
    with lake.catalog() as catalog:
        catalog.create_table("db.strict", Schema(*fields), location=f"file://{lake.options['warehouse']}/strict")
    strict = Lake(lake.store, {**lake.options, "table": "db.strict"}, lake.reading, "db.strict")
    query = Registering(strict)
    n = pa.array([1], pa.int32())
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32(), nullable=False)])
    query.objects([
        parquet(folder / "full.parquet", {"id": [1], "n": n}),
        parquet(folder / "null.parquet", {"id": [2], "n": pa.array([None], pa.int32())}),
        parquet(folder / "silent.parquet", {"id": [3], "n": n}, write_statistics=False),
        parquet(folder / "declared.parquet", pa.table([[4], n], schema=declared), write_statistics=False),
        parquet(folder / "lacking.parquet", {"id": [5]}),
    ])  # fmt: skip
    assert set(query.causes()) == {"null.parquet", "silent.parquet", "lacking.parquet"}
    assert strict.ids() == [1, 4]


# partitions


def test_statistics_that_are_not_there_prove_nothing(lake: Lake, folder: Path) -> None:
    lake.options["partitionBy"] = "name"
    rows = {"id": [1, 2], "name": ["x", "x"]}
    query = Registering(lake)
    query.objects([
        parquet(folder / "silent.parquet", rows, write_statistics=False),
        parquet(folder / "others.parquet", rows, write_statistics=["id"]),
        parquet(folder / "long.parquet", {"id": [3], "name": ["x" * 5000]}),
        parquet(folder / "good.parquet", rows),
    ])  # fmt: skip
    assert set(query.causes()) == {"silent.parquet", "others.parquet", "long.parquet"}
    assert lake.ids() == [1, 2]


def test_a_row_group_without_statistics_leaves_no_bounds_at_all(lake: Lake, folder: Path) -> None:
    """Bounds of the other groups alone would hide its rows from whoever looks for them."""
    rows = table_of([1, 2], text=["b", "z" * 5000])
    file = parquet(folder / "a.parquet", rows, row_group_size=1)
    query = Registering(lake)
    query.objects([file])
    (data_file,) = query.files().values()
    assert set(data_file.lower_bounds) == {1, 2}
    assert data_file.null_value_counts[3] == 0
    assert len(data_file.split_offsets or []) == 2
    scan = lake.table().scan(row_filter="text > 'c'")
    assert scan.to_arrow().to_pylist() == rows.to_pylist()[1:]


def cut_bounds(path: Path, values: list[str], length: int) -> Path:
    """A file of another writer, which cuts the bounds of texts, and says so."""
    context = SessionContext()
    batches = [pa.table({"id": list(range(len(values))), "name": pa.array(values)}).to_batches()]
    context.register_record_batches("given", batches)
    options = f"'format.statistics_truncate_length' '{length}', 'format.statistics_enabled' 'page'"
    context.sql(f"COPY given TO '{path}' STORED AS PARQUET OPTIONS ({options})").collect()
    return path


def test_bounds_that_are_cut_prove_a_prefix_and_no_value(lake: Lake, folder: Path) -> None:
    same, differ = ["abcdefghij"] * 3, ["abcdefghij", "abcdefghik"]
    files = [cut_bounds(folder / f"{n}.parquet", values, 8) for n, values in enumerate((same, differ))]
    statistics = pq.read_metadata(files[0]).row_group(0).column(1).statistics
    assert (statistics.min, statistics.max) == ("abcdefgh", "abcdefgi"), "the writer does not cut them any more"
    lake.options["partitionBy"] = "name"
    query = Registering(lake)
    query.objects(files)
    assert set(query.causes().values()) == {"wrong-partition"}
    lake.options |= {"partitionBy": "truncate(4, name)", "table": "db.prefixes"}
    other = Registering(Lake(lake.store, lake.options, lake.reading, "db.prefixes"), "other")
    other.objects(files)
    assert [file.partition[0] for file in other.files().values()] == ["abcd", "abcd"]
    found = other.lake.table().scan(row_filter="name >= 'abcdefghik'").to_arrow()
    assert found["name"].to_pylist() == ["abcdefghik"]


# folders


def test_folders_give_the_partition_also_of_columns_that_the_files_lack(lake: Lake, folder: Path) -> None:
    """Read with PyIceberg: the core of the other one shows null for what is in the metadata alone."""
    lake.options["partitionBy"] = "day, hour, region"
    rows = table_of([1, 2])
    files = [
        parquet(folder / "day=2026-01-03" / "hour=07" / "region=a%2Fb" / "1.parquet", rows),
        parquet(folder / "day=2026-01-04" / "hour=08" / "region=__HIVE_DEFAULT_PARTITION__" / "2.parquet", rows),
        parquet(folder / "day=yesterday" / "hour=08" / "region=x" / "3.parquet", rows),
        parquet(folder / "day=2026-02-30" / "hour=08" / "region=x" / "4.parquet", rows),
    ]
    query = Registering(lake)
    query.objects(files)
    assert query.causes() == {"3.parquet": "wrong-partition", "4.parquet": "wrong-partition"}
    found = lake.table().scan().to_arrow().to_pylist()
    key = [(row["id"], row["day"], row["hour"], row["region"]) for row in found]
    assert sorted(key, key=str) == [
        (1, date(2026, 1, 3), 7, "a/b"),
        (1, date(2026, 1, 4), 8, None),
        (2, date(2026, 1, 3), 7, "a/b"),
        (2, date(2026, 1, 4), 8, None),
    ]
    assert len(lake.table().scan(row_filter="day = '2026-01-03'").to_arrow()) == 2
    one = list(lake.table().scan(row_filter="day = '2026-01-03'").plan_files())
    assert [task.file.file_path for task in one] == [f"file://{files[0]}"]


def test_an_object_of_a_day_that_python_does_not_have_harms_no_neighbour(lake: Lake, folder: Path) -> None:
    lake.options["partitionBy"] = "day(at)"
    query = Registering(lake)
    moments = (10**18, 0)
    query.objects([
        parquet(folder / f"{at}.parquet", table_of([at], at=pa.array([at], pa.int64()).view(pa.timestamp("us"))))
        for at in moments
    ])  # fmt: skip
    assert (query.causes(), len(query.files())) == ({}, 2)
    (task,) = lake.table().scan(row_filter="at < '9999-01-01T00:00:00'").plan_files()
    assert task.file.file_path.endswith("/0.parquet")


def test_an_object_without_the_column_of_a_new_tables_partitions_waits_for_nobody(lake: Lake, folder: Path) -> None:
    lake.options["partitionBy"] = "day"
    query = Registering(lake)
    query.objects([parquet(folder / "a.parquet", table_of([1]))])
    assert query.causes() == {"a.parquet": "wrong-columns"}
    assert "no column 'day' to partition by" in query.details()[0]
    query.objects([parquet(folder / "day=2026-01-03" / "b.parquet", table_of([2]))])
    assert [row["day"] for row in with_pyiceberg(lake)] == [date(2026, 1, 3)]


@pytest.mark.parametrize("asked", ["month(on)", ""])
def test_a_folder_that_readers_would_not_look_at_is_refused_for_a_column_that_the_file_lacks(
    lake: Lake, folder: Path, asked: str
) -> None:
    if asked:
        lake.options["partitionBy"] = asked
    query = Registering(lake)
    first = parquet(folder / "first.parquet", table_of([1], on=pa.array([date(2026, 1, 1)])))
    query.objects([first])
    query.objects([parquet(folder / "on=2026-01-03" / "a.parquet", table_of([2]))])
    assert query.causes() == {"a.parquet": "wrong-partition"}
    assert "see null" in query.details()[0]


def test_a_folder_is_believed_where_the_footer_is_silent(lake: Lake, folder: Path) -> None:
    lake.options["partitionBy"] = "name"
    file = parquet(folder / "name=x" / "a.parquet", {"id": [1], "name": ["x"]}, write_statistics=False)
    query = Registering(lake)
    query.objects([file])
    assert [data.partition[0] for data in query.files().values()] == ["x"]


# statistics


def test_nan_and_the_zeros_are_in_no_bound(lake: Lake, folder: Path) -> None:
    values = [[0.0, math.nan], [-0.0, 1.0], [math.nan, math.nan]]
    query = Registering(lake)
    query.objects([
        parquet(folder / f"{n}.parquet", table_of([2 * n, 2 * n + 1], f=value)) for n, value in enumerate(values)
    ])  # fmt: skip
    for wanted, expected in (("f >= 0", 3), ("f = 0", 2), ("f < 0.5", 2)):
        assert len(lake.table().scan(row_filter=wanted).to_arrow()) == expected, wanted
    bounds = [dict(file.lower_bounds).get(3) for file in query.files().values()]
    assert sorted(bound or b"" for bound in bounds) == [b"", struct.pack("<d", -0.0), struct.pack("<d", -0.0)]


def test_dates_of_an_old_spark_are_registered_where_their_calendar_is_ours(lake: Lake, folder: Path) -> None:
    def write(name: str, year: int, metadata: dict[str, str]) -> Path:
        rows = table_of([year], on=pa.array([date(year, 1, 1)]))
        return parquet(folder / f"{name}.parquet", rows.replace_schema_metadata(metadata))

    legacy = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    query = Registering(lake)
    query.objects([
        write("new", 1500, {"org.apache.spark.version": "3.5.0"}),
        write("today", 2026, legacy),
        write("old", 1501, legacy),
        write("older", 1502, {"org.apache.spark.version": "2.4.8"}),
    ])  # fmt: skip
    assert query.causes() == {"old.parquet": "wrong-columns", "older.parquet": "wrong-columns"}
    assert lake.ids() == [1500, 2026]


def test_the_tables_properties_say_which_statistics_there_are(lake: Lake, folder: Path) -> None:
    query = Registering(lake)
    query.objects([parquet(folder / "0.parquet", table_of([0]))])
    with lake.catalog() as catalog, catalog.load_table(lake.name).transaction() as transaction:
        transaction.set_properties({
            "write.metadata.metrics.default": "counts",
            "write.metadata.metrics.column.id": "none",
            "write.metadata.metrics.column.name": "truncate(1)",
        })  # fmt: skip
    query.objects([file := parquet(folder / "1.parquet", table_of([1], other=["x"]))])
    data = query.files()[f"file://{file}"]
    assert set(data.value_counts) == {2, 3}
    assert (dict(data.lower_bounds), dict(data.upper_bounds)) == ({2: b"n"}, {2: b"o"})


def test_rust_reads_what_pyiceberg_reads_of_groups_and_pages(lake: Lake, folder: Path) -> None:
    rows = table_of(range(5000), v=[float(i) for i in range(5000)])
    Registering(lake).objects([parquet(folder / "a.parquet", rows, row_group_size=700, use_dictionary=False)])
    assert by_id(read_with_rust(lake.table()).to_pylist()) == rows.to_pylist()
    assert lake.table().scan(row_filter="id = 4321").to_arrow()["v"].to_pylist() == [4321.0]
