"""The pages of a Parquet row group, fetched as they are stored and measured before anything decodes them.

What the footer says of sizes is a claim; a decoder allocates what the header of each page says. A page of a few bytes
may stand for gigabytes: compressed zeros, runs of one value, texts that repeat the text before them.
"""

from __future__ import annotations

import bisect
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.formats.typed.limits import INDIVISIBLE, Limits
from queue_source.storage.files import ObjectFile

IN_MEMORY = 64 << 20
"""Bytes of a fetched group that are held in memory; one that is larger is in a file of its own on local disk."""
_GAP = 64 << 10  # between two chunks that are still fetched in one request
_REQUEST = 32 << 20
_HEADER = 256
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 20, "FLOAT": 4, "DOUBLE": 8}
_DICTIONARIES = (2, 8)  # encodings PLAIN_DICTIONARY, RLE_DICTIONARY
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4_RAW": "lz4_raw"}
_RUNS = 3  # encoding RLE
_FEW = 16  # bytes that numpy takes longer for
_ZEROS = [[at for at in range(8) if not byte >> at & 1] for byte in range(256)]
_DELTA_BYTES = 7  # encoding DELTA_BYTE_ARRAY: a value may repeat the whole of the value before it


@dataclass(slots=True)
class Chunk:
    """The pages of one column of a row group.

    Attributes:
        width: Bytes of a decoded value; None for values that have a length each.
        stored: Where the dictionary is in the file, and its length there.
        entries: How many values are in the dictionary.
        longest: How long they may be; before it is known, as long as the dictionary.
        pages: Of pages that hold such values: how many, the bytes of the page, whether they may repeat each other.
        starts: Of lists: the number of the first value of each row, and of all values; None where nobody looked.
    """

    group: int
    path: str
    width: int | None
    repeated: bool
    rows: int
    compression: str
    values: int = 0
    largest_page: int = 0
    dictionary: int = 0
    stored: tuple[int, int] = (0, 0)
    entries: int = 0
    longest: int = 0
    pages: list[tuple[int, int, bool]] = field(default_factory=list)
    starts: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def of_value(self) -> int:
        """Bytes of a value in a list, with what says where it is, while it is decoded."""
        return (self.width or 0) + 4

    def values_in(self, rows: int) -> int:
        """The values that so many neighbouring rows may have."""
        if self.starts is not None and len(self.starts) > 1:
            rows = min(rows, len(self.starts) - 1)
            return int((self.starts[rows:] - self.starts[:-rows]).max())
        return rows * -(-self.values // max(self.rows, 1)) if self.repeated else rows

    def worst(self, rows: int) -> int:
        """The bytes that so many neighbouring rows may decode to."""
        most = self.values_in(min(rows, self.rows))
        fixed = most * ((self.width or 4 + self.longest) + (8 if self.repeated else 1))
        if not self.pages:
            return fixed
        weights = [min(count, most) * size if repeats else size for count, size, repeats in self.pages]
        # a window of rows begins within one page, and ends within another
        starts = list(accumulate((count for count, _, _ in self.pages), initial=0))
        sums = list(accumulate(weights, initial=0))
        windows = (
            sums[bisect.bisect_left(starts, starts[first + 1] + most, 0, len(self.pages))] - sums[first]
            for first in range(len(self.pages))
        )
        return fixed + max(windows, default=0)


class Fetched:
    """The chunks of a group: a file for pyarrow, which has at their places what was fetched."""

    def __init__(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> None:
        self._file = file
        self._place = 0
        self._starts: list[int] = []
        self._kept: list[tuple[int, int]] = []  # where each is in the spool, and its length
        self._spool = tempfile.SpooledTemporaryFile(IN_MEMORY, prefix="cuesqueue-group-")  # noqa: SIM115 (`close`)
        for start, end in _joined(ranges):
            self._starts.append(start)
            self._kept.append((self._spool.tell(), end - start))
            file.seek(start)
            while start < end:
                data = file.read(min(end - start, _REQUEST))
                if not data:
                    raise ValueError(f"it ends at byte {start}, within a column")
                self._spool.write(data)
                start += len(data)

    def at(self, place: int, size: int) -> bytes:
        index = bisect.bisect_right(self._starts, place) - 1
        if index >= 0:
            where, length = self._kept[index]
            inside = place - self._starts[index]
            if inside < length:
                self._spool.seek(where + inside)
                return self._spool.read(min(size, length - inside))
        self._file.seek(place)
        return self._file.read(size)

    def read(self, size: int) -> bytes:
        data = self.at(self._place, size)
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._file.size() if whence == 2 else 0)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def size(self) -> int:
        return self._file.size()

    @property
    def closed(self) -> bool:
        return self._spool.closed

    def close(self) -> None:
        """Nothing: pyarrow closes what it is given; `release` does."""

    def release(self) -> None:
        self._spool.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1] + _GAP:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def leaves(reader: pq.ParquetFile, wanted: Sequence[str]) -> list[int]:
    """The numbers of the columns of values that belong to the wanted columns."""
    names = set(wanted)
    schema = reader.schema
    return [n for n in range(len(schema)) if schema.column(n).path in names or _top(schema.column(n).path, names)]


def _top(path: str, names: set[str]) -> bool:
    """Whether a path is one below a wanted column; a column's name may have dots."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in names for n in range(1, len(parts)))


def fetch(
    file: ObjectFile, reader: pq.ParquetFile, groups: Sequence[int], columns: Sequence[int], limits: Limits
) -> tuple[Fetched, list[Chunk]]:
    """The chunks of some groups, and what is in them. Raises BadObject for pages that need too much memory."""
    ranges, measured = [], []
    schema = [reader.schema.column(n) for n in columns]
    length = file.size()
    for group in groups:
        meta = reader.metadata.row_group(group)
        for n, leaf in zip(columns, schema, strict=True):
            column = meta.column(n)
            start = column.data_page_offset
            if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < start:
                start = column.dictionary_page_offset
            if start < 0 or column.total_compressed_size < 0 or start + column.total_compressed_size > length:
                raise ValueError("a column lies beyond the end of the object")
            ranges.append((start, start + column.total_compressed_size))
            width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(leaf.physical_type)
            measured.append(
                Chunk(group, leaf.path, width, leaf.max_repetition_level > 0, meta.num_rows, column.compression)
            )
    fetched = Fetched(file, ranges)
    try:
        for chunk, (start, end) in zip(measured, ranges, strict=True):
            _measure(chunk, fetched, start, end, limits)
        for first in range(0, len(measured), len(columns) or 1):
            group_of = measured[first : first + len(columns)]
            pages = sum(chunk.largest_page + 2 * chunk.dictionary for chunk in group_of)
            limits.check_indivisible(pages, "a page of each column")
            lists = [
                (chunk, start, end)
                for chunk, (start, end) in zip(group_of, ranges[first:], strict=False)
                if chunk.repeated
            ]
            if sum(chunk.values * chunk.of_value for chunk, _, _ in lists) > INDIVISIBLE:
                limits.check_indivisible(8 * group_of[0].rows, "the beginnings of lists")
                for chunk, start, end in lists:
                    levels = schema[group_of.index(chunk)].max_repetition_level
                    chunk.starts = row_starts(fetched, chunk, start, end, levels)
                limits.check_indivisible(
                    sum(chunk.values_in(1) * chunk.of_value for chunk, _, _ in lists), "a row of lists"
                )
    except BaseException:
        fetched.release()
        raise
    return fetched, measured


def _measure(chunk: Chunk, fetched: Fetched, start: int, end: int, limits: Limits) -> None:
    for header, place in _headers(fetched, start, end):
        decoded = header.get(2, 0)
        limits.add_pages(decoded)
        chunk.largest_page = max(chunk.largest_page, decoded)
        if 7 in header:
            chunk.dictionary += decoded
            if chunk.width is None:
                chunk.entries, chunk.longest = header[7].get(1, 0), decoded
                chunk.stored = place, header.get(3, 0)
            continue
        data = header.get(5) or header.get(8) or {}
        values = data.get(1, 0)
        encoding = data.get(4 if 8 in header else 2, 0)
        chunk.values += values
        if chunk.width is None and encoding not in _DICTIONARIES:
            chunk.pages.append((values, decoded, encoding == _DELTA_BYTES))


def row_starts(fetched: Fetched, chunk: Chunk, start: int, end: int, levels: int) -> np.ndarray:
    """`Chunk.starts`: a row begins where nothing is repeated. Raises ValueError where that cannot be seen."""
    found, before = array("q"), 0
    for header, place in _headers(fetched, start, end):
        data = header.get(5) or header.get(8)
        if data is None:
            continue
        page = fetched.at(place, data[6] if 8 in header else header.get(3, 0))
        if 8 not in header:
            codec = _CODECS.get(chunk.compression)
            if codec is not None:
                page = pa.Codec(codec).decompress(page, header.get(2, 0), asbytes=True)
            elif chunk.compression != "UNCOMPRESSED":
                raise ValueError(f"lists as long as these are not read from {chunk.compression}; write them with zstd")
            if data.get(4, 0) != _RUNS:
                raise ValueError("lists as long as these are only read where their levels are in runs")
            page = page[4 : 4 + int.from_bytes(page[:4], "little")]
        _add_starts(found, page, data.get(1, 0), levels.bit_length(), before, chunk.rows)
        before += data.get(1, 0)
        if len(found) > chunk.rows:
            raise ValueError("there are more rows than the footer says")
    found.append(before)
    return np.frombuffer(found, np.int64)


def _add_starts(found: array[int], levels: bytes, count: int, width: int, before: int, rows: int) -> None:
    """The places of zeros among so many numbers, which are written as runs of one and in groups of eight."""
    place, done = 0, before
    last = before + count
    while done < last:
        header, place = _varint(levels, place)
        if header & 1:
            size = (header >> 1) * width
            if width == 1 and size < _FEW:
                for byte in levels[place : place + size]:
                    found.extend([done + at for at in _ZEROS[byte] if done + at < last])
                    done += 8
            else:
                bits = np.unpackbits(np.frombuffer(levels, np.uint8, size, place), bitorder="little")
                zeros = np.flatnonzero(~bits.reshape(-1, width).any(axis=1)) + done
                found.frombytes(zeros[zeros < last].astype(np.int64).tobytes())
                done += (header >> 1) * 8
            place += size
        else:
            length = min(header >> 1, last - done)
            if not levels[place]:
                if length > rows:
                    raise ValueError("there are more rows than the footer says")
                found.frombytes(np.arange(done, done + length, dtype=np.int64).tobytes())
            done += length
            place += (width + 7) // 8
        if header < 2:
            raise ValueError("a run of nothing")


def longest_of_short(fetched: Fetched, chunk: Chunk) -> int | None:
    """How long the longest text of a dictionary is, where all are shorter than 256 bytes; None where that is not seen.

    Then three bytes of each length are 0, and no text has three of them one after the other.
    """
    page = fetched.at(*chunk.stored)
    codec = _CODECS.get(chunk.compression)
    if codec is not None:
        page = pa.Codec(codec).decompress(page, chunk.dictionary, asbytes=True)
    data = np.frombuffer(page, np.uint8)
    if len(data) < 4:
        return None
    zero = data == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    lengths = data[starts].astype(np.int64)
    ends = starts + 4 + lengths
    # each begins where the one before it ends, so these are all there are
    if len(starts) == chunk.entries and starts[0] == 0 and ends[-1] == len(data) and (ends[:-1] == starts[1:]).all():
        return int(lengths.max())
    return None


def _headers(fetched: Fetched, start: int, end: int) -> Iterator[tuple[dict[int, Any], int]]:
    """The headers of the pages of a chunk, as trees of their numbers, and where their contents begin."""
    while start < end:
        size = _HEADER
        while True:
            data = fetched.at(start, min(size, end - start))
            try:
                header, length = _struct(data, 0)
                break
            except IndexError:
                if len(data) < size:  # old writers say more than there is: what is left is no page
                    return
                size *= 8
        if min(header.get(2, 0), header.get(3, 0)) < 0:
            raise ValueError("a page has a negative size")
        yield header, start + length
        start += length + header.get(3, 0)


def _struct(data: bytes, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A struct in Thrift's compact form: its whole numbers and structs, by number. Raises IndexError."""
    if depth > 4:
        raise ValueError("a page has no header")
    found: dict[int, Any] = {}
    number = 0
    while kind := data[place] & 0x0F:
        delta = data[place] >> 4
        place += 1
        if delta:
            number += delta
        else:
            number, place = _number(data, place)
        if kind in (4, 5, 6):  # i16, i32, i64
            found[number], place = _number(data, place)
        elif kind == 8:  # binary
            length, place = _varint(data, place)
            place += length
        elif kind == 12:
            found[number], place = _struct(data, place, depth + 1)
        elif kind in (3, 7):  # byte, double
            place += 1 if kind == 3 else 8
        elif kind not in (1, 2):  # true, false: there is nothing more of them
            raise ValueError("a page has no header")
    return found, place + 1


def _number(data: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a page has no header")
