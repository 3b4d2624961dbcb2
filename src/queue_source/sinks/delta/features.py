"""What a Delta table asks of its writers: done, or refused by name before anything is written.

delta-rs looks at none of it when files are added to a table: not at constraints, nor at the columns of the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from queue_source.errors import OptionError
from queue_source.sinks.delta.schemas import DeltaField, inner_fields

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
    "delta.invariants": "an invariant",
    "delta.generationExpression": "values that are generated",
    "delta.identity.start": "values that count up (IDENTITY)",
    "CURRENT_DEFAULT": "a default value",
    "__CHAR_VARCHAR_TYPE_STRING": "a length (CHAR or VARCHAR)",
}


def check_features(
    table: str,
    writer_version: int,
    features: Collection[str] | None,
    configuration: Mapping[str, str],
    fields: Sequence[DeltaField],
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
        if rule := next((text for name, text in _OF_COLUMNS.items() if name in field.get("metadata", {})), None):
            raise _refused(table, f"has a column with {rule}: {column!r}")


def _all_fields(above: str, fields: Sequence[DeltaField]) -> Iterator[tuple[str, DeltaField]]:
    for field in fields:
        yield above + field["name"], field
        yield from _all_fields(f"{above}{field['name']}.", list(inner_fields(field["type"])))


def _refused(table: str, why: str) -> OptionError:
    return OptionError(
        "delta",
        f"{table} {why}, which this sink cannot keep; name another table, or write with delta-spark in foreachBatch "
        "(docs/how-to/delta.md)",
    )
