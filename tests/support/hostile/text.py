"""Hostile csv, json and text: a few megabytes together, made in seconds, that stand for gigabytes."""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from support.hostile import Hostile

_RECORD, _OBJECT, _COLUMNS, _ARCHIVE, _FINE = "bad-record", "corrupt-object", "wrong-columns", "archive", ""
_PIECE = 1 << 20
_ALMOST = 44 << 20  # bytes of a record that is just short enough
_LINE = b"x" * 99 + b"\n"
_SUFFIXES = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}


def objects(folder: Path) -> Iterator[Hostile]:
    """Every hostile object of a format of text. Nothing is written to `folder`: other formats need it."""
    yield from _bombs()
    yield from _deep()
    yield from _wide()
    yield from _long()
    yield from _odd_bytes()
    yield from _archives()


def _json(name: str, cause: str, ddl: str, data: bytes, **options: str) -> Hostile:
    return Hostile(name, "json", data, cause, {"schema": ddl, **options})


def _csv(name: str, cause: str, ddl: str, data: bytes, **options: str) -> Hostile:
    return Hostile(name, "csv", data, cause, {"schema": ddl, **options})


def _text(name: str, cause: str, data: bytes, **options: str) -> Hostile:
    return Hostile(name, "text", data, cause, {"schema": "value STRING", **options})


def repeated(pattern: bytes, size: int, codec: str, start: bytes = b"", end: bytes = b"") -> bytes:
    """About `size` bytes of a pattern, compressed without being held; `start` before it and `end` behind it."""
    piece = pattern * max(1, _PIECE // len(pattern))
    count = max(1, size // len(piece))
    if codec == "gzip":
        machine = zlib.compressobj(9, zlib.DEFLATED, 31)
        pieces = (machine.compress(part) for part in (start, *[piece] * count, end))
        return b"".join([*pieces, machine.flush()])
    member = bz2.compress(piece * 16) if codec == "bz2" else bytes(pa.compress(piece * 16, codec=codec, asbytes=True))
    return member * max(1, count // 16)  # members follow one another


def _bombs() -> Iterator[Hostile]:
    """More than any object of this size may unpack to; and what stays within, in rows that cost nothing to send."""
    for codec in ("gzip", "bz2", "zstd"):
        yield _text(f"endless{_SUFFIXES[codec]}", _OBJECT, repeated(_LINE, 300 << 20, codec))
    yield _text("blank.gz", _FINE, repeated(b"\n", 32 << 20, "gzip"))
    yield _text("members.gz", _FINE, gzip.compress(b"") * 50_000)
    brotli = bytes(pa.compress(bytes(64 << 20), codec="brotli", asbytes=True))
    yield _text("page.br", _RECORD, brotli)  # known by no name and no bytes: it is read as it is, as in Spark
    yield _csv("twice.csv.gz", _FINE, "a STRING, b INT", gzip.compress(repeated(b"a,1\n", 64 << 20, "gzip")))
    many = ", ".join(f"c{at} BIGINT" for at in range(1000))
    yield _json("sparse.json.gz", _FINE, many, repeated(b'{"c0":1}\n', 1 << 19, "gzip"))
    yield _csv("sparse.csv.gz", _RECORD, many, gzip.compress(b"1\n" * 25_000))


def _deep() -> Iterator[Hostile]:
    forms = {"a STRING": {}, "b STRING, _rest STRING": {"rescuedDataColumn": "_rest"}, "b MAP<STRING, STRING>": {}}
    for depth in (1_001, 40_000, 300_000):
        for kind, start, end in (("objects", b'{"a":', b"}"), ("arrays", b"[", b"]")):
            data = b'{"a":' + start * depth + b"1" + end * depth + b"}"
            for number, (ddl, options) in enumerate(forms.items()):
                yield _json(f"deep-{kind}-{depth}-{number}.json", _OBJECT, ddl, data, **options)
            yield _json(f"deep-{kind}-{depth}-document.json", _OBJECT, "a STRING", data, multiLine="true")
    yield _json("deep-open.json", _OBJECT, "a STRING", b'{"a":' * 200_000)
    for number, (ddl, options) in enumerate(list(forms.items())[:2]):  # as deep as Spark reads
        data = b'{"a":' * 900 + b"1" + b"}" * 900
        yield _json(f"deep-900-{number}.json", _FINE, ddl, data, **options)


def _wide() -> Iterator[Hostile]:
    """A million columns; and values that take many times their own bytes."""
    keys = b"{" + b",".join(b'"k%d":%d' % (at, at) for at in range(1_000_000)) + b"}"
    packed = gzip.compress(keys, 1)
    yield _json("keys.json.gz", _FINE, "k7 INT", packed)
    yield _json("keys-rescued.json.gz", _OBJECT, "k7 INT, _rest STRING", packed, rescuedDataColumn="_rest")
    yield _json("keys-map.json.gz", _OBJECT, "m MAP<STRING, INT>", gzip.compress(b'{"m":%b}' % keys, 1))
    fields = b",".join([b"x"] * 1_000_000)
    yield _csv("fields.csv.gz", _OBJECT, "a STRING, b STRING", gzip.compress(fields))
    yield _csv("header.csv.gz", _COLUMNS, "a STRING", gzip.compress(fields + b"\n1,2\n"), header="true")
    yield _csv("commas.csv.gz", _OBJECT, "a STRING, b STRING", repeated(b",", 60 << 20, "gzip"))
    yield _csv("quotes.csv.gz", _RECORD, "a STRING, b STRING", repeated(b'""', 16 << 20, "gzip"), multiLine="true")
    yield _csv("lines.csv.gz", _FINE, "a STRING, b STRING", repeated(b"\n", 16 << 20, "gzip"), multiLine="true")
    for item in (b"1,", b"{},", b'"",'):
        data = repeated(item, 30_000_000, "gzip", b'{"a":[', b"1]}")
        yield _json(f"values-{item[:-1].hex()}.json.gz", _OBJECT, "a MAP<STRING, INT>", data)


def _long() -> Iterator[Hostile]:
    """Lines of 300 MB, of which nothing is held; and such as are just short enough to be read."""
    starts = {"text": (b"", "value STRING"), "csv": (b'1,"', "a INT, b STRING"), "json": (b'{"a":"', "a STRING")}
    for file_format, (start, ddl) in starts.items():
        endless = repeated(b"x", 240 << 20, "gzip", start, b"\n")
        yield Hostile(f"line.{file_format}.gz", file_format, endless, _RECORD, {"schema": ddl})
    for name, character in (("ascii", b"x"), ("wide", "\U0001f986".encode())):
        yield _json(f"long-{name}.json.gz", _FINE, "a STRING", repeated(character, _ALMOST, "gzip", b'{"a":"', b'"}'))
        yield _csv(f"long-{name}.csv.gz", _FINE, "a STRING", repeated(character, _ALMOST, "gzip"))
        yield _text(f"long-{name}.gz", _FINE, repeated(character, _ALMOST, "gzip"), wholeText="true")
    items = repeated(b'{"a":"%b"},' % (b"x" * 999), _ALMOST * 3 // 2, "gzip", b"[", b'{"a":1}]')
    yield _json("long-document.json.gz", _FINE, "a STRING", items, multiLine="true")
    for name, start, end in (("item", b'[{},{"a":"', b'"}]'), ("object", b'{"a":"', b'"}')):
        document = repeated(b"x", _ALMOST + (8 << 20), "gzip", start, end)
        yield _json(f"long-{name}-document.json.gz", _RECORD, "a STRING", document, multiLine="true")
    yield _json("escapes.json.gz", _FINE, "a STRING", repeated(b"\\u0041", _ALMOST, "gzip", b'{"a":"', b'"}'))
    number = b"1" * (1 << 20)
    for kind in ("DOUBLE", "BIGINT", "DECIMAL(38, 0)", "STRING"):
        cause = _FINE if kind in ("STRING", "DOUBLE") else _OBJECT
        yield _json(f"number-{kind[:6]}.json", _OBJECT, f"a {kind}", b'{"a":%b}' % number)
        yield _csv(f"number-{kind[:6]}.csv", cause, f"a {kind}", number)


def _odd_bytes() -> Iterator[Hostile]:
    """Bytes that are no text, or no good one, each with what csv makes of it; as json nothing of it is a record."""
    odd = {
        "nul": (bytes(1 << 16), _FINE), "ff": (b"\xff" * (1 << 16), _RECORD),
        "surrogates": (b"\xed\xa0\x80" * 999, _RECORD),
        "overlong": (b"\xc0\x80" * 999, _RECORD), "utf-16": ("a,1\n".encode("utf-16") * 999, _RECORD),
        "escapes": (b"\x1b[2J\x1b]0;x\x07" * 99, _RECORD), "boms": (b"\xef\xbb\xbf" * 999, _RECORD),
        "backslashes": (b"\\" * (1 << 16), _RECORD), "quotes": (b'"' * (1 << 16), _RECORD),
        "cr": (b"\r" * (1 << 16), _FINE),
    }  # fmt: skip
    for name, (data, cause) in odd.items():
        yield _csv(f"{name}.csv", cause, "a STRING, b INT", data)
        yield _json(f"{name}.json", _FINE if name == "cr" else _OBJECT, "a STRING", data)


def _zip(members: Iterable[tuple[str, bytes]]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return packed.getvalue()


def _tar(members: Iterable[tuple[str, bytes]], **more: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), more.get("type", tarfile.REGTYPE)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _archives() -> Iterator[Hostile]:
    """Bombs in one member or spread over many, members without number, names that climb, archives in archives."""
    lines = _LINE * (30 << 20 >> 7)
    yield _text("bomb.zip", _OBJECT, _zip((f"{at}", lines) for at in range(12)))
    member = _tar([("a", lines)])[: 512 + len(lines)]
    yield _text("bomb.tar.gz", _OBJECT, repeated(member, 300 << 20, "gzip"))
    packed = gzip.compress(lines)
    yield _text("bomb-of-gzip.tar", _OBJECT, _tar((f"{at}.gz", packed) for at in range(12)))
    empty = [(f"{at:06}", b"") for at in range(100_001)]
    yield _text("empty-members.zip", _FINE, _zip(empty[1:]))
    yield _text("too-many.zip", _ARCHIVE, _zip(empty))
    yield _text("too-many.tar.gz", _ARCHIVE, gzip.compress(_tar(empty), 1))
    for name, pack in (("zip", _zip), ("tar", _tar)):
        climbing = [("../../../../etc/passwd", b"x\n"), ("/etc/passwd", b"x\n"), ("C:\\a", b"x"), ("a\nb\x1b[2J", b"x")]
        yield _text(f"climbing.{name}", _FINE, pack(climbing))
        yield _text(f"nested.{name}", _ARCHIVE, pack([("a", b"x\n"), ("b", pack([("c", b"x")]))]))
        yield _text(f"long-member.{name}", _RECORD, pack([("a", b"x" * (50 << 20)), ("b", b"x")]), wholeText="true")
    extended = _tar([("a", b"9 a=1111\n" * (1 << 18))], type=tarfile.XHDTYPE)[: 512 + (9 << 18)]
    yield _text("extended.tar.gz", _OBJECT, repeated(extended, 40 << 20, "gzip"))
    digits = [("a", b"1" * (8 << 20))]
    yield _text("digits.tar.gz", _OBJECT, gzip.compress(_tar(digits, type=tarfile.XHDTYPE), 1))
