"""How much an object may become when it is decoded, for the formats with types of their own.

What is counted is work, never time: an object that is refused is refused at every attempt, on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import BadObject

ALWAYS_ALLOWED = 1 << 30
"""Bytes that any object may decode to, however small it is."""
ALWAYS_ALLOWED_ROWS = 100_000_000
AT_ONCE = 64 << 20
"""Bytes that are decoded in one go; what would be more is decoded in smaller batches."""
INDIVISIBLE = 128 << 20
"""Bytes that may be needed at once where nothing smaller can be decoded: a page of each column, a row, a block."""
_INDIVISIBLE_SHARE = 16
_SMALL = 1 << 20


@dataclass(slots=True)
class Limits:
    """The limits of one object, and what was decoded of it.

    Attributes:
        size: Bytes of the object as it is stored.
        expansion: The option `maxExpansion`.
    """

    size: int
    expansion: int
    rows: int = 0
    decoded: int = 0
    unpacked: int = 0

    def counted(self, table: pa.Table) -> pa.Table:
        """The table itself. Nulls are not counted as bytes. Raises BadObject("corrupt-object") beyond the limits."""
        rows = table.num_rows
        if not self.rows and (size := table.get_total_buffer_size()) < _SMALL:  # quick to know, and enough of one table
            self.rows, self.decoded = rows, self.decoded + size
            self._check("rows", self.rows, ALWAYS_ALLOWED_ROWS)
            return table
        self.rows += rows
        for column in table.itercolumns():
            nulls = column.null_count
            if nulls < rows:
                self.decoded += column.nbytes * (rows - nulls) // rows if nulls else column.nbytes
        self._check("bytes", self.decoded, ALWAYS_ALLOWED)
        self._check("rows", self.rows, ALWAYS_ALLOWED_ROWS)
        return table

    def add_pages(self, size: int) -> None:
        """Count bytes that are going to be decompressed."""
        self.unpacked += size
        self._check("bytes", self.unpacked, ALWAYS_ALLOWED)

    def check_rows(self, rows: int) -> None:
        """Refuse a number of rows that the object says it has, before any is decoded."""
        self._check("rows", self.rows + rows, ALWAYS_ALLOWED_ROWS)

    def check_empty(self, records: int) -> None:
        """Refuse too many records that take no bytes at all."""
        if records > self.size * self.expansion:
            raise self._refusal(f"it has {records} records without any bytes")

    def check_block(self, size: int) -> None:
        """Refuse a block of records that has so many bytes or more."""
        self.check_indivisible(size, "a block")

    def check_indivisible(self, needed: int, what: str) -> None:
        """Refuse what would need too much memory at once."""
        allowed = max(INDIVISIBLE, self.size * self.expansion // _INDIVISIBLE_SHARE)
        if needed > allowed:
            raise self._refusal(f"{what} decodes to {needed} bytes")

    def _check(self, what: str, count: int, always: int) -> None:
        if count > max(always, self.size * self.expansion):
            raise self._refusal(f"it decodes to {count} {what} or more")

    def _refusal(self, problem: str) -> BadObject:
        return BadObject(
            "corrupt-object",
            f"{problem}, which is too much for an object of {self.size} bytes; if it can be trusted, raise the option "
            f"maxExpansion above {self.expansion}",
        )
