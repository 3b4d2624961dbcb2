"""Relation (i): no option is taken and without effect.

An option of a format, beside up to two others, is refused, or there is an object, with columns, of which it changes
what is read, what is inferred, or where it may be cut. The objects hold the values of the options in each place where
they may mean something.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import BadObject, ObjectStoreError, OptionError
from queue_source.formats import compression, typed
from queue_source.formats.base import check_schema, format_of
from queue_source.formats.metadata import path_columns
from queue_source.formats.new_columns import NewColumns
from queue_source.options import ContentOptions, parse_reader_options
from queue_source.options.content import FILE_FORMATS, FormatOptions, SchemaOptions
from queue_source.options.declaring import Option, options_of
from queue_source.schema.sampling import kept_columns, named_samples
from shard_store.model import Content, Payload
from support.oracle.cases import OPTIONS, Case
from support.oracle.counting import reached
from support.oracle.rows import Broken, read, read_messages, small_blocks
from support.oracle.values import Strategy, patterned
from support.sessions import LEAST

NAME = "no-option-without-effect"
NO_EFFECT_ON_ROWS = frozenset({"maxDecodeMemory"})
"""Those that only bound what the process takes."""
_ZONE = {"timeZone", "singleVariantColumn"}
"""A zone, which is that of the session without the option, and a record as one column, which has no times."""
_OWN = {option.name: option for option in options_of(FormatOptions, SchemaOptions) if option.name != "fileFormat"}
_VALUES = {
    "maxRecordBytes": ("40",),
    "maxExpansion": ("2",),
    "schemaSampleFiles": ("1",),
    "schemaSampleBytes": ("60",),
    "schemaHints": ("a STRING", "z BIGINT"),
    "partitionColumns": ("p",),
    "columnNameOfCorruptRecord": ("_bad",),
    "schemaSample": ("file:///nothing,file:///nowhere",),
    "nanValue": ("-", "NA"),
    "positiveInf": ("+oo",),
    "negativeInf": ("-oo",),
    "inferColumnTypes": ("true", "false"),
    "singleVariantColumn": ("v",),
    "schemaEvolutionMode": ("none", "rescue", "addNewColumns", "failOnNewColumns", "addNewColumnsWithTypeWidening"),
}
_QUOTED, _HAS_ZONE = re.compile("'[^']*'"), re.compile("[VzOXxZ]")
_WHEN = datetime(2024, 3, 5, 7, 8, 9, 123_000)


@dataclass(frozen=True)
class Taken:
    """`option` is set to `value`, with others beside it."""

    file_format: str
    option: str
    value: str
    beside: dict[str, str] = field(default_factory=dict)

    def count(self) -> None:
        reached(f"set for {self.file_format}: {self.option}")

    @property
    def with_it(self) -> dict[str, str]:
        return {**self.beside, self.option: self.value}


def strategy() -> Strategy:
    def of(file_format: str) -> Strategy:
        own = [option for option in _OWN.values() if file_format in (option.formats or FILE_FORMATS)]
        pairs = [(option.name, value) for option in own for value in _values(option, file_format)]
        kinds = [("content", "message"), ("schemaLocation", "SCHEMAS")]
        beside = [pair for pair in [*pairs, *kinds] if pair[0] != "schemaSample"]  # whose objects are not there
        return st.tuples(st.sampled_from(pairs), st.lists(st.sampled_from(beside), max_size=2)).map(
            lambda drawn: Taken(
                file_format, *drawn[0], {name: value for name, value in drawn[1] if name != drawn[0][0]}
            )
        )

    return st.sampled_from(FILE_FORMATS).flatmap(of)


def _values(option: Option, file_format: str) -> tuple[str, ...]:
    if option.name == "schemaLocation":
        return ()
    own = _VALUES.get(option.name) or OPTIONS.get(file_format, {}).get(option.name) or (option.example,)
    return tuple(dict.fromkeys(own))


def check(taken: Taken) -> None:
    if taken.option in NO_EFFECT_ON_ROWS:
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cuesqueue-oracle-"))
        for module in (compression, typed):
            stack.enter_context(mock.patch.object(module, "ALWAYS_ALLOWED", 1 << 10))
        if {"schemaEvolutionMode", "rescuedDataColumn"} <= {*taken.with_it} or {*taken.with_it} >= _ZONE:
            return  # the second does what the mode `rescue` of the first does
        if taken.option == "timeZone" and _HAS_ZONE.search(_QUOTED.sub("", taken.beside.get("timestampFormat", ""))):
            return  # each time has its own
        if taken.option == "maxRecordBytes":  # what ends within a block is not measured
            stack.enter_context(small_blocks(16))
        values = _values(_OWN[taken.option], taken.file_format)
        for value in dict.fromkeys([taken.value, *values]):  # one that does something is enough
            try:
                without = _parsed(taken, taken.beside, folder)
                parsed = _parsed(taken, {**taken.beside, taken.option: value}, folder)
            except OptionError:
                return
            if without == parsed:
                return  # it says what is so without it
            seen = zip(
                _seen(replace(taken, value=value), without), _seen(replace(taken, value=value), parsed), strict=True
            )
            if any(one != other for one, other in seen):
                return
    beside = ", ".join(sorted(taken.beside))
    raise Broken(NAME, taken, f"{taken.file_format}: {taken.option}{beside and ' beside '}{beside}", "it does nothing")


def _parsed(taken: Taken, options: Mapping[str, str], folder: str) -> ContentOptions:
    given = {name: text.replace("SCHEMAS", folder) for name, text in options.items()}
    return parse_reader_options({**LEAST, "fileFormat": taken.file_format, **given}).content


# --- what can be seen ---


def _seen(taken: Taken, content: ContentOptions) -> Iterator[Any]:
    """One thing after another that depends on the options."""
    options = content.format
    assert options is not None
    format = format_of(options)
    yield [format.may_be_cut("file:///object", options, all_or_nothing=flag) for flag in (False, True)]
    objects = list(dict.fromkeys(_objects(taken)))
    yield _inferred(content, _two(taken))
    yield _inferred(content, objects[:3])
    yield _evolved(content, objects[:3])
    random.Random(1).shuffle(objects)  # so that what makes a difference comes soon
    for data in objects:
        for ddl in _ddls(taken):
            yield _read(content, options, ddl, data)
        yield _inferred(content, [data])


def _read(content: ContentOptions, options: FormatOptions, ddl: str, data: bytes) -> object:
    rescued = options.rescued_data_column
    if rescued is not None and rescued not in ddl:
        ddl += f", `{rescued}` STRING"  # which is there without being asked for, or has to be
    case = _Parsed(options.file_format, ddl, content=data, given=options, name="p=09/object")
    try:
        check_schema(case.schema, options)
    except OptionError as error:
        return f"refused: {error.option}"
    try:
        if options.partition_columns and "p" not in case.schema.names:
            return "refused: partitionColumns"
        found = (read if content.kind.is_announced else read_messages)(case).answer
        return found, repr(path_columns("s3://b/p=09/x", case.schema, options))
    except (BadObject, NewColumns, Broken, KeyError) as error:
        return repr(error)


@dataclass(frozen=True, repr=False)
class _Parsed(Case):
    """A case whose options are there as values."""

    given: Any = None

    @property
    def schema(self) -> pa.Schema:
        alone = self.given.single_variant_column and format_of(self.given).fixed_columns(self.given)
        if not alone:
            return super().schema
        more = [field for field in super().schema if field.name in ("p", self.given.column_name_of_corrupt_record)]
        return pa.schema([*alone, *more])

    @property
    def parsed(self) -> FormatOptions:
        return self.given  # type: ignore[no-any-return]


def _inferred(content: ContentOptions, some: list[bytes]) -> object:
    try:
        return repr(_columns(content, some))
    except (OptionError, ValueError, ObjectStoreError, BadObject) as error:
        return repr(error)


def _columns(content: ContentOptions, some: list[bytes]) -> pa.Schema:
    contents = [Content(f"s3://b/p=09/{n}", f"s3://b/p=09/{n}", payload=Payload(one, "")) for n, one in enumerate(some)]
    contents = contents[: content.schema.schema_sample_files]
    contents = named_samples(content.schema) or contents
    location = replace(content, schema=replace(content.schema, schema_location=None))
    return kept_columns(location, lambda: contents, [], lambda tried: OptionError("schemaLocation", tried))


def _evolved(content: ContentOptions, some: list[bytes]) -> object:
    """What the options say of columns that come later."""
    options = content.format
    assert options is not None
    with suppress(OptionError, ValueError, ObjectStoreError, BadObject):
        first = _columns(content, some[:1])
        return [options.watch_new_columns, options.watch_wider_types, options.rescued_data_column, repr(first)]
    return [options.watch_new_columns, options.watch_wider_types, options.rescued_data_column]


# --- objects, and columns ---


def _ddls(taken: Taken) -> list[str]:
    texts = {**taken.with_it}
    corrupt, rescued = (
        texts.get("columnNameOfCorruptRecord", "_corrupt_record"),
        texts.get("rescuedDataColumn", "_rest"),
    )
    more = ", ".join(f"`{name}` STRING" for name in dict.fromkeys([corrupt, "_corrupt_record", rescued]))
    if taken.file_format == "text":
        return ["value STRING", "value STRING, p INT"]
    if taken.file_format == "binaryFile":
        return ["path STRING, length BIGINT, content BINARY", "path STRING, p INT"]
    plain = ["a STRING, b STRING, c STRING", "a DOUBLE, b BIGINT, c DATE", "a TIMESTAMP, b TIMESTAMP_NTZ, c DATE",
             "a FLOAT, b TIMESTAMP_NTZ, c TIMESTAMP", "a STRING, p STRING", "a STRING, p INT",
             "a TIMESTAMP", "a TIMESTAMP_NTZ", "a DATE"]  # fmt: skip
    if "partitionColumns" in texts:
        plain += ["a DATE, b TIMESTAMP, c TIMESTAMP_NTZ, p STRING", "a DOUBLE, b FLOAT, c BIGINT, p STRING"]
    return [*plain, *(f"{ddl}, {more}" for ddl in plain[:2]), f"a DATE, {more}"]


def _objects(taken: Taken) -> Iterator[bytes]:
    if taken.file_format in ("parquet", "orc", "avro"):
        yield from _typed(taken.file_format)
        return
    texts = [*_special(taken)]
    for text in texts:
        yield from _csv(taken, text) if taken.file_format == "csv" else _json(taken, text)
    numbers = range(1000)  # some four times as large as they are packed
    items = ",".join([*(f'{{"a": {number}}}' for number in numbers), '{"late": 1}'])
    document = f"[{items}]"
    for key in reversed(taken.with_it.get("recordsPath", "Records").split(".")):
        document = f'{{"{key}": {document}}}'
    end = taken.with_it.get("lineSep", "\n")
    lines = ("".join(f"{number},1,1{end}" for number in [*numbers, "x"]), items.replace("},", f"}}{end}"))
    for text in (*lines, f"[{items}]", document):
        yield gzip.compress(_encoded(text, taken.with_it.get("encoding", "utf-8")))
    yield b"\xffx,\xe4,y\n1,2,3\n"
    yield "ä,b,c\n1,2,3\n".encode("utf-16")
    yield b'{"a": "\xe4"}\n'
    yield '{"a": "ä", "Records": [{"a": 1}]}\n'.encode("utf-16")


def _two(taken: Taken) -> list[bytes]:
    """Two objects with other columns each."""
    if taken.file_format in ("parquet", "orc", "avro"):
        typed_objects = list(_typed(taken.file_format))
        return [typed_objects[1], typed_objects[2]]
    sep, path = (
        taken.with_it.get("sep", ",").replace("\\t", "\t"),
        taken.with_it.get("recordsPath", "Records").split("."),
    )
    some = [f"a{sep}b\n1{sep}2\n", f"q{sep}r{sep}s\n1{sep}2{sep}3\n"]
    if taken.file_format == "json":
        some = []
        for name in ("a", "q"):
            inner = f'[{{"{name}": 1}}]'
            for key in reversed(path):
                inner = f'{{"{key}": {inner}, "{name}": 1}}'
            some.append(inner)
    return [_encoded(text, taken.with_it.get("encoding", "utf-8")) for text in some]


def _special(taken: Taken) -> Iterator[str]:
    given = taken.with_it
    yield from dict.fromkeys([*(given.values()), "", "x", "NaN", "Inf", "-Inf", " 1 ", "1", "x" * 60])
    for name, text in given.items():
        if name.endswith("Format"):
            yield patterned(text, _WHEN, "+01:00")
    yield from ("2024-03-05", "2024-03-05 07:08:09", "2024-07-05T07:08:09", "2024-03-05T07:08:09Z", "05.03.2024")


def _csv(taken: Taken, text: str) -> Iterator[bytes]:
    given = taken.with_it
    seps = [given.get("sep", ",").replace("\\t", "\t"), ","]
    quotes = [given.get("quote", '"') or '"', '"']
    encodings = ["utf-8", *([given["encoding"]] if "encoding" in given else [])]
    for sep in dict.fromkeys(seps):
        row = sep.join([text] * 3)
        for header in ("", f"a{sep}b{sep}c", f"A{sep}b{sep}z", f"a{sep}b{sep}c{sep}z"):
            for end in dict.fromkeys(
                ["\n", given.get("lineSep", "\n"), "\r"] if text == "x" else [given.get("lineSep", "\n")]
            ):
                for line in (row, text, f" {row} ", f"{text}{row}", f"{row}{sep}more") if not header else (row,):
                    yield _encoded(end.join([*([header] if header else []), line, row, ""]), encodings[-1])
        for quote in dict.fromkeys(quotes if text in ("", "x", *given.values()) else []):
            for escape in dict.fromkeys([given.get("escape", "\\"), "\\", quote]):
                for inner in ("", f"{escape}{quote}", f"{sep}x\n{escape}{escape}"):
                    cell = f"{quote}{text}{inner}{quote}"
                    yield _encoded(f"a{sep}b{sep}c\n{sep.join([cell] * 3)}\n", encodings[-1])
                    yield _encoded(f"{sep.join([f' {cell} '] * 3)}\n", encodings[-1])


def _json(taken: Taken, text: str) -> Iterator[bytes]:
    given = taken.with_it
    ends = dict.fromkeys(["\n", given.get("lineSep", "\n"), "\r", ""])
    quoted = json.dumps(text, ensure_ascii=False)
    for value in (quoted, text or "null"):
        record = f'{{"a": {value}, "b": {value}, "c": {value}}}'
        other = f'{{"A": {value}, "B": {value}, "z": {{"x": 1}}}}'
        lines = f'{{"a":\n {value}}}'
        for one in (record, other, lines):
            for end in ends:
                yield _encoded(f"{one}{end}{one}{end}", given.get("encoding", "utf-8"))
                yield _encoded(f"{text}{end}{text}", given.get("encoding", "utf-8"))
            yield _encoded(f"[{one}, {one}]", given.get("encoding", "utf-8"))
            document = f"[{one}, {one}]"
            for key in reversed(given.get("recordsPath", "Records").split(".")):
                document = f'{{"{key}": {document}}}'
            yield _encoded(document, given.get("encoding", "utf-8"))


def _encoded(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "replace")


def _typed(file_format: str) -> Iterator[bytes]:
    many = pa.table({"a": [f"{number:060}" for number in range(25_000)]})  # some ten times as large as it is packed
    tables = [pa.table({"a": ["x"], "b": [1], "c": [None]}), pa.table({"A": ["x"], "b": [1.5]}), pa.table({"z": [1]}),
              pa.table({"a": [1], "z": [{"y": 1}]}), pa.table({"a": ["x"], "b": ["y"]}), many]  # fmt: skip
    for table in tables:
        out = io.BytesIO()
        with suppress(pa.ArrowException):
            if file_format == "avro":
                _avro(out, table)
            elif file_format == "parquet":
                pq.write_table(table, out, compression="zstd")
            else:
                orc.write_table(table.select([n for n in table.column_names if n != "c"]), out, compression="zlib")
            yield out.getvalue()


def _avro(out: io.BytesIO, table: pa.Table) -> None:
    kinds: dict[Any, Any] = {pa.string(): "string", pa.int64(): "long", pa.float64(): "double", pa.null(): "null"}
    nested = {"type": "record", "name": "n", "fields": [{"name": "y", "type": "long"}]}
    fields = [{"name": f.name, "type": kinds.get(f.type, nested)} for f in table.schema]
    fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, table.to_pylist(), codec="deflate")
