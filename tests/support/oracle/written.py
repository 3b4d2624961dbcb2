"""Relation (l): a file of a format with types gives the values that were written, exactly, or is a bad object.

What is expected is made of the values themselves, one by one, in Python. Where a type has no room for a value the
object is bad; it is never bad where the columns are declared as they were written, but for what Spark has no years for.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from queue_source.schema.columns import format_columns
from support.oracle import cases
from support.oracle.cases import Case
from support.oracle.counting import Draw, one_of_these, reached
from support.oracle.rows import Broken, Found, cells, difference, read
from support.oracle.values import arrow_values

NAME = "typed-is-as-written"


class NoRoom(Exception):
    """A type has no room for a value."""


@st.composite
def strategy(draw: Draw) -> Case:
    file_format = draw(one_of_these(("parquet", "parquet", "orc", "avro")))
    return draw(cases.typed_cases(file_format))  # type: ignore[no-any-return]


def check(case: Case) -> None:
    made, found = case.made, read(case)
    assert made is not None
    if case.file_format == "orc" and any(map(_is_early, made.rows)):
        return  # pyarrow does not mark its calendar, and ORC's own one is that of before 1582
    if found.failure:
        reached(f"typed, the end: {found.failure}")
        _check_failure(case, found)
        return
    data = case.data
    written = {column.name: (at, column.type) for at, column in enumerate(made.schema)}
    folded = {name.casefold(): name for name in written}
    columns = []
    for column in data:
        name = column.name if column.name in written else folded.get(column.name.casefold())
        if case.options.get("readerCaseSensitive") == "true" and column.name not in written:
            name = None
        at, kind = written[name] if name is not None else (0, pa.null())
        try:
            values = [None if name is None else _converted(row[at], kind, column.type) for row in made.rows]
        except NoRoom as error:
            raise Broken(
                NAME, case, f"{case.file_format}: a value without room is read", f"{error}\n{found}"
            ) from error
        columns.append(cells(arrow_values(column.type, values)))
    expected = Found(tuple(zip(*columns, strict=True)))
    places = [case.schema.names.index(name) for name in data.names]
    shown = replace(found, rows=tuple(tuple(row[at] for at in places) for row in found.rows))
    own = replace(case, ddl=format_columns(data))
    kind_of, detail = difference(own, expected, shown)
    reached("typed, the end: read")
    if kind_of:
        raise Broken(NAME, case, kind_of, f"written or read: {detail}")


_START_OF_1900 = -25_567
"""In days since 1970."""


def _is_early(value: Any) -> bool:
    """Whether there may be a day, or a moment, before 1900 in it."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return any(map(_is_early, value))
    return isinstance(value, int) and value < _START_OF_1900


_SOUND = {"dictionary", "inner dictionary", "large", "large binary", "duration", "decimal256", "uint8", "uint16",
          "uint32", "uint64"}  # fmt: skip
"""How columns may be stored without a value becoming one that is none."""


def _check_failure(case: Case, found: Found) -> None:
    """A file that is declared as it was written, with values of the years that there are, is not bad."""
    made = case.made
    assert made is not None
    types, stored = {column.name: column.type for column in made.schema}, made.stored.values()
    if any(types.get(column.name) != column.type for column in case.data):
        return
    if case.options.get("readerCaseSensitive") == "true":
        return
    if "years" in found.detail or "nanosecond resolution" in found.detail or not _SOUND.issuperset(stored):
        return
    raise Broken(NAME, case, f"{case.file_format}: bad as it was written", found.detail)


def _converted(value: Any, kind: pa.DataType, target: pa.DataType) -> Any:
    """The value in another type, as `arrow_values` takes it. Raises NoRoom."""
    if value is None:
        return None
    if pt.is_struct(target):
        parts = {part.name: part.type for part in kind}
        folded = {name.casefold(): name for name in parts}
        names = {part.name: part.name if part.name in parts else folded.get(part.name.casefold()) for part in target}
        return {
            part.name: None
            if (name := names[part.name]) is None
            else _converted(value.get(name), parts[name], part.type)
            for part in target
        }
    if pt.is_list(target):
        return [_converted(item, kind.value_type, target.value_type) for item in value]
    if pt.is_map(target):
        return [(key, _converted(item, kind.item_type, target.item_type)) for key, item in value]
    if kind == target:
        return value
    if pt.is_integer(target) and not -(1 << (target.bit_width - 1)) <= value < 1 << (target.bit_width - 1):
        raise NoRoom(f"{value} into {target}")
    if pt.is_decimal(target):
        return _decimal(Decimal(value), target)
    if pt.is_floating(target):
        return _float(value, target)
    if pt.is_string(target) and isinstance(value, bytes):
        return value.decode()
    if pt.is_binary(target) and isinstance(value, str):
        return value.encode()
    if pt.is_timestamp(target) and pt.is_date(kind):
        return value * 86_400_000_000
    if pt.is_date(target) and pt.is_timestamp(kind):
        raise NoRoom(f"{kind} into {target}")
    return value


def _decimal(value: Decimal, target: pa.DataType) -> Decimal:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number, shift = int("".join(map(str, digits))), exponent + target.scale
    if shift < 0 and number % 10**-shift:
        raise NoRoom(f"{value} into {target}")
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    if number >= 10**target.precision:
        raise NoRoom(f"{value} into {target}")
    return Decimal((sign, tuple(map(int, str(number))), -target.scale))


def _float(value: Any, target: pa.DataType) -> float:
    number = float(value)
    if isinstance(value, int) and int(number) != value:
        raise NoRoom(f"{value} into {target}")
    narrow = pa.scalar(number, pa.float64()).cast(target).as_py()
    if not math.isnan(number) and narrow != number:
        raise NoRoom(f"{value} into {target}")
    return number
