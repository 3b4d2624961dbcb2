"""The file format and its options, with Spark's names and Spark's defaults."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import ClassVar

from queue_source.options import types
from queue_source.options.declaring import OnChange, option

MESSAGE_FORMATS = ("json", "csv", "parquet", "text", "orc", "avro")
FILE_FORMATS = (*MESSAGE_FORMATS, "binaryFile")
LINE_FORMATS = ("json", "csv", "text")
RECORD_FORMATS = ("json", "csv")
INFERRED_FORMATS = ("json", "csv", "parquet", "orc", "avro")
_CSV = ("csv",)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """A file format and its options.

    Used by the driver, and pickled to the executors. Values are those that the types of the options gave:
    construction checks nothing, and `checks.check_format` refuses what contradicts itself.

    Attributes:
        watch_new_columns: Columns that are not declared end the read; set by `schemaEvolutionMode`.
    """

    TITLE: ClassVar = "File formats"
    ON_CHANGE: ClassVar = OnChange.READ

    # fmt: off
    file_format: str = option(
        "fileFormat", types.choice(*FILE_FORMATS, refused=("xml",)), example="json",
        required="the objects need a format", unless=(("content", "message"), ("content", "reference")),
        help="Format of the objects, or of messages; `json` is one record a line. Without it, messages are read as "
        "they are. Objects of other formats are read [by Spark's own readers](../how-to/references.md).",
        on_change=OnChange.REFUSED_IN_PART,
    )
    timezone: str | None = option(
        "timeZone", types.TIME_ZONE, example="Europe/Berlin", note="the session's: `spark.sql.session.timeZone`",
        formats=RECORD_FORMATS, beside=("modifiedAfter", "modifiedBefore"),
        help="Zone of timestamps that are written without one. Where the session sets none either, it is the zone of "
        "the driver's machine, as in Spark.",
    )
    header: bool = option(
        "header", types.BOOLEAN, "false", help="The first line holds the columns' names.", example="true", formats=_CSV
    )
    sep: str = option("sep", types.SEPARATOR, ",", help="Character between two fields.", example=";", formats=_CSV)
    quote: str = option(
        "quote", types.CHARACTER, '"', example="'", formats=_CSV,
        help="Character around fields that contain separators.",
    )
    escape: str = option(
        "escape", types.CHARACTER, "\\", example='"', formats=_CSV,
        help="Character before a quote within a quoted field.",
    )
    null_value: str = option(
        "nullValue", types.TEXT, "", help="The text that means null.", example="NULL", formats=_CSV
    )
    empty_value: str = option(
        "emptyValue", types.TEXT, "", help="The value of an empty quoted field.", example="-", formats=_CSV
    )
    comment: str = option(
        "comment", types.CHARACTER, "", example="#", formats=_CSV,
        help="Lines that begin with this character are skipped.",
    )
    ignore_leading_white_space: bool = option(
        "ignoreLeadingWhiteSpace", types.BOOLEAN, "false", example="true", formats=_CSV,
        help="Remove spaces before a field.",
    )
    ignore_trailing_white_space: bool = option(
        "ignoreTrailingWhiteSpace", types.BOOLEAN, "false", example="true", formats=_CSV,
        help="Remove spaces after a field.",
    )
    nan_value: str = option(
        "nanValue", types.TEXT, "NaN", help="The text that means not a number.", example="-", formats=_CSV
    )
    positive_inf: str = option(
        "positiveInf", types.TEXT, "Inf", help="The text that means positive infinity.", example="+oo", formats=_CSV
    )
    negative_inf: str = option(
        "negativeInf", types.TEXT, "-Inf", help="The text that means negative infinity.", example="-oo", formats=_CSV
    )
    multi_line: bool = option(
        "multiLine", types.BOOLEAN, "false", example="true", formats=RECORD_FORMATS,
        help="json: an object is one document, which is an array of records or one record. csv: quoted fields may "
        "hold line ends. Such objects are not split into ranges.",
        on_change=OnChange.REFUSED_IN_PART,
    )
    whole_text: bool = option(
        "wholeText", types.BOOLEAN, "false", help="An object is one row.", example="true", formats=("text",),
        on_change=OnChange.REFUSED_IN_PART,
    )
    line_sep: str | None = option(
        "lineSep", types.LINE_END, example=";", note=r"`\n`, `\r\n` and `\r`", formats=LINE_FORMATS,
        help="What ends a record.",
        on_change=OnChange.REFUSED_IN_PART,
    )
    encoding: str = option(
        "encoding", types.ENCODING, "UTF-8", example="ISO-8859-1", formats=LINE_FORMATS,
        help="Character set of the objects. Only UTF-8 is split into ranges.",
        on_change=OnChange.REFUSED_IN_PART,
    )
    date_format: str | None = option(
        "dateFormat", types.DATE_PATTERN, example="dd.MM.yyyy", note="`yyyy-MM-dd` and what Spark casts",
        formats=RECORD_FORMATS,
        help="Pattern of dates.",
    )
    timestamp_format: str | None = option(
        "timestampFormat", types.DATE_PATTERN, example="dd.MM.yyyy HH:mm:ss", note="ISO 8601 and what Spark casts",
        formats=RECORD_FORMATS,
        help="Pattern of TIMESTAMP.",
    )
    timestamp_ntz_format: str | None = option(
        "timestampNTZFormat", types.DATE_PATTERN, example="dd.MM.yyyy HH:mm:ss", note="ISO 8601 and what Spark casts",
        formats=RECORD_FORMATS,
        help="Pattern of TIMESTAMP_NTZ.",
    )
    mode: str = option(
        "mode", types.choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"), "PERMISSIVE", example="DROPMALFORMED",
        formats=LINE_FORMATS,
        help="What happens with a bad record: its readable fields are kept; it is left out; or its object is corrupt "
        "(`onCorruptObject`). In the first two modes the record is also written to the error table.",
    )
    max_record_bytes: int = option(
        "maxRecordBytes", types.SIZE, "48m", example="256m", formats=LINE_FORMATS,
        help="A longer record (with `wholeText`: a longer object) is a bad record and is skipped. A document of json "
        "(`multiLine`) may be half as long again if none of its items is longer. A worker needs up to ten times as "
        "much memory.",
    )
    column_name_of_corrupt_record: str = option(
        "columnNameOfCorruptRecord", types.NON_EMPTY, "_corrupt_record", example="_bad", formats=RECORD_FORMATS,
        help="The STRING column that holds bad records as they were written, if the schema has it.",
    )
    rescued_data_column: str | None = option(
        "rescuedDataColumn", types.NON_EMPTY, example="_rest",
        note="`_rescued_data` with `schemaEvolutionMode` = `rescue`, and for inferred json and csv "
        "except in mode `none`",
        formats=INFERRED_FORMATS,
        help="The STRING column of the schema that holds, as JSON, the data for which no other column has a place. An "
        "inferred schema has it.",
    )
    max_expansion: int = option(
        "maxExpansion", types.number(1, 1_000_000), "250", example="5000", formats=MESSAGE_FORMATS,
        help="How many times larger than the object its decoded values may be (and how many rows a byte). Beyond it, "
        "and beyond 1 GB or 100 million rows (csv, json and text: 256 MB), the object is corrupt.",
    )
    max_decode_memory: int | None = option(
        "maxDecodeMemory", types.MEMORY, example="4g", formats=MESSAGE_FORMATS,
        note="half of the machine's (or container's) memory for each of its cores, from 256 MB to 1 GB; of that half "
        "for avro; for csv, json and text at least 12 times `maxRecordBytes`",
        help="How much memory decoding one object may take in a task, beside what its process has already; an object "
        "that needs more is bad (`too-large-for-memory`). Only on Linux; where "
        "`spark.executor.pyspark.memory` leaves less, that is the limit.",
    )
    partition_columns: tuple[str, ...] = option(
        "partitionColumns", types.NAMES, "", example="day,country",
        help="Columns of the schema whose values are folders of the object's path (`.../day=2020-01-01/...`).",
    )
    # fmt: on
    watch_new_columns: bool = field(default=False)

    @property
    def zone(self) -> str:
        """The zone of timestamps without one. Tasks know it before they read; without Spark it is UTC."""
        return self.timezone or "UTC"

    @property
    def max_document_bytes(self) -> int:
        """A json document (`multiLine`) is held with a copy of itself, and an item of it at a time with its values."""
        return self.max_record_bytes * 3 // 2

    @property
    def max_values(self) -> int:
        """Keys and values of one json record: each takes some hundred bytes while it is read."""
        return self.max_record_bytes // 60

    @property
    def plain_utf8(self) -> bool:
        """Whether the bytes of an object are taken as they are."""
        return codecs.lookup(self.encoding).name == "utf-8"
