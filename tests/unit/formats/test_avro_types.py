"""Types and codecs of Avro, as Spark maps and reads them."""

from __future__ import annotations

import bz2
import datetime as dt
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import OptionError
from queue_source.formats.base import check_schema
from queue_source.options.content import FormatOptions
from support.hostile.typed import avro as block
from support.reading import UTC_MICROS, read_bytes, read_column, refused

fastavro = pytest.importorskip("fastavro", reason="the extra avro is not installed")
AVRO = FormatOptions("avro")
ONE = pa.schema([("a", pa.int64())])
POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}]}


def avro(kind: Any, values: list[Any], others: list[Any] | None = None) -> bytes:
    """Records of a column `a`, and of one `b` of which every value is the same."""
    fields = [{"name": "a", "type": kind}, *(others or [])]
    sink = io.BytesIO()
    plain = [{"name": field["name"], "type": field["type"]} for field in fields]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": plain})
    rest = {field["name"]: field["value"] for field in others or []}
    fastavro.writer(sink, schema, [{"a": value, **rest} for value in values])
    return sink.getvalue()


def test_a_named_type_may_be_used_twice() -> None:
    data = avro(POINT, [{"x": 1}], [{"name": "b", "type": "point", "value": {"x": 2}}])
    kind = pa.struct([("x", pa.int32())])
    assert read_bytes(data, pa.schema([("a", kind), ("b", kind)]), AVRO) == [{"a": {"x": 1}, "b": {"x": 2}}]


def test_a_named_type_may_be_defined_twice_in_the_same_words_and_no_other() -> None:
    """Avro's own reader from 1.12 on, which Spark has, takes such schemas: some programs write them."""
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    enum = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
    fields = [{"name": "a", "type": enum}, {"name": "b", "type": enum}]
    assert read_bytes(block(fields, 1, b"\x02\x00"), schema, AVRO) == [{"a": "B", "b": "A"}]
    fields[1]["type"] = {**enum, "symbols": ["B", "A"]}
    assert "defined twice" in refused(block(fields, 1, b"\x02\x00"), schema, AVRO).detail


def test_a_name_that_its_namespace_lacks_is_one_of_none() -> None:
    enum = {"type": "enum", "name": "e", "namespace": "", "symbols": ["A", "B"]}
    within = {"type": "record", "name": "n.inner", "fields": [{"name": "x", "type": enum}, {"name": "y", "type": "e"}]}
    data = block([{"name": "a", "type": within}], 1, b"\x02\x00")
    assert read_column(data, pa.struct([("x", pa.string()), ("y", pa.string())]), AVRO) == [{"x": "B", "y": "A"}]


@pytest.mark.parametrize(
    "mark",
    [{}, {"precision": 0}, {"precision": 2, "scale": 4}, {"precision": "4"}, {"precision": 4, "scale": -1}, {
        "precision": 4, "scale": "2"}, {"precision": True}, {"precision": 4, "scale": False}],
)  # fmt: skip
def test_bytes_that_are_marked_as_a_decimal_in_a_way_that_avro_does_not_know_are_bytes(mark: dict[str, Any]) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", **mark}
    assert read_column(block([{"name": "a", "type": kind}], 1, b"\x02\x0f"), pa.binary(), AVRO) == [b"\x0f"]
    small = {"type": "fixed", "name": "f", "size": 1, "logicalType": "decimal", "precision": 3}
    assert read_column(block([{"name": "a", "type": small}], 1, b"\x0f"), pa.binary(), AVRO) == [b"\x0f"]


@pytest.mark.parametrize(
    ("kind", "values", "declared", "expected"),
    [
        (["int", "long"], [1, 2**40], pa.int64(), [1, 2**40]),
        (["null", "float", "double"], [1.5, None], pa.float64(), [1.5, None]),
        ([{"type": "null", "logicalType": "date"}, "double"], [1.5, None], pa.float64(), [1.5, None]),
        (
            ["null", "string", "int"], ["x", 5, None],
            pa.struct([("member0", pa.string()), ("member1", pa.int32())]),
            [{"member0": "x", "member1": None}, {"member0": None, "member1": 5}, None],
        ),
        (
            [POINT, "string"], [{"x": 1}, "y"],
            pa.struct([("member0", pa.struct([("x", pa.int32())])), ("member1", pa.string())]),
            [{"member0": {"x": 1}, "member1": None}, {"member0": None, "member1": "y"}],
        ),
        ({"type": "array", "items": ["null", "int", "string"]}, [[1, None, "x"], []],
         pa.list_(pa.struct([("member0", pa.int32())])), [[{"member0": 1}, None, {"member0": None}], []]),
    ],
)  # fmt: skip
def test_unions_are_read_as_spark_reads_them(
    kind: Any, values: list[Any], declared: pa.DataType, expected: Any
) -> None:
    assert read_column(avro(kind, values), declared, AVRO) == expected


@pytest.mark.parametrize(
    ("kind", "logical", "number", "declared"),
    [
        ("int", "date", -800_000, pa.date32()),
        ("int", "date", 3_000_000, pa.date32()),
        ("int", "time-millis", 5, pa.int32()),
        ("long", "time-micros", 5, pa.int64()),
        ("long", "timestamp-micros", -(63 * 10**15), UTC_MICROS),
        ("long", "local-timestamp-micros", 10**17 * 4, pa.timestamp("us")),
    ],
)
def test_dates_and_times_are_numbers_of_any_size(kind: str, logical: str, number: int, declared: pa.DataType) -> None:
    made = block([{"name": "a", "type": {"type": kind, "logicalType": logical}}], 1, _number(number))
    (found,) = read_numbers(made, declared)
    assert found == number


def read_numbers(data: bytes, declared: pa.DataType) -> list[int]:
    """Dates and times as numbers: Python's own know no years before 1."""
    from queue_source.formats.base import BadRecords, OpenObject, Part, format_of
    from queue_source.storage.open_files import InMemory, ObjectFile

    source = OpenObject("", ObjectFile("", InMemory(data)), len(data))
    tables = format_of(AVRO).open(source, Part(), pa.schema([("a", declared)]), AVRO, BadRecords("FAILFAST")).rows
    width = pa.int32() if declared in (pa.date32(), pa.int32()) else pa.int64()
    return [value for table in tables for value in table["a"].cast(width).to_pylist()]


def _number(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def test_milliseconds_are_read_too() -> None:
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    noon = dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone.utc)
    assert read_column(avro(kind, [noon]), UTC_MICROS, AVRO) == [noon]


RECORDS = b"".join(_number(n) for n in range(1000))
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "null": bytes,
}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_of_avro_is_read_with_what_is_always_installed(codec: str) -> None:
    packed = CODECS[codec](RECORDS)
    data = block([{"name": "a", "type": "long"}], 1000, packed, codec)
    assert read_column(data, pa.int64(), AVRO) == list(range(1000))
    if codec != "null":
        damaged = block([{"name": "a", "type": "long"}], 1000, packed[: len(packed) // 2], codec)
        assert refused(damaged, ONE, AVRO).cause == "corrupt-object"


def test_a_wrong_checksum_of_snappy_is_found() -> None:
    packed = CODECS["snappy"](RECORDS)
    data = block([{"name": "a", "type": "long"}], 1000, packed[:-1] + bytes([packed[-1] ^ 1]), "snappy")
    assert "checksum" in refused(data, ONE, AVRO).detail


def test_a_pyarrow_without_a_codec_is_refused_when_the_query_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def is_available(name: str) -> bool:
            return name != "zstd"

    monkeypatch.setattr(pa, "Codec", Without)
    with pytest.raises(OptionError, match="pyarrow with zstd"):
        check_schema(ONE, AVRO)


def test_what_no_reader_needs_to_understand_is_no_damage() -> None:
    """Avro's library for Java reads both; `fastavro.block_reader` refuses both (decision 0043)."""
    wrong_default = [{"name": "a", "type": "long", "default": "x"}]
    assert read_column(block(wrong_default, 1, b"\x02", metadata={"own": b"\xff\xfe"}), pa.int64(), AVRO) == [1]


def test_an_unknown_codec_is_named() -> None:
    assert "'lzo'" in refused(block([{"name": "a", "type": "long"}], 1, b"\x02", "lzo"), ONE, AVRO).detail


def test_a_column_that_is_within_itself_may_be_there_and_is_not_read() -> None:
    deep = {"type": "record", "name": "d", "fields": [{"name": "next", "type": ["null", "d"]}]}
    data = avro("long", [1, 2], [{"name": "b", "type": deep, "value": {"next": {"next": None}}}])
    assert read_column(data, pa.int64(), AVRO) == [1, 2]
    error = refused(data, pa.schema([("b", pa.struct([("next", pa.int32())]))]), AVRO)
    assert "within itself" in error.detail


def test_fastavro_has_its_reader_in_python_and_without_it_what_is_within_itself_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no public name: if this fails with a new version, `_Decoder` has to find another way."""
    from fastavro._read_py import schemaless_reader

    assert schemaless_reader is not fastavro.schemaless_reader
    deep = {"type": "record", "name": "d", "fields": [{"name": "next", "type": ["null", "d"]}]}
    data = avro("long", [1], [{"name": "b", "type": deep, "value": {"next": None}}])
    monkeypatch.setitem(sys.modules, "fastavro._read_py", None)
    error = refused(data, ONE, AVRO)
    assert (error.cause, "install fastavro" in error.detail) == ("corrupt-object", True)
    assert read_column(avro("long", [1]), pa.int64(), AVRO) == [1]


def test_blocks_that_are_large_are_read_record_by_record_with_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"type": "map", "values": ["null", "string", {"type": "array", "items": POINT}]}
    values: list[Any] = [{"k": "x", "n": None}, {}, {"l": [{"x": n} for n in range(50)]}] * 20
    data = avro(kind, values, [{"name": "b", "type": {"type": "fixed", "name": "f", "size": 2}, "value": b"xy"}])
    members = pa.struct([("member0", pa.string()), ("member1", pa.list_(pa.struct([("x", pa.int32())])))])
    schema = pa.schema([("a", pa.map_(pa.string(), members)), ("b", pa.binary())])
    quickly = read_bytes(data, schema, AVRO)
    monkeypatch.setattr("queue_source.formats.avro._TOGETHER", 100)
    assert read_bytes(data, schema, AVRO) == quickly
    assert len(quickly) == 60


def test_dates_of_spark_before_version_3_are_those_of_the_calendar_of_then() -> None:
    day = {"name": "a", "type": {"type": "int", "logicalType": "date"}}
    old = block([day], 1, _number(-141_428), metadata={"org.apache.spark.version": b"2.4.8"})
    new = block([day], 1, _number(-141_428), metadata={"org.apache.spark.version": b"3.5.0"})
    assert read_column(old, pa.date32(), AVRO) == [dt.date(1582, 10, 4)]
    assert read_column(new, pa.date32(), AVRO) == [dt.date(1582, 10, 14)]


@pytest.mark.parametrize("symbols", [["a-b", "1", ""], ["ä", "x", "x"]])
def test_symbols_of_an_enum_need_not_be_names(symbols: list[str]) -> None:
    """Avro's own reader does not look at them."""
    enum = {"type": "enum", "name": "e", "symbols": symbols}
    union = ["null", "e", "long"]
    fields: list[dict[str, Any]] = [
        {"name": "a", "type": enum},
        {"name": "b", "type": "e"},
        {"name": "c", "type": union},
    ]
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.struct([("member0", pa.string())]))])
    data = block(fields, 1, b"\x02\x04\x02\x00")
    assert read_bytes(data, schema, AVRO) == [{"a": symbols[1], "b": symbols[2], "c": {"member0": symbols[0]}}]
    for number in (b"\x06", b"\x01"):
        assert refused(block(fields[:1], 1, number), pa.schema([("a", pa.string())]), AVRO).cause == "corrupt-object"


def test_records_may_be_errors() -> None:
    schema = json.dumps({"type": "error", "name": "e", "fields": [{"name": "a", "type": "long"}]}).encode()
    assert read_bytes(block([], 1, b"\x02", metadata={"avro.schema": schema}), ONE, AVRO) == [{"a": 1}]


def test_a_name_that_begins_with_a_dot_is_of_no_namespace() -> None:
    fixed = {"type": "fixed", "name": ".f", "size": 1}
    fields: list[dict[str, Any]] = [{"name": "a", "type": fixed}, {"name": "b", "type": "f"}]
    schema = pa.schema([("a", pa.binary()), ("b", pa.binary())])
    assert read_bytes(block(fields, 1, b"xy"), schema, AVRO) == [{"a": b"x", "b": b"y"}]


def test_an_empty_record_is_text_as_it_is_inferred() -> None:
    empty = {"type": "record", "name": "e", "fields": []}
    assert read_column(block([{"name": "a", "type": empty}], 1, b""), pa.string(), AVRO) == ["{}"]
    several = {"type": "array", "items": ["null", empty]}
    assert read_column(
        block([{"name": "a", "type": several}], 1, b"\x04\x00\x02\x00"), pa.list_(pa.string()), AVRO
    ) == [[None, "{}"]]
