"""The pages of a Parquet row group, measured as they are stored before anything decodes them.

What the footer says of sizes is a claim; a decoder allocates what the header of each page says. A page of a few bytes
may stand for gigabytes: compressed zeros, runs of one value, texts that repeat the text before them.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from queue_source.formats.typed.limits import INDIVISIBLE, Limits
from queue_source.formats.typed.parquet_bytes import Fetched, Stored, Whole
from queue_source.formats.typed.parquet_thrift import DICTIONARY, V1, V2, Page, RowGroup, page_header, varint
from queue_source.storage.files import ObjectFile

_HEADER = 256
_LARGEST = (1 << 31) - 1  # bytes of a page: of a larger number a decoder would take the lower bits
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 20, "FLOAT": 4, "DOUBLE": 8}
_DICTIONARIES = (2, 8)  # encodings PLAIN_DICTIONARY, RLE_DICTIONARY
_UNCOMPRESSED = 0
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_OTHER_CODECS = {3: "LZO", 5: "LZ4"}
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
    codec: int
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


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of values of the file.

    Attributes:
        width: Bytes of a decoded value; None for values that have a length each.
        levels: How many lists it is within.
    """

    number: int
    path: str
    physical: str
    width: int | None
    levels: int


def leaves(schema: pq.ParquetSchema, wanted: Sequence[str]) -> list[Leaf]:
    """The columns of values that belong to the wanted columns."""
    names = set(wanted)
    found = []
    for number in range(len(schema)):
        column = schema.column(number)
        path, physical = column.path, column.physical_type
        if path in names or ("." in path and _top(path, names)):
            width = column.length if physical == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(physical)
            found.append(Leaf(number, path, physical, width, column.max_repetition_level))
    return found


def _top(path: str, names: set[str]) -> bool:
    """Whether a path is one below a wanted column; a column's name may have dots."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in names for n in range(1, len(parts)))


def fetch(
    file: ObjectFile | Whole, groups: Mapping[int, RowGroup], columns: Sequence[Leaf], limits: Limits
) -> tuple[Stored, list[Chunk]]:
    """The chunks of some groups, and what is in them. Raises BadObject for pages that need too much memory."""
    ranges, measured = [], []
    length = file.size()
    for number, group in groups.items():
        for leaf in columns:
            column = group.column(leaf.number)
            start, size = column.start, column.stored
            if start < 0 or size < 0 or start + size > length:
                raise ValueError("a column lies beyond the end of the object")
            ranges.append((start, start + size))
            measured.append(Chunk(number, leaf.path, leaf.width, leaf.levels > 0, group.rows, column.codec))
    stored: Stored = file if isinstance(file, Whole) else Fetched(file, ranges)
    try:
        for chunk, (start, end) in zip(measured, ranges, strict=True):
            _measure(chunk, stored, start, end, limits)
            if not chunk.repeated and chunk.values != chunk.rows:  # a decoder would leave out what is beyond the rows
                raise ValueError(f"column {chunk.path!r} has {chunk.values} values for {chunk.rows} rows")
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
                    levels = columns[group_of.index(chunk)].levels
                    chunk.starts = row_starts(stored, chunk, start, end, levels)
                limits.check_indivisible(
                    sum(chunk.values_in(1) * chunk.of_value for chunk, _, _ in lists), "a row of lists"
                )
    except BaseException:
        stored.release()
        raise
    return stored, measured


def _measure(chunk: Chunk, stored: Stored, start: int, end: int, limits: Limits) -> None:
    largest = values = 0
    for (kind, decoded, size, count, encoding, _), place in _pages(stored, start, end):
        limits.add_pages(decoded)
        if decoded > largest:
            largest = decoded
        if kind == DICTIONARY:
            chunk.dictionary += decoded
            if chunk.width is None:
                chunk.entries, chunk.longest = count, decoded
                chunk.stored = place, size
        elif kind in (V1, V2):
            values += count
            if chunk.width is None and encoding not in _DICTIONARIES:
                chunk.pages.append((count, decoded, encoding == _DELTA_BYTES))
    chunk.largest_page, chunk.values = largest, values


def row_starts(stored: Stored, chunk: Chunk, start: int, end: int, levels: int) -> np.ndarray:
    """`Chunk.starts`: a row begins where nothing is repeated. Raises ValueError where that cannot be seen."""
    found, before = array("q"), 0
    for page, place in _pages(stored, start, end):
        if page.kind not in (V1, V2):
            continue
        data = stored.at(place, page.stored if page.kind == V1 else page.levels)
        if page.kind == V1:
            if chunk.codec in _CODECS:
                data = pa.Codec(_CODECS[chunk.codec]).decompress(data, page.decoded, asbytes=True)
            elif chunk.codec != _UNCOMPRESSED:
                name = _OTHER_CODECS.get(chunk.codec, f"codec {chunk.codec}")
                raise ValueError(f"lists as long as these are not read from {name}; write them with zstd")
            if page.levels != _RUNS:
                raise ValueError("lists as long as these are only read where their levels are in runs")
            data = data[4 : 4 + int.from_bytes(data[:4], "little")]
        _add_starts(found, data, page.values, levels.bit_length(), before, chunk.rows)
        before += page.values
        if len(found) > chunk.rows:
            raise ValueError("there are more rows than the footer says")
    found.append(before)
    return np.frombuffer(found, np.int64)


def _add_starts(found: array[int], levels: bytes, count: int, width: int, before: int, rows: int) -> None:
    """The places of zeros among so many numbers, which are written as runs of one and in groups of eight."""
    place, done = 0, before
    last = before + count
    while done < last:
        header, place = varint(levels, place)
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


def longest_of_short(stored: Stored, chunk: Chunk) -> int | None:
    """How long the longest text of a dictionary is, where all are of one length, or shorter than 256 bytes; or None.

    Of short texts three bytes of each length are 0, and no text has three of them one after the other.
    """
    page = stored.at(*chunk.stored)
    if chunk.codec in _CODECS:
        page = pa.Codec(_CODECS[chunk.codec]).decompress(page, chunk.dictionary, asbytes=True)
    data = np.frombuffer(page, np.uint8)
    if len(data) < 4:
        return None
    size, rest = divmod(len(data), chunk.entries)
    if not rest and size >= 4:  # all may be as long as each other, which is quicker to see
        lengths = np.ndarray((chunk.entries,), "<u4", data, strides=(size,))
        if (lengths == size - 4).all():
            return size - 4
    zero = data == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    lengths = data[starts].astype(np.int64)
    ends = starts + 4 + lengths
    # each begins where the one before it ends, so these are all there are
    if len(starts) == chunk.entries and starts[0] == 0 and ends[-1] == len(data) and (ends[:-1] == starts[1:]).all():
        return int(lengths.max())
    return None


def _pages(stored: Stored, start: int, end: int) -> Iterator[tuple[Page, int]]:
    """The pages of a chunk, and where their contents begin."""
    while start < end:
        size = _HEADER
        while True:
            data = stored.at(start, min(size, end - start))
            try:
                page, length = page_header(data)
                break
            except IndexError:
                if len(data) < size:  # old writers say more than there is: what is left is no page
                    return
                size *= 8
        if not (0 <= page.stored <= _LARGEST and 0 <= page.decoded <= _LARGEST):
            raise ValueError("a page has a size that no page has")
        yield page, start + length
        start += length + page.stored
