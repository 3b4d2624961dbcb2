"""Bad records of one object: the effect of `mode` on them, and their reports.

Every bad record is counted. The first ones of an object are reported one by one; the others are one entry with their
number, because a file of another schema would otherwise fill the error table with its every line.
"""

from __future__ import annotations

from dataclasses import dataclass

from queue_source.errors import BadObject
from queue_source.formats.typed.columns import shorten

MAX_REPORTED = 20
"""Bad records of one object that are reported one by one."""
_KEPT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One bad record: `offset` is where it begins (byte, decompressed), `record` its first bytes of `size`."""

    offset: int
    reason: str
    record: bytes
    size: int


class BadRecords:
    """Collects the bad records of one object (or part), in their order."""

    def __init__(self, mode: str) -> None:
        self.keeps = mode == "PERMISSIVE"
        self.fails = mode == "FAILFAST"
        self.reported: list[BadRecord] = []
        self.count = 0
        self.last = 0

    def add(self, offset: int, reason: str, record: bytes) -> None:
        """Count a bad record.

        Raises BadObject("corrupt-object") when the first one ends the object (FAILFAST).
        """
        if self.fails:
            raise BadObject("corrupt-object", shorten(f"record at byte {offset}: {reason}"), offset)
        self.count += 1
        self.last = offset
        if len(self.reported) < MAX_REPORTED:
            self.reported.append(BadRecord(offset, shorten(reason), record[:_KEPT_BYTES], len(record)))

    @property
    def omitted(self) -> int:
        """The number of bad records that are only counted."""
        return self.count - len(self.reported)
