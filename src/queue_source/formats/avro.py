"""Avro: records to Arrow by `fastavro` (the extra `avro`), a block at a time, in the types that Spark has for them.

The codecs of blocks are those that come with Python and pyarrow: an object never depends on what else is installed.
Logical types are left out when records are decoded, and applied to whole columns: a date is a number of days, however
long ago it is.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed import (
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
from queue_source.formats.types import gregorian_days, gregorian_micros
from queue_source.options.content import FormatOptions
from queue_source.storage.memory import usual_limit
from queue_source.storage.open_files import ObjectFile

_MEMBER = "cuesqueue_member_"
_NUMBERS = ({"int", "long"}, {"float", "double"})
_ANY = 17
"""Bytes that have room for each decimal of Spark."""
_LARGEST = 50_000
"""Types in a schema, where each use of a name counts."""
Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """What a written type is in Arrow, and how decoded values become an array of it."""

    arrow: pa.DataType
    build: Callable[[Values], pa.Array]


class Types:
    """The types of one object. Raises ValueError for a schema that is none.

    Attributes:
        decoded: The schema for `fastavro`: without logical types.
        fields: The types of the columns, by name.
        is_within_itself: Whether a record may be within itself, in any number of levels.
    """

    def __init__(self, schema: Any, *, hybrid: bool = False) -> None:
        self._named: dict[str, Any] = {}
        self._definitions: dict[str, Any] = {}
        self._count = self._unions = 0
        self._open: list[str] = []
        self.is_within_itself = False
        self._hybrid = hybrid
        if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
            raise ValueError("the objects are not records")
        self.decoded = self._plain(schema, "")
        self.fields: dict[str, Any] = {field["name"]: field["type"] for field in self.decoded["fields"]}

    def _plain(self, schema: Any, space: str) -> Any:
        """Return the schema with full names, each defined once.

        Logical types are kept where `fastavro` ignores them.
        """
        if isinstance(schema, list):
            return self._plain_union([self._plain(branch, space) for branch in schema])
        if isinstance(schema, str):
            if schema in _PLAIN:
                return schema
            name = _full(schema, space)
            name = name if name in self._named else schema  # of no namespace, as to Avro's own reader
            if name not in self._named:
                raise ValueError(f"the type {schema!r} has no definition")
            self.is_within_itself |= name in self._open
            return self._named_as(name)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError("its schema is none of Avro")
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self._plain(kind, space)
        if kind in ("record", "error", "enum", "fixed"):
            name = _full(schema["name"], schema.get("namespace", space))
            if self._definitions.setdefault(name, schema) != schema:
                raise ValueError(f"the type {name!r} is defined twice")
            if name in self._named:
                return self._named_as(name)
            type_without_logic: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": name}
            self._named[name] = type_without_logic
            if kind == "enum":  # decoded as its number: `fastavro` refuses symbols that are no names
                type_without_logic = self._named[name] = {"type": "int", "symbols": schema["symbols"]}
            elif kind == "fixed":
                type_without_logic["size"] = schema["size"]
            else:
                inner = name.rpartition(".")[0]
                self._open.append(name)
                type_without_logic["fields"] = [
                    {"name": field["name"], "type": self._plain(field["type"], inner)} for field in schema["fields"]
                ]
                self._open.pop()
        elif kind == "array":
            type_without_logic = {"type": "array", "items": self._plain(schema["items"], space)}
        elif kind == "map":
            type_without_logic = {"type": "map", "values": self._plain(schema["values"], space)}
        elif kind == "null":
            return kind  # in a union a type with more facts is null, too
        elif kind in _PLAIN:
            type_without_logic = {"type": kind}
        else:
            return self._plain(kind, space)
        if "logicalType" in schema:
            type_without_logic["cuesqueue"] = {key: schema.get(key) for key in ("logicalType", "precision", "scale")}
        return type_without_logic

    def _named_as(self, name: str) -> Any:
        """Return what stands for a type that is defined."""
        return self._named[name] if "symbols" in self._named[name] else name

    def definition(self, schema: Any) -> Any:
        """Return the type itself, where a schema only names it."""
        if isinstance(schema, str):
            return self._named.get(schema) or {"type": schema}
        return schema

    def column(self, schema: Any) -> Column:
        """Return the column of a type. Raises ValueError for one that has none."""
        self._count += 1
        if self._count > _LARGEST:
            raise ValueError(f"its schema has more than {_LARGEST} types")
        if isinstance(schema, list):  # as Spark has a union
            types = [branch for branch in schema if branch != "null"]
            if len(types) == 1:  # it may be null
                return self.column(types[0])
            kinds = set(map(self._kind, types))
            if not types or kinds in _NUMBERS:  # the larger of two numbers
                return _leaf("null" if not types else "long" if "long" in kinds else "double", {}, hybrid=False)
            members = (branch["fields"][0] for branch in types)
            return _struct({member["name"]: self.column(member["type"]) for member in members})
        schema = self.definition(schema)
        kind, logical = schema["type"], schema.get("cuesqueue") or {}
        if kind == "record":
            name = schema["name"]
            if name in self._open:
                raise ValueError(f"the record {name!r} is within itself")
            self._open.append(name)
            columns = {field["name"]: self.column(field["type"]) for field in schema["fields"]}
            self._open.pop()
            return _struct(columns)
        if "symbols" in schema:
            return _enum(schema["symbols"])
        if kind == "array":
            return _list(self.column(schema["items"]))
        if kind == "map":
            return _map(self.column(schema["values"]))
        return _leaf(kind, logical, hybrid=self._hybrid, size=schema.get("size", _ANY))

    def _plain_union(self, types: list[Any]) -> list[Any]:
        """Return a union whose values name their type, where there are several.

        Each type is put into a record of one field, which is written in the same way; it has the name that Spark gives.
        """
        some = [branch for branch in types if branch != "null"]
        if len(some) < 2 or set(map(self._kind, some)) in _NUMBERS:
            return types
        self._unions += 1
        members = iter(range(len(some)))
        return [
            branch if branch == "null" else {
                "type": "record",
                "name": f"{_MEMBER}{self._unions}_{(number := next(members))}",
                "fields": [{"name": f"member{number}", "type": branch}],
            }
            for branch in types
        ]  # fmt: skip

    def _kind(self, schema: Any) -> str:
        definition = self.definition(schema)
        return "enum" if "symbols" in definition else str(definition["type"])


def _full(name: str, space: str | None) -> str:
    return name.removeprefix(".") if "." in name or not space else f"{space}.{name}"


def _struct(columns: dict[str, Column]) -> Column:
    fields = [pa.field(name, column.arrow) for name, column in columns.items()]

    def build(values: Values) -> pa.Array:
        children = [
            column.build([None if value is None else value.get(name) for value in values])
            for name, column in columns.items()
        ]
        if not children:
            return pa.array([None if value is None else {} for value in values], pa.struct([]))
        nulls = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)

    return Column(pa.struct(fields), build)


def _offsets(values: Values) -> pa.Array:
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    # a null among the offsets is a list that is null
    return pa.array([None if value is None else end for value, end in zip(values, ends)] + ends[-1:], pa.int32())  # noqa: B905 (one end more)


def _list(items: Column) -> Column:
    def build(values: Values) -> pa.Array:
        return pa.ListArray.from_arrays(
            _offsets(values), items.build([item for value in values for item in value or ()])
        )

    return Column(pa.list_(items.arrow), build)


def _map(items: Column) -> Column:
    def build(values: Values) -> pa.Array:
        keys = pa.array([key for value in values for key in value or ()], pa.string())
        item_values = items.build([item for value in values for item in (value or {}).values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, item_values)

    return Column(pa.map_(pa.string(), items.arrow), build)


def _is_decimal(precision: Any, scale: Any, size: int) -> bool:
    """Tell whether Avro takes bytes of this size for a decimal: what is marked in another way stays bytes."""
    if {type(precision), type(scale)} != {int} or not 0 <= scale <= precision:  # true is no number
        return False
    return precision > 0 and (size >= _ANY or precision < len(str(1 << max(8 * size - 1, 0))))


def _leaf(kind: str, logical: dict[str, Any], *, hybrid: bool, size: int = 0) -> Column:
    name = logical.get("logicalType")
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = logical["precision"], 0 if logical["scale"] is None else logical["scale"]
        if _is_decimal(precision, scale, size):
            return _decimal(precision, scale)
    if name == "date" and kind == "int":

        def dates(values: Values) -> pa.Array:
            days = pa.array(values, pa.int32())
            return (gregorian_days(days) if hybrid else days).view(pa.date32())

        return Column(pa.date32(), dates)
    if kind == "long" and name in _TIMES:
        factor, zone = _TIMES[name]

        def times(values: Values) -> pa.Array:
            micros = pc.multiply_checked(pa.array(values, pa.int64()), factor)
            return (gregorian_micros(micros, "UTC") if hybrid and zone else micros).cast(pa.timestamp("us", tz=zone))

        return Column(pa.timestamp("us", tz=zone), times)
    arrow = _PLAIN[kind]
    return Column(arrow, lambda values: pa.array(values, arrow))


def _enum(symbols: list[str]) -> Column:
    names = pa.array(symbols, pa.string())

    def build(values: Values) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), names).cast(pa.string())

    return Column(pa.string(), build)


def _decimal(precision: int, scale: int) -> Column:
    arrow = pa.decimal128(precision, scale)

    def build(values: Values) -> pa.Array:
        # the unscaled number, the most significant byte first; Arrow has 16 bytes of it, the least significant first
        data = b"".join(
            bytes(16)
            if value is None
            else int.from_bytes(value, "big", signed=True).to_bytes(16, "little", signed=True)
            for value in values
        )
        nulls = pa.array([value is not None for value in values], pa.bool_())
        decimals = pa.Array.from_buffers(arrow, len(values), [nulls.buffers()[1], pa.py_buffer(data)])
        decimals.validate(full=True)
        return decimals

    return Column(arrow, build)


_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip
_TIMES: dict[str, tuple[int, str | None]] = {
    "timestamp-millis": (1000, "UTC"),
    "timestamp-micros": (1, "UTC"),
    "local-timestamp-millis": (1000, None),
    "local-timestamp-micros": (1, None),
}


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
            reads_all = options.watch_new_columns or options.rescued_data_column is not None
            declared = {name.casefold() for name in schema.names}  # only these are read else: some types have no equal
            other = pa.string() if options.tells_new_columns else pa.null()
            kinds = [
                types.column(kind).arrow if reads_all or name.casefold() in declared else other
                for name, kind in types.fields.items()
            ]
            written = pa.schema(list(zip(types.fields, kinds, strict=True)))
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

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield each block: how many records it has, and these one after the other, as Avro writes them."""
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
            yield records, data

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
    "deflate": lambda stored: zlib.decompressobj(-15).decompress(stored),  # not all writers write an end mark
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
    for records, data in blocks:
        if gathered and (size + len(data) > _TOGETHER or len(gathered) + records > _ROWS):
            yield gathered
            gathered, size = [], 0
        if len(data) <= _TOGETHER and records <= _ROWS:
            gathered += decoder.block(records, data)
            size += len(data)
            continue
        start, stream = 0, io.BytesIO(data)
        for _ in range(records):  # too many, or too large, to be decoded at once
            gathered.append(decoder.record(stream))
            if stream.tell() - start > _TOGETHER or len(gathered) >= _ROWS:
                yield gathered
                gathered, start = [], stream.tell()
        if stream.read(1):
            raise ValueError("a block has more bytes than records")
        size = len(data) - start
    if gathered:
        yield gathered


class _Decoder:
    """Decodes records of one schema.

    A recursive schema is decoded by the part of `fastavro` that is written in Python (it has no public name), which
    raises RecursionError for a record with too many levels: the other part would end the process.
    """

    def __init__(self, types: Types) -> None:
        """Raise BadObject for a recursive schema where this version of `fastavro` has no such part."""
        import fastavro

        self._decode: Any = fastavro.schemaless_reader
        if types.is_within_itself:
            try:
                self._decode = import_module("fastavro._read_py").schemaless_reader
            except (ImportError, AttributeError) as error:
                raise BadObject(
                    "corrupt-object",
                    "its records are within themselves, which this version of fastavro cannot read safely; install "
                    "fastavro 1.12 or 1.13 on the executors, and requeue the object",
                ) from error
        self._record = fastavro.parse_schema(types.decoded)
        self._array = fastavro.parse_schema({"type": "array", "items": types.decoded})

    def block(self, records: int, data: bytes) -> Rows:
        """Decode all records of a block with one call: they are written like the items of an array."""
        count = written_varint(records << 1)
        stream = io.BytesIO(b"".join((count, data, b"\0" if records else b"")))
        rows: Rows = self._decode(stream, self._array, None)
        if stream.read(1) or len(rows) != records:
            raise ValueError("a block has more bytes than records")
        return rows

    def record(self, stream: io.BytesIO) -> dict[str, Any]:
        """Decode the record at the place of the stream, which moves behind it."""
        record: dict[str, Any] = self._decode(stream, self._record, None)
        return record


AVRO = Avro()
