"""What a Delta table asks of its writers: done, or refused by name before anything is written.

delta-rs looks at none of it when files are added to a table: not at constraints, nor at the columns of the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.sinks.delta.schemas import parts

_WRITER_VERSION = 5
"""The newest without a list of features whose features are all known here; 7 has the list."""
_LISTED = 7
_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # files that are only added need no files of changes
        "deletionVectors",  # of other files
        "timestampNtz",
        "v2Checkpoint",
        "variantType",  # a column of which the rows have none
        "variantType-preview",
    }
)
_CHECKED = frozenset({"invariants", "checkConstraints", "generatedColumns", "columnMapping"})
"""Features that ask something of a writer only where the table uses them, which is looked at."""
_CONSTRAINT = "delta.constraints."
_OF_COLUMNS = {
    b"delta.invariants": "an invariant",
    b"delta.generationExpression": "values that are generated",
    b"delta.identity.start": "values that count up (IDENTITY)",
    b"CURRENT_DEFAULT": "a default value",
    b"__CHAR_VARCHAR_TYPE_STRING": "a length (CHAR or VARCHAR)",
}


def check_features(
    table: str,
    writer_version: int,
    features: Collection[str] | None,
    configuration: Mapping[str, str],
    fields: Iterable[pa.Field],
) -> None:
    """Raise OptionError for a table to which this sink cannot write what its rules ask for."""
    if not features and _WRITER_VERSION < writer_version != _LISTED:
        raise _refused(table, f"asks for writers of version {writer_version} of Delta's protocol")
    if unknown := sorted(set(features or ()) - _HARMLESS - _CHECKED):
        raise _refused(table, f"has the feature {', '.join(unknown)}")
    if (mode := configuration.get("delta.columnMapping.mode", "none").lower()) != "none":
        raise _refused(table, f"maps its columns to other names in files (delta.columnMapping.mode = {mode})")
    if constraint := next((name for name in configuration if name.startswith(_CONSTRAINT)), None):
        raise _refused(table, f"has the constraint {constraint.removeprefix(_CONSTRAINT)!r}")
    for column, field in _all_fields("", fields):
        if rule := next((text for name, text in _OF_COLUMNS.items() if name in (field.metadata or {})), None):
            raise _refused(table, f"has a column with {rule}: {column!r}")


def _all_fields(above: str, fields: Iterable[pa.Field]) -> Iterator[tuple[str, pa.Field]]:
    for field in fields:
        yield above + field.name, field
        yield from _all_fields(f"{above}{field.name}.", parts(field.type))


def _refused(table: str, why: str) -> OptionError:
    return OptionError(
        "delta",
        f"{table} {why}, which this sink cannot keep; name another table, or write with delta-spark in foreachBatch "
        "(docs/how-to/delta.md)",
    )
