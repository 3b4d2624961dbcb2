"""One transaction, as every function that reads or changes tables is given it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult, Row

from shard_store.sql.dialects import Dialect
from shard_store.sql.memory import Memory
from shard_store.sql.row_sets import RowSet

if TYPE_CHECKING:  # types that SQLAlchemy has since 2.1 only
    from sqlalchemy.sql.selectable import TypedReturnsRows
    from typing_extensions import TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")
    Anything = tuple[Any, ...]

Rows = Sequence[dict[str, Any]]
ROWS_PER_STATEMENT = 1000
T = TypeVar("T")


def chunks(items: Iterable[T], size: int = ROWS_PER_STATEMENT) -> Iterator[list[T]]:
    """Yield lists of up to `size` items: no statement handles more rows than this."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction, with the differences of its database. The code that opened it commits it.

    `database` is the database's name without secrets, for messages; `patience` the seconds for which locks are waited
    for. `clock` (seconds since 1970) replaces the database's own clock, for tests. `memory` is the process's, and
    `on_commit` is called when the transaction is committed by us.
    """

    connection: Connection
    dialect: Dialect
    database: str
    patience: float
    trusts_rowcount: bool
    clock: Callable[[], float] | None = None
    memory: Memory = field(default_factory=Memory)
    on_commit: list[Callable[[], None]] = field(default_factory=list)

    def now(self) -> sa.ColumnElement[int]:
        """Return the database's clock as microseconds since 1970 UTC, as a SQL expression."""
        if self.clock is not None:
            return sa.literal(round(self.clock() * 1_000_000), sa.BigInteger)
        return sa.literal_column(self.dialect.now, sa.BigInteger)

    @overload
    def execute(self, statement: TypedReturnsRows[Unpack[Ts]]) -> CursorResult[Unpack[Ts]]: ...
    @overload
    def execute(self, statement: sa.Executable, rows: Rows | None = None) -> CursorResult[Unpack[Anything]]: ...
    def execute(self, statement: sa.Executable, rows: Rows | None = None) -> CursorResult[Unpack[Anything]]:
        """Run one statement, or the same insert for each of `rows`."""
        return self.connection.execute(statement, rows)

    def largest_value(self) -> int | None:
        """Return the bytes that one value of a statement may have, also if each has to be escaped; None: any number."""
        if self.dialect.longest_statement is None:
            return None
        return int(self.connection.exec_driver_sql(self.dialect.longest_statement).scalar_one()) // 2 - 65_536

    def among(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
        """Return whether the column is one of up to 1,000 values, in the way that this database does fastest."""
        return self.dialect.among(column, values)

    def select_among(
        self, query: sa.Select[Any], column: sa.Column[Any], keys: Iterable[Any]
    ) -> Iterator[Row[Unpack[Anything]]]:
        """Yield the rows of `query` whose `column` is one of the keys, which are locked (if they are) in one order."""
        for chunk in chunks(sorted(keys)):
            yield from self.execute(query.where(self.among(column, chunk))).all()

    def change_among(self, change: sa.Update | sa.Delete, column: sa.Column[Any], keys: Iterable[Any]) -> None:
        """Update or delete the rows whose `column` is one of the keys. In one order, so that no two deadlock."""
        for chunk in chunks(sorted(keys)):
            self.execute(change.where(self.among(column, chunk)))

    def row_set(self, **columns: sa.ColumnElement[Any]) -> RowSet:
        """Return the values of a statement over many rows, which have the types of these columns."""
        return self.dialect.row_set({name: column.type for name, column in columns.items()})
