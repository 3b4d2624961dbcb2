"""The options that executors need to read content: which content, in which format, from where, with which schema.

Plain frozen dataclasses: an executor that unpickles them loads the standard library only.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from queue_source.options import types
from queue_source.options.connections import StorageOptions
from queue_source.options.declaring import OnChange, excludes, only_with, option

_BAD_OBJECT = types.choice("quarantine", "fail", "skip")
FORMATS = {
    "json": ("text.json:JSON", "messages inferred lines records"),
    "csv": ("text.csv:CSV", "messages inferred lines records"),
    "parquet": ("parquet:PARQUET", "messages inferred"),
    "text": ("text.records:TEXT", "messages lines"),
    "orc": ("orc:ORC", "messages inferred"),
    "avro": ("avro:AVRO", "messages inferred"),
    "binaryFile": ("binary_file:BINARY_FILE", ""),
}
"""The file formats: the object in `formats/`, and the kinds of options that act on it. A new format is a line here."""
FILE_FORMATS = tuple(FORMATS)
MESSAGE_FORMATS, INFERRED_FORMATS, LINE_FORMATS, RECORD_FORMATS = (
    tuple(name for name, (_, kinds) in FORMATS.items() if kind in kinds.split())
    for kind in ("messages", "inferred", "lines", "records")
)
NOT_READ = {"xml": "Spark's own reader reads it, from references to the objects: see docs/how-to/foreach-batch.md"}
"""Formats of other sources, and what to do instead."""
MOST_SAMPLES = 1000
"""Objects that are looked at to infer a schema, at most."""
WIDENING = "addNewColumnsWithTypeWidening"
ADDING = ("addNewColumns", WIDENING)
"""Modes of `schemaEvolutionMode` that add columns; the second takes wider types, too."""
_CSV = ("csv",)
_UNREAD = excludes(
    "content=reference",
    problem="is about reading objects, and with content reference that is left to your own code, or to a sink with the "
    "option load; leave it out",
)
_OF_COLUMNS = "is about the columns of records, and with singleVariantColumn a record is one column, "
_NO_COLUMNS = excludes("singleVariantColumn", problem=_OF_COLUMNS + "{singleVariantColumn}; leave one of them out")
_INFERRED = excludes(
    "schema", problem="is for columns that are inferred, and schema declares them; leave one of them out"
)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """A file format and its options.

    Used by the driver, and pickled to the executors. Values are those that the types of the options gave:
    construction checks nothing.

    Attributes:
        watch_new_columns: Columns that are not declared end the read; set by `schemaEvolutionMode`.
        watch_wider_types: So do wider types of those that are; only with the former.
        tells_new_columns: Columns that are not declared are passed by, and counted.
    """

    TITLE: ClassVar = "File formats"
    ON_CHANGE: ClassVar = OnChange.READ

    # fmt: off
    file_format: str = option("fileFormat", types.choice(*FILE_FORMATS, refused=NOT_READ), example="json",
        required="the objects need a format", unless=("content=message", "content=reference"),
        rules=excludes("content=message&fileFormat=binaryFile", problem="{fileFormat} is for objects; leave it out, "
        "and the column `value` is the message"),
        help="Format of the objects, or of messages; `json` is one record a line. [Spark's own "
        "readers](../how-to/foreach-batch.md) read others.",
        on_change=OnChange.REFUSED_IN_PART)
    timezone: str | None = option(
        "timeZone", types.TIME_ZONE, example="Europe/Berlin", note="the session's: `spark.sql.session.timeZone`",
        formats=RECORD_FORMATS, beside=("modifiedAfter", "modifiedBefore"),
        help="Zone of timestamps without one; if the session sets none either, that of the driver's machine.")
    header: bool = option(
        "header", types.BOOLEAN, "false", help="The first line holds the columns' names.", example="true", formats=_CSV)
    sep: str = option("sep", types.SEPARATOR, ",", help="Character between fields.", example=";", formats=_CSV)
    quote: str = option("quote", types.CHARACTER, '"', example="'", formats=_CSV,
        help="Character around fields that contain separators.")
    escape: str = option("escape", types.CHARACTER, "\\", example='"', formats=_CSV,
        help="Character before a quote within a quoted field.")
    null_value: str = option(
        "nullValue", types.TEXT, "", help="Text that means null.", example="NULL", formats=_CSV)
    empty_value: str = option(
        "emptyValue", types.TEXT, "", help="Value of an empty quoted field.", example="-", formats=_CSV)
    comment: str = option("comment", types.CHARACTER, "", example="#", formats=_CSV,
        help="Lines that begin with this character are skipped.")
    ignore_leading_white_space: bool = option(
        "ignoreLeadingWhiteSpace", types.BOOLEAN, "false", example="true", formats=_CSV,
        help="Remove spaces before a field.")
    ignore_trailing_white_space: bool = option(
        "ignoreTrailingWhiteSpace", types.BOOLEAN, "false", example="true", formats=_CSV,
        help="Remove spaces after a field.")
    nan_value: str = option(
        "nanValue", types.TEXT, "NaN", help="Text that means not a number.", example="-", formats=_CSV)
    positive_inf: str = option(
        "positiveInf", types.TEXT, "Inf", help="Text that means positive infinity.", example="+oo", formats=_CSV)
    negative_inf: str = option(
        "negativeInf", types.TEXT, "-Inf", help="Text that means negative infinity.", example="-oo", formats=_CSV)
    multi_line: bool = option("multiLine", types.BOOLEAN, "false", example="true", formats=RECORD_FORMATS,
        help="json: an object is one document, which is an array of records or one record. csv: quoted fields may "
        "hold line ends. Such objects are not split.",
        on_change=OnChange.REFUSED_IN_PART)
    records_path: str | None = option("recordsPath", types.FIELD_PATH, example="Records", formats=("json",),
        rules=excludes("multiLine", problem="reads documents over any number of lines; leave multiLine out"),
        help="Keys that lead to the array of records in a [document](formats.md#json). Such objects are not split.",
        on_change=OnChange.REFUSED_IN_PART)
    whole_text: bool = option(
        "wholeText", types.BOOLEAN, "false", help="An object is one row.", example="true", formats=("text",),
        on_change=OnChange.REFUSED_IN_PART)
    line_sep: str | None = option(
        "lineSep", types.LINE_END, example=";", note=r"`\n`, `\r\n` and `\r`", formats=LINE_FORMATS,
        help="What ends a record.",
        rules=excludes("multiLine", "wholeText", "recordsPath",
            problem="has no meaning with {other}; leave one of them out"),
        on_change=OnChange.REFUSED_IN_PART)
    encoding: str = option("encoding", types.ENCODING, "UTF-8", example="ISO-8859-1", formats=LINE_FORMATS,
        help="Character set of the objects. Only UTF-8 is split.",
        on_change=OnChange.REFUSED_IN_PART)
    date_format: str | None = option(
        "dateFormat", types.DATE_PATTERN, example="dd.MM.yyyy", note="`yyyy-MM-dd` and what Spark casts",
        formats=RECORD_FORMATS, rules=_NO_COLUMNS,
        help="Pattern of dates.")
    timestamp_format: str | None = option(
        "timestampFormat", types.DATE_PATTERN, example="dd.MM.yyyy HH:mm:ss", note="ISO 8601 and what Spark casts",
        formats=RECORD_FORMATS, rules=_NO_COLUMNS,
        help="Pattern of TIMESTAMP.")
    timestamp_ntz_format: str | None = option(
        "timestampNTZFormat", types.DATE_PATTERN, example="dd.MM.yyyy HH:mm:ss", note="ISO 8601 and what Spark casts",
        formats=RECORD_FORMATS, rules=_NO_COLUMNS,
        help="Pattern of TIMESTAMP_NTZ.")
    mode: str = option(
        "mode", types.choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"), "PERMISSIVE", example="DROPMALFORMED",
        formats=LINE_FORMATS,
        help="What becomes of [bad records](formats.md#bad-records): their readable fields are kept, or they are left "
        "out, or their object is bad.")
    max_record_bytes: int = option("maxRecordBytes", types.SIZE, "48m", example="256m", formats=LINE_FORMATS,
        help="A longer record (with `wholeText`: object) is bad, and skipped. A worker needs up to twelve times "
        "this memory.")
    column_name_of_corrupt_record: str = option(
        "columnNameOfCorruptRecord", types.NON_EMPTY, "_corrupt_record", example="_bad", formats=RECORD_FORMATS,
        help="STRING column for bad records as they were written, if the schema has it.")
    rescued_data_column: str | None = option("rescuedDataColumn", types.NON_EMPTY, example="_rest",
        note="`_rescued_data` with `schemaEvolutionMode` = `rescue`, and for inferred json and csv "
        "except in mode `none`",
        formats=INFERRED_FORMATS, rules=_NO_COLUMNS,
        help="STRING column that holds, as JSON, data for which no other column has a place.")
    reader_case_sensitive: bool = option(
        "readerCaseSensitive", types.BOOLEAN, "false", example="true", formats=INFERRED_FORMATS, rules=_NO_COLUMNS,
        help="Names that differ from the schema's in case alone are [other names](formats.md).")
    single_variant_column: str | None = option(
        "singleVariantColumn", types.NON_EMPTY, example="order", formats=("json",),
        instead="to have VARIANT of other formats, use to_variant_object(struct(*)) of Spark",
        rules=excludes("load", problem="makes a VARIANT, which load cannot write; read rows (content object) and let a "
        "sink of Spark write them, or load columns"),
        help="A record (with `multiLine` an object) is one column of this name, of type VARIANT.")
    max_expansion: int = option(
        "maxExpansion", types.number(1, 1_000_000), "250", example="5000", formats=MESSAGE_FORMATS,
        help="How many times larger than the object its decoded values may be. Beyond that, and beyond [1 GB "
        "or so](formats.md#limits) (json, csv and text: 256 MB), the object is corrupt.")
    max_decode_memory: int | None = option("maxDecodeMemory", types.MEMORY, example="4g", formats=MESSAGE_FORMATS,
        note="half of the machine's (or container's) memory for each core, from 256 MB to 1 GB; half of that for "
        "avro; for csv, json and text at least 12 times `maxRecordBytes`",
        help="Memory that decoding an object may take in a task, on Linux; an object that needs more is "
        "[bad](formats.md#limits) (`too-large-for-memory`).")
    partition_columns: tuple[str, ...] = option("partitionColumns", types.NAMES, "", example="day,country",
        help="Columns whose values are folders of the object's path (`day=2020-01-01/`).",
        rules=only_with("fileFormat", "load", problem="acts only on objects that are read in a fileFormat; leave it "
        "out")
        + excludes("content=message", problem="come from paths of objects, which messages do not have; leave it out"))
    # fmt: on
    watch_new_columns: bool = field(default=False)
    watch_wider_types: bool = field(default=False)
    tells_new_columns: bool = field(default=False)

    @property
    def looks_for_new_columns(self) -> bool:
        return self.watch_new_columns or self.tells_new_columns

    @property
    def zone(self) -> str:
        """The zone of timestamps without one. Tasks have it before they read; without Spark it is UTC."""
        return self.timezone or "UTC"

    @property
    def max_document_bytes(self) -> int:
        """The limit of a json document (`multiLine`).

        It is held with a copy of itself, and an item of it at a time with its values.
        """
        return self.max_record_bytes * 3 // 2

    @property
    def max_values(self) -> int:
        """The limit of keys and values of one json record: each takes some hundred bytes while it is read."""
        return self.max_record_bytes // 60

    @property
    def is_of_records(self) -> bool:
        """Tell whether objects are records, of which one may be bad, and not files whose footers have their types."""
        return self.file_format in RECORD_FORMATS

    @property
    def plain_utf8(self) -> bool:
        """Tell whether the bytes of an object are taken as they are."""
        return codecs.lookup(self.encoding).name == "utf-8"


class ContentKind(str, Enum):
    """The kinds of option `content`. Code asks for their properties, and not for their names."""

    OBJECT = "object"
    MESSAGE = "message"
    REFERENCE = "reference"

    @property
    def is_announced(self) -> bool:
        """Tell whether messages and listings announce objects; else the messages themselves are the content."""
        return self is not ContentKind.MESSAGE

    @property
    def is_read(self) -> bool:
        """Tell whether bytes become rows; else the rows are the announced objects, which are never opened."""
        return self is not ContentKind.REFERENCE


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """How an undeclared schema is inferred, and what happens when objects have more columns.

    Attributes:
        schema_location: A URI or an absolute path; None where the columns are declared.
        schema_hints: DDL; "" for none.
        schema_sample_bytes: Bytes, of all samples together.
    """

    TITLE: ClassVar = "Inferred schemas"
    ON_CHANGE: ClassVar = OnChange.READ

    # fmt: off
    schema_location: str | None = option(
        "schemaLocation", types.PATH, example="s3://lake/schemas/orders", formats=INFERRED_FORMATS,
        rules=_UNREAD + _NO_COLUMNS + _INFERRED,
        help="Folder of the versions of inferred schemas, which all machines must reach; required when no schema is "
        "declared.")
    schema_hints: str = option(
        "schemaHints", types.COLUMNS, example="id BIGINT, tags.key STRING", rules=_UNREAD + _NO_COLUMNS + _INFERRED,
        help="Types of some inferred columns; dots lead into columns.")
    schema_evolution_mode: str = option("schemaEvolutionMode",
        types.choice("none", "rescue", *ADDING, "failOnNewColumns"),
        example="rescue", note="`addNewColumns` with `schemaLocation`, else `none`", formats=INFERRED_FORMATS,
        rules=only_with("schemaLocation", f"schemaEvolutionMode!={'|'.join(ADDING)}", problem="{schemaEvolutionMode} "
        "widens an inferred schema: leave .schema(...) out and set schemaLocation; with a declared schema, write "
        "rescue or failOnNewColumns")
        + excludes("singleVariantColumn&schemaEvolutionMode=rescue|failOnNewColumns", problem=_NO_COLUMNS[0].problem),
        help="What happens with [columns that the schema lacks](../how-to/schema.md#when-new-columns-come).")
    infer_column_types: bool = option(
        "inferColumnTypes", types.BOOLEAN, example="true", note="`true` for json, `false` for csv, as in Spark",
        formats=RECORD_FORMATS,
        help="Infer types too; otherwise all inferred columns are STRING.")
    schema_sample: tuple[str, ...] = option(
        "schemaSample", types.URIS, example="s3://landing/orders/1.json", formats=INFERRED_FORMATS,
        rules=_NO_COLUMNS,
        help="Objects to infer from, instead of announced ones.")
    schema_sample_files: int = option(
        "schemaSampleFiles", types.number(1, MOST_SAMPLES), "10", example="100", formats=INFERRED_FORMATS,
        help="Maximum number of objects (or messages) to infer from.")
    schema_sample_bytes: int = option("schemaSampleBytes", types.SIZE, "8m", example="64m", formats=RECORD_FORMATS,
        help="Maximum size of json and csv to infer from, in total.")
    # fmt: on

    @property
    def adds_columns(self) -> bool:
        return self.schema_evolution_mode in ADDING

    @property
    def widens_types(self) -> bool:
        return self.schema_evolution_mode == WIDENING


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """The only part of the reader's options that is sent to executors.

    Attributes:
        format: None where messages are read as they are.
    """

    TITLE: ClassVar = "Content"
    ON_CHANGE: ClassVar = OnChange.READ

    format: FormatOptions | None
    storage: StorageOptions
    schema: SchemaOptions
    # fmt: off
    content: str = option("content", types.choice(*(kind.value for kind in ContentKind)), "object", example="message",
        rules=excludes("content=message&queueUrl=store", "content=message&routes", problem="message needs the "
        "messages, and with queueUrl store, or routes, there are none; read their queue"),
        help="What the rows are: the content of announced objects; [the messages themselves](../how-to/messages.md); "
        "or [objects by reference](../how-to/foreach-batch.md), unread: URI, size, version and times.",
        on_change=OnChange.REFUSED_UNFINISHED)
    on_missing_object: str = option("onMissingObject", _BAD_OBJECT, "quarantine", example="skip", rules=_UNREAD,
        help="An object that does not exist goes to the error table, fails the query, or is left out (`skip`).")
    on_corrupt_object: str = option("onCorruptObject", _BAD_OBJECT, "quarantine", example="fail", rules=_UNREAD,
        help="The same for an object that cannot be read, is truncated or is in another format.")
    on_forbidden_object: str = option(
        "onForbiddenObject", types.choice("quarantine", "fail"), "quarantine", example="fail", rules=_UNREAD,
        help="The same for an object that its store refuses for good (access denied, archived, no permission for its "
        "key). It is tried `maxAttempts` times, and [not always](../how-to/storage.md#objects-that-are-refused) "
        "quarantined.")
    max_concurrent_requests: int = option("maxConcurrentRequests", types.number(1, 1000), "64", example="16",
        rules=_UNREAD, on_change=OnChange.AT_ONCE,
        help="How many objects of a bucket a task asks for at once.")
    read_ahead_bytes: int = option("readAheadBytes", types.SIZE, "32m", example="8m", rules=_UNREAD,
        on_change=OnChange.AT_ONCE, help="Bytes of a bucket's objects that a task holds before it reads them.")
    # fmt: on

    @property
    def kind(self) -> ContentKind:
        return ContentKind(self.content)

    @property
    def stops_at_bad_objects(self) -> bool:
        """Tell whether no part of a micro-batch is published when any of its objects cannot be read to its end."""
        return self.on_missing_object == self.on_corrupt_object == self.on_forbidden_object == "fail"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The log lines of the reader process, and of the tasks of executors."""

    TITLE: ClassVar = "Logs"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    level: str = option("logLevel", types.choice("debug", "info", "warning", "error"), "info", example="debug",
        help="Least level of lines on standard error of driver and executors ([all messages](logs.md)).")
    form: str = option("logFormat", types.choice("text", "json"), "text", example="json",
        help="Form of a log line.")
    # fmt: on
