"""Statements over many rows at once, in the way that each database does best.

A statement is written once, with `rows.c["name"]` in the place of a value of the row; `execute` runs it for up to 1,000
rows. Either these are bound parameters and the driver repeats the statement (SQLite, where that is a loop in C), or
they are columns of a table that the database makes of one JSON parameter, and it is one statement.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.types import TypeEngine

Row = Sequence[Any]


class RowSet(Protocol):
    """Rows of the columns that it was made with; `c` has their expressions."""

    c: Mapping[str, sa.ColumnElement[Any]]

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        """Return the insert of every row, with the `fixed` values added."""

    def execute(self, connection: Connection, statement: sa.UpdateBase, rows: Sequence[Row]) -> CursorResult[Any]:
        """Run the statement for all rows; the result's row count is of all of them."""


class RowSetFactory(Protocol):
    def __call__(self, columns: Mapping[str, TypeEngine[Any]]) -> RowSet: ...


class Bound:
    """Each row is a set of bound parameters.

    The statement is compiled here and its rows go to the driver as they are: SQLAlchemy would make a dictionary of each
    row, take it apart again, and spend more time with that than SQLite with the row.
    """

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        self._types = {f"row_{name}": kind for name, kind in columns.items()}
        self.c: Mapping[str, sa.ColumnElement[Any]] = {
            name: sa.bindparam(f"row_{name}", type_=kind) for name, kind in columns.items()
        }

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        return insert.values(**fixed, **self.c)

    def execute(self, connection: Connection, statement: sa.UpdateBase, rows: Sequence[Row]) -> CursorResult[Any]:
        compiled: Any = statement.compile(dialect=connection.dialect)
        by_column = zip(self._types.items(), zip(*rows, strict=True), strict=True)
        parameters = {name: _encoded(kind, values, connection) for (name, kind), values in by_column}
        order = compiled.positiontup
        columns = [parameters.get(name) or [compiled.params[name]] * len(rows) for name in order]
        return connection.exec_driver_sql(str(compiled), list(zip(*columns, strict=True)))


class _Json(ABC):
    """One parameter holds all rows as JSON, which the database reads as a table; bytes travel as hexadecimal text.

    JSON is written in C. Arrays, one for each column, were tried: psycopg escapes them in Python, value by value.
    """

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        self._types = list(columns.values())
        text = sa.text(self.source([(name, _kind(kind)) for name, kind in columns.items()]))
        row_table = text.columns(**columns).subquery("given")
        self.c: Mapping[str, sa.ColumnElement[Any]] = {name: row_table.c[name] for name in columns}

    @staticmethod
    @abstractmethod
    def source(columns: Sequence[tuple[str, str]]) -> str:
        """Return the SELECT that makes a table of `:row_set`, from names and kinds (bytes, integer, text)."""

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        table = insert.table
        values: list[sa.ColumnElement[Any]] = [
            v if isinstance(v, sa.ColumnElement) else sa.literal(v, table.c[n].type) for n, v in fixed.items()
        ]
        values += self.c.values()
        return insert.from_select([*fixed, *self.c], sa.select(*values))

    def execute(self, connection: Connection, statement: sa.UpdateBase, rows: Sequence[Row]) -> CursorResult[Any]:
        by_column = zip(self._types, zip(*rows, strict=True), strict=True)
        columns = [_as_json(kind, values, connection) for kind, values in by_column]
        document = json.dumps(list(zip(*columns, strict=True)), separators=(",", ":"))
        return connection.execute(statement, {"row_set": document}, execution_options={"preserve_rowcount": True})


class PostgresJson(_Json):
    @staticmethod
    def source(columns: Sequence[tuple[str, str]]) -> str:
        made = {"bytes": "decode(e ->> {}, 'hex')", "integer": "CAST(e ->> {} AS bigint)", "text": "e ->> {}"}
        fields = ", ".join(f'{made[kind].format(place)} AS "{name}"' for place, (name, kind) in enumerate(columns))
        return f"SELECT {fields} FROM jsonb_array_elements(CAST(:row_set AS jsonb)) AS e"


class MySqlJson(_Json):
    @staticmethod
    def source(columns: Sequence[tuple[str, str]]) -> str:
        types = {
            "bytes": "VARCHAR(64)",
            "integer": "BIGINT",
            "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        }
        fields = ", ".join(f"`{name}` {types[kind]} PATH '$[{place}]'" for place, (name, kind) in enumerate(columns))
        decoded = ", ".join(
            f"UNHEX(`{name}`) AS `{name}`" if kind == "bytes" else f"`{name}`" for name, kind in columns
        )
        return f"SELECT {decoded} FROM JSON_TABLE(:row_set, '$[*]' COLUMNS ({fields})) AS given_rows"


def _kind(kind: TypeEngine[Any]) -> str:
    if isinstance(kind, sa.LargeBinary):
        return "bytes"
    return "integer" if isinstance(kind, sa.Integer) else "text"


def _encoded(kind: TypeEngine[Any], values: Sequence[Any], connection: Connection) -> Sequence[Any]:
    """Return a column of the rows as the driver takes it."""
    process = kind.dialect_impl(connection.dialect).bind_processor(connection.dialect)
    return values if process is None else [process(value) for value in values]


def _as_json(kind: TypeEngine[Any], values: Sequence[Any], connection: Connection) -> Sequence[Any]:
    if isinstance(kind, sa.LargeBinary):
        return [value.hex() for value in values]
    return _encoded(kind, values, connection)
