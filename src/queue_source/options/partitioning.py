"""The text of `partitionBy`: transforms of columns in the words of Iceberg, singular or, as Spark has them, plural."""

from __future__ import annotations

import re
from typing import NamedTuple

from queue_source.options.secrets import shown

_TIMES = ("year", "month", "day", "hour")
_SIZED = ("bucket", "truncate")
_FIELD = re.compile(
    r"\s*(?:(?P<name>[A-Za-z]+)\s*\(\s*(?:(?P<size>[0-9]{1,9})\s*,\s*)?(?P<of>[^(),]+?)\s*\)|(?P<column>[^(),]+?))\s*(?:,|$)"
)


class PartitionField(NamedTuple):
    """One field: `transform` is `identity`, `year`, `month`, `day`, `hour`, `bucket` or `truncate` (of `size`)."""

    transform: str
    column: str
    size: int = 0

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.size}, ' if self.size else ''}{self.column})"


def parse_partitioning(text: str) -> tuple[PartitionField, ...]:
    """Raises ValueError with the part that is not understood."""
    fields: list[PartitionField] = []
    place = 0
    while place < len(text.rstrip()):
        match = _FIELD.match(text, place)
        field = match and _field(match)
        if not match or not field:
            raise ValueError(
                f"{shown(text[place:].strip())} is no partitioning; write columns or transforms of them, separated by "
                "commas, as in day(ts), bucket(16, id), country"
            )
        fields.append(field)
        place = match.end()
    if text.rstrip().endswith(",") or len(set(fields)) < len(fields):
        raise ValueError(f"{shown(text)} holds an empty field or one twice; write each once, as in day(ts), country")
    return tuple(fields)


def _field(match: re.Match[str]) -> PartitionField | None:
    if match["column"]:
        return PartitionField("identity", match["column"])
    name, size = match["name"].lower(), int(match["size"] or 0)
    if name.removesuffix("s") in _TIMES and match["size"] is None:
        return PartitionField(name.removesuffix("s"), match["of"])
    if name == "identity" and match["size"] is None:
        return PartitionField(name, match["of"])
    return PartitionField(name, match["of"], size) if name in _SIZED and size else None
