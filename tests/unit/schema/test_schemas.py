"""Schemas that nobody declared: DDL, types put together, what samples say, and the versions that are kept."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_source.errors import BadObject, ObjectStoreError, OptionError
from queue_source.formats.base import OpenObject, format_of
from queue_source.formats.metadata import folder_type, path_columns
from queue_source.formats.types import spark_type, wider_type
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.schema.columns import (
    TypesDiffer,
    format_columns,
    format_type,
    merged,
    news,
    parse_columns,
    parse_fields,
    resolved,
    widened,
    with_hints,
)
from queue_source.schema.location import SchemaLocation
from queue_source.storage.files import open_object

UTC = pa.timestamp("us", tz="UTC")
JSON = FormatOptions("json")
CSV = FormatOptions("csv", header=True)


def ddl(schema: pa.Schema) -> str:
    return format_columns(schema).replace("`", "")


def infer(tmp_path: Path, data: bytes, options: FormatOptions, *, types: bool = True, limit: int = 1 << 20) -> str:
    path = tmp_path / "sample"
    path.write_bytes(data)
    with open_object(str(path)) as file:
        return ddl(
            resolved(format_of(options).infer(OpenObject(str(path), file, file.size()), options, limit, types=types))
        )


# DDL


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BOOLEAN", pa.bool_()),
        ("tinyint", pa.int8()),
        ("SHORT", pa.int16()),
        ("INTEGER", pa.int32()),
        ("long", pa.int64()),
        ("REAL", pa.float32()),
        ("double", pa.float64()),
        ("VARCHAR(20)", pa.string()),
        ("BINARY", pa.binary()),
        ("DATE", pa.date32()),
        ("TIMESTAMP", UTC),
        ("timestamp_ntz", pa.timestamp("us")),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("decimal(12,2)", pa.decimal128(12, 2)),
        ("ARRAY<INT>", pa.list_(pa.int32())),
        ("MAP<STRING, ARRAY<INT>>", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("STRUCT<a: INT, `b c` STRING COMMENT 'it''s' >", pa.struct([("a", pa.int32()), ("b c", pa.string())])),
        ("STRUCT<>", pa.struct([])),
        ("INT NOT NULL COMMENT 'the key'", pa.int32()),
    ],
)
def test_types_are_read_as_spark_writes_them(text: str, kind: pa.DataType) -> None:
    if "''" in text:
        text = text.replace("it''s", r"it\'s")
    assert parse_columns(f"x {text}").field("x").type == kind


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id", "expected a type, found the end"),
        ("id INT name STRING", "expected a comma"),
        ("id INT, id STRING", "there twice"),
        ("id VARIANT", "'VARIANT' is not a type"),
        ("id DECIMAL(39, 2)", "at most 38"),
        ("a STRUCT<b: INT, b: INT>", "field twice"),
        ("a ARRAY<INT", "expected >"),
        ("a MAP<INT>", "expected ,"),
        ("a INT NOT", "expected NULL"),
        ("a.b INT", "in backticks"),
        ("a INT; b INT", "is not expected"),
    ],
)
def test_what_is_no_ddl_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_columns(text)


def test_dots_lead_into_columns_and_backticks_hold_them_together() -> None:
    found = parse_fields("tags.key STRING, `a.b` INT, größe.x: DOUBLE")
    assert found == [(("tags", "key"), pa.string()), (("a.b",), pa.int32()), (("größe", "x"), pa.float64())]


_LEAVES = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.binary(), pa.date32(), UTC, pa.decimal128(9, 2)]
)
_NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=6)
_TYPES = st.recursive(
    _LEAVES,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
        | st.dictionaries(_NAMES, inner, max_size=3).map(lambda parts: pa.struct(list(parts.items())))
    ),
    max_leaves=6,
)
_SCHEMAS = st.dictionaries(_NAMES, _TYPES, max_size=4).map(lambda parts: pa.schema(list(parts.items())))


@given(_SCHEMAS)
def test_columns_that_are_written_are_read_again(schema: pa.Schema) -> None:
    assert parse_columns(format_columns(schema)).equals(schema)


# types put together


@given(_SCHEMAS, _SCHEMAS)
def test_widening_keeps_what_is_there_and_a_second_time_changes_nothing(kept: pa.Schema, found: pa.Schema) -> None:
    once = widened(kept, found)
    first_spellings = {name.casefold(): name for name in reversed(kept.names)}
    folded = list(dict.fromkeys(name.casefold() for name in kept.names))
    assert once.names[: len(folded)] == [first_spellings[name] for name in folded]
    assert widened(once, found) == once
    assert news(once, widened(once, found)) == []


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("a INT", "a BIGINT, b STRING", "a BIGINT, b STRING"),
        ("a BIGINT", "a DOUBLE", "a DOUBLE"),
        ("a FLOAT", "a DOUBLE", "a DOUBLE"),
        ("a DECIMAL(10,2)", "a DECIMAL(8,4)", "a DECIMAL(12, 4)"),
        ("a BIGINT", "a DECIMAL(5,1)", "a DECIMAL(20, 1)"),
        ("a DATE", "a TIMESTAMP", "a TIMESTAMP"),
        ("a STRUCT<x: INT>", "A STRUCT<y: INT, X: BIGINT>", "a STRUCT<x: BIGINT, y: INT>"),
        ("a ARRAY<STRUCT<x: INT>>", "a ARRAY<STRUCT<y: INT>>", "a ARRAY<STRUCT<x: INT, y: INT>>"),
    ],
)
def test_two_samples_have_the_narrowest_type_for_both(first: str, second: str, both: str) -> None:
    schemas = [parse_columns(first), parse_columns(second)]
    assert ddl(merged(schemas, textual=False)) == both
    assert ddl(merged(schemas, textual=True)) == both


@pytest.mark.parametrize(
    ("names", "as_text", "as_types"),
    [
        ("a BIGINT, A BOOLEAN", "a STRING", "a BIGINT"),
        ("b INT, a BIGINT, A DOUBLE", "b INT, a DOUBLE", "b INT, a BIGINT"),
        ("s STRUCT<x: BIGINT, X: BOOLEAN>", "s STRUCT<x: STRING>", "s STRUCT<x: BIGINT>"),
        ("s ARRAY<STRUCT<x: DATE, X: TIMESTAMP>>", "s ARRAY<STRUCT<x: TIMESTAMP>>", "s ARRAY<STRUCT<x: DATE>>"),
    ],
)
def test_names_of_one_sample_that_differ_in_case_are_the_column_that_they_are_in_two(
    names: str, as_text: str, as_types: str
) -> None:
    schema = parse_columns(names)
    assert ddl(merged([schema], textual=True)) == ddl(merged([schema, schema], textual=True)) == as_text
    assert ddl(merged([schema], textual=False)) == ddl(merged([schema, schema], textual=False)) == as_types


_WIDER = {
    "TINYINT": "SMALLINT INT BIGINT DECIMAL(12,2) DOUBLE",
    "SMALLINT": "INT BIGINT DECIMAL(12,2) DOUBLE",
    "INT": "BIGINT DECIMAL(12,2) DOUBLE",
    "BIGINT": "DECIMAL(22,2)",
    "FLOAT": "DOUBLE",
    "DECIMAL(5,2)": "DECIMAL(12,2) DECIMAL(22,2) DECIMAL(7,4)",
    "DATE": "TIMESTAMP_NTZ",
}
"""What Auto Loader widens, and to what, where the files have these types; a decimal in its own digits."""
_FILES = {"DECIMAL(12,2)": "DECIMAL(5,2)", "DECIMAL(22,2)": "DECIMAL(5,2)", "DECIMAL(7,4)": "DECIMAL(6,4)"}
_ALL = [
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"),
    *("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING", "BINARY"),
]


def _kind(text: str) -> pa.DataType:
    return parse_columns(f"x {text}").field(0).type


@pytest.mark.parametrize("kept", [*_ALL, "DECIMAL(5,2)"])
def test_types_widen_as_those_of_auto_loader_and_no_other(kept: str) -> None:
    wide = {"DECIMAL(5,2)": "BIGINT", **_FILES} if kept in ("TINYINT", "SMALLINT", "INT", "BIGINT") else {}
    for seen in [*_ALL, "DECIMAL(5,2)"]:
        expected = next(
            (text for text in _WIDER.get(kept, "").split() if wide and _FILES.get(text, text) == seen), None
        )
        if not wide:
            expected = seen if seen in _WIDER.get(kept, "").split() else None
        found = wider_type(_kind(kept), _kind(seen))
        assert found == (expected and _kind(expected)), (kept, seen)
        if found is not None:  # once it is wide enough, the same files change nothing more
            assert wider_type(found, _kind(seen)) is None


def test_a_decimal_keeps_all_its_digits_or_stays_as_it_is() -> None:
    assert wider_type(pa.decimal128(5, 2), pa.decimal128(6, 4)) == pa.decimal128(7, 4)
    assert wider_type(pa.decimal128(5, 2), pa.decimal128(4, 1)) is None
    assert wider_type(pa.decimal128(38, 0), pa.decimal128(38, 10)) is None
    assert wider_type(pa.int64(), pa.decimal128(38, 20)) is None


def test_types_widen_within_columns_only_where_that_is_asked_for() -> None:
    kept = parse_columns("id INT, s STRUCT<a: ARRAY<FLOAT>, m: MAP<STRING, DATE>>")
    seen = parse_columns("ID BIGINT, s STRUCT<a: ARRAY<DOUBLE>, m: MAP<STRING, TIMESTAMP_NTZ>>, new INT")
    assert ddl(widened(kept, seen)) == f"{ddl(kept)}, new INT"
    wide = widened(kept, seen, types=True)
    assert ddl(wide) == "id BIGINT, s STRUCT<a: ARRAY<DOUBLE>, m: MAP<STRING, TIMESTAMP_NTZ>>, new INT"
    assert news(kept, wide) == ["id BIGINT", "s.a.element DOUBLE", "s.m.value TIMESTAMP_NTZ", "new INT"]
    assert news(wide, kept) == []


def test_types_that_no_type_holds_are_text_where_they_were_text_and_else_refused() -> None:
    schemas = [parse_columns("a STRUCT<b: INT>"), parse_columns("a STRUCT<b: STRING>")]
    assert ddl(merged(schemas, textual=True)) == "a STRUCT<b: STRING>"
    with pytest.raises(TypesDiffer, match=r"'a\.b' is int32 in one sample and string in another.*schemaHints"):
        merged(schemas, textual=False)


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ("id STRING", "id STRING, tags STRUCT<k: BIGINT>, l ARRAY<STRUCT<x: BIGINT>>"),
        ("ID STRING", "id STRING, tags STRUCT<k: BIGINT>, l ARRAY<STRUCT<x: BIGINT>>"),
        ("tags.k INT, tags.new DATE", "id BIGINT, tags STRUCT<k: INT, new: DATE>, l ARRAY<STRUCT<x: BIGINT>>"),
        ("l.element.x STRING", "id BIGINT, tags STRUCT<k: BIGINT>, l ARRAY<STRUCT<x: STRING>>"),
        ("tags MAP<STRING, STRING>, more.a INT",
         "id BIGINT, tags MAP<STRING, STRING>, l ARRAY<STRUCT<x: BIGINT>>, more STRUCT<a: INT>"),
    ],
)  # fmt: skip
def test_hints_name_types_and_add_columns(hints: str, expected: str) -> None:
    schema = parse_columns("id BIGINT, tags STRUCT<k: BIGINT>, l ARRAY<STRUCT<x: BIGINT>>")
    assert ddl(with_hints(schema, parse_fields(hints))) == expected


def test_hints_lead_into_maps_and_not_into_what_has_no_parts() -> None:
    schema = parse_columns("m MAP<STRING, BIGINT>, id BIGINT")
    assert ddl(with_hints(schema, parse_fields("m.key INT, m.value DATE"))) == "m MAP<INT, DATE>, id BIGINT"
    with pytest.raises(ValueError, match=r"'id\.x' leads into a column of type int64"):
        with_hints(schema, parse_fields("id.x INT"))


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", tz="Europe/Berlin"), UTC),
        (pa.date64(), pa.date32()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.large_list(pa.binary(4)), pa.list_(pa.binary())),
        (pa.float16(), pa.float32()),
        (pa.decimal256(30, 2), pa.decimal128(30, 2)),
        (pa.duration("ns"), pa.int64()),
    ],
)
def test_types_of_files_are_held_in_types_of_spark(kind: pa.DataType, held: pa.DataType) -> None:
    assert spark_type(kind, "a") == held
    with pytest.raises(ValueError, match="'a' is time64"):
        spark_type(pa.time64("us"), "a")


# samples


def test_json_has_the_types_that_are_written(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"i": 1, "f": 1, "s": "2020-01-01", "b": True, "mixed": 1, "o": {"x": None, "y": 1}, "l": [1, 2.5]},
        {"i": 2**40, "f": 1.5, "s": "x", "b": False, "mixed": "a", "o": {"x": "t", "z": []}, "l": [], "n": None},
        {"big": 2**70},
    ]
    data = "\n".join(map(json.dumps, records)).encode()
    assert infer(tmp_path, data, JSON) == (
        "i BIGINT, f DOUBLE, s STRING, b BOOLEAN, mixed STRING, o STRUCT<x: STRING, y: BIGINT, z: ARRAY<STRING>>, "
        "l ARRAY<DOUBLE>, n STRING, big DECIMAL(38, 0)"
    )
    assert infer(tmp_path, data, JSON, types=False).startswith(
        "i STRING, f STRING, s STRING, b STRING, mixed STRING, o"
    )
    document = FormatOptions("json", multi_line=True)
    assert infer(tmp_path, b'[{"a":\n1},\n{"b": 2}]', document) == "a BIGINT, b BIGINT"


def test_bad_records_of_a_sample_are_passed_over_and_only_bad_ones_are_refused(tmp_path: Path) -> None:
    assert infer(tmp_path, b'{"a": 1}\n{"a": \n\n[1]\n', JSON) == "a BIGINT"
    with pytest.raises(BadObject, match="no record of it can be read"):
        infer(tmp_path, b"\x00\n{", JSON)


def test_a_sample_ends_at_its_limit(tmp_path: Path) -> None:
    data = b'{"a": 1}\n' * 10 + b'{"later": 1}\n'
    assert infer(tmp_path, data, JSON, limit=50) == "a BIGINT"


def test_csv_is_text_or_what_all_values_of_a_column_mean(tmp_path: Path) -> None:
    data = (
        b"i,f,zip,b,d,t,s,e,wide\n1,1.5,007,true,2020-01-01,2020-01-01 10:00:00,x,,99999999999999999999\n"
        b'-2,3,12345,FALSE,2021-12-31,2020-01-01T10:00:00.5Z,"1,2","",1\n'
    )
    assert infer(tmp_path, data, CSV) == (
        "i BIGINT, f DOUBLE, zip STRING, b BOOLEAN, d DATE, t TIMESTAMP, s STRING, e STRING, wide STRING"
    )
    assert infer(tmp_path, data, CSV, types=False).count("STRING") == 9
    assert infer(tmp_path, b"1,2\n3,4,5\n", FormatOptions("csv")) == "_c0 BIGINT, _c1 BIGINT, _c2 BIGINT"
    assert infer(tmp_path, b"01.02.2020\n", FormatOptions("csv", date_format="dd.MM.yyyy")) == "_c0 DATE"
    assert infer(tmp_path, b",a\n0,x\n", CSV) == "_c0 BIGINT, a STRING"
    assert infer(tmp_path, b"a,b,A\n1,x,2\n", CSV) == "a0 BIGINT, b STRING, A2 BIGINT"


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["2020-01-01", "2020-1-9", "0001-12-31"], pa.date32()),
        (["7", "007", "08", "09", "10", "+9", "-9", "-0", "20240109", "9223372036854775807"], pa.int64()),
        (["9223372036854775808", "9" * 38], pa.decimal128(38, 0)),
        (["1.5", "01.5", ".5", "1.", "-1.5", "1e3", "NaN", "-Infinity"], pa.float64()),
        (["2020-01-01 10:00:00", "2020-01-01T9:00Z"], pa.timestamp("us", tz="UTC")),
        (["eu", "2020-02-30", "2020-01", "1L", "0x10", "1,5", "9" * 39, " 9", "Inf", "2020-01-01-08"], pa.string()),
        (["", "__HIVE_DEFAULT_PARTITION__"], pa.null()),
        (["true", "FALSE"], pa.bool_()),
    ],
)
def test_values_of_paths_have_types_by_their_form_alone(texts: list[str], kind: pa.DataType) -> None:
    options = FormatOptions("json", partition_columns=("p",), date_format="dd.MM.yyyy")
    assert [folder_type(text, options) for text in texts] == [kind] * len(texts)
    for text in texts if kind != pa.null() else ():
        found = path_columns(f"s3://b/p={quote(text)}/x", pa.schema([("p", kind)]), options)
        assert found["p"].is_valid  # what is inferred of a value, the value can be read as


def test_formats_with_types_tell_theirs(tmp_path: Path) -> None:
    import fastavro
    from pyarrow import orc
    from pyarrow import parquet as pq

    table = pa.table({"a": pa.array([1], pa.uint32()), "t": pa.array([0], pa.timestamp("us")), "s": [{"x": "y"}]})
    pq.write_table(table, tmp_path / "p")
    orc.write_table(table.drop_columns("a"), tmp_path / "o")
    fields = [{"name": "a", "type": ["null", "int"]}, {"name": "l", "type": {"type": "array", "items": "string"}}]
    with (tmp_path / "a").open("wb") as out:
        fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, [{"a": 1, "l": []}])
    assert infer(tmp_path, (tmp_path / "p").read_bytes(), FormatOptions("parquet")) == (
        "a BIGINT, t TIMESTAMP_NTZ, s STRUCT<x: STRING>"
    )
    assert infer(tmp_path, (tmp_path / "o").read_bytes(), FormatOptions("orc")) == "t TIMESTAMP, s STRUCT<x: STRING>"
    assert infer(tmp_path, (tmp_path / "a").read_bytes(), FormatOptions("avro")) == "a INT, l ARRAY<STRING>"
    for name in ("parquet", "orc", "avro"):
        with pytest.raises(BadObject, match="corrupt-object"):
            infer(tmp_path, b"nothing of the kind", FormatOptions(name))


# what is kept


def location(tmp_path: Path) -> SchemaLocation:
    return SchemaLocation(str(tmp_path / "kept"), StorageOptions())


def test_versions_are_kept_and_only_what_is_new_makes_one(tmp_path: Path) -> None:
    kept = location(tmp_path)
    assert kept.latest() is None
    first = parse_columns("`a b` INT, s STRUCT<x: INT>")
    assert (kept.record(first).version, kept.latest()) == (0, kept.record(first))
    assert kept.record(parse_columns("`A B` STRING")).version == 0
    assert kept.record(parse_columns("s STRUCT<y: INT>, c DATE")).version == 1
    latest = location(tmp_path).latest()
    assert latest is not None
    assert ddl(latest.schema) == "a b INT, s STRUCT<x: INT, y: INT>, c DATE"
    names = sorted(path.name.partition("-")[0] for path in (tmp_path / "kept" / "_schemas").iterdir())
    assert names == ["0", "1"]


def test_drivers_that_write_one_version_at_a_time_lose_no_column(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def record(number: int) -> None:
        together.wait()
        location(tmp_path).record(parse_columns(f"a INT, c{number} INT"))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wide = location(tmp_path).record(parse_columns("a INT"))
    assert set(wide.schema.names) == {"a", *(f"c{number}" for number in range(8))}


def test_a_file_that_holds_no_schema_is_refused_by_name(tmp_path: Path) -> None:
    kept = location(tmp_path)
    kept.record(parse_columns("a INT"))
    (file,) = (tmp_path / "kept" / "_schemas").iterdir()
    file.write_text("{}", "utf-8")
    with pytest.raises(OptionError, match=f"{file.name} holds no schema"):
        kept.latest()


def test_a_location_that_cannot_be_written_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file", "utf-8")
    with pytest.raises(ObjectStoreError, match="schemaLocation"):
        location(tmp_path).record(parse_columns("a INT"))


def test_nulls_alone_are_text_wherever_they_are() -> None:
    null = pa.null()
    kinds = [
        null,
        pa.list_(null),
        pa.struct([("a", null)]),
        pa.map_(pa.string(), null),
        pa.map_(pa.int64(), pa.list_(null)),
    ]
    found = resolved(pa.schema([(str(place), kind) for place, kind in enumerate(kinds)]))
    texts = ["STRING", "ARRAY<STRING>", "STRUCT<`a`: STRING>", "MAP<STRING, STRING>", "MAP<BIGINT, ARRAY<STRING>>"]
    assert [format_type(kind) for kind in found.types] == texts
