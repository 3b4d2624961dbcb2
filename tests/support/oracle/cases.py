"""A case: an object's bytes, the columns and options by which it is read; and what draws them.

A `Scheme` is a format with columns and options, for which many objects are drawn: Spark reads those in one job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import reject
from hypothesis import strategies as st

from queue_source.errors import OptionError
from queue_source.formats.base import check_schema
from queue_source.options import parse_reader_options
from queue_source.options.content import FormatOptions
from queue_source.schema.columns import format_columns, parse_columns
from support.oracle import values as v
from support.oracle.counting import Draw, one_of_these, pick, reached
from support.oracle.typed import Made, stored_ways
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
        "windows-1252", "Shift_JIS", "UTF-32", "UTF-16BE", "US-ASCII", "GB18030"),
        "mode": _MODES, "columnNameOfCorruptRecord": ("_bad", "bad record"), "rescuedDataColumn": ("_rest",),
        "readerCaseSensitive": _BOTH, **_TIMES,
    },
    "json": {
        "multiLine": _BOTH, "recordsPath": ("Records", "detail.items"),
        "lineSep": (";", "\n", "\r\n", "||", ",", "\x1e"),
        "encoding": ("ISO-8859-1", "UTF-16LE", "UTF-16", "UTF-32", "Shift_JIS"),
        "mode": _MODES,
        "columnNameOfCorruptRecord": ("_bad", "bad record"), "rescuedDataColumn": ("_rest",),
        "readerCaseSensitive": _BOTH,
        **_TIMES,
    },
    "text": {
        "wholeText": _BOTH, "lineSep": (";", "\n", "\r\n", "||", "a", "\x1e"), "mode": _MODES,
        "encoding": ("ISO-8859-1", "UTF-16", "UTF-16LE", "Shift_JIS", "UTF-32"),
    },
    "parquet": {"rescuedDataColumn": ("_rest",), "readerCaseSensitive": _BOTH},
    "orc": {"rescuedDataColumn": ("_rest",), "readerCaseSensitive": _BOTH},
    "avro": {"rescuedDataColumn": ("_rest",), "readerCaseSensitive": _BOTH},
}  # fmt: skip
"""The values of options that are tried, of every option that acts on what is read."""


def some_options(draw: Draw, file_format: str, without: Sequence[str] = ()) -> dict[str, str]:
    choices = OPTIONS[file_format]
    names = [name for name in choices if name not in without]
    count = draw(one_of_these((0, 0, 1, 1, 2, 3))) if names else 0
    chosen = {names[draw(one_of_these(tuple(range(len(names)))))] for _ in range(count)}
    return {name: draw(one_of_these(choices[name])) for name in sorted(chosen)}


@st.composite
def schemes(draw: Draw, file_format: str, without: Sequence[str] = ()) -> Scheme:
    """Draw a scheme of a format of text, with declared columns."""
    options = some_options(draw, file_format, without)
    if file_format == "csv" and draw(one_of_these((False, False, True))):
        options["header"] = "true"
    if file_format == "csv" and draw(one_of_these((False, False, False, True))):
        options["nullValue"] = draw(one_of_these(OPTIONS["csv"]["nullValue"]))  # then Arrow parses all columns as text
    if file_format == "text":
        return _taken(Scheme("text", "value STRING", options))
    kinds = [draw(v.types(nested=file_format == "json")) for _ in range(draw(one_of_these((1, 1, 2, 3))))]
    names = draw(v.names(len(kinds))) if draw(one_of_these((False, False, True))) else list("abc"[: len(kinds)])
    columns = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
    if any("timestamp" in str(kind) for kind in kinds):
        options["timeZone"] = draw(one_of_these(("Europe/Berlin", *v.ZONES)))
    if draw(st.booleans()):
        columns.append(pa.field(options.get("columnNameOfCorruptRecord", CORRUPT), pa.string()))
    if "rescuedDataColumn" in options:
        columns.append(pa.field(options["rescuedDataColumn"], pa.string()))
    return _taken(Scheme(file_format, format_columns(columns), options))


def _taken(scheme: Scheme) -> Scheme:
    """The scheme with as many of its options as are accepted together."""
    while not is_taken(scheme):
        if not scheme.options:
            reject()
        scheme = without(scheme, next(iter(scheme.options)))
    return scheme


# --- what the formats of text share ---

_JUNK = (b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00", b"\xef\xbb\xbf", b"\xf0\x9f\xa6", b"\xe4")
_RARELY = (*[False] * 15, True)


def _encoded(scheme: Scheme, text: str) -> bytes:
    return text.encode(scheme.options.get("encoding", "UTF-8"), "replace")


def _object(draw: Draw, scheme: Scheme, lines: list[str]) -> bytes:
    """Lines as an object: with any line end, with and without the last, and at times with bytes that are no text."""
    end = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}[pick(draw, "line end", "lf", "lf", "crlf", "cr")]
    end = scheme.line_end or end
    data = _encoded(scheme, end.join(lines) + (end if draw(st.booleans()) and lines else ""))
    if draw(one_of_these(_RARELY)) and data:
        at = len(data) * 2 // 3
        data = data[:at] + draw(one_of_these(_JUNK)) + data[at + 1 :]
        reached("object: junk")
    if draw(one_of_these(_RARELY)) and scheme.parsed.plain_utf8:
        data = b"\xef\xbb\xbf" + data
        reached("object: byte order mark")
    return data


@st.composite
def objects(draw: Draw, scheme: Scheme, most: int = 4) -> bytes:
    """Draw an object of a scheme of text, of so many records at most."""
    return an_object(draw, scheme, most)


def an_object(draw: Draw, scheme: Scheme, most: int, header: str | None = None) -> bytes:
    count = draw(one_of_these(tuple(range(1, most + 1))))
    if scheme.is_lines and scheme.file_format != "text" and pick(draw, "object", "calm", "odd", "odd") == "calm":
        return calm_object(draw, scheme, count, header)
    if scheme.file_format == "json":
        return _json_object(draw, scheme, count)
    if scheme.file_format == "text":
        text = v.texts(lines=scheme.options.get("wholeText") == "true")
        return _object(draw, scheme, [draw(text) for _ in range(count)])
    if scheme.options.get("header") == "true" and header is None:
        header = csv_header(draw, scheme)
    lines = [] if header is None else [header]
    return _object(draw, scheme, [*lines, *(csv_record(draw, scheme) for _ in range(count))])


def calm_object(draw: Draw, scheme: Scheme, count: int, header: str | None) -> bytes:
    """Draw an object as programs write it, which is read the quick way, but for a value here and there."""
    options, columns = scheme.parsed, list(scheme.data)
    lines: list[str] = []
    count = draw(one_of_these((1, 1, count)))  # one value that Arrow refuses, and all lines are read slowly
    if scheme.file_format == "csv" and options.header:
        lines.append(csv_header(draw, scheme) if header is None else header)
    for _ in range(count):
        texts = []
        for column in columns:
            how = v.spelled if draw(one_of_these(_RARELY[10:])) else v.well_spelled
            kind, pattern = column.type, pattern_of(scheme, column.type)
            if scheme.file_format == "csv":
                texts.append(draw(how(kind, scheme.zone, pattern)))
            elif pt.is_nested(kind):
                texts.append(json_value(draw, scheme, kind))
            else:
                text = draw(how(kind, scheme.zone, pattern))
                texts.append(text if v.is_bare(kind) else json.dumps(text, ensure_ascii=False))
        if scheme.file_format == "json":
            pairs = [
                f"{json.dumps(column.name, ensure_ascii=False)}:{text}"
                for column, text in zip(columns, texts, strict=True)
            ]
            more = pick(draw, "calm json", *["as declared"] * 5, "more")
            pairs += [draw(one_of_these(_MORE[:-4]))] if more == "more" else []
            lines.append("{" + ",".join(pairs) + "}")
        else:
            lines.append(options.sep.join(texts))
    end = scheme.line_end or "\n"
    return _encoded(scheme, end.join(lines) + end)


def pattern_of(scheme: Scheme, kind: pa.DataType) -> str | None:
    if pt.is_date(kind):
        return scheme.options.get("dateFormat")
    if pt.is_timestamp(kind):
        return scheme.options.get("timestampNTZFormat" if kind.tz is None else "timestampFormat")
    return None


# --- csv ---


def csv_header(draw: Draw, scheme: Scheme) -> str:
    """Draw the names of the columns as users write them: as declared, or nearly so."""
    sep, quote = scheme.parsed.sep, scheme.parsed.quote
    names = list(scheme.data.names)
    way = pick(
        draw, "header", "same", "same", "same", "spaces", "spaces", "spaces before", "tabs", "spaced quotes", "a mark",
        "one behind", "quoted", "upper", "other order", "more", "fewer", "twice", "nameless",
    )  # fmt: skip
    if way == "spaces":
        return f"{sep} ".join(names)
    if way == "spaces before":
        return f" {sep}".join(names)
    if way == "tabs":
        return sep.join(f"\t{name} " for name in names)
    if way == "spaced quotes":
        return f"{sep} ".join(f"{quote}{name}{quote}" for name in names)
    if way == "a mark":
        return sep.join([f"\ufeff{quote}{names[0]}{quote}", *names[1:]])
    if way == "one behind":
        return sep.join(names) + sep
    if way == "quoted":
        names = [f"{quote}{name}{quote}" for name in names]
    elif way == "upper":
        names = [name.upper() for name in names]
    elif way == "other order":
        names.reverse()
    elif way == "more":
        names.append("more")
    elif way == "fewer":
        names = names[:-1] or names
    elif way == "twice":
        names.append(names[0])
    elif way == "nameless":
        names = [*names[:-1], ""] if len(names) > 1 else names
    return sep.join(names)


def csv_record(draw: Draw, scheme: Scheme) -> str:
    options = scheme.parsed
    if pick(draw, "csv record", *["row"] * 12, "odd") == "odd":
        odd = ("", " ", "\t", options.sep, options.quote, options.quote * 2, options.quote * 3,
               f"{options.comment or '#'}x",
               "x", '"', "\\", f"{options.quote}x", f"x{options.quote}")  # fmt: skip
        return str(draw(one_of_these(odd)))
    cells = [csv_cell(draw, scheme, column.type) for column in scheme.data]
    width = pick(draw, "csv record", *["as declared"] * 12, "shorter", "longer")
    cells = cells[:-1] if width == "shorter" else [*cells, "x"] if width == "longer" else cells
    return options.sep.join(cells)


def csv_cell(draw: Draw, scheme: Scheme, kind: pa.DataType) -> str:
    """Draw a field: a value of its type, one that an option names, or another; quoted well, or not so well."""
    options = scheme.parsed
    sep, quote, escape = options.sep, options.quote, options.escape
    what = pick(draw, "csv cell", *["typed"] * 8, "special", "odd")
    if what == "special":
        special = (
            options.null_value,
            options.empty_value,
            options.nan_value,
            options.positive_inf,
            options.negative_inf,
        )
        text = draw(one_of_these(special))
    else:
        odd = v.texts(lines=options.multi_line)
        text = draw(odd if what == "odd" else v.spelled(kind, scheme.zone, pattern_of(scheme, kind)))
    way = pick(draw, "csv quoting", *["plain"] * 10, *["escaped"] * 4, "doubled", "raw", "open", "spaced", "inner",
    "behind",
               "plainly")  # fmt: skip
    if way == "plain" and quote and any(one in text for one in (sep, quote, "\n", "\r")):
        way = "escaped"
    if way in ("plain", "plainly") or not quote:
        return str(text)
    if way == "raw":
        return f"{quote}{text}{quote}"
    inside = text.replace(quote, quote * 2 if way == "doubled" or not escape else escape + quote)
    forms = {
        "open": f"{quote}{text}", "spaced": f" {quote}{inside}{quote} ", "inner": f"a{quote}{inside}{quote}",
        "behind": f"{quote}{inside}{quote}a",
    }  # fmt: skip
    return forms.get(way, f"{quote}{inside}{quote}")


# --- json ---

_ODD_DOCUMENTS = ("", "[]", "[", "null", "1", '"x"', "[[]]", "{}", "[{}]", "[null]", " ", "[{},]", "{}{}")
_ODD_RECORDS = (
    "", " ", "\t", "null", "[]", "{}", "1", '"x"', "{", "}", "x", "[1]", "{]", "true", "NaN", '{"a":1', '{"a":1}}',
    '{"a":1,}', '{"a" 1}', "{'a':1}", "{a:1}", '{"a":1} x', '{"a":1}{"a":2}', '{"a":1} {"a":2}', '[{"a":1},{"a":2}]',
    "[{}]",
    "// x", "/* x */", "#x", '{"a":1} // x', "{,}", '{"":1}', "{}{}", '[{"a":1}', '{"a":1},',
)  # fmt: skip


def _json_object(draw: Draw, scheme: Scheme, count: int) -> bytes:
    columns = list(scheme.data)
    if scheme.options.get("multiLine") == "true":
        form = pick(draw, "json document", "array", "array", "lines", "one", "several", "odd")
        some = [json_struct(draw, scheme, columns) for _ in range(count)]
        documents = {"array": f"[{','.join(some)}]", "lines": "[\n  " + ",\n  ".join(some) + "\n]\n", "one": some[0]}
        text = draw(one_of_these(_ODD_DOCUMENTS)) if form == "odd" else documents.get(form, "\n".join(some))
        return _encoded(scheme, text)
    if (path := scheme.options.get("recordsPath")) is not None:
        text = f"[{','.join(json_struct(draw, scheme, columns) for _ in range(count))}]"
        more = draw(one_of_these(("", "", '"more":{"Records":1},', ' "n" : [1] ,')))
        for key in reversed(path.split(".")):
            text = f'{{{more}"{key}":{text}}}'
        return _encoded(scheme, text)
    return _object(draw, scheme, [_json_record(draw, scheme, columns) for _ in range(count)])


def _json_record(draw: Draw, scheme: Scheme, columns: list[pa.Field]) -> str:
    way = pick(draw, "json record", *["object"] * 12, "odd", "odd", "twice", "array", "cut")
    if way == "odd":
        return str(draw(one_of_these(_ODD_RECORDS)))
    text = json_struct(draw, scheme, columns)
    if way == "cut":
        return text[: len(text) * 2 // 3]
    if way == "object":
        return text
    other = json_struct(draw, scheme, columns)
    between = draw(one_of_these(("", " ", ",")))
    return f"[{text},{other}]" if way == "array" else f"{text}{between}{other}"


_MORE = (
    '"z":[]',
    '"z":{}',
    '"z":[null]',
    '"z":null',
    '"z":1',
    '"z":{"a":1}',
    '"z":"x"',
    '"z":NaN',
    '"z":[1,{}]',
    '"Z":null',
    "z:1",
)


def json_struct(draw: Draw, scheme: Scheme, columns: Sequence[pa.Field]) -> str:
    pairs = [(json_name(draw, column.name), json_value(draw, scheme, column.type)) for column in columns]
    way = pick(draw, "json object", *["all"] * 8, "fewer", "twice", "reversed", "spaces", "more")
    if way == "fewer":
        pairs = pairs[1:]
    elif way == "twice":
        pairs = [*pairs, (pairs[0][0], json_value(draw, scheme, columns[0].type))]
    elif way == "reversed":
        pairs.reverse()
    colon, comma = (" : ", " ,\t") if way == "spaces" else (":", ",")
    more = [draw(one_of_these(_MORE))] if way == "more" else []
    return "{" + comma.join([*(f"{name}{colon}{text}" for name, text in pairs), *more]) + "}"


def json_name(draw: Draw, name: str) -> str:
    way = pick(draw, "json name", *["same"] * 12, "escaped", "upper", "lower", "spaced", "single quotes")
    if way == "escaped":
        return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in name) + '"'
    name = {"upper": name.upper(), "lower": name.lower(), "spaced": f" {name}"}.get(way, name)
    return f"'{name}'" if way == "single quotes" else json.dumps(name, ensure_ascii=False)


_ODD_JSON = ("null", "null", "9" * 5000, "1", "1.0", "1e3", "-0", "-0.0",
             "true", "false", '""', '"x"', "[]", "{}", "[1]",
             '{"x":1}', "NaN",
             "Infinity", "-Infinity", "Inf", "-INF", "+1", ".5", "1.", "01", "-", "x", '"NaN"', '"Infinity"', '"-INF"',
             '"null"',
             '"true"', "1e400", '"1"', '"1.0"', '" 1"', '"+1"', "[null]", '[[]]', '"\\ud800"', '"\\ud83d\\ude00"',
             '"\\x"', '"\\u12"',
             '"a\tb"', '"a\\/b"', "''", "'x'", "1.50", "100000000000000000000", "1E5",
             "12345678901234567890.123456789")  # fmt: skip
_BASE64 = ('"aGk="', '"aGk"', '"!!"', '"aG k="', '"aGk=\\n"', '"YQ=="', '"YQ="', '"-_8="', '""', '"/+8="', '"aGkhaGkh"')
_NUMBERS = (
    "0",
    "1",
    "-1",
    "1.5",
    "1700000000",
    "1e3",
    "253402300800",
    "-62135596801",
    "9223372036855",
    "-9223372036855",
)


def json_value(draw: Draw, scheme: Scheme, kind: pa.DataType) -> str:
    if pick(draw, "json value", *["typed"] * 9, "odd") == "odd":
        return str(draw(one_of_these(_ODD_JSON)))
    if pt.is_list(kind):
        return f"[{','.join(json_value(draw, scheme, kind.value_type) for _ in range(draw(one_of_these((0, 1, 2)))))}]"
    if pt.is_struct(kind):
        return json_struct(draw, scheme, list(kind))
    if pt.is_map(kind):
        keys = [json.dumps(draw(v.texts())) for _ in range(draw(one_of_these((0, 1, 2))))]
        return "{" + ",".join(f"{key}:{json_value(draw, scheme, kind.item_type)}" for key in keys) + "}"
    if pt.is_binary(kind) and draw(st.booleans()):
        return str(draw(one_of_these(_BASE64)))
    if pt.is_temporal(kind) and draw(one_of_these(_RARELY)):
        return str(draw(one_of_these(_NUMBERS)))
    text = draw(v.spelled(kind, scheme.zone, pattern_of(scheme, kind)))
    way = pick(draw, "json spelling", *(["bare"] * 4 if v.is_bare(kind) else ["text"]), "text", "text", "ascii", "raw")
    if way == "bare":
        return str(text)
    return f'"{text}"' if way == "raw" else json.dumps(text, ensure_ascii=way == "ascii")


# --- formats with types ---


@st.composite
def typed_cases(draw: Draw, file_format: str, writer: str = "pyarrow") -> Case:
    """Draw a file of typed columns, each declared as it was written, or in a type that may have room for it."""
    return typed_files(draw, file_format, 1, writer)[0]


def typed_files(
    draw: Draw, file_format: str, count: int, writer: str = "pyarrow", without: Sequence[str] = ()
) -> list[Case]:
    """Draw files of the same columns."""
    nested = v.types(nested=True, text_keys=file_format == "avro")
    kinds = [draw(nested) for _ in range(draw(one_of_these((1, 1, 2, 3))))]
    zone, options = draw(one_of_these(v.ZONES)), some_options(draw, file_format, without)
    names = draw(v.names(len(kinds))) if draw(one_of_these((False, False, True))) else list("abc"[: len(kinds)])
    whole = next((name for name, kind in zip(names, kinds, strict=True) if pt.is_nested(kind)), None)
    if whole is not None and pick(draw, "names", "as drawn", "a part of another") != "as drawn":
        kinds, names = [draw(v.plain_types()), *kinds], [f"{whole}.x", *names]
    columns = [v.values(kind, beyond=file_format == "parquet", zone=zone) for kind in kinds]
    written = format_columns([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)])
    declared = declared_columns(
        draw, [(name, declared_type(draw, kind)) for name, kind in zip(names, kinds, strict=True)]
    )
    if "rescuedDataColumn" in options:
        declared.append(pa.field(options["rescuedDataColumn"], pa.string()))
    scheme = _taken(Scheme(file_format, format_columns(declared), options))
    some = []
    for _ in range(count):
        rows = tuple(tuple(map(draw, columns)) for _ in range(draw(one_of_these((1, 2, 4, 6)))))
        settings = SETTINGS[file_format].items()
        how = {name: draw(one_of_these(choices)) for name, choices in settings if draw(st.booleans())}
        ways = {name: stored_ways(file_format, kind) for name, kind in zip(names, kinds, strict=True)}
        stored = {name: pick(draw, "stored", *some_ways) for name, some_ways in ways.items() if some_ways}
        if stored and draw(st.booleans()):
            how["stored"] = stored
            if "inner dictionary" in stored.values():
                # each has a dictionary of its own; of pages this small pyarrow loses rows, and the object is bad
                how = {**how, "row_group_size": 1}
                how.pop("data_page_size", None)
        some.append(case_of(scheme, made=Made(writer, written, rows, how)))
    return some


def declared_columns(draw: Draw, columns: list[tuple[str, pa.DataType]]) -> list[pa.Field]:
    """Declare columns as they are in a file, mostly; or fewer, others, in another order, or in another case."""
    way = pick(draw, "declared columns", *["all"] * 4, "fewer", "fewer", "more", "reversed", "upper")
    if way == "fewer" and len(columns) > 1:
        columns = columns[1:]
    elif way == "more":
        columns = [*columns, ("more", pa.int32())]
    elif way == "reversed":
        columns = columns[::-1]
    elif way == "upper":
        columns = [(name.upper() if name.isascii() else name, kind) for name, kind in columns]
    return [pa.field(name, kind) for name, kind in columns]


def declared_type(draw: Draw, kind: pa.DataType) -> pa.DataType:
    """Draw the written type, mostly, or one of those into which it may go."""
    if pt.is_struct(kind):
        return pa.struct(declared_columns(draw, [(part.name, declared_type(draw, part.type)) for part in kind]))
    if pt.is_list(kind):
        return pa.list_(declared_type(draw, kind.value_type))
    if pt.is_map(kind):
        return pa.map_(kind.key_type, declared_type(draw, kind.item_type))
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
        pairs = [(38, 18), (38, 10), (38, s), (38, 38), (min(38, p + 1), s), (min(38, p + 1), min(38, s + 1)),
                 (max(p - 1, s, 1), s)]  # fmt: skip
        others = [pa.decimal128(*pair) for pair in pairs if pair[1] <= pair[0]]
    elif pt.is_floating(kind):
        others = [pa.float32(), pa.float64()]
    elif pt.is_date(kind) or pt.is_timestamp(kind):
        others = [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")]
    elif pt.is_string(kind) or pt.is_binary(kind):
        others = [pa.string(), pa.binary()]
    if not others or pick(draw, "declared", "as written", "as written", "otherwise") == "as written":
        return kind
    return draw(one_of_these(tuple(others)))


SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "parquet": {
        "row_group_size": (1, 2, 1000), "compression": ("snappy", "none", "zstd", "gzip", "brotli", "lz4"),
        "data_page_size": (100,), "write_page_index": (True,), "use_byte_stream_split": (True,),
        "store_schema": (False,),
        "use_compliant_nested_type": (False,), "max_rows_per_page": (1, 2), "use_dictionary": (True,
        False),
        "data_page_version": ("1.0", "2.0"), "use_deprecated_int96_timestamps": (False, False, True),
        "store_decimal_as_integer": (False, True), "version": ("2.6", "1.0", "2.4"),
    },
    "orc": {"compression": ("uncompressed", "snappy", "zlib", "zstd", "lz4"), "file_version": ("0.11", "0.12"),
        "row_index_stride": (1000,), "dictionary_key_size_threshold": (0.0, 1.0)},
    "avro": {"codec": ("null", "deflate", "bzip2", "xz", "zstandard"), "sync_interval": (1, 16000)},
}  # fmt: skip
"""How files are written."""


def without(scheme: Scheme, *names: str) -> Scheme:
    return replace(scheme, options={name: value for name, value in scheme.options.items() if name not in names})
