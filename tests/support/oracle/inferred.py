"""Relation (k): the types that are inferred are those that Spark infers, but for what is meant to differ.

Each column of an object is inferred by itself, so that an object of many columns is as many cases in one job of Spark.
What Spark has inferred also reads the object, cell by cell, as `spark.py` compares it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from queue_source.errors import OptionError
from queue_source.options import parse_reader_options
from queue_source.schema.columns import format_columns, format_type
from queue_source.schema.sampling import inferred_columns
from shard_store.model import Content, Payload
from support.oracle import cases
from support.oracle import values as v
from support.oracle.cases import TEXTUAL, Case
from support.oracle.counting import Draw, edges, one_of_these, pick, reached
from support.oracle.differences import excuse
from support.oracle.differs import Differs
from support.oracle.results import Result
from support.oracle.rows import Broken, Found
from support.oracle.spark import compared, the_reader
from support.oracle.typed import MARKED, Made, NotWritten
from support.sessions import LEAST

NAME = "inferred-as-spark"
_COLUMNS = 40
_NO_COLUMN = "none"
Inferred = list[tuple[str, pa.DataType]]


@dataclass(frozen=True)
class Columns:
    """Columns of texts (csv) or of values of JSON, by their names; or a file of a format with types."""

    file_format: str
    columns: tuple[tuple[str, ...], ...] = ()
    names: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    made: Made | None = None

    @property
    def case(self) -> Case:
        options = {**self.options, **({"header": "true"} if self.file_format == "csv" else {})}
        return Case(self.file_format, None, options, self._content(), made=self.made)

    def _content(self) -> bytes:
        rows = [*zip(*self.columns, strict=True)]
        if self.file_format == "csv":
            lines = [",".join(self.names), *(",".join(row) for row in rows)]
        else:
            lines = [
                "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in zip(self.names, row, strict=True)) + "}"
                for row in rows
            ]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")

    def only(self, name: str) -> Columns:
        """The same with one of its columns."""
        if self.made is not None or name not in self.names:
            return self
        at = self.names.index(name)
        return Columns(self.file_format, (self.columns[at],), (name,), self.options)

    def count(self) -> None:
        reached(f"inferred as by Spark: {self.file_format}")


# --- what is drawn ---

_ZONE = "Europe/Berlin"
_PLAIN_JSON = ("0", "1", "-1", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
               "1" + "0" * 37, "9" * 38, "1" + "0" * 38, "1" + "0" * 400, "1.0", "0.1", "-0", "-0.0", "1e5", "1E+2",
               "1e400", "1e-400", "123456789012345678901.5", "0.12345678901234567890123", "true", "false", "null",
               "null", '""', '"x"', '"1"', '"true"', '"null"', '"2024-02-29"', '"2024-01-02T03:04:05"',
               '"2024-01-02T03:04:05.123Z"', '"NaN"', "{}", "[]", "[null]", "[{}]", "[[]]")  # fmt: skip


def _json_values() -> v.Strategy:
    plain = edges("inferred json", plain=st.sampled_from(_PLAIN_JSON), whole=st.integers(-(1 << 70), 1 << 70).map(str))

    def wrap(inner: v.Strategy) -> v.Strategy:
        lists = st.lists(inner, max_size=2).map(lambda some: f"[{','.join(some)}]")
        keys = st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True)
        objects = keys.flatmap(lambda names: st.tuples(*[st.tuples(st.just(name), inner) for name in names]))
        texts = objects.map(lambda pairs: "{" + ",".join(f'"{name}":{text}' for name, text in pairs) + "}")
        return edges("inferred json", array=lists, object=texts)

    return st.one_of(plain, plain, wrap(plain), wrap(wrap(plain)))


_JSON = _json_values()


def _csv_value(draw: Draw, kinds: Sequence[pa.DataType]) -> str:
    way = pick(draw, "inferred csv", *["value"] * 5, "well", "nothing", "text")
    kind = draw(one_of_these(tuple(kinds)))
    if way == "nothing":
        return ""
    text = draw(v.texts() if way == "text" else (v.spelled if way == "value" else v.well_spelled)(kind, _ZONE))
    return "".join(c for c in text if c not in '",\\\n\r')


@st.composite
def strategy(draw: Draw) -> Columns:
    file_format = draw(one_of_these(("csv", "csv", "csv", "json", "json", "json", "parquet", "orc", "avro")))
    if file_format == "parquet" and pick(draw, "inferred parquet", "of rows", "marked") == "marked":
        marks = draw(one_of_these((("INTERVAL",), tuple(mark for mark in MARKED if mark != "INTERVAL"))))
        ddl, row = ", ".join(f"`{mark}` STRING" for mark in marks), tuple(draw(v.texts()) for _ in marks)
        return Columns("parquet", made=Made("parquet-mr", ddl, (row,)))
    if file_format not in ("csv", "json"):
        made = cases.typed_files(draw, file_format, 1)[0].made
        return Columns(file_format, made=made)
    some, rows = [], draw(one_of_these((1, 2, 3)))
    for _ in range(_COLUMNS):
        if file_format == "json":
            some.append(tuple(draw(_JSON) for _ in range(rows)))
            continue
        kinds = [draw(v.types(nested=False)) for _ in range(draw(one_of_these((1, 1, 1, 2))))]
        some.append(tuple(_csv_value(draw, kinds) for _ in range(rows)))
    names = [f"c{at}" for at in range(_COLUMNS - 1)]
    names.append(draw(v.names(1))[0] if file_format == "json" else "z")
    options: dict[str, str] = {}
    if file_format == "csv" and draw(one_of_these((False, False, True))):
        wanted = {"nullValue", "nanValue", "positiveInf", "negativeInf", "dateFormat", "timestampFormat"}
        options = cases.some_options(draw, "csv", [name for name in cases.OPTIONS["csv"] if name not in wanted])
    return Columns(file_format, tuple(some), tuple(names), options)


# --- what is checked ---


def check(some: Columns) -> None:
    """Raises Broken for the first difference."""
    for broken in _broken(some):
        raise broken


def _broken(some: Columns) -> Iterator[Broken]:
    case = some.case
    theirs, ours = the_reader().inferred(case), here(case)
    for name, their, our in _differing(theirs, ours):
        one = some.only(name)
        differs = Differs(one.case, Found(), Found(), "type", their=their, our=our)
        if (row := excuse(differs)) is None:
            yield Broken(NAME, one, differs.kind, f"{name}: Spark {their}, here {our}")
        else:
            reached(f"difference: {row}")
    if case.file_format not in TEXTUAL or not theirs:
        return
    ddl = format_columns(pa.schema([(name, kind) for name, kind in theirs if name != cases.CORRUPT]))
    declared = Case(case.file_format, ddl, {**case.options, "timeZone": "UTC"}, case.content)
    if cases.is_taken(declared) and (broken := compared([declared])[0]) is not None:
        yield Broken(NAME, some, f"reading: {broken.kind}", f"{ddl}\n{broken.detail}")


def one_round(seed: int, rounds: int, result: Result, until: float | None) -> list[Broken]:
    """Compare so many objects; of each new kind of failure keep and return the first, of as few rows as break it."""
    found: list[Broken] = []

    @with_seed(seed)
    @settings(
        max_examples=rounds, deadline=None, database=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy())
    def tried(some: Columns) -> None:
        if until is not None and time.monotonic() > until:
            return
        try:
            broken_ones = [*_broken(some)]
        except NotWritten:
            reject()
        result.tried[NAME] += max(len(some.names), 1)
        some.count()
        for broken in broken_ones:
            key = (NAME, broken.kind)
            result.seen[key] += 1
            if key not in result.broken:
                found.append(_smaller(broken))
                result.broken[key] = found[-1]

    with suppress(FlakyFailure):
        tried()
    return found


def _smaller(broken: Broken) -> Broken:
    """The failure with fewer rows, as far as one after another can go."""
    some = broken.case
    assert isinstance(some, Columns)
    for at in reversed(range(len(some.columns[0]) if some.columns else 0)):
        less = replace(some, columns=tuple(column[:at] + column[at + 1 :] for column in some.columns))
        if smaller := next((one for one in _broken(less) if one.kind == broken.kind), None):
            some, broken = less, smaller
    return broken


def _differing(theirs: Inferred, ours: Inferred) -> list[tuple[str, str, str]]:
    """The columns of other types: the name, Spark's type and ours."""
    spark, own = ({name: _shown(kind) for name, kind in side} for side in (theirs, ours))
    pairs = [(name, spark.get(name, _NO_COLUMN), own.get(name, _NO_COLUMN)) for name in dict.fromkeys([*spark, *own])]
    return [(name, their, our) for name, their, our in pairs if their != our]


def here(case: Case) -> Inferred:
    """The columns that are inferred here, without those of our own."""
    given = {**LEAST, "fileFormat": case.file_format, "schemaLocation": tempfile.gettempdir(), **case.options}
    if case.file_format in ("csv", "json"):
        given["inferColumnTypes"] = "true"
    content, problems = parse_reader_options(given).content, list[str]()
    sample = Content("s3://bucket/object", "s3://bucket/object", payload=Payload(case.bytes, ""))
    try:
        schema = inferred_columns(content, [sample], problems, lambda tried: OptionError("nothing", tried))
    except OptionError:
        return []
    return [(column.name, column.type) for column in schema]


def _shown(kind: pa.DataType) -> str:
    """The type; the fields of structs in the order of their names, since JSON has none."""
    if pa.types.is_struct(kind):
        parts = sorted((kind.field(at).name, _shown(kind.field(at).type)) for at in range(kind.num_fields))
        return f"STRUCT<{', '.join(f'{name}: {part}' for name, part in parts)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_shown(kind.value_type)}>"
    return format_type(kind)
