"""Avro: records to Arrow by `fastavro`, which the extra `avro` installs, a block at a time.

The codecs of blocks are those that come with Python and pyarrow: an object never depends on what else is installed.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed.avro_types import Types
from queue_source.formats.typed.tables import (
    LONGEST,
    Limits,
    TypedFormat,
    choose,
    conformed,
    damage_is_bad,
    read_varint,
    snappy_length,
    without_zigzag,
    written_varint,
)
from queue_source.options.content import FormatOptions
from queue_source.storage.memory import usual_limit
from queue_source.storage.open_files import ObjectFile

_ROWS = 16_384
_TOGETHER = 4 << 20
"""Bytes of records that are decoded at once: as values of Python they take 20 times as much, or more."""
_MAGIC = b"Obj\x01"
_SYNC = 16
_AHEAD = 1 << 20
_HEADER = 16 << 20  # a schema is text, and has to be parsed


class Avro(TypedFormat):
    name = "avro"

    def require_installed(self) -> None:
        try:
            import fastavro  # noqa: F401
        except ImportError as error:
            raise OptionError(
                "fileFormat", 'avro needs the package fastavro: pip install "cuesqueue[avro]" on driver and executors'
            ) from error
        for codec in ("snappy", "zstd"):  # the wheels of pyarrow have them; a build of one's own may not
            if not pa.Codec.is_available(codec):
                raise OptionError("fileFormat", f"avro needs a pyarrow with {codec}: pip install pyarrow, from PyPI")

    def decode_memory(self, options: FormatOptions) -> int:
        """Return half as much as for other formats: the process keeps freed memory of Python in pieces."""
        return options.max_decode_memory or usual_limit() // 2

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        types = _types(Blocks(file, Limits(0, 1)))
        return pa.schema([(name, types.column(kind).arrow) for name, kind in types.fields.items()])

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """Read the records of the whole object, of any codec of its own."""
        file, limits = source.file, Limits(source.size, options.max_expansion)
        self.require_installed()
        with damage_is_bad(file, "Avro"):
            blocks = Blocks(file, limits)
            types = _types(blocks)
            if options.watch_new_columns or options.rescued_data_column is not None:
                written = pa.schema([(name, types.column(kind).arrow) for name, kind in types.fields.items()])
            else:  # only declared columns are read: some types have no equal
                written = pa.schema([(name, pa.null()) for name in types.fields])
            chosen = choose(schema, written, options, file.uri)
            columns = {name: types.column(types.fields[name]) for name in chosen.names}
            portions = _portions(blocks, _Decoder(types))
        while True:
            with damage_is_bad(file, "Avro"):
                rows = next(portions, None)
                if rows is None:
                    return
                arrays = [column.build([row[name] for row in rows]) for name, column in columns.items()]
                table = pa.Table.from_arrays(arrays, names=list(columns))
                table = table if columns else pa.table({"": pa.nulls(len(rows))}).select([])
            yield limits.counted(conformed(table, schema, chosen, options))


@dataclass(frozen=True, slots=True)
class Block:
    """Records one after the other, as Avro writes them."""

    records: int
    data: bytes


class Blocks:
    """An object of Avro: the schema with which it was written, and its blocks.

    Raises ValueError and what codecs raise where the object is damaged, BadObject beyond the limits.
    """

    def __init__(self, file: ObjectFile, limits: Limits) -> None:
        self._input, file.at_least = file, _AHEAD
        file.seek(0)
        self._limits = limits
        if self._exactly(4) != _MAGIC:
            raise ValueError("it does not begin as Avro does")
        self.metadata: dict[str, bytes] = {}
        while count := self._number():
            if count < 0:
                self._number()  # bytes, to skip
            for _ in range(abs(count)):
                name = self._text().decode()
                self.metadata[name] = self._text()
        self._sync = self._exactly(_SYNC)
        codec = self.metadata.get("avro.codec", b"null").decode()
        if codec not in _CODECS:
            raise ValueError(f"its codec {codec!r} is none of Avro's: {', '.join(_CODECS)}")
        self._decompress = _CODECS[codec]
        self.schema: Any = json.loads(self.metadata.get("avro.schema", b""))

    def __iter__(self) -> Iterator[Block]:
        while self._input.tell() < self._input.size():
            records = self._number()
            size = self._number()
            if records < 0 or size < 0:
                raise ValueError("a block has a negative size")
            self._limits.check_rows(records)
            stored = self._exactly(size)
            if self._exactly(_SYNC) != self._sync:
                raise ValueError("a block does not end where it says")
            data = self._decompress(stored)
            if records > len(data):
                self._limits.check_empty(records)
            yield Block(records, data)

    def _exactly(self, size: int) -> bytes:
        is_there = self._input.tell() + size <= self._input.size()
        data = bytes(self._input.read(size)) if is_there else b""
        if len(data) < size:
            raise ValueError("it ends in the middle")
        return data

    def _text(self) -> bytes:
        size = self._number()
        if not 0 <= size <= _HEADER:
            raise ValueError(f"a text of {size} bytes in its header")
        return self._exactly(size)

    def _number(self) -> int:
        data = self._exactly(1)
        while data[-1] > 0x7F and len(data) < LONGEST:
            data += self._exactly(1)
        value, _ = read_varint(data)
        return without_zigzag(value)


def _deflate(stored: bytes) -> bytes:
    machine = zlib.decompressobj(-15)
    return machine.decompress(stored) + machine.flush()  # not all writers write an end mark


def _snappy(stored: bytes) -> bytes:
    data, checksum = stored[:-4], stored[-4:]
    plain: bytes = pa.Codec("snappy").decompress(
        data, snappy_length(data, "a block is not compressed with snappy"), asbytes=True
    )
    if zlib.crc32(plain) != int.from_bytes(checksum, "big"):
        raise ValueError("the checksum of a block is wrong")
    return plain


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": lambda stored: bytes(pa.CompressedInputStream(pa.BufferReader(stored), "zstd").read()),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


def _types(blocks: Blocks) -> Types:
    """Build the types; Spark before 3.0 counted days by the calendar of before 1582, and marks its files."""
    said, version = blocks.metadata, blocks.metadata.get("org.apache.spark.version")
    hybrid = version is not None and (version < b"3." or "org.apache.spark.legacyDateTime" in said)
    return Types(blocks.schema, hybrid=hybrid)


Rows = list[dict[str, Any]]


def _portions(blocks: Blocks, decoder: _Decoder) -> Iterator[Rows]:
    """Yield the records of all blocks, in portions whose memory is bounded for usual values."""
    gathered: Rows = []
    size = 0
    for block in blocks:
        if gathered and (size + len(block.data) > _TOGETHER or len(gathered) + block.records > _ROWS):
            yield gathered
            gathered, size = [], 0
        if len(block.data) > _TOGETHER or block.records > _ROWS:
            yield from _one_by_one(block, decoder)
        else:
            gathered += decoder.block(block)
            size += len(block.data)
    if gathered:
        yield gathered


def _one_by_one(block: Block, decoder: _Decoder) -> Iterator[Rows]:
    """Yield the records of a block that are too many, or too large, to be decoded at once."""
    gathered: Rows = []
    start, stream = 0, io.BytesIO(block.data)
    for _ in range(block.records):
        gathered.append(decoder.record(stream))
        if stream.tell() - start > _TOGETHER or len(gathered) >= _ROWS:
            yield gathered
            gathered, start = [], stream.tell()
    if stream.read(1):
        raise ValueError("a block has more bytes than records")
    if gathered:
        yield gathered


class _Decoder:
    """Decodes records of one schema.

    A recursive schema is decoded by the part of `fastavro` that is written in Python, which raises RecursionError for a
    record with too many levels: the other part would end the process.
    """

    def __init__(self, types: Types) -> None:
        import fastavro

        self._decode: Any = _reading_in_python() if types.is_within_itself else fastavro.schemaless_reader
        self._record = fastavro.parse_schema(types.decoded)
        self._array = fastavro.parse_schema({"type": "array", "items": types.decoded})

    def block(self, block: Block) -> Rows:
        """Decode all records of a block with one call: they are written like the items of an array."""
        count = written_varint(block.records << 1)
        stream = io.BytesIO(b"".join((count, block.data, b"\0" if block.records else b"")))
        rows: Rows = self._decode(stream, self._array, None)
        if stream.read(1) or len(rows) != block.records:
            raise ValueError("a block has more bytes than records")
        return rows

    def record(self, stream: io.BytesIO) -> dict[str, Any]:
        """Decode the record at the place of the stream, which moves behind it."""
        record: dict[str, Any] = self._decode(stream, self._record, None)
        return record


def _reading_in_python() -> Any:
    """Find the reader of `fastavro` that is written in Python, which has no public name.

    Raises BadObject where this version has none: the other reader would end the process.
    """
    try:
        return import_module("fastavro._read_py").schemaless_reader
    except (ImportError, AttributeError) as error:
        raise BadObject(
            "corrupt-object",
            "its records are within themselves, which this version of fastavro cannot read safely; install fastavro "
            "1.12 or 1.13 on the executors, and requeue the object",
        ) from error


AVRO = Avro()
