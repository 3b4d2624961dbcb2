"""The reader's options of content: what is read, in which format, with which schema."""

from __future__ import annotations

from queue_source.options import kinds
from queue_source.options.kinds import choice, number
from queue_source.options.tables.entry import Option

_FILE_FORMATS = ("json", "csv", "parquet", "text", "orc", "avro", "binaryFile")
_RECORDS = ("json", "csv")
_LINES = ("json", "csv", "text")
_INFERRED = ("json", "csv", "parquet", "orc", "avro")
_BAD_OBJECT = choice("quarantine", "fail", "skip")

CONTENT_OPTIONS = (
    Option(
        "content", "content", choice("object", "message"), "object",
        "What is read: the objects that messages announce, or the messages themselves.", "message",
    ),
    Option(
        "fileFormat", "format", choice(*_FILE_FORMATS, refused=("xml",)), None,
        "Format of the objects, or of messages; `json` is one record a line. Messages without it are read as they are.",
        "json", "required for objects",
    ),
    Option(
        "onMissingObject", "content", _BAD_OBJECT, "quarantine",
        "What happens with an object that is not there: into the error table, fail the query, or leave it out.", "skip",
    ),
    Option(
        "onCorruptObject", "content", _BAD_OBJECT, "quarantine",
        "The same for an object that cannot be read, is truncated or in another format.", "fail",
    ),
    Option(
        "timeZone", "format", kinds.TIME_ZONE, "UTC",
        "Zone of timestamps that are written without one.", "Europe/Berlin", formats=_RECORDS,
    ),
    Option(
        "header", "format", kinds.BOOLEAN, "false", "The first line holds the columns' names.", "true",
        formats=("csv",),
    ),
    Option("sep", "format", kinds.SEPARATOR, ",", "Character between two fields.", ";", formats=("csv",)),
    Option(
        "quote", "format", kinds.CHARACTER, '"', "Character around fields that contain separators.", "'",
        formats=("csv",),
    ),
    Option(
        "escape", "format", kinds.CHARACTER, "\\", "Character before a quote within a quoted field.", '"',
        formats=("csv",),
    ),
    Option("nullValue", "format", kinds.TEXT, "", "The text that stands for null.", "NULL", formats=("csv",)),
    Option(
        "emptyValue", "format", kinds.TEXT, "", "The text that an empty quoted field stands for.", "-",
        formats=("csv",),
    ),
    Option(
        "comment", "format", kinds.CHARACTER, "", "Lines that begin with this character are passed over.", "#",
        formats=("csv",),
    ),
    Option(
        "ignoreLeadingWhiteSpace", "format", kinds.BOOLEAN, "false", "Spaces before a field are no part of it.", "true",
        formats=("csv",),
    ),
    Option(
        "ignoreTrailingWhiteSpace", "format", kinds.BOOLEAN, "false", "Spaces behind a field are no part of it.",
        "true", formats=("csv",),
    ),
    Option("nanValue", "format", kinds.TEXT, "NaN", "The text that is not a number.", "-", formats=("csv",)),
    Option("positiveInf", "format", kinds.TEXT, "Inf", "The text of positive infinity.", "+oo", formats=("csv",)),
    Option("negativeInf", "format", kinds.TEXT, "-Inf", "The text of negative infinity.", "-oo", formats=("csv",)),
    Option(
        "multiLine", "format", kinds.BOOLEAN, "false",
        "json: an object is one document, an array of records or one record. csv: quoted fields may hold line ends. "
        "Such objects are not cut into ranges.", "true", formats=_RECORDS,
    ),
    Option(
        "wholeText", "format", kinds.BOOLEAN, "false", "An object is one row.", "true", formats=("text",),
    ),
    Option(
        "lineSep", "format", kinds.TEXT, None, "What ends a record.", ";", r"`\n`, `\r\n` and `\r`", formats=_LINES,
    ),
    Option(
        "encoding", "format", kinds.ENCODING, "UTF-8",
        "Character set of the objects. Only UTF-8 is cut into ranges.", "ISO-8859-1", formats=_LINES,
    ),
    Option(
        "dateFormat", "format", kinds.GIVEN_TEXT, None, "Form of dates, in Spark's letters for numbers.", "dd.MM.yyyy",
        "`yyyy-MM-dd` and what Spark casts", formats=_RECORDS,
    ),
    Option(
        "timestampFormat", "format", kinds.GIVEN_TEXT, None, "The same for TIMESTAMP.", "dd.MM.yyyy HH:mm:ss",
        "ISO 8601 and what Spark casts", formats=_RECORDS,
    ),
    Option(
        "timestampNTZFormat", "format", kinds.GIVEN_TEXT, None, "The same for TIMESTAMP_NTZ.", "dd.MM.yyyy HH:mm:ss",
        "ISO 8601 and what Spark casts", formats=_RECORDS,
    ),
    Option(
        "mode", "format", choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"), "PERMISSIVE",
        "What happens with a bad record: it stays with what is good of it, it is left out, or its object is corrupt "
        "(`onCorruptObject`). The first two are entries of the error table.", "DROPMALFORMED", formats=_LINES,
    ),
    Option(
        "columnNameOfCorruptRecord", "format", kinds.GIVEN_TEXT, "_corrupt_record",
        "The STRING column that holds bad records as they were written, if the schema has it.", "_bad",
        formats=_RECORDS,
    ),
    Option(
        "rescuedDataColumn", "format", kinds.GIVEN_TEXT, None,
        "The STRING column of the schema that holds, as JSON, what the other columns have no place for. An inferred "
        "schema has it.",
        "_rest", "`_rescued_data` with `schemaEvolutionMode` = `rescue`, and for inferred json and csv but in mode "
        "`none`", formats=_INFERRED,
    ),
    Option(
        "partitionColumns", "format", kinds.NAMES, "",
        "Columns of the schema whose values are folders of the object's path (`.../day=2020-01-01/...`).",
        "day,country", "none",
    ),
    Option(
        "schemaLocation", "schema", kinds.GIVEN_TEXT, None,
        "Folder (or URI) where inferred schemas are kept, in versions; needed when no schema is declared. All machines "
        "have to reach it.", "s3://lake/schemas/orders", "none", formats=_INFERRED,
    ),
    Option(
        "schemaHints", "schema", kinds.COLUMNS, None,
        "Types of some columns of an inferred schema, as Spark's DDL; dots lead into columns.",
        "id BIGINT, tags.key STRING", "none",
    ),
    Option(
        "schemaEvolutionMode", "schema",
        choice("none", "rescue", "addNewColumns", "failOnNewColumns", refused=("addNewColumnsWithTypeWidening",)), None,
        "What happens with columns that the schema lacks: they are ignored; go to `rescuedDataColumn`; the query "
        "fails and goes on with them when it is started again; it fails.", "rescue",
        "`addNewColumns` with `schemaLocation`, else `none`", formats=_INFERRED,
    ),
    Option(
        "inferColumnTypes", "schema", kinds.BOOLEAN, None,
        "Infer types too; else all inferred columns are STRING. Acts on json and csv.", "true",
        "`true` for json, `false` for csv, as in Spark", formats=_RECORDS,
    ),
    Option(
        "schemaSample", "schema", kinds.URIS, None, "Objects to infer from, instead of those that the queue announces.",
        "s3://landing/orders/1.json", "none", formats=_INFERRED,
    ),
    Option(
        "schemaSampleFiles", "schema", number(1, 1000), "10", "Most objects (or messages) to infer from.", "100",
        formats=_INFERRED,
    ),
    Option(
        "schemaSampleBytes", "schema", kinds.SIZE, "8m", "Most bytes of json and csv to infer from, of all together.",
        "64m", formats=_INFERRED,
    ),
)  # fmt: skip
