"""A corpus of bad objects for every format: what arrives in a bucket when something upstream goes wrong.

Each has a verdict: `fine` (odd, but all of it can be read), `records` (some records are bad, and reported), `object`
(bad as a whole, and reported once), `no records` (none can be read: as `object`, but DROPMALFORMED leaves each out).
FAILFAST makes objects of records.
"""

from __future__ import annotations

import bz2
import gzip
import io
import random
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
DDL = "id BIGINT, name STRING"
TABLE = pa.table({"id": list(range(1000)), "name": [f"name {i}" for i in range(1000)]}, schema=SCHEMA)
LONG = 3 << 20  # bytes of a very long line
BOMB = 12 << 20  # bytes of what unpacks to more than a test allows


class Poison(NamedTuple):
    """`name` ends with the suffix that counts."""

    file_format: str
    name: str
    data: bytes
    verdict: str


def corpus() -> list[Poison]:
    return [*_csv(), *_json(), *_text(), *_packed(), *_parquet(), *_orc(), *_avro()]


def good(file_format: str) -> bytes:
    """An object without a fault: the rows (7, "good")."""
    one = pa.table({"id": [7], "name": ["good"]}, schema=SCHEMA)
    if file_format in ("parquet", "orc"):
        return _parquet_bytes(one) if file_format == "parquet" else _orc_bytes(one)
    if file_format == "avro":
        return _avro_bytes(one)
    return {"csv": b"7,good\n", "json": b'{"id":7,"name":"good"}\n', "text": b"good\n"}[file_format]


def _of(file_format: str, verdicts: dict[str, tuple[bytes, str]]) -> Iterator[Poison]:
    for name, (data, verdict) in verdicts.items():
        yield Poison(file_format, name, data, verdict)


def _csv() -> Iterator[Poison]:
    noise = random.Random(7).randbytes(20_000)
    yield from _of(
        "csv",
        {
            "empty": (b"", "fine"),
            "newline": (b"\n", "fine"),
            "mark": (b"\xef\xbb\xbf1,a\n", "fine"),
            "mark alone": (b"\xef\xbb\xbf", "fine"),
            "crlf": (b"1,a\r\n2,b\r\n", "fine"),
            "cr": (b"1,a\r2,b\r", "fine"),
            "no last newline": (b"1,a\n2,b", "fine"),
            "nul in text": (b"1,a\0b\n", "fine"),
            "blank lines": (b"\n\n  \n1,a\n\n", "fine"),
            "very long field": (b"1," + b"x" * LONG + b"\n2,b\n", "fine"),
            "many quotes": (b"1," + b'"' * 40_001 + b"\n2,b\n", "records"),
            "one field": (b"1\n2,b\n", "records"),
            "three fields": (b"1,a,z\n2,b\n", "records"),
            "many fields": (b"1" + b",x" * 30_000 + b"\n2,b\n", "records"),
            "text for number": (b"x,a\n2,b\n", "records"),
            "number too large": (b"99999999999999999999,a\n2,b\n", "records"),
            "open quote": (b'1,"a\n2,b\n', "records"),
            "open quote at end": (b'1,a\n2,"b', "records"),
            "quote in quotes": (b'1,"a"b"\n2,b\n', "fine"),
            "not utf-8": (b"1,\xff\xfe\n2,b\n", "records"),
            "half a character": (b"1,a\n2,\xc3", "records"),
            "utf-16": ("1,a\n2,b\n".encode("utf-16"), "records"),
            "nul bytes": (b"\0" * 5000, "fine"),
            "noise": (noise, "records"),
            "json": (b'{"id":1,"name":"a"}\n', "records"),
            "html": (b"<html><body>503 Slow Down</body></html>\n", "no records"),
            "parquet": (_parquet_bytes(TABLE), "records"),
            "cut in the middle of a line": (b"1,a\n2", "records"),
            "conflict markers": (b"<<<<<<< HEAD\n1,a\n=======\n", "records"),
        },
    )


def _json() -> Iterator[Poison]:
    yield from _of(
        "json",
        {
            "empty": (b"", "fine"),
            "newline": (b"\r\n\n", "fine"),
            "mark": (b'\xef\xbb\xbf{"id":1}\n', "fine"),
            "crlf": (b'{"id":1}\r\n{"id":2}\r\n', "fine"),
            "array": (b'[{"id":1},{"id":2}]\n', "fine"),
            "numbers and objects as text": (b'{"id":1,"name":{"a":[1,null]}}\n{"id":2,"name":1.50}\n', "fine"),
            "deep": (b'{"id":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "no records"),
            "very long line": (b'{"id":1,"name":"' + b"x" * LONG + b'"}\n{"id":2}\n', "fine"),
            "cut": (b'{"id":1,"name":"a"}\n{"id":2,"na', "records"),
            "null": (b"null\n", "no records"),
            "null before": (b'null\n{"id":1}\n', "records"),
            "null after": (b'{"id":1}\nnull\n', "records"),
            "nul bytes": (b"\0" * 5000, "no records"),
            "nul in the middle": (b'{"id":1}\0\n{"id":2}\n', "records"),
            "text": (b"hello\n", "no records"),
            "single quotes": (b"{'id':1}\n", "fine"),
            "trailing comma": (b'{"id":1,}\n{"id":2}\n', "records"),
            "two objects in a line": (b'{"id":1}{"id":2}\n', "fine"),
            "two objects and a comma in a line": (b'{"id":1},{"id":2}\n', "no records"),
            "over several lines": (b'{\n"id":1\n}\n', "no records"),
            "mixed types": (b'{"id":1}\n{"id":"one"}\n{"id":[1]}\n', "records"),
            "number too large": (b'{"id":1e400}\n{"id":99999999999999999999}\n', "records"),
            "half a surrogate": (b'{"id":1,"name":"\\ud800"}\n', "records"),
            "not utf-8": (b'{"id":1,"name":"\xff"}\n{"id":2}\n', "records"),
            "utf-16": ('{"id":1}\n'.encode("utf-16"), "no records"),
            "noise": (random.Random(8).randbytes(20_000), "no records"),
            "other columns": (b'{"x":1}\n{"y":2}\n', "object"),
            "other case": (b'{"ID":1,"NAME":"a"}\n', "fine"),
            "a key twice": (b'{"id":1,"id":2}\n', "fine"),
            "unknown columns": (b'{"id":1,"z":{"a":1}}\n', "fine"),
            "csv": (b"1,a\n", "no records"),
        },
    )


def _text() -> Iterator[Poison]:
    yield from _of(
        "text",
        {
            "empty": (b"", "fine"),
            "not utf-8": (b"a\n\xff\n", "records"),
            "nul bytes": (b"\0" * 5000, "fine"),
            "very long line": (b"x" * LONG, "fine"),
            "noise": (b"\xff" + random.Random(9).randbytes(20_000), "records"),
        },
    )


def _packed() -> Iterator[Poison]:
    plain = b"".join(b"%d,name\n" % i for i in range(20_000))
    packed = gzip.compress(plain)
    damaged = packed[: len(packed) // 2] + b"\xff\xff" + packed[len(packed) // 2 + 2 :]
    yield from _of(
        "csv",
        {
            "cut.csv.gz": (packed[:-10], "object"),
            "damaged.csv.gz": (damaged, "object"),
            "garbage behind.csv.gz": (packed + b"garbage", "object"),
            "text.csv.gz": (b"1,a\n", "fine"),
            "no gzip.csv.gz": (b"1,a\0\n", "object"),
            "no zstd.csv.zst": (b"1,a\0\n", "object"),
            "no snappy.csv.snappy": (b"1,a\n2,b\n", "object"),
            "no lz4.csv.lz4": (b"1,a\n2,b\0\n", "object"),
            "cut.csv.bz2": (bz2.compress(plain)[:-3], "object"),
            "zlib.csv.deflate": (zlib.compress(plain), "object"),
            "empty.csv.gz": (b"", "fine"),
            "gzip of nothing.csv.gz": (gzip.compress(b""), "fine"),
            "bomb.csv.gz": (gzip.compress(b"1,x\n" * (BOMB // 4)), "object"),
            "bad records.csv.gz": (gzip.compress(b"1,a\nx,b\n"), "records"),
            "gzip without a suffix": (packed, "fine"),
        },
    )


def _parquet() -> Iterator[Poison]:
    whole = _parquet_bytes(TABLE)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    other = pa.table({"x": [1]})
    wrong = pa.table({"id": ["one"], "name": ["a"]})
    encrypted = b"PARE" + whole[4:-4] + b"PARE"
    yield from _of(
        "parquet",
        {
            "empty": (b"", "fine"),
            "no rows": (_parquet_bytes(TABLE.slice(0, 0)), "fine"),
            "cut": (whole[: len(whole) // 2], "object"),
            "cut at the end": (whole[:-1], "object"),
            "magic alone": (b"PAR1", "object"),
            "magic twice": (b"PAR1PAR1", "object"),
            "huge footer": (whole[:-8] + b"\xff\xff\xff\x7fPAR1", "object"),
            "damaged footer": (whole[:footer] + b"\xff" * 10 + whole[footer + 10 :], "object"),
            "damaged page": (whole[:60] + b"\xff" * 40 + whole[100:], "object"),
            "csv": (b"1,a\n", "object"),
            "nul bytes": (b"\0" * 5000, "object"),
            "other columns": (_parquet_bytes(other), "object"),
            "other types": (_parquet_bytes(wrong), "object"),
            "encrypted": (encrypted, "object"),
            "two in one": (whole + whole[:-50], "object"),
        },
    )


def _orc() -> Iterator[Poison]:
    whole = _orc_bytes(TABLE)
    yield from _of(
        "orc",
        {
            "empty": (b"", "fine"),
            "cut": (whole[: len(whole) // 2], "object"),
            "magic alone": (b"ORC", "object"),
            "csv": (b"1,a\n", "object"),
            "nul bytes": (b"\0" * 5000, "object"),
            "other columns": (_orc_bytes(pa.table({"x": [1]})), "object"),
            "damaged": (whole[:20] + b"\xff" * 60 + whole[80:], "object"),
        },
    )


def _avro() -> Iterator[Poison]:
    whole = _avro_bytes(TABLE)
    middle = len(whole) // 2
    yield from _of(
        "avro",
        {
            "empty": (b"", "fine"),
            "cut": (whole[:middle], "object"),
            "magic alone": (b"Obj\x01", "object"),
            "damaged": (whole[:middle] + b"\xff" * 40 + whole[middle + 40 :], "object"),
            "csv": (b"1,a\n", "object"),
            "nul bytes": (b"\0" * 5000, "object"),
            "other columns": (_avro_bytes(pa.table({"x": [1]})), "object"),
        },
    )


def _avro_bytes(table: pa.Table) -> bytes:
    kinds = {"id": "long", "name": "string", "x": "long"}
    fields = [{"name": name, "type": kinds[name]} for name in table.column_names]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, table.to_pylist(), codec="deflate")
    return sink.getvalue()


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue()


def _orc_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa_orc.write_table(table, sink)
    return sink.getvalue()
