"""How much an object may become when it is decoded, for the formats with types of their own.

What is counted is what an object has in all, so it is refused at every attempt, on every machine. What it needs at once
is limited by the memory of the process (`BoundedMemory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.storage.memory import release_memory

ALWAYS_ALLOWED = 1 << 30
"""Bytes that any object may decode to, however small it is."""
ALWAYS_ALLOWED_ROWS = 100_000_000
AT_ONCE = 64 << 20
"""Bytes that are decoded at once, where an object tells how large its rows are."""
ROWS = 65_536
"""Rows that are decoded at once, at most."""
_FEWER = 16
_LARGE = 128 << 20
"""Bytes of a batch after which there are fewer rows in each: whoever takes it holds it beside the next."""
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

    def counted(self, table: pa.Table) -> pa.Table:
        """Count a table, without its nulls, and return it. Raises BadObject("corrupt-object") beyond the limits."""
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

    def check_rows(self, rows: int) -> None:
        """Refuse a number of rows that the object says it has, before any is decoded."""
        self._check("rows", self.rows + rows, ALWAYS_ALLOWED_ROWS)

    def check_empty(self, records: int) -> None:
        """Refuse too many records that take no bytes at all."""
        self._check("records without any bytes", records, 0)

    def _check(self, what: str, count: int, always: int) -> None:
        if count > max(always, self.size * self.expansion):
            raise BadObject(
                "corrupt-object",
                f"it decodes to {count} {what} or more, which is too much for an object of {self.size} bytes; if it "
                f"can be trusted, raise the option maxExpansion above {self.expansion}",
            )


class Batches:
    """Reads an object in batches of as many rows as there is memory for."""

    def __init__(self) -> None:
        self._most = ROWS

    def of(self, read: Callable[[int], Iterator[pa.Table]], count: int, row_size: int) -> Iterator[pa.Table]:
        """Give the `count` rows of `read`, which gets how many each table may have, and is called again with fewer.

        That is where memory ends, and after a table that is large. `row_size` is how large a row is in the mean, as far
        as the object tells. Raises MemoryError for a row that is too large by itself.
        """
        rows, done = max(min(self._most, AT_ONCE // max(row_size, 1)), 1), 0
        while True:
            place, is_large, tables = 0, False, read(rows)
            try:
                while not is_large and (table := next(tables, None)) is not None:
                    place += table.num_rows
                    if place > done:
                        if place - table.num_rows < done:
                            table = table.slice(table.num_rows - (place - done))
                        done = place
                        is_large = rows > 1 and done < count and table.get_total_buffer_size() > _LARGE
                        yield table
                    del table  # before the next is decoded, which may be as large
                if not is_large:
                    return
            except MemoryError:
                if rows == 1:
                    raise
            del tables
            self._most = rows = max(rows // _FEWER, 1)
            release_memory()
