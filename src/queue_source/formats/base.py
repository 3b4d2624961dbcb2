"""The interface of a file format: an object for each, loaded when it is first named.

A new format is a module with a `Format`, and a line in `FORMATS` of `options/content.py`. Nothing else asks for the
name of a format. What all readers share is here too: bad records and their reports, and how many items are read at once
while the few unusual ones among them are isolated.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.types as pt

from queue_source.errors import BadObject, OptionError
from queue_source.formats.metadata import METADATA_COLUMN, check_metadata_field
from queue_source.formats.types import inner_types, is_plain, is_text, shorten, special_struct
from queue_source.messages import MESSAGE_URI
from queue_source.options import ContentOptions
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FORMATS, FormatOptions
from queue_source.storage.memory import usual_limit
from queue_source.storage.open_files import InMemory, ObjectFile

if TYPE_CHECKING:
    from queue_source.formats.text.records import RecordReader

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")

_INSTEAD = {
    "VARIANT": "declare the column STRING, and parse it with parse_json",
    "GEOMETRY": "declare the column BINARY, and parse it with st_geomfromwkb",
    "GEOGRAPHY": "declare the column BINARY, and parse it with st_geogfromwkb",
}

MAX_REPORTED = 20
"""Bad records of one object that are reported one by one."""
_KEPT_BYTES = 65_536
_OF_MESSAGE = 1_000, 4 << 20  # the same of a message, whose body nothing else keeps


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One bad record: `offset` is where it begins (byte, decompressed), `record` its first bytes of `size`."""

    offset: int
    reason: str
    record: bytes
    size: int


class BadRecords:
    """Collects the bad records of one object (or part), in their order.

    Attributes:
        member: Of an archive, the member that is read; None elsewhere.
        before: Bytes of the members before this one, unpacked.
    """

    def __init__(self, mode: str, *, of_message: bool = False) -> None:
        self._most, self._kept = _OF_MESSAGE if of_message else (MAX_REPORTED, _KEPT_BYTES)
        self.keeps = mode == "PERMISSIVE"
        self.fails = mode == "FAILFAST"
        self.reported: list[BadRecord] = []
        self.count = 0
        self.last = 0
        self.member: str | None = None
        self.before = 0

    def forget(self) -> None:
        """Forget all bad records: the object is read anew."""
        self.reported, self.count, self.last, self.member, self.before = [], 0, 0, None, 0

    def add(self, offset: int, reason: str, record: bytes) -> None:
        """Count a bad record.

        Raises BadObject("corrupt-object") when the first one ends the object (FAILFAST).
        """
        if self.fails:
            raise BadObject("corrupt-object", shorten(f"record at byte {offset}: {reason}"), offset)
        if self.member is not None:
            reason, offset = f"member {self.member!r}, byte {offset}: {reason}", self.before + offset
        self.count += 1
        self.last = offset
        if len(self.reported) < self._most:
            self.reported.append(BadRecord(offset, shorten(reason), record[: self._kept], len(record)))

    @property
    def omitted(self) -> int:
        """The number of bad records that are only counted."""
        return self.count - len(self.reported)


@dataclass(frozen=True, slots=True)
class OpenObject:
    """An object that is open, with its file at the beginning. `size` is in bytes.

    `left_out`: the numbers of members of an archive that are not read; None: those of which there is a later version
    are not known yet, and EarlierVersions may be raised.
    """

    uri: str
    file: ObjectFile
    size: int
    storage: StorageOptions | None = None
    left_out: frozenset[int] | None = frozenset()


class EarlierVersions(Exception):
    """Of some `members` of an archive, by their numbers, there is a later one of the same name: these are not read.

    It is raised behind rows that may be of them: none of these may be used, and the object is read anew without them.
    """

    def __init__(self, members: frozenset[int]) -> None:
        super().__init__(members)
        self.members = members


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of an object that are read; `end` None: to its end.

    The part has the records, row groups (Parquet) or stripes (ORC) that begin in it.
    """

    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of an object. `may_fail_late`: whether the object may turn out bad after the first of them."""

    rows: Iterator[pa.Table]
    may_fail_late: bool


class Format(ABC):
    """A file format: what it can read, and how. Without state; used on the driver and by executors.

    The defaults are those of a format that is read as a whole, an object at a time.
    """

    name: str
    values_are_text = False
    """Whether types are guessed from text: then what has no common type is STRING."""
    has_bad_records = False
    """Whether there may be bad records, which `columnNameOfCorruptRecord` holds."""
    fixed_schema: pa.Schema | None = None
    """The columns of a format that has the same ones in every object."""
    specials: tuple[str, ...] = ()
    """Types of Spark that Arrow has as structs, which the format can fill."""
    has_footer = False
    """Whether reading begins at the end of the object."""
    combines_alone = False
    """Whether `combine` may read a single object, without a check that it has any of the declared columns."""

    def fixed_columns(self, options: FormatOptions) -> pa.Schema | None:
        """Return the columns that every object has under these options; None where they are its own."""
        return self.fixed_schema

    def require_installed(self) -> None:  # noqa: B027 - most formats need nothing more
        """Raise OptionError naming the package where a library is missing. Driver and executors."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise OptionError for columns (those that come from the object) that the format cannot fill. Driver."""
        for column in schema:
            if problem := self.not_fillable(column.type):
                raise OptionError("schema", f"column {column.name!r}: {self.name} cannot fill {problem}")

    def not_fillable(self, kind: pa.DataType) -> str | None:
        """Return the innermost type that the format cannot fill; None when there is none."""
        special = special_struct(kind)
        if special is not None and special not in self.specials:
            return f"{special}; {_INSTEAD[special]}"
        if pt.is_struct(kind) or pt.is_list(kind) or pt.is_map(kind):
            return next((problem for inner in inner_types(kind) if (problem := self.not_fillable(inner))), None)
        return None if is_plain(kind) else str(kind)

    def decode_memory(self, options: FormatOptions) -> int:
        """Return the bytes of memory that decoding an object may take."""
        return options.max_decode_memory or usual_limit()

    def may_be_cut(self, uri: str, options: FormatOptions, *, all_or_nothing: bool) -> bool:
        """Tell whether parts of an object may be read separately.

        `all_or_nothing`: a bad part stops the whole micro-batch.
        """
        return False

    def infer(self, source: OpenObject, options: FormatOptions, limit: int, *, types: bool) -> pa.Schema:
        """Infer the columns of an object, of text from its first `limit` bytes; undetermined types are null.

        `types`: whether to infer the types of text; otherwise all is STRING. Raises BadObject where it cannot be read
        as this format, ValueError for a column that Spark has no type for, and ObjectStoreError.
        """
        assert self.fixed_schema is not None
        return self.fixed_schema

    @abstractmethod
    def open(
        self, source: OpenObject, part: Part, schema: pa.Schema, options: FormatOptions, bad: BadRecords
    ) -> Tables:
        """Read a part of an object in exactly `schema`; bad records go to `bad`. Runs in an executor worker.

        The rows raise BadObject (`wrong-columns`, `corrupt-object`, `object-changed`), and ObjectStoreError when the
        store fails in the middle.
        """

    def combines(self, options: FormatOptions) -> bool:
        """Tell whether small objects may be read as one block."""
        return False

    def combine(self, contents: Sequence[bytes], schema: pa.Schema, options: FormatOptions) -> pa.Table | None:
        """Read small objects as one block; None when one of them is unusual."""
        return None

    def read_body(self, body: bytes, schema: pa.Schema, options: FormatOptions, bad: BadRecords) -> Iterator[pa.Table]:
        """Read the rows of a message's body. Raises as `open`."""
        source = OpenObject("", ObjectFile("", InMemory(body)), len(body))
        return self.open(source, Part(), schema, options, bad).rows

    def body_as_line(self, body: bytes) -> bytes | None:
        """Return the body of a message as a line that can be read among others; None where that is impossible."""
        return None

    def line_reader(self, schema: pa.Schema, options: FormatOptions) -> RecordReader | None:
        """Return a reader of such lines; None when there is none under these options."""
        return None


@cache
def format_named(name: str) -> Format:
    """Return the format of a name that `fileFormat` may have."""
    format: Format = resolve_name(f"queue_source.formats.{FORMATS[name][0]}")
    return format


def format_of(options: FormatOptions) -> Format:
    return format_named(options.file_format)


def may_be_cut(uri: str, content: ContentOptions) -> bool:
    """Tell whether the object may be read in parts: by several tasks, or in several micro-batches.

    Called by the driver, before reading. No part may turn out bad when others do not, unless nothing of the micro-batch
    is published then. An object that is compressed without a suffix in its name is read as a whole with its first part.
    """
    if uri == MESSAGE_URI or content.format is None:
        return False
    return format_of(content.format).may_be_cut(uri, content.format, all_or_nothing=content.stops_at_bad_objects)


def check_schema(schema: pa.Schema, options: FormatOptions) -> None:
    """Refuse, on the driver, a declared schema that the format cannot fill. Raises OptionError naming the column."""
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise OptionError("schema", f"column {name!r} is declared twice")
    check_metadata_field(schema)
    format = format_of(options)
    format.require_installed()
    rescued, corrupt = options.rescued_data_column, options.column_name_of_corrupt_record
    if rescued is not None and rescued not in names:
        raise OptionError("rescuedDataColumn", f"the schema has no column {rescued!r}: add {rescued} STRING to it")
    if rescued is not None and rescued == corrupt:
        raise OptionError("rescuedDataColumn", f"{rescued!r} is also the column of corrupt records; name another")
    for option, name in (
        ("rescuedDataColumn", rescued),
        ("columnNameOfCorruptRecord", corrupt if format.has_bad_records else None),
    ):
        if name in names and not is_text(kind := schema.field(name).type):
            raise OptionError(option, f"column {name!r} is {kind} in the schema; declare it STRING")
    for name in options.partition_columns:
        if name not in names:
            raise OptionError("partitionColumns", f"the schema has no column {name!r}: add it, or leave it out here")
        if not is_plain(schema.field(name).type) or name in (METADATA_COLUMN, corrupt, rescued):
            raise OptionError("partitionColumns", f"column {name!r} cannot come from a path; leave it out here")
    format.check_columns(data := data_schema(schema, options))
    if (alone := options.single_variant_column) is not None:
        columns = [field for field in data if field.name != corrupt]
        if [(field.name, special_struct(field.type)) for field in columns] != [(alone, "VARIANT")]:
            raise OptionError(
                "singleVariantColumn",
                f"makes one column of a record, and the schema has {', '.join(field.name for field in columns)}; leave "
                f".schema(...) out, or declare {alone} VARIANT alone (and {corrupt} STRING)",
            )


def data_schema(schema: pa.Schema, options: FormatOptions) -> pa.Schema:
    """Return the columns that come from the object: all but `_metadata` and those in its path."""
    elsewhere = {METADATA_COLUMN, *options.partition_columns}
    return pa.schema([column for column in schema if column.name not in elsewhere])


def read_in_pieces(
    whole: T, read: Callable[[T], R | None], cut: Callable[[T], Sequence[T]], alone: Callable[[T], Iterable[S]]
) -> Iterator[R | S]:
    """Yield the result of `read` for the whole, or for its pieces in their order; single items go to `alone`.

    `read` returns None for what it cannot read, and `cut` fewer than two pieces where there is nothing to cut.
    """
    result = read(whole)
    if result is not None:
        yield result
        return
    pieces = cut(whole)
    if len(pieces) < 2:
        yield from alone(whole)
        return
    for piece in pieces:
        yield from read_in_pieces(piece, read, cut, alone)


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the two halves of a sequence; one that has a single item stays whole."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else [items]


def neighbours(items: Iterable[tuple[T, int]], max_size: int, max_count: int = sys.maxsize) -> Iterator[Sequence[T]]:
    """Yield items of known sizes in their order, in as few lists as the limits allow; a larger item is alone."""
    some: list[T] = []
    total = 0
    for item, size in items:
        if some and (total + size > max_size or len(some) >= max_count):
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some
