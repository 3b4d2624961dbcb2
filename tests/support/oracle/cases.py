"""A case: an object's bytes, the columns and options by which it is read; and what draws them.

A `Scheme` is a format with columns and options, for which many objects are drawn: Spark reads those in one job.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

from queue_source.errors import OptionError
from queue_source.formats.base import check_schema
from queue_source.options import parse_reader_options
from queue_source.options.content import FormatOptions
from queue_source.schema.columns import format_columns, parse_columns
from support.oracle import values as v
from support.oracle.counting import edges, reached
from support.oracle.typed import Made
from support.oracle.values import Strategy
from support.sessions import LEAST

TEXTUAL = ("csv", "json", "text")
TYPED = ("parquet", "orc", "avro")
CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class Scheme:
    """A format, the declared columns (None: inferred) and the options."""

    file_format: str
    ddl: str | None
    options: dict[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        assert self.ddl is not None
        return parse_columns(self.ddl)

    @property
    def parsed(self) -> FormatOptions:
        """The options of the format. Raises OptionError."""
        return _parsed(self.file_format, tuple(sorted(self.options.items())))

    @property
    def data(self) -> pa.Schema:
        """The columns that come from records."""
        own = (self.options.get("columnNameOfCorruptRecord", CORRUPT), self.options.get("rescuedDataColumn"))
        return pa.schema([column for column in self.schema if column.name not in own])

    @property
    def line_end(self) -> str | None:
        return self.options.get("lineSep")

    @property
    def zone(self) -> str:
        return self.options.get("timeZone", "Europe/Berlin")

    @property
    def is_lines(self) -> bool:
        """Whether a record is a line, wherever it stands."""
        many = any(self.options.get(name, "false") != "false" for name in ("multiLine", "wholeText", "recordsPath"))
        return self.file_format in TEXTUAL and not many

    def count(self) -> None:
        reached(f"format: {self.file_format}")
        for name, value in self.options.items():
            reached(f"option of {self.file_format}: {name}", f"option's value: {name}={value!r}")


@dataclass(frozen=True, repr=False)
class Case(Scheme):
    """An object to be read: its bytes (or `made`, for formats with types), and those of objects beside it."""

    content: bytes = b""
    beside: tuple[bytes, ...] = ()
    made: Made | None = None
    name: str = "object"

    @property
    def bytes(self) -> bytes:
        return self.content if self.made is None else self.made.bytes(self.file_format)

    def __repr__(self) -> str:
        """Code that makes the case again."""
        given = []
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("file_format", "ddl") or (value != one.default and value not in ({}, (), b"", None)):
                given.append(f"{one.name}={value!r}")
        return f"Case({', '.join(given)})"


def case_of(scheme: Scheme, content: bytes = b"", made: Made | None = None, beside: Sequence[bytes] = ()) -> Case:
    return Case(scheme.file_format, scheme.ddl, scheme.options, content, tuple(beside), made)


@lru_cache(maxsize=4096)
def _parsed(file_format: str, options: tuple[tuple[str, str], ...]) -> FormatOptions:
    parsed = parse_reader_options({**LEAST, "fileFormat": file_format, **dict(options)}).content.format
    assert parsed is not None
    return parsed


def is_taken(scheme: Scheme) -> bool:
    """Whether the options and the columns are accepted together."""
    try:
        if scheme.ddl is not None:
            check_schema(scheme.schema, scheme.parsed)
        return scheme.parsed is not None
    except OptionError:
        return False


# --- options ---

_PATTERNS_OF_DAYS = (
    "yyyy-MM-dd",
    "dd.MM.yyyy",
    "d/M/yyyy",
    "yyyyMMdd",
    "yyyy",
    "MM-yyyy",
    "yyyy-MM-dd['T'HH:mm]",
    "uuuu/M/d",
)
_PATTERNS_OF_TIMES = (
    "yyyy-MM-dd HH:mm:ss", "dd.MM.yyyy HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ssXXX", "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]",
    "d.M.yyyy H:m",
    "yyyyMMddHHmmss", "yyyy-MM-dd HH:mm:ss.SSSSSS", "yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss.SSS Z", "yyyy/MM/dd HH",
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSSSSSXX", "MM/yyyy HH:mm",
)  # fmt: skip
_PATTERNS_OF_LOCAL_TIMES = tuple(p for p in _PATTERNS_OF_TIMES if not {"X", "Z"} & {*p})
_BOTH = ("true", "true", "false")
_MODES = ("PERMISSIVE", "DROPMALFORMED", "DROPMALFORMED", "FAILFAST")
_TIMES = {
    "dateFormat": _PATTERNS_OF_DAYS,
    "timestampFormat": _PATTERNS_OF_TIMES,
    "timestampNTZFormat": _PATTERNS_OF_LOCAL_TIMES,
}
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "csv": {
        "header": _BOTH, "sep": (";", "|", "\\t", " ", "^", "x"), "quote": ("'", "", "|"), "escape": ('"', "", "^",
        "'"),
        "nullValue": ("NULL", "-", "NA", " ", "1", "a"), "emptyValue": ("", "E", "-", "1"), "comment": ("#", "-", "1"),
        "ignoreLeadingWhiteSpace": _BOTH, "ignoreTrailingWhiteSpace": _BOTH, "nanValue": ("-", "nan", "NA", ""),
        "positiveInf": ("+oo", "Infinity", "1"), "negativeInf": ("-oo", "-Infinity"), "multiLine": _BOTH,
        "lineSep": (";", "\n", "\r\n", "||", "ab", "\r", "\x1e"), "encoding": ("ISO-8859-1", "UTF-16", "UTF-16LE",
        "windows-1252"),
        "mode": _MODES, "columnNameOfCorruptRecord": ("_bad", "bad record"), "rescuedDataColumn": ("_rest",),
        "readerCaseSensitive": _BOTH, **_TIMES,
    },
    "json": {
        "multiLine": _BOTH, "recordsPath": ("Records", "detail.items"),
        "lineSep": (";", "\n", "\r\n", "||", ",", "\x1e"), "encoding": ("ISO-8859-1", "UTF-16LE", "UTF-16"),
        "mode": _MODES,
        "columnNameOfCorruptRecord": ("_bad", "bad record"), "rescuedDataColumn": ("_rest",),
        "readerCaseSensitive": _BOTH,
        **_TIMES,
    },
    "text": {
        "wholeText": _BOTH, "lineSep": (";", "\n", "\r\n", "||", "a", "\x1e"), "mode": _MODES,
        "encoding": ("ISO-8859-1", "UTF-16", "UTF-16LE"),
    },
    "parquet": {"rescuedDataColumn": ("_rest",), "readerCaseSensitive": _BOTH},
    "orc": {"rescuedDataColumn": ("_rest",), "readerCaseSensitive": _BOTH},
    "avro": {"rescuedDataColumn": ("_rest",), "readerCaseSensitive": _BOTH},
}  # fmt: skip
"""The values of options that are tried, of every option that acts on what is read."""


def some_options(file_format: str, *, without: Sequence[str] = ()) -> Strategy:
    choices = {name: texts for name, texts in OPTIONS[file_format].items() if name not in without}
    names = st.one_of(*(st.lists(st.sampled_from(sorted(choices)), max_size=n, unique=True) for n in (0, 1, 2, 3)))
    return names.flatmap(lambda some: st.fixed_dictionaries({name: st.sampled_from(choices[name]) for name in some}))


def schemes(file_format: str, *, without: Sequence[str] = (), nested: bool = True) -> Strategy:
    """Schemes of a format of text, with declared columns."""
    if file_format == "text":
        made = some_options("text", without=without).map(lambda options: Scheme("text", "value STRING", options))
        return made.filter(is_taken)
    kinds = st.lists(v.types(nested=nested and file_format == "json"), min_size=1, max_size=3)
    zones = st.one_of(st.just("Europe/Berlin"), st.sampled_from(v.ZONES))
    parts = st.tuples(kinds, some_options(file_format, without=without), zones, st.booleans())
    return parts.flatmap(lambda drawn: _with_names(file_format, *drawn)).filter(is_taken)


def _with_names(
    file_format: str, kinds: list[pa.DataType], options: dict[str, str], zone: str, with_corrupt: bool
) -> Strategy:
    odd = v.names(len(kinds))
    plain = st.just(list("abc"[: len(kinds)]))
    if any(pt.is_timestamp(kind) for kind in kinds):
        options = {**options, "timeZone": zone}

    def build(names: list[str]) -> Scheme:
        columns = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
        if with_corrupt:
            columns.append(pa.field(options.get("columnNameOfCorruptRecord", CORRUPT), pa.string()))
        if "rescuedDataColumn" in options:
            columns.append(pa.field(options["rescuedDataColumn"], pa.string()))
        return Scheme(file_format, format_columns(columns), options)

    return st.one_of(plain, plain, odd).map(build)


# --- what the formats of text share ---

_JUNK = (b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00", b"\xef\xbb\xbf", b"\xf0\x9f\xa6", b"\xe4")


def _encoded(scheme: Scheme, text: str) -> bytes:
    return text.encode(scheme.options.get("encoding", "UTF-8"), "replace")


def _ends(scheme: Scheme) -> Strategy:
    own = scheme.line_end
    if own is not None:
        return st.just(own)
    return edges("line end", lf=st.just("\n"), crlf=st.just("\r\n"), cr=st.just("\r"))


def _joined(
    scheme: Scheme, first: str, records: list[str], end: str, mark: bool, last: bool, junk: bytes | None
) -> bytes:
    """Records as an object; `junk`: bytes that replace the last third of them, somewhere."""
    text = end.join([*([first] if first else []), *records]) + (end if last and records else "")
    data = _encoded(scheme, text)
    if junk is not None and data:
        at = len(data) * 2 // 3
        data = data[:at] + junk + data[at + 1 :]
    plain = scheme.options.get("encoding", "UTF-8").upper() == "UTF-8"
    return b"\xef\xbb\xbf" + data if mark and plain else data


def _objects(scheme: Scheme, first: Strategy, record: Strategy, most: int) -> Strategy:
    rare = st.sampled_from([False] * 15 + [True])
    junk = st.one_of(*[st.none()] * 15, st.sampled_from(_JUNK))
    records = st.one_of(st.lists(record, min_size=1, max_size=2), st.lists(record, max_size=most))
    return st.builds(_joined, st.just(scheme), first, records, _ends(scheme), rare, st.booleans(), junk)


def objects(scheme: Scheme, most: int = 4) -> Strategy:
    """Objects of a scheme of text, of so many records at most."""
    return {"csv": csv_objects, "json": json_objects, "text": text_objects}[scheme.file_format](scheme, most)


def pattern_of(scheme: Scheme, kind: pa.DataType) -> str | None:
    if pt.is_date(kind):
        return scheme.options.get("dateFormat")
    if pt.is_timestamp(kind):
        return scheme.options.get("timestampNTZFormat" if kind.tz is None else "timestampFormat")
    return None


# --- csv ---


def csv_objects(scheme: Scheme, most: int) -> Strategy:
    header = csv_headers(scheme) if scheme.options.get("header") == "true" else st.just("")
    return _objects(scheme, header, csv_records(scheme), most)


def csv_headers(scheme: Scheme) -> Strategy:
    """The names of the columns as users write them: as declared, or nearly so."""
    sep, quote = _character(scheme, "sep", ","), scheme.options.get("quote", '"')
    names = scheme.data.names
    ways: dict[str, Callable[[], str]] = {
        "same": lambda: sep.join(names),
        "spaces": lambda: f"{sep} ".join(names),
        "spaces_before": lambda: f" {sep}".join(names),
        "quoted": lambda: sep.join(f"{quote}{name}{quote}" for name in names),
        "upper": lambda: sep.join(name.upper() for name in names),
        "other_order": lambda: sep.join(reversed(names)),
        "more": lambda: sep.join([*names, "more"]),
        "fewer": lambda: sep.join(names[:-1] or names),
        "twice": lambda: sep.join([*names, names[0]]),
        "nameless": lambda: sep.join([*names[:-1], ""]) if len(names) > 1 else names[0],
    }
    return edges("header", **{name: st.just(way()) for name, way in ways.items()})


def _character(scheme: Scheme, option: str, default: str) -> str:
    return scheme.options.get(option, default).replace("\\t", "\t")


def csv_records(scheme: Scheme) -> Strategy:
    sep, quote = _character(scheme, "sep", ","), scheme.options.get("quote", '"')
    cells = [csv_cells(scheme, column.type) for column in scheme.data]
    row = st.tuples(*cells)
    width = st.sampled_from([0] * 14 + [-1, 1])
    whole = st.tuples(row, width).map(lambda pair: sep.join((*pair[0], "x")[: len(pair[0]) + pair[1]]))
    odd = st.sampled_from(
        ["", " ", "\t", sep, quote, quote * 2, quote * 3, scheme.options.get("comment", "#") + "x", "x", '"', "\\"]
    )
    return edges("csv record", row=whole, row_too=whole, row_as_well=whole, odd=odd)


def csv_cells(scheme: Scheme, kind: pa.DataType) -> Strategy:
    options = scheme.options
    sep, quote, escape = _character(scheme, "sep", ","), options.get("quote", '"'), options.get("escape", "\\")
    special = [options.get(name, "") for name in ("nullValue", "emptyValue", "nanValue", "positiveInf", "negativeInf")]
    good = v.spelled(kind, scheme.zone, pattern_of(scheme, kind))
    text = edges(
        "csv cell",
        typed=good,
        typed_too=good,
        special=st.sampled_from(special),
        odd=v.texts(lines="multiLine" in options),
    )
    needs = {sep, quote, "\n", "\r"} - {""}

    def write(text: str, way: str) -> str:
        if way == "plain" and quote and any(one in text for one in needs):
            way = "escaped"
        if way in ("plain", "raw") or not quote:
            return text
        inside = text.replace(quote, (escape or quote) + quote) if way != "doubled" else text.replace(quote, quote * 2)
        return {"open": f"{quote}{text}", "spaced": f" {quote}{inside}{quote} ", "inner": f"a{quote}{inside}{quote}",
                "behind": f"{quote}{inside}{quote}a"}.get(way, f"{quote}{inside}{quote}")  # fmt: skip

    ways = st.sampled_from(["plain"] * 10 + ["escaped"] * 5 + ["doubled", "raw", "open", "spaced", "inner", "behind"])
    return st.builds(write, text, ways)


# --- json ---


def json_objects(scheme: Scheme, most: int) -> Strategy:
    record = json_records(scheme)
    if scheme.options.get("multiLine") == "true":
        items = st.lists(record, max_size=most)
        forms = {
            "array": items.map(lambda some: f"[{','.join(some)}]"),
            "lines": items.map(lambda some: "[\n  " + ",\n  ".join(some) + "\n]\n"),
            "one": record,
            "several": items.map("\n".join),
            "odd": st.sampled_from(["", "[]", "[", "null", "1", '"x"', "[[]]", "{}", "[{}]", "[null]", " "]),
        }
        return edges("json document", **forms).map(lambda text: _encoded(scheme, text))
    if (path := scheme.options.get("recordsPath")) is not None:
        keys = path.split(".")

        def wrap(some: list[str], more: str) -> bytes:
            text = f"[{','.join(some)}]"
            for key in reversed(keys):
                text = f'{{{more}"{key}":{text}}}'
            return _encoded(scheme, text)

        return st.builds(
            wrap, st.lists(record, max_size=most), st.sampled_from(["", "", '"more":{"Records":1},', ' "n" : [1] ,'])
        )
    odd = ["", " ", "\t", "null", "[]", "{}", "1", '"x"', "{", "}", "x", "[1]", "{]", "true", "NaN", '{"a":1',
           '{"a":1}}',
           '{"a":1,}', '{"a" 1}', "{'a':1}", '{a:1}', '{"a":1} x', '{"a":1}{"a":2}', '{"a":1} {"a":2}',
           '[{"a":1},{"a":2}]',
           "[{}]", "// x", "/* x */", "#x", '{"a":1} // x', '{,}', '{"":1}', "{}{}", '[{"a":1}'  ]  # fmt: skip
    twice = st.tuples(record, record, st.sampled_from(["", " ", ","])).map(lambda p: p[0] + p[2] + p[1])
    array = st.lists(record, max_size=2).map(lambda some: f"[{','.join(some)}]")
    return _objects(
        scheme, st.just(""),
        edges("json record", row=record, row_too=record, row_as_well=record, odd=st.sampled_from(odd), twice=twice,
        array=array),
        most,
    )  # fmt: skip


def json_records(scheme: Scheme) -> Strategy:
    return json_struct(scheme, list(scheme.data))


def json_struct(scheme: Scheme, columns: Sequence[pa.Field]) -> Strategy:
    parts = [st.tuples(json_names(column.name), json_values(scheme, column.type)) for column in columns]
    extra = st.sampled_from([None] * 9 + [("z", "1"), ("z", '{"a":1}'), ("z", '"x"'), ("z", "NaN"), ("z", "[1,{}]")])
    form = st.sampled_from(["all"] * 8 + ["fewer", "twice", "reversed", "spaces"])

    def build(drawn: tuple[tuple[str, str], ...], more: tuple[str, str] | None, way: str) -> str:
        pairs = [*drawn, *([more] if more else [])]
        if way == "fewer":
            pairs = pairs[1:]
        elif way == "twice":
            pairs = [*pairs, pairs[0]]
        elif way == "reversed":
            pairs.reverse()
        colon, comma = (" : ", " ,\t") if way == "spaces" else (":", ",")
        return "{" + comma.join(f"{name}{colon}{text}" for name, text in pairs) + "}"

    return st.builds(build, st.tuples(*parts), extra, form)


def json_names(name: str) -> Strategy:
    same = st.just(json.dumps(name, ensure_ascii=False))
    escaped = st.just('"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in name) + '"')
    cases = st.sampled_from([name.upper(), name.lower(), name.swapcase(), f" {name}"]).map(json.dumps)
    return edges("json name", same=st.one_of(*[same] * 8, cases), escaped=st.one_of(*[same] * 4, escaped))


def _json_text(text: str, way: str) -> str:
    if way == "raw":
        return f'"{text}"'
    if way == "ascii":
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


_ODD_JSON = ("null", "null", "1", "1.0", "1e3", "-0", "-0.0", "true", "false", '""', '"x"', "[]", "{}", "[1]",
             '{"x":1}', "NaN",
             "Infinity", "-Infinity", "Inf", "-INF", "+1", ".5", "1.", "01", "-", "x", '"NaN"', '"Infinity"', '"-INF"',
             '"null"',
             '"true"', "1e400", '"1"', '"1.0"', '" 1"', '"+1"', "[null]", '[[]]', '"\\ud800"', '"\\ud83d\\ude00"',
             '"\\x"', '"\\u12"',
             '"a\tb"', '"a\\/b"', "''", "'x'", "1.50", "100000000000000000000", "1E5",
             "12345678901234567890.123456789")  # fmt: skip


def json_values(scheme: Scheme, kind: pa.DataType) -> Strategy:
    odd = st.sampled_from(_ODD_JSON)
    good = _json_values(scheme, kind)
    return edges("json value", typed=good, typed_too=good, typed_as_well=good, odd=odd)


def _json_values(scheme: Scheme, kind: pa.DataType) -> Strategy:
    if pt.is_list(kind):
        return st.lists(json_values(scheme, kind.value_type), max_size=3).map(lambda some: f"[{','.join(some)}]")
    if pt.is_struct(kind):
        return json_struct(scheme, list(kind))
    if pt.is_map(kind):
        keys = v.texts().map(json.dumps)
        pairs = st.lists(st.tuples(keys, json_values(scheme, kind.item_type)), max_size=2)
        return pairs.map(lambda some: "{" + ",".join(f"{key}:{text}" for key, text in some) + "}")
    text = v.spelled(kind, scheme.zone, pattern_of(scheme, kind))
    quoted = st.builds(_json_text, text, st.sampled_from(["plain"] * 5 + ["ascii", "raw"]))
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_boolean(kind):
        return st.one_of(text, text, quoted)
    if pt.is_binary(kind):
        encoded = st.binary(max_size=4).map(lambda data: json.dumps(base64.b64encode(data).decode()))
        return st.one_of(
            encoded,
            st.sampled_from(['"aGk="', '"aGk"', '"!!"', '"aG k="', '"aGk=\\n"', '"YQ=="', '"YQ="', '"-_8="']),
            quoted,
        )
    if pt.is_temporal(kind):
        numbers = st.sampled_from(
            ["0", "1", "-1", "1.5", "1700000000", "1e3", "253402300800", "-62135596801", "9223372036855"]
        )
        return st.one_of(quoted, quoted, quoted, numbers)
    return quoted


# --- text ---


def text_objects(scheme: Scheme, most: int) -> Strategy:
    return _objects(scheme, st.just(""), v.texts(lines=scheme.options.get("wholeText") == "true"), most)


# --- formats with types ---


def typed_cases(file_format: str, writers: Sequence[str] = ("pyarrow",)) -> Strategy:
    """Files of typed columns, each declared as it was written, or in a type that may have room for it."""
    return st.sampled_from(list(writers)).flatmap(lambda writer: _typed(file_format, writer))


def _typed(file_format: str, writer: str) -> Strategy:
    nested = v.types(nested=True, text_keys=file_format == "avro")
    kinds = st.lists(nested.filter(lambda kind: _is_written(file_format, kind)), min_size=1, max_size=3)
    return st.tuples(kinds, some_options(file_format), st.sampled_from(v.ZONES)).flatmap(
        lambda drawn: _typed_of(file_format, writer, *drawn)
    )


def _is_written(file_format: str, kind: pa.DataType) -> bool:
    """Whether the writer has the type, as far as it matters here."""
    return file_format != "orc" or kind != pa.decimal128(38, 38) or True


def _typed_of(file_format: str, writer: str, kinds: list[pa.DataType], options: dict[str, str], zone: str) -> Strategy:
    beyond = file_format == "parquet"
    rows = st.lists(st.tuples(*(v.values(kind, beyond=beyond, zone=zone) for kind in kinds)), min_size=1, max_size=6)
    names = st.one_of(st.just(list("abc"[: len(kinds)])), v.names(len(kinds)))
    declared = st.tuples(*(declared_types(kind) for kind in kinds))
    settings = writer_settings(file_format)

    def build(
        some: list[tuple[Any, ...]], called: list[str], types: tuple[pa.DataType, ...], how: dict[str, Any]
    ) -> Case:
        written = format_columns([pa.field(n, k) for n, k in zip(called, kinds, strict=True)])
        columns = [pa.field(n, k) for n, k in zip(called, types, strict=True)]
        if "rescuedDataColumn" in options:
            columns.append(pa.field(options["rescuedDataColumn"], pa.string()))
        return Case(file_format, format_columns(columns), options, made=Made(writer, written, tuple(some), how))

    return st.builds(build, rows, names, declared, settings).filter(is_taken)


def declared_types(kind: pa.DataType) -> Strategy:
    """The written type, mostly, or one of those into which it may go."""
    others: list[pa.DataType] = []
    if pt.is_integer(kind):
        others = [
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.float64(),
            pa.decimal128(20, 0),
            pa.decimal128(38, 18),
        ]
    elif pt.is_decimal(kind):
        p, s = kind.precision, kind.scale
        pairs = [
            (38, 18),
            (38, 10),
            (38, s),
            (38, 38),
            (min(38, p + 1), s),
            (min(38, p + 1), min(38, s + 1)),
            (max(p - 1, s, 1), s),
        ]
        others = [pa.decimal128(*pair) for pair in pairs if pair[1] <= pair[0]]
    elif pt.is_floating(kind):
        others = [pa.float32(), pa.float64()]
    elif pt.is_date(kind) or pt.is_timestamp(kind):
        others = [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")]
    elif pt.is_string(kind) or pt.is_binary(kind):
        others = [pa.string(), pa.binary()]
    same = st.just(kind)
    return st.one_of(same, same, same, st.sampled_from(others)) if others else same


def writer_settings(file_format: str) -> Strategy:
    choices: dict[str, dict[str, Sequence[Any]]] = {
        "parquet": {
            "row_group_size": (1, 2, 1000), "compression": ("snappy", "none", "zstd", "gzip"), "use_dictionary": (True,
            False),
            "data_page_version": ("1.0", "2.0"), "use_deprecated_int96_timestamps": (False, False, True),
            "store_decimal_as_integer": (False, True), "version": ("2.6", "1.0", "2.4"),
        },
        "orc": {"compression": ("uncompressed", "snappy", "zlib", "zstd"), "dictionary_key_size_threshold": (0.0, 1.0)},
        "avro": {"codec": ("null", "deflate", "bzip2", "xz", "zstandard"), "sync_interval": (1, 16000)},
    }  # fmt: skip
    return st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(list(some)) for name, some in choices[file_format].items()}
    )


def without(scheme: Scheme, *names: str) -> Scheme:
    return replace(scheme, options={name: value for name, value in scheme.options.items() if name not in names})
