"""Relation (h): what is inferred does not depend on the order, the day or the size of the sample, and drops no column.

What is inferred from some objects also reads them: no record is bad that is good in columns of STRING, and nothing of
it is rescued. Folders of one kind (days, hours, numbers with and without noughts before them) have one type, whichever
of them comes first, and the values of all are read in it.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyarrow.types as pt
from hypothesis import strategies as st

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import BadRecords, format_of
from queue_source.formats.metadata import path_columns
from queue_source.options import ContentOptions, parse_reader_options
from queue_source.schema.columns import common_type, format_type, parse_columns
from queue_source.schema.sampling import inferred_columns
from shard_store.model import Content, Payload
from support.oracle.counting import edges, reached
from support.oracle.rows import Broken, rows_of
from support.oracle.values import Strategy
from support.sessions import LEAST

NAME = "inference-is-of-the-data"


@dataclass(frozen=True)
class Samples:
    """Objects to infer from: records (json), lines (csv; first the header) or types of columns; their folders."""

    file_format: str
    objects: tuple[Any, ...]
    folders: tuple[str, ...]
    family: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def count(self) -> None:
        reached(f"inferred: {self.file_format}", f"folders: {self.family}")

    @property
    def content(self) -> ContentOptions:
        given = {**LEAST, "fileFormat": self.file_format, "schemaLocation": tempfile.gettempdir(), **self.options}
        if self.family:
            given["partitionColumns"] = "p"
        return parse_reader_options(given).content

    def contents(self) -> list[Content]:
        some = []
        for number, one in enumerate(self.objects):
            folder = f"p={self.folders[number % len(self.folders)]}/" if self.family else ""
            uri = f"s3://bucket/{folder}{number}"
            some.append(Content(uri, uri, payload=Payload(_written(self.file_format, one), "")))
        return some


def _written(file_format: str, one: Any) -> bytes:
    if file_format == "json":
        return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in one).encode()
    if file_format == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(one)
        return out.getvalue().encode()
    kinds = {name: parse_columns(f"a {kind}").field(0).type for name, kind in one.items()}
    table = pa.table({name: pa.array([None], kind) for name, kind in kinds.items()})
    made = io.BytesIO()
    (pq if file_format == "parquet" else orc).write_table(table, made)
    return made.getvalue()


# --- what is drawn ---

_KEYS = st.sampled_from(["a", "b", "c", "A", "a b", "ä"])
_TEXTS = (
    "",
    "x",
    "1",
    "01",
    "1.0",
    "1e5",
    "true",
    "2024-02-29",
    "2024-02-30",
    "2024-01-02T03:04:05",
    "NaN",
    "null",
    "-",
    "9223372036854775807",
    "9223372036854775808",
    "1_000",
    "0x1F",
    "Infinity",
    "-0",
    "+1",
    "1.",
    ".5",
    " 1",
    "10000-01-01",
    "0000-01-01",
    "2024-01-01 00:00:00.123456789",
    "24:00",
    "1e400",
    "tRue",
)
_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, 1, -1, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 10**37, 10**38, 10**40, 10**400]),
        st.sampled_from([0.5, 1e300, -0.0, 1e22]),
        st.sampled_from(_TEXTS),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_KEYS, inner, max_size=2)),
    max_leaves=3,
)
_KINDS = st.sampled_from(
    ["INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "DECIMAL(9, 2)", "DECIMAL(38, 10)", "DATE", "BOOLEAN", "TIMESTAMP"]
)


def _objects(file_format: str) -> Strategy:
    if file_format == "json":
        return st.lists(st.dictionaries(_KEYS, _JSON, min_size=1, max_size=3), min_size=1, max_size=3)
    if file_format == "csv":
        names = st.lists(st.sampled_from(["a", "b", "c", "d d"]), min_size=1, max_size=3, unique=True)
        cells = st.one_of(st.sampled_from(_TEXTS), st.sampled_from(_TEXTS[:3]))
        return names.flatmap(
            lambda some: st.lists(st.tuples(*[cells for _ in some]).map(list), min_size=1, max_size=3).map(
                lambda rows: [some, *rows]
            )
        )
    return st.dictionaries(st.sampled_from(["a", "b", "c"]), _KINDS, min_size=1, max_size=3)


def _number(width: int) -> Strategy:
    return st.integers(0, 10**width - 1).map(lambda number: f"{number:0{width}}")


FAMILIES: dict[str, Strategy] = {
    "day": st.integers(1, 31).map(lambda day: f"{day:02}"),
    "day, not padded": st.integers(1, 31).map(str),
    "hour": st.integers(0, 23).map(lambda hour: f"{hour:02}"),
    "year": st.integers(1, 9999).map(lambda year: f"{year:04}"),
    "three digits": _number(3),
    "ten digits": _number(10),
    "eighteen digits": _number(18),
    "number": st.integers(-(1 << 40), 1 << 40).map(str),
    "day as one": st.dates().map(lambda day: f"{day:%Y%m%d}".zfill(8)),
    "date": st.dates().map(lambda day: day.isoformat()),
    "moment": st.datetimes().map(lambda time: time.replace(microsecond=0).isoformat().replace(":", "%3A")),
    "word": st.sampled_from(["de", "at", "no", "NaN", "true", "null", "e1"]).map(lambda word: f"{word}-x"),
}
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def strategy() -> Strategy:
    family = edges("family", **{name.replace(" ", "_").replace(",", ""): st.just(name) for name in FAMILIES})
    folders = family.flatmap(
        lambda name: st.tuples(
            st.just(name), st.lists(st.one_of(*[FAMILIES[name]] * 5, st.just(_NO_VALUE)), min_size=2, max_size=3)
        )
    )

    def of(file_format: str) -> Strategy:
        options = {}
        if file_format in ("csv", "json"):
            options = {"inferColumnTypes": "true"} | ({"header": "true"} if file_format == "csv" else {})
        plain = st.lists(_objects(file_format), min_size=1, max_size=3).map(
            lambda some: Samples(file_format, tuple(some), ("",), "", options)
        )

        def in_folders(drawn: tuple[str, list[str]], one: Any) -> Samples:
            return Samples(file_format, (one,) * len(drawn[1]), tuple(drawn[1]), drawn[0], options)

        return st.one_of(plain, st.builds(in_folders, folders, _objects(file_format)))

    return st.sampled_from(["json", "csv", "parquet", "orc"]).flatmap(of)


# --- what is checked ---


def check(samples: Samples) -> None:
    content, contents = samples.content, samples.contents()
    schema = _inferred(content, contents)
    for others in list(permutations(contents))[1:]:
        _same(samples, "order", schema, _inferred(content, others))
    if isinstance(schema, str):
        if samples.family and not any(isinstance(_inferred(content, [one]), str) for one in contents):
            raise Broken(NAME, samples, f"{_folders(samples)}: each is taken, and all are not", schema)
        return
    for one in contents:
        alone = _inferred(content, [one])
        if isinstance(alone, str):
            raise Broken(NAME, samples, f"{samples.file_format}: one is refused, and all are not", alone)
        _check_within(samples, alone, schema)
    if samples.family:
        _check_folders(samples, content, contents, schema)
    elif samples.file_format in ("csv", "json"):
        _check_reading(samples, content, contents, schema)


def _inferred(content: ContentOptions, contents: Sequence[Content]) -> pa.Schema | str:
    """The columns, or why there are none."""
    problems: list[str] = []
    try:
        return inferred_columns(content, contents, problems, lambda tried: OptionError("nothing", str(problems)))
    except OptionError as error:
        return error.option


def shape(kind: pa.DataType) -> Any:
    """A type without the order of its fields, and the case of their names."""
    if pt.is_struct(kind):
        return sorted(
            (kind.field(at).name.casefold(), repr(shape(kind.field(at).type))) for at in range(kind.num_fields)
        )
    if pt.is_list(kind):
        return ["array of", shape(kind.value_type)]
    return format_type(kind)


def _same(samples: Samples, what: str, one: pa.Schema | str, other: pa.Schema | str) -> None:
    shapes = [some if isinstance(some, str) else shape(pa.struct(list(some))) for some in (one, other)]
    if shapes[0] != shapes[1]:
        raise Broken(NAME, samples, f"{samples.file_format}: {what}", f"{shapes[0]}\n  or\n{shapes[1]}")


def _check_within(samples: Samples, alone: pa.Schema, schema: pa.Schema) -> None:
    """No column of one sample is missing in those of all, and its type is no wider."""
    textual = samples.file_format in ("csv", "json")
    names = {field.name.casefold() for field in schema}
    if missing := [field.name for field in alone if field.name.casefold() not in names]:
        raise Broken(NAME, samples, f"{samples.file_format}: a column is dropped", str(missing))
    if not any(pt.is_nested(field.type) for field in alone) and not _has_nulls(alone, schema):
        both = common_type(pa.struct(list(schema)), pa.struct(list(alone)), textual=textual)
        _same(samples, "a larger sample", schema, pa.schema([both.field(at) for at in range(both.num_fields)]))


def _has_nulls(alone: pa.Schema, schema: pa.Schema) -> bool:
    """Whether a column may be STRING because nothing of it was seen."""
    texts = {field.name.casefold() for field in alone if pt.is_string(field.type)}
    return any(field.name.casefold() in texts and not pt.is_string(field.type) for field in schema)


def _folders(samples: Samples) -> str:
    return "folders, one without a value" if _NO_VALUE in samples.folders else f"folders: {samples.family}"


def _check_folders(samples: Samples, content: ContentOptions, contents: Sequence[Content], schema: pa.Schema) -> None:
    """Each folder alone has the type of all of them, and its value is read in it."""
    assert content.format is not None
    kind = schema.field("p").type
    for one, folder in zip(contents, samples.folders, strict=True):
        alone = _inferred(content, [one])
        assert not isinstance(alone, str)
        if folder != _NO_VALUE and alone.field("p").type != kind:
            detail = f"{folder}: {alone.field('p').type}, with the others {kind}"
            raise Broken(NAME, samples, _folders(samples), detail)
        try:
            value = path_columns(one.uri, schema, content.format)["p"].as_py()
        except BadObject as error:
            raise Broken(NAME, samples, f"folders of {samples.family} are not read", str(error)) from error
        if pt.is_integer(kind) and folder != _NO_VALUE and value != int(folder):
            raise Broken(NAME, samples, f"folders of {samples.family}: another value", f"{folder}: {value}")
        if folder == _NO_VALUE and value is not None:
            raise Broken(NAME, samples, f"folders of {samples.family}: no value", f"{value}")


def _has_name_twice(value: Any) -> bool:
    """Whether an object of json has two names that differ in case alone, of which one has the column."""
    if isinstance(value, dict):
        names = [name.casefold() for name in value]
        return len({*names}) < len(names) or any(map(_has_name_twice, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_name_twice, value))


def _check_reading(samples: Samples, content: ContentOptions, contents: Sequence[Content], schema: pa.Schema) -> None:
    """What is good in columns of STRING is good in those that were inferred, and has its value there."""
    assert content.format is not None
    texts = pa.schema([(field.name, pa.string()) for field in schema])
    for one in contents:
        assert one.payload is not None
        found: list[tuple[str, int, list[dict[str, Any]]]] = []
        for columns in (texts, schema):
            bad = BadRecords("PERMISSIVE")
            whole = pa.schema([*columns, ("_rescued_data", pa.string())])
            try:
                tables = list(format_of(content.format).read_body(one.payload.value, whole, content.format, bad))
            except BadObject as error:
                found.append((error.cause, 0, []))
                continue
            rows = [dict(zip(whole.names, row, strict=True)) for row in rows_of(tables)]
            found.append((bad.reported[0].reason if bad.count else "", bad.count, rows))
        (_, bad_texts, rows_of_texts), (reason, bad_typed, rows) = found
        if bad_typed > bad_texts or (reason and not rows and rows_of_texts):
            raise Broken(NAME, samples, f"{samples.file_format}: does not read its sample", f"{schema}: {reason}")
        for row, text in zip(rows, rows_of_texts, strict=True):
            rescued, rescued_text = row.pop("_rescued_data"), text.pop("_rescued_data")
            if rescued != "null" and rescued_text == "null" and not _has_name_twice(samples.objects):
                raise Broken(NAME, samples, f"{samples.file_format}: data is rescued", f"{schema}: {rescued}")
            nulls = ("null", repr(content.format.null_value))
            lost = [name for name in row if row[name] == "null" and text[name] not in nulls]
            if lost and not bad_typed:
                raise Broken(NAME, samples, f"{samples.file_format}: a value is lost", f"{schema}: {lost} of {text}")
