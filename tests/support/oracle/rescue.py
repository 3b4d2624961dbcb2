"""Relation (p): each value of a record is in its column or in the rescued data, as it was written, and not in both."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import check_schema
from queue_source.options import parse_reader_options
from queue_source.schema.columns import parse_columns
from support.oracle import inference
from support.oracle.counting import reached
from support.oracle.rows import Broken
from support.oracle.typed import avro_type, avro_value
from support.oracle.values import Strategy
from support.reading import read_with_problems
from support.sessions import LEAST

NAME = "rescued-or-read"
_REST = "_rest"
_KINDS = ("INT", "BIGINT", "DOUBLE", "STRING", "DECIMAL(38, 10)", "DATE", "BOOLEAN", "TIMESTAMP", "BINARY",
          "ARRAY<INT>", "ARRAY<STRUCT<a: INT>>", "MAP<STRING, INT>", "STRUCT<a: INT>", "STRUCT<a: STRING, b: DOUBLE>",
          "STRUCT<a: STRUCT<b: INT>>", "MAP<STRING, STRUCT<a: INT>>")  # fmt: skip
_WRITTEN: dict[str, tuple[Any, ...]] = {
    "INT": (0, 7, -(1 << 31)),
    "BIGINT": (1 << 62, -1),
    "FLOAT": (0.5, float("inf")),
    "DOUBLE": (1e300, -0.0, float("nan")),
    "STRING": ("", "x", 'ä"\n'),
    "BOOLEAN": (True, False),
    "BINARY": (b"", b"\xff\0"),
    "DECIMAL(38, 10)": (Decimal("1.2500000000"), Decimal("0E-10"), Decimal("9999999999999999999999999999.0000000001")),
    "DATE": (date(2024, 2, 29), date(1970, 1, 1)),
    "TIMESTAMP_NTZ": (datetime(2024, 2, 29, 1, 2, 3, 4),),
    "ARRAY<INT>": ([], [1, None]),
    "STRUCT<a: INT, b: STRING>": ({"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}),
    "STRUCT<a: STRUCT<b: INT, c: BINARY>>": ({"a": {"b": 1, "c": b"x"}}, {"a": None}),
    "ARRAY<STRUCT<a: INT, b: INT>>": ([{"a": 1, "b": 2}, None], [{"a": 1, "b": None}]),
    "MAP<STRING, INT>": ([("k", 1)], []),
}


_PARTS = {
    "STRUCT<a: INT, b: STRING>": "STRUCT<a: INT>",
    "ARRAY<STRUCT<a: INT, b: INT>>": "ARRAY<STRUCT<b: INT>>",
    "STRUCT<a: STRUCT<b: INT, c: BINARY>>": "STRUCT<a: STRUCT<b: INT>>",
}
"""Types of which a part is declared."""


@dataclass(frozen=True)
class Rescued:
    """Records (of formats with types: by the types of their columns), and the columns that are declared."""

    file_format: str
    records: tuple[dict[str, Any], ...]
    declared: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    def count(self) -> None:
        reached(f"rescued: {self.file_format}")

    @property
    def bytes(self) -> bytes:
        out = io.BytesIO()
        names = [*self.records[0]]
        if self.file_format == "json":
            return "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in self.records).encode()
        if self.file_format == "csv":
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([names, *([r[n] for n in names] for r in self.records)])
            return text.getvalue().encode()
        kinds = {name: parse_columns(f"a {kind}").field(0).type for name, kind in self.types.items()}
        if self.file_format == "avro":
            fields = [{"name": name, "type": ["null", avro_type(kind, f"r{n}")]}
                      for n, (name, kind) in enumerate(kinds.items())]  # fmt: skip
            rows = [{name: avro_value(kind, _plain(one[name], kind)) for name, kind in kinds.items()}
                    for one in self.records]  # fmt: skip
            fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, rows, strict=False)
        else:
            columns = {name: pa.array([one[name] for one in self.records], kind) for name, kind in kinds.items()}
            (pq if self.file_format == "parquet" else orc).write_table(pa.table(columns), out)
        return out.getvalue()


def _plain(value: Any, kind: pa.DataType) -> Any:
    """The value as `avro_value` takes it."""
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def strategy() -> Strategy:
    names = st.sampled_from(["a", "b", "A", "ä", "a b", "d.e", "_corrupt_record"])
    case = st.sampled_from([{}, {}, {"readerCaseSensitive": "true"}])
    declared = st.dictionaries(st.sampled_from(["a", "b", "B", "ä", "d.e", "z"]), st.sampled_from(_KINDS),
                               min_size=1, max_size=3)  # fmt: skip
    declared = declared.filter(lambda some: len({*map(str.casefold, some)}) == len(some))
    texts = st.sampled_from(inference._TEXTS)
    texts_names = names.filter(lambda name: name != "_corrupt_record")  # which is that of bad records
    of_json = st.lists(st.dictionaries(texts_names, inference._JSON, min_size=1, max_size=3), min_size=1, max_size=3)
    of_csv = st.lists(texts_names, min_size=1, max_size=3, unique=True).flatmap(
        lambda some: st.lists(st.fixed_dictionaries(dict.fromkeys(some, texts)), min_size=1, max_size=3)
    )

    def text(file_format: str, records: Strategy) -> Strategy:
        options = case.map(lambda some: some | ({"header": "true"} if file_format == "csv" else {}))
        plain = declared
        if file_format == "csv":
            plain = declared.map(lambda some: {n: "STRING" if "<" in k else k for n, k in some.items()})
        return st.builds(Rescued, st.just(file_format), records.map(tuple), plain, options)

    def typed(file_format: str) -> Strategy:
        def of(types: dict[str, str]) -> Strategy:
            rows = st.fixed_dictionaries(
                {name: st.one_of(st.none(), *[st.sampled_from(_WRITTEN[kind])] * 4) for name, kind in types.items()}
            )
            some = {name: _PARTS.get(kind, kind) for name, kind in types.items()}
            chosen = st.sets(st.sampled_from([*types]), min_size=0, max_size=2)
            chosen = chosen.filter(lambda some: len({*map(str.casefold, some)}) == len(some))
            return st.builds(
                Rescued, st.just(file_format), st.lists(rows, min_size=1, max_size=3).map(tuple),
                chosen.map(lambda own: {name: some[name] for name in own} or {"z": "INT"}), case, st.just(types),
            )  # fmt: skip

        return st.dictionaries(names.filter(str.isascii), st.sampled_from([*_WRITTEN]), min_size=1, max_size=4).flatmap(
            of
        )

    kinds = [text("json", of_json)] * 2 + [text("csv", of_csv), typed("parquet"), typed("orc"), typed("avro")]
    return st.one_of(*kinds)


def check(some: Rescued) -> None:
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in some.declared.items())
    given = {**LEAST, "fileFormat": some.file_format, "rescuedDataColumn": _REST, **some.options}
    options = parse_reader_options(given).content.format
    assert options is not None
    schema = parse_columns(f"{ddl}, {_REST} STRING")
    check_schema(schema, options)
    try:
        found = read_with_problems(some.bytes, schema, options, "object")
    except OverflowError:
        return  # a day for which Python has no form
    except BadObject as error:
        reached(f"rescued, the end: {error.cause}")
        if error.cause == "wrong-columns":
            return
        raise Broken(NAME, some, f"{some.file_format}: bad", error.detail) from error
    if found.problems.count:
        reached("rescued, the end: bad records")
        if "more than once" in str(found.reasons):
            return
        raise Broken(NAME, some, f"{some.file_format}: a bad record", str(found.reasons))
    exactly = some.options.get("readerCaseSensitive") == "true"
    for row, record in zip(found.rows, some.records, strict=True):
        rest = json.loads(row[_REST]) if row[_REST] else {}
        rest.pop("_file_path", None)
        for name, value in record.items():
            column = name if name in some.declared else None
            if column is None and not exactly:
                folded = [own for own in some.declared if own.casefold() == name.casefold() and own not in record]
                taken = [own for own in record if own.casefold() == name.casefold()]
                column = folded[0] if folded and (name not in rest) and taken else None
            read = row[column] if column is not None else None
            _check(
                some, [name], value, read, rest.pop(name, rest.pop(column, None)), some.declared.get(column or "", "")
            )
        if rest:
            raise Broken(NAME, some, f"{some.file_format}: more is rescued", f"{row}")


def _check(some: Rescued, path: Sequence[str], value: Any, read: Any, rest: Any, kind: str) -> None:
    if some.file_format == "csv" and value == "":
        value = None
    where = f"{'.'.join(path)}: {value!r}, read {read!r}, rescued {rest!r}"
    if value is None:
        if read is not None or rest is not None:
            raise Broken(NAME, some, f"{some.file_format}: a null is read", where)
        return
    if isinstance(read, dict) and isinstance(value, dict):
        for name, inner in value.items():
            own = next((n for n in read if n == name), None) or next(
                (n for n in read if n.casefold() == name.casefold() and n not in value), None)  # fmt: skip
            _check(some, [*path, name], inner, read.get(own), (rest or {}).get(name), "")
        return
    if read is None:
        if rest is None and value not in ({}, []) and not _is_empty(value):
            raise Broken(NAME, some, f"{some.file_format}: lost", where)
        if rest is not None and not _is_same(value, rest):
            raise Broken(NAME, some, f"{some.file_format}: rescued otherwise", where)
        return
    if rest is not None and not isinstance(value, (list, dict)):
        raise Broken(NAME, some, f"{some.file_format}: read and rescued", where)


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict) and all(v is None or _is_empty(v) for v in value.values())


def _is_same(value: Any, rest: Any) -> bool:
    if isinstance(value, bytes):
        return bool(base64.b64decode(rest) == value)
    if isinstance(value, (date, datetime)):
        return bool(value.isoformat() == rest.removesuffix("+00:00"))  # of ORC each time is a moment
    if isinstance(value, Decimal):
        return isinstance(rest, str) and Decimal(rest) == value
    if isinstance(value, dict) and isinstance(rest, dict):
        return all(_is_same(inner, rest.get(name)) for name, inner in value.items() if inner is not None)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return bool(rest == [list(pair) for pair in value])
    if isinstance(value, list):
        return isinstance(rest, list) and len(rest) == len(value) and all(map(_is_same, value, rest))
    with suppress(TypeError, ValueError, OverflowError):
        if value != value:
            return bool(rest != rest) or rest == "NaN"
    return bool(value == rest) and isinstance(value, str) == isinstance(rest, str)
