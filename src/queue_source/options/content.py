"""What executors need to read content: what is read, in which format, from where, and with which schema.

Plain frozen dataclasses: what an executor unpickles loads the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from queue_source.options import types
from queue_source.options.declaring import OnChange, option
from queue_source.options.file_format import INFERRED_FORMATS, RECORD_FORMATS, FormatOptions
from queue_source.options.storage import StorageOptions

_BAD_OBJECT = types.choice("quarantine", "fail", "skip")


class ContentKind(str, Enum):
    """What is read, as the option `content` says. What follows from it is asked of this, and not of the name."""

    OBJECT = "object"
    MESSAGE = "message"
    REFERENCE = "reference"

    @property
    def is_announced(self) -> bool:
        """Whether messages and listings announce objects; else the messages themselves are the content."""
        return self is not ContentKind.MESSAGE

    @property
    def is_read(self) -> bool:
        """Whether bytes become rows; else the rows are the announced objects, and nobody opens them."""
        return self is not ContentKind.REFERENCE


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """How a schema that nobody declared is inferred, and what happens when objects have more columns.

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
        help="Folder (or URI) where inferred schemas are kept, in versions; required when no schema is declared. All "
        "machines must reach it.",
    )
    schema_hints: str = option(
        "schemaHints", types.COLUMNS, example="id BIGINT, tags.key STRING",
        help="Types of some columns of an inferred schema, as Spark's DDL; dots lead into columns.",
    )
    schema_evolution_mode: str = option(
        "schemaEvolutionMode",
        types.choice("none", "rescue", "addNewColumns", "failOnNewColumns", refused=("addNewColumnsWithTypeWidening",)),
        example="rescue", note="`addNewColumns` with `schemaLocation`, else `none`", formats=INFERRED_FORMATS,
        help="What happens with columns that the schema lacks. `none`: they are ignored. `rescue`: they go to "
        "`rescuedDataColumn`. `addNewColumns`: the query fails, and continues with them when it is started again. "
        "`failOnNewColumns`: the query fails.",
    )
    infer_column_types: bool = option(
        "inferColumnTypes", types.BOOLEAN, example="true", note="`true` for json, `false` for csv, as in Spark",
        formats=RECORD_FORMATS,
        help="Infer types too; otherwise all inferred columns are STRING.",
    )
    schema_sample: tuple[str, ...] = option(
        "schemaSample", types.URIS, example="s3://landing/orders/1.json", formats=INFERRED_FORMATS,
        help="Objects to infer from, instead of those that the queue announces.",
    )
    schema_sample_files: int = option(
        "schemaSampleFiles", types.number(1, 1000), "10", example="100", formats=INFERRED_FORMATS,
        help="Maximum number of objects (or messages) to infer from.",
    )
    schema_sample_bytes: int = option(
        "schemaSampleBytes", types.SIZE, "8m", example="64m", formats=INFERRED_FORMATS,
        help="Maximum size of json and csv to infer from, of all samples together.",
    )
    # fmt: on


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
    content: str = option(
        "content", types.choice(*(kind.value for kind in ContentKind)), "object", example="message",
        help="What the rows are: the content of the objects that messages announce; [the messages "
        "themselves](../how-to/messages.md); or the [objects by reference](../how-to/references.md), which are not "
        "read: URI, size, version and times.",
        on_change=OnChange.REFUSED_UNFINISHED,
    )
    on_missing_object: str = option(
        "onMissingObject", _BAD_OBJECT, "quarantine", example="skip",
        help="What happens with an object that does not exist: `quarantine` writes it to the error table, `fail` "
        "fails the query, `skip` leaves it out.",
    )
    on_corrupt_object: str = option(
        "onCorruptObject", _BAD_OBJECT, "quarantine", example="fail",
        help="The same for an object that cannot be read, is truncated or is in another format.",
    )
    on_forbidden_object: str = option(
        "onForbiddenObject", types.choice("quarantine", "fail"), "quarantine", example="fail",
        help="The same for an object that its store refuses for good: access denied, archived, no permission for its "
        "key. It is tried `maxAttempts` times, and quarantined only if other objects of its bucket can be read, or if "
        "the reason is its own. When all of a bucket is refused, the query fails.",
    )
    # fmt: on

    @property
    def kind(self) -> ContentKind:
        return ContentKind(self.content)

    @property
    def stops_at_bad_objects(self) -> bool:
        """Whether nothing of a micro-batch is published when any of its objects cannot be read to its end."""
        return self.on_missing_object == self.on_corrupt_object == self.on_forbidden_object == "fail"
