from __future__ import annotations

import contextlib
import datetime as dt
import io
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import check_schema
from queue_source.options.content import FormatOptions
from support.reading import UTC_MICROS, read_bytes, read_with_problems, refused

AVRO = FormatOptions("avro")
ONE = pa.schema([("a", pa.int64())])


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(OptionError, match=r"cuesqueue\[avro\]"):
        check_schema(ONE, AVRO)


def avro(fields: list[dict[str, Any]], rows: list[dict[str, Any]], codec: str = "null") -> bytes:
    fastavro = pytest.importorskip("fastavro", reason="the extra avro is not installed")
    sink = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    fastavro.writer(sink, schema, rows, codec=codec, sync_interval=500)
    return sink.getvalue()


def test_avro_is_read_by_name_with_all_its_types() -> None:
    fields: list[dict[str, Any]] = [
        {"name": "A", "type": ["null", "int"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "w", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "l", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "s", "type": {"type": "record", "name": "s", "fields": [{"name": "x", "type": "float"}]}},
        {"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["P", "Q"]}},
        {"name": "f", "type": {"type": "fixed", "name": "f", "size": 2}},
        {"name": "u", "type": ["null", {"type": "record", "name": "u", "fields": [{"name": "x", "type": "int"}]}]},
    ]
    noon = dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone.utc)
    row = {
        "A": 1, "d": Decimal("1.25"), "t": noon, "w": noon.replace(tzinfo=None), "day": dt.date(2020, 1, 1),
        "l": [1, None], "m": {"k": 1}, "s": {"x": 0.5}, "e": "Q", "f": b"xy", "u": None,
    }  # fmt: skip
    schema = pa.schema(
        [
            ("a", pa.int64()), ("d", pa.decimal128(10, 2)), ("t", UTC_MICROS), ("w", pa.timestamp("us")),
            ("day", pa.date32()), ("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64())),
            ("s", pa.struct([("x", pa.float64())])), ("e", pa.string()), ("f", pa.binary()),
            ("u", pa.struct([("x", pa.int64())])), ("missing", pa.string()),
        ]
    )  # fmt: skip
    nothing = {**row, "A": None, "u": {"x": 3}}
    found = read_bytes(avro(fields, [row, nothing]), schema, AVRO)
    expected = {**row, "a": 1, "m": [("k", 1)], "missing": None}
    del expected["A"]
    assert found == [expected, {**expected, "a": None, "u": {"x": 3}}]


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "null"])
def test_bad_avro_is_a_bad_object(codec: str) -> None:
    data = avro([{"name": "a", "type": "long"}], [{"a": i} for i in range(5000)], codec)
    assert len(read_bytes(data, ONE, AVRO)) == 5000
    assert refused(data, pa.schema([("x", pa.int64())]), AVRO).cause == "wrong-columns"
    cut, lying = data + b"\x82", data + b"\x05\x00" + data[-16:]  # in the number of a block; minus three records
    for bad in (b"Obj\x01", b"hello", data[: len(data) // 2], data[:-1], cut, lying):
        assert refused(bad, ONE, AVRO).cause == "corrupt-object"
    for at in range(0, len(data), len(data) // 50):
        with contextlib.suppress(BadObject):  # any other error fails this test
            read_with_problems(data[:at] + b"\xff" + data[at + 1 :], ONE, AVRO)


def test_a_part_of_a_column_in_another_case_is_another_one_where_the_option_says_so() -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "kind", "type": "string"}]}
    data = avro([{"name": "id", "type": "long"}, {"name": "part", "type": part}], [{"id": 1, "part": {"kind": "k"}}])
    schema = pa.schema([("id", pa.int64()), ("part", pa.struct([("Kind", pa.string())]))])
    assert read_bytes(data, schema, FormatOptions("avro")) == [{"id": 1, "part": {"Kind": "k"}}]
    assert refused(data, schema, FormatOptions("avro", reader_case_sensitive=True)).cause == "wrong-columns"
