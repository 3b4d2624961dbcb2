"""Statements over many rows at once, in the way that each database does best.

A statement is written once, with `rows.c["name"]` where a value of the row stands; `execute` runs it for up to 1,000
rows. Either these are bound parameters and the driver repeats the statement (SQLite, where that is a loop in C), or
they are columns of a table made of one parameter (PostgreSQL: arrays; MySQL: JSON), and it is one statement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

Row = Sequence[Any]


class RowSet(Protocol):
    """Rows of the columns that it was made with; `c` has their expressions."""

    c: Mapping[str, sa.ColumnElement[Any]]

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        """The insert of every row, with the `fixed` values beside them."""

    def execute(self, connection: Connection, statement: Executable, rows: Sequence[Row]) -> CursorResult[Any]:
        """Run the statement for all rows; the result's row count is of all of them."""


class RowSetFactory(Protocol):
    def __call__(self, columns: Mapping[str, TypeEngine[Any]]) -> RowSet: ...


class Bound:
    """Each row is a set of bound parameters."""

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        self.c: Mapping[str, sa.ColumnElement[Any]] = {
            name: sa.bindparam(f"row_{name}", type_=kind) for name, kind in columns.items()
        }
        self._names = [f"row_{name}" for name in columns]

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        return insert.values(**fixed, **self.c)

    def execute(self, connection: Connection, statement: Executable, rows: Sequence[Row]) -> CursorResult[Any]:
        return connection.execute(statement, [dict(zip(self._names, row, strict=True)) for row in rows])


class _AsTable:
    """The rows are a table in the statement's FROM."""

    c: Mapping[str, sa.ColumnElement[Any]]

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        table = insert.table
        values: list[sa.ColumnElement[Any]] = [
            v if isinstance(v, sa.ColumnElement) else sa.literal(v, table.c[n].type) for n, v in fixed.items()
        ]
        values += self.c.values()
        return insert.from_select([*fixed, *self.c], sa.select(*values))


class Arrays(_AsTable):
    """One array parameter a column, joined by `unnest`."""

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        self._names = [f"row_{name}" for name in columns]
        parameters = [sa.bindparam(f"row_{name}", type_=postgresql.ARRAY(kind)) for name, kind in columns.items()]
        table = sa.func.unnest(*parameters).table_valued(*(sa.column(n, t) for n, t in columns.items()), name="given")
        table = table.render_derived()
        self.c = {name: table.c[name] for name in columns}

    def execute(self, connection: Connection, statement: Executable, rows: Sequence[Row]) -> CursorResult[Any]:
        return connection.execute(
            statement, {name: list(column) for name, column in zip(self._names, zip(*rows, strict=True), strict=True)}
        )


class Json(_AsTable):
    """One JSON parameter, read by `JSON_TABLE`; bytes travel as hexadecimal text."""

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        self._binary = [isinstance(kind, sa.LargeBinary) for kind in columns.values()]
        self._types = list(columns.values())
        fields = ", ".join(
            f"`{name}` {_JSON_COLUMN[_kind(kind)]} PATH '$[{place}]'"
            for place, (name, kind) in enumerate(columns.items())
        )
        text = sa.text(f"SELECT * FROM JSON_TABLE(:row_set, '$[*]' COLUMNS ({fields})) AS given_rows")
        table = text.columns(
            **{n: sa.Text() if b else t for (n, t), b in zip(columns.items(), self._binary, strict=True)}
        )
        given = table.subquery("given")
        self.c = {
            name: sa.func.unhex(given.c[name]) if binary else given.c[name]
            for name, binary in zip(columns, self._binary, strict=True)
        }

    def execute(self, connection: Connection, statement: Executable, rows: Sequence[Row]) -> CursorResult[Any]:
        process = [t.dialect_impl(connection.dialect).bind_processor(connection.dialect) for t in self._types]
        given = [
            [
                None if v is None else bytes(v).hex() if binary else v if encode is None else encode(v)
                for v, binary, encode in zip(row, self._binary, process, strict=True)
            ]
            for row in rows
        ]
        return connection.execute(statement, {"row_set": json.dumps(given, separators=(",", ":"))})


def _kind(kind: TypeEngine[Any]) -> str:
    if isinstance(kind, sa.LargeBinary):
        return "bytes"
    return "integer" if isinstance(kind, sa.Integer) else "text"


_JSON_COLUMN = {
    "bytes": "VARCHAR(64)",
    "integer": "BIGINT",
    "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}
