"""Hostile Parquet, ORC and Avro: a few bytes that stand for gigabytes, for endless records, or for endless depth.

Most are made byte by byte, since no honest writer makes them, and none may be large in the memory of who makes it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from queue_source.formats.orc import parse, written
from support.hostile import Hostile

_BAD, _LARGE, _FINE, _DEADLY = "corrupt-object", "too-large-for-memory", "", "kills-its-reader"
_MEMORY = {"maxDecodeMemory": "512m"}
_MILLION = 1_000_000
_SYNC = b"0123456789abcdef"


def objects(folder: Path) -> list[Hostile]:
    """Every hostile object of a typed format. Nothing is written: `folder` is for what has to be a file to be made.

    They are made in a process of their own: what pyarrow's allocator reserves for the largest would be beside the limit
    of each test that comes after them, and what has to be refused there fits into it.
    """
    command = [sys.executable, "-m", "support.hostile.typed"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = subprocess.run(command, check=True, timeout=300, stdout=subprocess.PIPE, env=environment).stdout
    every: list[Hostile] = pickle.loads(made)
    return every


def _parquet() -> Iterator[Hostile]:
    text, number = "a STRING", "a BIGINT"

    def made(name: str, data: bytes, ddl: str, cause: str = _BAD) -> Hostile:
        return Hostile(f"{name}.parquet", "parquet", data, cause, {"schema": ddl, **_MEMORY})

    zeros = _zeros(160 << 20)
    yield made("a-text-in-a-dictionary", _text_in_a_dictionary(), text)
    yield made("a-page-of-zeros", one_page(zeros, 160 << 20, values=20 * _MILLION, physical=2), number, _FINE)
    yield made("a-page-that-says-less", one_page(zeros, 160 << 20, values=1000, physical=2), number, _FINE)
    runs = struct.pack("<B", 1) + _varint(1_000 * _MILLION << 1) + b"\0"
    yield made("a-run-of-one-number", one_page(*_packed(runs), values=1_000 * _MILLION, physical=2, number=7), number)
    repetition = _runs((1, 0), (200 * _MILLION - 1, 1))
    page = repetition + _runs((200 * _MILLION, 3)) + struct.pack("<B", 1) + _varint(200 * _MILLION << 1) + b"\0"
    lists = one_page(*_packed(page), values=200 * _MILLION, rows=1, physical=2, number=7, repeated=True)
    yield made("a-row-of-one-list", lists, "a ARRAY<BIGINT>", _LARGE)
    yield made("texts-that-repeat-each-other", _repeating_texts(), text)
    claimed = one_page(*_packed(bytes(8)), values=1, rows=1_000 * _MILLION, physical=2)
    yield made("a-billion-rows-in-the-footer", claimed, number)


def _text_in_a_dictionary() -> bytes:
    """3.2 GB of text that stands once in the file."""
    long = np.random.default_rng(1).bytes(100_000).hex() * 5
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3200, np.int32)), pa.array([long]))
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": column}), sink, compression="zstd")
    return sink.getvalue()


def _repeating_texts() -> bytes:
    """Texts of 1 MB in DELTA_BYTE_ARRAY: each repeats the whole of the one before it."""
    count, size = 8192, 1 << 20
    prefixes = _delta([0] + [size] * (count - 1))
    suffixes = _delta([size] + [0] * (count - 1))
    return one_page(*_packed(prefixes + suffixes + b"x" * size), values=count, physical=6, number=-1, meaning=0)


def _delta(values: list[int]) -> bytes:
    """DELTA_BINARY_PACKED, in blocks of 128 numbers."""
    out = bytearray(_varint(128) + _varint(4) + _varint(len(values)) + _zigzag(values[0]))
    steps = [after - before for before, after in itertools.pairwise(values)]
    for start in range(0, len(steps), 128):
        some = steps[start : start + 128]
        some += [0] * (128 - len(some)) if start else [min(some)] * (128 - len(some))
        smallest = min(some)
        out += _zigzag(smallest)
        width = max(one - smallest for one in some).bit_length()
        width = -(-width // 8) * 8
        out += bytes([width] * 4)
        for one in some:
            out += (one - smallest).to_bytes(width // 8, "little")
    return bytes(out)


def one_page(
    stored: bytes, decoded: int, *, values: int, physical: int, rows: int | None = None, number: int = 0,
    repeated: bool = False, meaning: int | None = None, empty_group: bool = False, two_headers: bool = False,
) -> bytes:  # fmt: skip
    """A Parquet file of one column `a` of one data page (gzip).

    `empty_group`: there is also a group `e` without anything in it. `meaning`: what the values are, as a number of
    Parquet's `ConvertedType`: 0 is text, 21 an interval as Java writes it. A `physical` 7 has 12 bytes. `number`: the
    encoding; 7 here stands for a dictionary of one number 0, before the page. `two_headers`: the page has the header
    of a dictionary too.
    """
    rows = values if rows is None else rows
    dictionary = b""
    if number == 7:
        plain, size = _packed(bytes(8))
        header = _thrift([(1, 2), (2, size), (3, len(plain)), (7, [(1, 1), (2, 0)])])
        dictionary = header + plain
    encoding = {0: 0, 7: 8, -1: 7}[number]
    header_of_page: list[tuple[int, Any]] = [
        (1, 0), (2, decoded), (3, len(stored)), (5, [(1, values), (2, encoding), (3, 3), (4, 3)])
    ]  # fmt: skip
    if two_headers:
        header_of_page.append((7, [(1, 1), (2, 0)]))
    page = _thrift(header_of_page) + stored
    body = b"PAR1" + dictionary + page
    path = [b"a", b"list", b"element"] if repeated else [b"a"]
    column = [
        (1, physical), (2, _List(5, [0, 3, encoding])), (3, _List(8, path)), (4, 2), (5, _Long(values)),
        (6, _Long(len(dictionary) + 100)), (7, _Long(len(dictionary) + len(page))), (9, _Long(4 + len(dictionary))),
    ]  # fmt: skip
    if dictionary:
        column.append((11, _Long(4)))
    group = [
        (1, _List(12, [[(2, _Long(4)), (3, column)]])), (2, _Long(100)), (3, _Long(rows)),
    ]  # fmt: skip
    if repeated:
        schema = [
            [(4, b"schema"), (5, 1)],
            [(3, 1), (4, b"a"), (5, 1), (6, 3)],
            [(3, 2), (4, b"list"), (5, 1)],
            [(1, physical), (3, 1), (4, b"element")],
        ]
    else:
        leaf: list[tuple[int, Any]] = [(1, physical), *([(2, 12)] if physical == 7 else []), (3, 0), (4, b"a")]
        leaf += [] if meaning is None else [(6, meaning), *([(10, [(11, [])])] if meaning == 21 else [])]
        schema = [[(4, b"schema"), (5, 1 + empty_group)], leaf]
        schema += [[(3, 1), (4, b"e"), (5, 0)]] * empty_group
    footer = _thrift([(1, 1), (2, _List(12, schema)), (3, _Long(rows)), (4, _List(12, [group]))])
    return body + footer + struct.pack("<I", len(footer)) + b"PAR1"


class _Long(int):
    """A number of 64 bits."""


class _List(list[Any]):
    """A list, with the type of its items."""

    def __init__(self, kind: int, items: list[Any]) -> None:
        super().__init__(items)
        self.kind = kind


def _thrift(fields: list[tuple[int, Any]]) -> bytes:
    """A struct in Thrift's compact form."""
    out, last = bytearray(), 0
    for number, value in fields:
        kind = 6 if isinstance(value, _Long) else 5 if isinstance(value, int) else 8 if isinstance(value, bytes) else 12
        if isinstance(value, _List):
            kind = 9
        out.append((number - last) << 4 | kind)
        last = number
        out += _thrift_value(value, kind)
    return bytes(out) + b"\0"


def _thrift_value(value: Any, kind: int) -> bytes:
    if kind in (5, 6):
        return _zigzag(value)
    if kind == 8:
        return _varint(len(value)) + bytes(value)
    if kind == 9:
        size = bytes([len(value) << 4 | value.kind]) if len(value) < 15 else b""
        return size + b"".join(_thrift_value(one, value.kind) for one in value)
    return _thrift(value)


def _zeros(size: int) -> bytes:
    machine = zlib.compressobj(1, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    return b"".join([*(machine.compress(piece) for _ in range(size >> 20)), machine.flush()])


def _packed(data: bytes) -> tuple[bytes, int]:
    machine = zlib.compressobj(9, zlib.DEFLATED, 31)
    return machine.compress(data) + machine.flush(), len(data)


def _runs(*levels: tuple[int, int]) -> bytes:
    """Runs of levels, each of a length and a level, of which the size is written before them."""
    runs = b"".join(_varint(count << 1) + bytes([level]) for count, level in levels)
    return struct.pack("<I", len(runs)) + runs


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _avro() -> Iterator[Hostile]:
    text = [{"name": "a", "type": "string"}]
    nulls: list[dict[str, Any]] = [
        {"name": "a", "type": "long"},
        {"name": "n", "type": {"type": "array", "items": "null"}},
    ]
    wide: dict[str, Any] = {
        "type": "record",
        "name": "wide",
        "fields": [{"name": f"n{i}", "type": "null"} for i in range(1000)],
    }
    wide["fields"].append({"name": "b", "type": "boolean"})
    deep: list[dict[str, Any]] = [
        {"name": "a", "type": "long"},
        {"name": "d", "type": {"type": "record", "name": "d", "fields": [{"name": "next", "type": ["null", "d"]}]}},
    ]
    nothing: list[dict[str, Any]] = [{"name": "a", "type": "null"}]
    size = 320 << 20
    piece, machine = bytes(1 << 20), zlib.compressobj(1, zlib.DEFLATED, -15)
    deflated = machine.compress(_zigzag(size)) + b"".join(machine.compress(piece) for _ in range(size >> 20))
    deflated += machine.flush()
    million = b"\x02" * _MILLION

    def made(name: str, data: bytes, ddl: str = "a BIGINT", cause: str = _BAD) -> Hostile:
        return Hostile(f"{name}.avro", "avro", data, cause, {"schema": ddl, **_MEMORY})

    yield made("a-block-of-zeros", avro(text, 1, deflated, "deflate"), "a STRING", _LARGE)
    yield made("an-array-of-nulls", avro(nulls, 1, b"\0" + _zigzag(1 << 40) + b"\0"), cause=_LARGE)
    yield made("records-of-nothing", avro(nothing, 1 << 50, b""))
    array = {"type": "array", "items": wide}
    records = avro(
        [{"name": "a", "type": "long"}, {"name": "w", "type": array}], 1, b"\0" + _zigzag(_MILLION) + million + b"\0"
    )
    yield made("an-array-of-wide-records", records, cause=_LARGE)
    yield made("a-record-within-itself", avro(deep, 1, b"\0" + million + b"\0"))
    yield made("names-that-double", avro(_doubling(), 1, b"\0"), "a STRUCT<x: INT>")
    snappy = _varint(2 << 30) + b"\0"
    yield made("a-length-that-lies", avro(text, 1, snappy + bytes(4), "snappy"), "a STRING", _LARGE)


def _doubling() -> list[dict[str, Any]]:
    """Forty types, each with two of the one before: two to the power of forty when they are written out."""
    kind: Any = {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "int"}]}
    for n in range(1, 40):
        fields = [{"name": "x", "type": kind}, {"name": "y", "type": f"r{n - 1}"}]
        kind = {"type": "record", "name": f"r{n}", "fields": fields}
    return [{"name": "a", "type": kind}]


def avro(
    fields: list[dict[str, Any]],
    records: int,
    data: bytes,
    codec: str = "null",
    metadata: dict[str, bytes] | None = None,
) -> bytes:
    """An Avro file of one block."""
    schema = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    texts = {"avro.schema": schema, "avro.codec": codec.encode(), **(metadata or {})}
    header = b"Obj\x01" + _zigzag(len(texts))
    for key, value in texts.items():
        name = key.encode()
        header += _zigzag(len(name)) + name + _zigzag(len(value)) + value
    return header + b"\0" + _SYNC + _zigzag(records) + _zigzag(len(data)) + data + _SYNC


def _orc() -> Iterator[Hostile]:
    def made(name: str, data: bytes, ddl: str, cause: str = _BAD) -> Hostile:
        return Hostile(f"{name}.orc", "orc", data, cause, {"schema": ddl, **_MEMORY})

    same = pa.table({"a": pa.array(np.zeros(4 * _MILLION, np.int64))})
    yield made("one-stripe-many-times", _stripes(_orc_of(same, 1), 60), "a BIGINT")
    text = pa.table({"a": ["x" * (1 << 20)] * 20})
    yield made("a-text-in-a-dictionary", _orc_of(text, 75), "a STRING")
    offsets = pa.array([0, 20 * _MILLION], pa.int32())
    row = pa.table({"a": pa.ListArray.from_arrays(offsets, pa.array(np.zeros(20 * _MILLION, np.int64)))})
    yield made("a-row-of-one-list", _orc_of(row, 1), "a ARRAY<BIGINT>", _FINE)
    words = pa.table({"a": [f"{n:07}" * 5000 for n in range(20_000)]})
    yield made("a-dictionary-of-texts", _orc_of(words, 1), "a STRING", _DEADLY)


def _orc_of(table: pa.Table, times: int) -> bytes:
    sink = io.BytesIO()
    with orc.ORCWriter(sink, compression="zstd", stripe_size=1 << 30, dictionary_key_size_threshold=1.0) as writer:
        for _ in range(times):
            writer.write(table)
    return sink.getvalue()


def _stripes(data: bytes, times: int) -> bytes:
    """The file with its only stripe named many times in its footer."""
    tail = dict(parse(orc.ORCFile(pa.BufferReader(data)).reader.serialized_file_tail()))
    fields = parse(_as_bytes(tail[2]))
    stripe = next(value for number, value in fields if number == 3)
    footer = written([*((number, value) for number, value in fields if number != 3), *([(3, stripe)] * times)])
    packed = (len(footer) << 1 | 1).to_bytes(3, "little") + footer
    postscript = written([(1, len(packed)), (2, 5), (3, 256 << 10), (5, 0), (6, 9), (8000, b"ORC")])
    end = 3 + sum(value for number, value in parse(_as_bytes(stripe)) if number in (2, 3, 4) and isinstance(value, int))
    return data[:end] + packed + postscript + bytes([len(postscript)])


def _as_bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps([*_parquet(), *_avro(), *_orc()]))
