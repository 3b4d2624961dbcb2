"""ORC: stripes to Arrow, only the declared columns, in batches that fit into memory, with values as Spark has them.

`OrcFile` reads what pyarrow hides: the stripes, the zones of their writers, and the calendar. A stripe can be read as a
file of its own: the bytes of the stripe, and a new footer, whose zone is GMT. So a stripe is decoded in batches of
bounded size, and its times are read as they are written, before `Values` makes moments of them, in today's calendar.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from queue_source.common.times import parse_time_zone
from queue_source.formats.base import OpenObject, Part
from queue_source.formats.typed import (
    Batches,
    ColumnarFormat,
    Limits,
    choose,
    conformed,
    damage_is_bad,
    read_varint,
    snappy_length,
    written_varint,
)
from queue_source.formats.types import (
    gregorian_days,
    gregorian_micros,
    inner_types,
    instants,
    local_times,
    match_names,
    parts_of,
    with_parts,
)
from queue_source.options.content import FormatOptions
from queue_source.storage.open_files import ObjectFile, ObjectVersion

TIMESTAMP, DECIMAL, DATE, CHAR = 9, 14, 15, 17
SMALL = 1 << 20
"""Bytes of the largest stripe that is fetched as a whole, in one request, also where not all of it is needed."""
_CUT_OFF = "a footer is cut off"
_PROLEPTIC = 2
_MAGIC = b"ORC"
_ZLIB, _SNAPPY, _LZ4, _ZSTD = 1, 2, 4, 5
_USUAL = 1024
Fields = list[tuple[int, "int | bytes"]]
_EPOCH = 1_420_070_400_000_000
"""2015-01-01 00:00: what is written are seconds since then, in the zone of the writer."""
_SECOND = 1_000_000
_EXPANDED = 16
"""How many times its compressed bytes a row is expected to take. One that takes more is read in smaller batches."""
_HIVE = re.compile(r"_col\d+")


class Orc(ColumnarFormat):
    name = "orc"

    def schema_of(self, file: ObjectFile) -> pa.Schema:
        return _opened(file)[1]

    def read(self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions) -> Iterator[pa.Table]:
        """Read the rows of the stripes that begin in the part."""
        file, limits, batches = source.file, Limits(source.size, options.max_expansion), Batches()
        with damage_is_bad(file, "ORC"):
            orc, written = _opened(file)
            names = _names(written.names, schema, options)
            named = pa.schema([field.with_name(name) for field, name in zip(written, names, strict=True)])
            chosen = choose(schema, named, options, file.uri)
            written_names = [written.names[names.index(name)] for name in chosen.names]
            last = source.size if part.end is None else part.end
            stripes = [stripe for stripe in orc.stripes if part.start <= stripe.offset < last and stripe.rows]
            limits.check_rows(sum(stripe.rows for stripe in stripes))
        for stripe in stripes:

            def read(rows: int, stripe: Stripe = stripe) -> Iterator[pa.Table]:
                tables = _decoded(orc, stripe, written_names, rows)
                while True:
                    with damage_is_bad(file, "ORC"):
                        table = next(tables, None)
                    if table is None:
                        return
                    table = _with_times(table.rename_columns(chosen.names), schema, chosen.matches)
                    yield conformed(table, schema, chosen, options)
                    del table

            for table in batches.of(read, stripe.rows, _EXPANDED * stripe.data // stripe.rows):
                yield limits.counted(table)
                del table  # before the next is decoded, which may be as large


def _decoded(orc: OrcFile, stripe: Stripe, names: list[str], rows: int) -> Iterator[pa.Table]:
    """Decode these columns of a stripe, in batches of so many rows."""
    import pyarrow.dataset as ds
    from pyarrow.dataset import OrcFileFormat

    file, zone = orc.alone(stripe)
    values = Values(orc, zone)
    places = [str(orc.types[0].names.index(name)) for name in names]
    scanner = ds.Scanner.from_fragment(
        OrcFileFormat().make_fragment(file), columns=places, batch_size=rows, batch_readahead=0, fragment_readahead=0,
        use_threads=False, memory_pool=pa.default_memory_pool(),
    )  # fmt: skip
    batches = scanner.to_reader()
    try:
        for batch in batches:
            batch.validate(full=True)
            if names:
                columns = [values.column(column, name) for column, name in zip(batch.columns, names, strict=True)]
                yield pa.table(columns, names=names)
            else:  # pyarrow would forget how many rows there are
                yield pa.table({"": pa.nulls(batch.num_rows)}).select([])
    finally:
        batches.close()  # nothing is decoded on of an object that was refused


def _opened(file: ObjectFile) -> tuple[OrcFile, pa.Schema]:
    """Open the structure of the file, with its columns as `Values` makes them."""
    from pyarrow.orc import ORCFile  # here: a library of its own, which the other formats can do without

    reader = ORCFile(pa.PythonFile(file, "r"))
    orc = OrcFile(file, reader.reader.serialized_file_tail())
    values = Values(orc, "")
    columns = [(field.name, values.column(pa.array([], field.type), field.name).type) for field in reader.schema]
    return orc, pa.schema(columns)


def _names(written: Sequence[str], schema: pa.Schema, options: FormatOptions) -> list[str]:
    """Return the names of the columns.

    Files of Hive may have none (`_col0` ...): they get the declared ones, in order.
    """
    if not all(map(_HIVE.fullmatch, written)):
        return list(written)
    declared = [name for name in schema.names if name != options.rescued_data_column]
    return [*declared[: len(written)], *written[len(declared) :]]


def _with_times(table: pa.Table, schema: pa.Schema, matches: dict[str, str]) -> pa.Table:
    """Convert times: Spark writes TIMESTAMP_NTZ as microseconds, others as moments at the writer's clock."""
    for name, written in matches.items():
        place, kind = table.column_names.index(written), schema.field(name).type
        if _has_local_times(kind):
            chunks = [_local(chunk, kind) for chunk in table.column(place).chunks]
            table = table.set_column(place, written, pa.chunked_array(chunks) if chunks else pa.array([], kind))
    return table


def _has_local_times(kind: pa.DataType) -> bool:
    return (pt.is_timestamp(kind) and kind.tz is None) or any(map(_has_local_times, inner_types(kind)))


def _local(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert the times of an array for which times without a zone are declared, at any depth."""
    if pt.is_timestamp(kind):
        if kind.tz is None and pt.is_int64(array.type):
            return array.cast(kind)
        return local_times(array) if kind.tz is None and pt.is_timestamp(array.type) else array
    inner, parts = inner_types(kind), parts_of(array)
    if pt.is_struct(kind) and pt.is_struct(array.type):
        matches = match_names([field.name for field in kind], [field.name for field in array.type])
        declared = {written: kind.field(name).type for name, written in matches.items()}
        inner = [declared.get(field.name, field.type) for field in array.type]
    elif pt.is_struct(kind) or pt.is_struct(array.type):
        return array  # which fits no better with other times
    if not _has_local_times(kind) or len(inner) != len(parts):
        return array
    return with_parts(array, [_local(part, of) for part, of in zip(parts, inner, strict=True)])


@dataclass(frozen=True, slots=True)
class OrcType:
    """A type of the file: its kind, the numbers of the types within it, and the names of the fields of a struct."""

    kind: int
    inner: tuple[int, ...]
    names: tuple[str, ...]
    precision: int


@dataclass(frozen=True, slots=True)
class Stripe:
    """Where a stripe is: its first byte, the lengths of its three parts, and how many rows it says it has."""

    offset: int
    index: int
    data: int
    footer: int
    rows: int


class OrcFile:
    """The structure of a file. Raises ValueError and what codecs raise where it is damaged."""

    def __init__(self, file: ObjectFile, tail: bytes) -> None:
        self._file = file
        sections = dict(parse(tail))
        postscript, footer = parse(_bytes(sections[1])), parse(_bytes(sections[2]))
        values = dict(postscript)
        self._compression = _int(values.get(2, 0))
        self._block = _int(values.get(3, 256 << 10))
        self._writer = [(number, value) for number, value in postscript if number in (4, 6)]
        types = [_bytes(value) for number, value in footer if number == 4]  # many files have the same ones
        self.types = [_usual_type(data) if len(data) < _USUAL else _type(data) for data in types]
        self._types = [(4, data) for data in (_numbered(types[0]), *types[1:])]
        parts = (dict(parse(_bytes(value))) for number, value in footer if number == 3)
        self.stripes = [Stripe(*(_int(part.get(number, 0)) for number in (1, 2, 3, 4, 5))) for part in parts]
        self.is_hybrid = _int(dict(footer).get(11, 0)) != _PROLEPTIC

    def alone(self, stripe: Stripe) -> tuple[pa.NativeFile, str]:
        """Build a file of this stripe only, whose zone is GMT: so its times are decoded as they are written.

        Returns the zone of its writer, too ("": unknown). Its columns have their places as names: by `a.b` pyarrow may
        find a part of `a`. A small one is fetched in one request. Of a large one, pyarrow reads what the columns need.
        """
        footer = parse(self._plain(self._at(stripe.offset + stripe.index + stripe.data, stripe.footer)))
        zone = _bytes(dict(footer).get(3, b"")).decode()
        of_stripe = self._framed(written([*((number, value) for number, value in footer if number != 3), (3, b"GMT")]))
        end = len(_MAGIC) + stripe.index + stripe.data + len(of_stripe)
        where = written([(1, len(_MAGIC)), (2, stripe.index), (3, stripe.data), (4, len(of_stripe)), (5, stripe.rows)])
        tail = self._framed(written([(1, len(_MAGIC)), (2, end), (3, where), *self._types, (6, stripe.rows), (8, 0)]))
        postscript = written(
            [(1, len(tail)), (2, self._compression), (3, self._block), *self._writer, (5, 0), (8000, _MAGIC)]
        )
        after = of_stripe + tail + postscript + bytes([len(postscript)])
        length = stripe.index + stripe.data
        if length <= SMALL:
            with pa.BufferOutputStream() as sink:  # not bytes: pyarrow's threads may end without Python
                sink.write(_MAGIC + self._at(stripe.offset, length) + after)
                return pa.BufferReader(sink.getvalue()), zone
        alone = ObjectFile(self._file.uri, _Stripe(self._file, stripe.offset, length, after))
        return pa.PythonFile(alone, "r"), zone

    def _framed(self, data: bytes) -> bytes:
        """Frame data as a compressed stream, marked as not compressed."""
        return (len(data) << 1 | 1).to_bytes(3, "little") + data if self._compression else data

    def _plain(self, data: bytes) -> bytes:
        if not self._compression:
            return data
        pieces, place = [], 0
        while place < len(data):
            header = int.from_bytes(data[place : place + 3], "little")
            piece = data[place + 3 : place + 3 + (header >> 1)]
            place += 3 + (header >> 1)
            if header & 1:
                pieces.append(piece)
            elif self._compression == _ZLIB:
                pieces.append(zlib.decompressobj(-15).decompress(piece, self._block))
            elif self._compression == _SNAPPY:
                if (size := snappy_length(piece, _CUT_OFF)) > self._block:
                    raise ValueError("a footer is larger than a block")
                pieces.append(pa.Codec("snappy").decompress(piece, size, asbytes=True))
            elif self._compression in (_LZ4, _ZSTD):
                if self._compression == _LZ4:  # a block does not have its length: as a frame of one block
                    piece = b"\x04\x22\x4d\x18\x60\x70\x73" + len(piece).to_bytes(4, "little") + piece + bytes(4)
                codec = "lz4" if self._compression == _LZ4 else "zstd"
                with pa.CompressedInputStream(pa.BufferReader(piece), codec) as stream:
                    pieces.append(bytes(stream.read(self._block)))
            else:
                raise ValueError(f"its compression {self._compression} is not supported; write it with zstd or snappy")
        return b"".join(pieces)

    def _at(self, place: int, length: int) -> bytes:
        if place < 0 or length < 0 or place + length > self._file.size():
            raise ValueError("a stripe lies beyond the end of the file")
        return self._file.read_range(place, place + length)


class _Stripe(ObjectVersion):
    """A file of one stripe: its bytes are read from the object when they are asked for, between others."""

    is_local = is_pinned = True  # it is checked with the object

    def __init__(self, file: ObjectFile, offset: int, length: int, after: bytes) -> None:
        super().__init__(len(_MAGIC) + length + len(after))
        self._file, self._offset, self._length, self._after = file, offset, length, after

    def read_range(self, start: int, end: int) -> bytes:
        ends = len(_MAGIC) + self._length
        first, last = max(start, len(_MAGIC)), min(end, ends)
        shift = self._offset - len(_MAGIC)
        inside = self._file.read_range(shift + first, shift + last) if first < last else b""
        return _MAGIC[start:end] + inside + self._after[max(start - ends, 0) : max(end - ends, 0)]


def _type(data: bytes) -> OrcType:
    fields = parse(data)
    inner: list[int] = []
    for number, value in fields:
        if number == 2 and isinstance(value, int):
            inner.append(value)
        elif number == 2:
            place, packed = 0, _bytes(value)
            while place < len(packed):
                index, place = read_varint(packed, place, _CUT_OFF)
                inner.append(index)
    names = tuple(_bytes(value).decode() for number, value in fields if number == 3)
    values = dict(fields)
    return OrcType(_int(values.get(1, 0)), tuple(inner), names, _int(values.get(5, 0)))


def _numbered(root: bytes) -> bytes:
    """Return the type of the rows with the places of its columns as their names."""
    places = count()
    return written((number, b"%d" % next(places) if number == 3 else value) for number, value in parse(root))


_usual_type = lru_cache(maxsize=1024)(_type)


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is missing in a footer")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a part of a footer is missing")
    return value


def parse(data: bytes) -> Fields:
    """Parse the fields of a message of Protocol Buffers, in their order. Raises ValueError."""
    fields: Fields = []
    place = 0
    while place < len(data):
        key, place = read_varint(data, place, _CUT_OFF)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = read_varint(data, place, _CUT_OFF)
            fields.append((number, value))
            continue
        if wire == 2:
            length, place = read_varint(data, place, _CUT_OFF)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError("a footer is damaged")
        if length > len(data) - place:
            raise ValueError(_CUT_OFF)
        if wire == 2:
            fields.append((number, data[place : place + length]))
        place += length
    return fields


def written(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """Write a message of such fields."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += written_varint(number << 3) + written_varint(value)
        else:
            out += written_varint(number << 3 | 2) + written_varint(len(value)) + value
    return bytes(out)


class Values:
    """Corrects the values that pyarrow decodes from a stripe whose zone is taken for GMT."""

    def __init__(self, orc: OrcFile, zone: str) -> None:
        self._types = orc.types
        self._is_hybrid = orc.is_hybrid
        self._zone = parse_time_zone(zone) if zone else "UTC"
        self._shift = _shift(self._zone)

    def column(self, array: pa.Array, name: str) -> pa.Array:
        """Convert a column of the file; raises ValueError for one that cannot be read without a loss."""
        root = self._types[0]
        return self._right(array, root.inner[root.names.index(name)])

    def _right(self, array: pa.Array, number: int) -> pa.Array:
        written = self._types[number]
        if parts := parts_of(array):
            return with_parts(array, [self._right(part, n) for part, n in zip(parts, written.inner, strict=True)])
        if written.kind == DATE and self._is_hybrid:
            return gregorian_days(array.view(pa.int32())).view(pa.date32())
        if written.kind == CHAR:
            return pc.utf8_rtrim(array, characters=" ")
        if written.kind == DECIMAL and not written.precision and len(array):
            raise ValueError("Hive 0.11 wrote its decimals with digits that pyarrow cuts off; write the file anew")
        if pt.is_timestamp(array.type):
            return self._moments(array, written.kind)
        return array

    def _moments(self, array: pa.Array, kind: int) -> pa.Array:
        """Convert to microseconds: digits of nanoseconds are left out, as in Spark."""
        nanos = np.asarray(array.view(pa.int64()).fill_null(0))
        micros = nanos // 1000
        if kind == TIMESTAMP:
            micros += self._shift + _seconds_amiss(nanos, self._shift // _SECOND) * _SECOND
        moments = pc.if_else(array.is_valid(), pa.array(micros), pa.scalar(None, pa.int64()))
        return (gregorian_micros(moments, self._zone) if self._is_hybrid else moments).cast(
            pa.timestamp("us", tz=self._zone)
        )


def _shift(zone: str) -> int:
    """Return the microseconds from the writer's count to the count since 1970 in UTC."""
    local = pa.array([_EPOCH], pa.timestamp("us"))
    return int(instants(local, zone).cast(pa.int64())[0].as_py()) - _EPOCH


def _seconds_amiss(nanos: np.ndarray, shift: int) -> np.ndarray:
    """Return the seconds (-1, 0 or 1) by which pyarrow is wrong. `nanos` are at the clock of the writer.

    Where there is a whole millisecond of a fraction, writers cut the second of a moment before 1970 towards 1970, and
    readers take one off. ORC for Java checks for that whether the moment is before 1970; pyarrow, which takes the zone
    for GMT, whether the writer's clock is. They differ in the hours between these two. The writer for Java writes -0.5
    s as 0.5 s, which is what Spark reads. Negative nanoseconds, which only pyarrow writes, are in GMT.
    """
    seconds, fractions = np.divmod(nanos, 1_000_000_000)
    too_early = (-shift - 1 <= seconds) & (seconds < -1)
    too_late = (seconds >= 0) & (seconds < -shift)
    corrections: np.ndarray = (fractions > 999_999) * (too_early.astype(np.int64) - too_late)
    return corrections


ORC = Orc()
