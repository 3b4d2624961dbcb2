"""Hostile csv, json and text: made in seconds, a few megabytes together, unpacked many gigabytes."""

from __future__ import annotations

import bz2
import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from support.hostile import Hostile

LINE = 300 << 20
"""Bytes of a line that is too long for any worker."""
_LINE = b"x" * 99 + b"\n"
_PIECE = bytes(1 << 20)
_RECORD, _OBJECT, _FINE = "bad-record", "corrupt-object", ""


def objects(folder: Path) -> Iterator[Hostile]:
    """Every hostile object of a format of text. Nothing is written: `folder` is for what has to be a file to be made."""
    yield from _bombs()
    yield from _deep()
    yield from _wide()
    yield from _long()
    yield from _odd_bytes()


def repeated(pattern: bytes, size: int, codec: str) -> bytes:
    """`size` bytes of a pattern, compressed without being held."""
    piece = pattern * max(1, len(_PIECE) // len(pattern))
    count = max(1, size // len(piece))
    if codec in ("gzip", "zlib"):
        machine = zlib.compressobj(9, zlib.DEFLATED, 31 if codec == "gzip" else 15)
        return b"".join([*(machine.compress(piece) for _ in range(count)), machine.flush()])
    if codec == "bz2":  # members may follow one another
        member = bz2.compress(piece * 16)
        return member * max(1, count // 16)
    if codec == "snappy":
        packed = pa.compress(piece, codec="snappy", asbytes=True)
        block = struct.pack(">II", len(piece), len(packed)) + packed
        return block * count
    if codec == "lz4":
        packed = pa.compress(piece, codec="lz4_raw", asbytes=True)
        return (struct.pack(">II", len(piece), len(packed)) + packed) * count
    return bytes(pa.compress(piece * count, codec=codec, asbytes=True)) if count < 2 else _frames(piece, count, codec)


def _frames(piece: bytes, count: int, codec: str) -> bytes:
    frame = bytes(pa.compress(piece * 16, codec=codec, asbytes=True))
    return frame * max(1, count // 16)


_CODECS = {
    "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "zlib": ".deflate", "lz4": ".lz4", "snappy": ".snappy",
}  # fmt: skip


def _bombs() -> Iterator[Hostile]:
    """More than any object of this size may unpack to; and such as stay within, with rows that cost nothing to send."""
    lines = {"schema": "value STRING"}
    for codec in ("gzip", "bz2", "zstd", "zlib"):
        suffix = _CODECS[codec]
        yield Hostile(f"endless{suffix}", "text", repeated(_LINE, 300 << 20, codec), _OBJECT, lines)
    for codec in ("snappy", "lz4"):  # these have no room for as much in a small object: it is read to its end
        suffix = _CODECS[codec]
        yield Hostile(f"endless{suffix}", "text", repeated(_LINE, 32 << 20, codec), _FINE, lines)
    yield Hostile("blank.gz", "text", repeated(b"\n", 32 << 20, "gzip"), _FINE, lines)
    yield Hostile("members.gz", "text", gzip.compress(b"") * 50_000, _FINE, lines)
    brotli = bytes(pa.compress(bytes(64 << 20), codec="brotli", asbytes=True))
    yield Hostile("page.br", "text", brotli, _RECORD, lines)  # unknown by name and by bytes: it is read as it is
    twice = gzip.compress(repeated(b"a,1\n", 64 << 20, "gzip"))
    yield Hostile("twice.csv.gz", "csv", twice, _RECORD, {"schema": "a STRING, b INT"})
    wide = ", ".join(f"c{at} BIGINT" for at in range(1000))
    yield Hostile("sparse.json.gz", "json", repeated(b'{"c0":1}\n', 1 << 20, "gzip"), _FINE, {"schema": wide})
    yield Hostile("sparse.csv.gz", "csv", repeated(b"1\n", 1 << 18, "gzip"), _RECORD, {"schema": wide})


def _deep() -> Iterator[Hostile]:
    json: Callable[[str, str, str, bytes, str], Hostile] = lambda name, cause, schema, data, extra: Hostile(
        name, "json", data, cause, {"schema": schema, **({"rescuedDataColumn": extra} if extra else {})}
    )
    for depth in (1_001, 40_000, 1_000_000):
        objects_ = b'{"a":' * depth + b"1" + b"}" * depth
        arrays = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        for kind, data in (("objects", objects_), ("arrays", arrays)):
            yield json(f"deep-{kind}-{depth}.json", _RECORD, "a STRING", data, "")
            yield json(f"deep-rescued-{kind}-{depth}.json", _RECORD, "b STRING, _rest STRING", data, "_rest")
            yield json(f"deep-map-{kind}-{depth}.json", _RECORD, "b MAP<STRING, STRING>", data, "")
            document = {"schema": "a STRING", "multiLine": "true"}
            yield Hostile(f"deep-document-{kind}-{depth}.json", "json", data, _RECORD, document)
    yield json("deep-open.json", _RECORD, "a STRING", b'{"a":' * 200_000, "")
    yield json("deep-rescued.json", _FINE, "b STRING, _rest STRING", b'{"a":' * 900 + b"1" + b"}" * 900, "_rest")
    yield json("deep-text.json", _FINE, "a STRING", b'{"a":' * 900 + b"1" + b"}" * 900, "")


def _wide() -> Iterator[Hostile]:
    keys = b"{" + b",".join(b'"k%d":%d' % (at, at) for at in range(1_000_000)) + b"}"
    yield Hostile("keys.json.gz", "json", gzip.compress(keys, 1), _FINE, {"schema": "k7 INT"})
    rescued = {"schema": "k7 INT, _rest STRING", "rescuedDataColumn": "_rest"}
    yield Hostile("keys-rescued.json.gz", "json", gzip.compress(keys, 1), _FINE, rescued)
    yield Hostile("keys-map.json.gz", "json", gzip.compress(b'{"m":%b}' % keys, 1), _FINE, {"schema": "m MAP<STRING, INT>"})
    fields = b",".join([b"x"] * 1_000_000)
    yield Hostile("fields.csv.gz", "csv", gzip.compress(fields), _RECORD, {"schema": "a STRING, b STRING"})
    yield Hostile("header.csv.gz", "csv", gzip.compress(fields + b"\n1,2\n"), "wrong-columns", {"schema": "a STRING", "header": "true"})
    yield Hostile("commas.csv.gz", "csv", repeated(b",", 60 << 20, "gzip"), _RECORD, {"schema": "a STRING, b STRING"})
    multi = {"schema": "a STRING, b STRING", "multiLine": "true"}
    yield Hostile("quotes.csv.gz", "csv", repeated(b'""', 16 << 20, "gzip"), _RECORD, multi)
    for name, item in (("numbers", b"1,"), ("objects", b"{},"), ("arrays", b"[],"), ("texts", b'"",')):
        many = b'{"a":[' + item * (30_000_000 // len(item)) + b'1]}'
        yield Hostile(f"{name}.json.gz", "json", gzip.compress(many, 1), _RECORD, {"schema": "a MAP<STRING, INT>"})


def _long() -> Iterator[Hostile]:
    """A line of 300 MB, of which there is nothing to hold."""
    for codec in ("gzip", "zstd"):
        suffix = _CODECS[codec]
        start = {"text": b"", "csv": b'1,"', "json": b'{"a":"'}
        for file_format, schema in (("text", "value STRING"), ("csv", "a INT, b STRING"), ("json", "a STRING")):
            packed = zlib_start(start[file_format], codec) + repeated(b"x", LINE, codec)
            # gzip's ratio is beyond what is allowed from 256 MB on
            yield Hostile(f"line.{file_format}{suffix}", file_format, packed, _OBJECT, {"schema": schema})
    for name, character in (("ascii", "x"), ("wide", "\U0001f986x")):
        text = (character * (1 << 20)).encode()
        body = b'{"a":"' + text * ((60 << 20) // len(text)) + b'"}'
        yield Hostile(f"text-{name}.json.gz", "json", gzip.compress(body, 1), _FINE, {"schema": "a STRING"})
        yield Hostile(f"whole-{name}.gz", "text", gzip.compress(body, 1), _FINE, {"schema": "value STRING", "wholeText": "true"})
        yield Hostile(f"field-{name}.csv.gz", "csv", gzip.compress(body[6:-2], 1), _FINE, {"schema": "a STRING"})
    escapes = b'{"a":"' + b"\\u0041" * (10 << 20) + b'"}'
    yield Hostile("escapes.json.gz", "json", gzip.compress(escapes, 1), _FINE, {"schema": "a STRING"})
    number = b'{"a":' + b"1" * (1 << 20) + b"}"
    for kind in ("DOUBLE", "BIGINT", "DECIMAL(38, 0)", "STRING"):
        yield Hostile(f"number-{kind}.json", "json", number, _RECORD, {"schema": f"a {kind}"})
        yield Hostile(f"number-{kind}.csv", "csv", number[5:-1], _FINE if kind in ("STRING", "DOUBLE") else _RECORD, {"schema": f"a {kind}"})
    yield Hostile("key.json", "json", b'{"%b":1}' % (b"k" * (1 << 20)), _FINE, {"schema": "b STRING"})


def zlib_start(start: bytes, codec: str) -> bytes:
    """A first member with the beginning of a record."""
    return gzip.compress(start) if codec == "gzip" else bytes(pa.compress(start or b"x", codec=codec, asbytes=True))


def _odd_bytes() -> Iterator[Hostile]:
    odd = {
        "nul": bytes(1 << 16), "ff": b"\xff" * (1 << 16), "surrogates": b"\xed\xa0\x80" * 1000, "overlong": b"\xc0\x80" * 1000,
        "utf-16": "a,1\n".encode("utf-16") * 1000, "utf-32": "a,1\n".encode("utf-32") * 100,
        "controls": bytes(range(32)) * 100, "escapes": b"\x1b[2J\x1b]0;x\x07" * 100, "boms": b"\xef\xbb\xbf" * 1000,
        "backslashes": b"\\" * (1 << 16), "quotes": b'"' * (1 << 16), "returns": b"\r" * (1 << 16),
    }  # fmt: skip
    for name, data in odd.items():
        for file_format, schema in (("text", "value STRING"), ("csv", "a STRING, b INT"), ("json", "a STRING")):
            yield Hostile(f"{name}.{file_format}", file_format, data, "?", {"schema": schema})
