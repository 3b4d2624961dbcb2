"""A difference between Spark's reading of an object and ours, and what can be asked of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pt

from queue_source.schema.columns import format_columns
from support.oracle.cases import TEXTUAL, Case
from support.oracle.rows import Found, general, read


@dataclass(frozen=True)
class Differs:
    """A difference of the object as a whole, of how many rows it has, of a cell, or of an inferred type."""

    case: Case
    theirs: Found
    ours: Found
    what: str
    row: int = -1
    field: pa.Field | None = None
    their: str = ""
    our: str = ""

    @property
    def kind(self) -> str:
        """The same for what has the same cause, as far as that can be told."""
        start = f"{self.case.file_format}: "
        if self.what == "object":
            return f"{start}Spark {self.theirs.failure or 'reads'}, here {self.ours.failure or 'read'}"
        if self.what == "rows":
            return f"{start}{'more' if len(self.ours.rows) > len(self.theirs.rows) else 'fewer'} rows here"
        if self.what == "type":
            return f"{start}{_general(self.their)} in Spark, {_general(self.our)} here"
        assert self.field is not None
        kind = "corrupt" if self.is_corrupt else general(self.field.type)
        if "null" in (self.their, self.our):
            return f"{start}{kind}, null {'in Spark' if self.their == 'null' else 'here'}"
        return f"{start}{kind}, another value"

    @property
    def shown(self) -> str:
        return f"{self.field.name if self.field is not None else ''}: Spark {self.their}, here {self.our}"

    @property
    def is_corrupt(self) -> bool:
        """Whether the column of corrupt records differs."""
        return self.field is not None and self.field.name not in self.case.data.names

    @cached_property
    def text(self) -> str:
        """The object's text."""
        data = self.case.bytes if self.case.file_format in TEXTUAL else b""
        with suppress(UnicodeError):
            return data.decode(self.case.options.get("encoding", "UTF-8")).removeprefix("\ufeff")
        return data.decode("utf-8", "replace").removeprefix("\ufeff")

    @cached_property
    def reasons(self) -> str:
        """Why something of it is bad here. Where all of it is, a column of corrupt records makes its records tell."""
        found, case = self.ours, self.case
        corrupt = case.parsed.column_name_of_corrupt_record
        if found.failure and case.file_format in ("csv", "json") and corrupt not in case.schema.names:
            columns = [*case.schema, pa.field(corrupt, pa.string())]
            found = read(replace(case, ddl=format_columns(columns)))
        return "\n".join([*(reason for _, reason in found.bad), found.detail, self.ours.detail])

    @cached_property
    def types(self) -> list[pa.DataType]:
        """The types that may have to do with it: of the cell, or of all columns."""
        if self.field is not None and not self.is_corrupt:
            return list(all_types(self.field.type))
        return [kind for column in self.case.data for kind in all_types(column.type)]

    @property
    def nothing_in_spark(self) -> bool:
        """Whether Spark has rows without values."""
        data = [at for at, name in enumerate(self.case.schema.names) if name in self.case.data.names]
        return all(row[at] == "null" for row in self.theirs.rows for at in data)


def _general(ddl: str) -> str:
    """A type without its parts and parameters."""
    return re.split(r"[<(]", ddl)[0]


def all_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The type and those of its parts."""
    yield kind
    for at in range(kind.num_fields):
        yield from all_types(kind.field(at).type)


def all_names(kind: pa.DataType) -> Iterator[str]:
    if pt.is_struct(kind):
        for field in kind:
            yield field.name
    for at in range(kind.num_fields):
        yield from all_names(kind.field(at).type)


Excuse = Callable[[Differs], bool]
"""Whether a difference is one that is meant."""


def formats(*names: str) -> Excuse:
    return lambda d: d.case.file_format in names


def said(pattern: str) -> Excuse:
    """Bad here, for such a reason."""
    return lambda d: re.search(pattern, d.reasons) is not None


def text(pattern: str) -> Excuse:
    return lambda d: re.search(pattern, d.text) is not None


def of_type(question: Callable[[pa.DataType], bool]) -> Excuse:
    return lambda d: any(map(question, d.types))


def option(name: str, *values: str) -> Excuse:
    return lambda d: name in d.case.options and (not values or d.case.options[name] in values)


def every(*excuses: Excuse) -> Excuse:
    return lambda d: all(excuse(d) for excuse in excuses)


def either(*excuses: Excuse) -> Excuse:
    return lambda d: any(excuse(d) for excuse in excuses)


def null_here(d: Differs) -> bool:
    """Whether there is less here."""
    return d.what != "cell" or d.is_corrupt or "null" in d.our or (d.our[0] in "[{" and len(d.our) < len(d.their))


def null_in_spark(d: Differs) -> bool:
    """Whether there is less in Spark."""
    return d.what != "cell" or d.is_corrupt or "null" in d.their


def is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def is_time(kind: pa.DataType) -> bool:
    return bool(pt.is_temporal(kind))


_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*:""")


def keys(data: str) -> set[str]:
    """What may be keys of JSON in a text."""
    found = set()
    for quoted in _KEY.findall(data):
        with suppress(ValueError):
            found.add(json.loads(quoted if quoted[0] == '"' else f'"{quoted[1:-1]}"', strict=False))
    return found


def other_case(d: Differs) -> bool:
    """Whether a key differs from a declared name in case alone."""
    names = set(d.case.data.names) | {name for field in d.case.data for name in all_names(field.type)}
    folded = {name.casefold() for name in names}
    return any(key not in names and key.casefold() in folded for key in keys(d.text))
