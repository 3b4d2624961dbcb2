"""What databases do in their own ways: inserts if absent, locks, and statements over sets of rows.

A statement is written once, with `rows.c["name"]` in the place of a value of the row; `execute` runs it for up to 1,000
rows. Either these are bound parameters and the driver repeats the statement (SQLite, where that is a loop in C), or
they are columns of a table that the database makes of one JSON parameter, and it is one statement.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Insert, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.types import TypeEngine

from shard_store.sql.schema import Digest

Row = Sequence[Any]


class RowSet(ABC):
    """Rows of the columns that it was made with; `c` has their expressions."""

    c: Mapping[str, sa.ColumnElement[Any]]

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        self._types = columns

    @abstractmethod
    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        """Return the insert of every row, with the `fixed` values added."""

    @abstractmethod
    def execute(self, connection: Connection, statement: sa.UpdateBase, rows: Sequence[Row]) -> CursorResult[Any]:
        """Run the statement for all rows; the result's row count is of all of them."""

    @staticmethod
    def _encoded(kind: TypeEngine[Any], values: Sequence[Any], connection: Connection) -> Sequence[Any]:
        """Return a column of the rows as the driver takes it."""
        process = kind.dialect_impl(connection.dialect).bind_processor(connection.dialect)
        if process is None or values.count(None) == len(values):  # none has anything of what few have
            return values
        return [process(value) for value in values]


class Bound(RowSet):
    """Each row is a set of bound parameters.

    The statement is compiled here and its rows go to the driver as they are: SQLAlchemy would make a dictionary of each
    row, take it apart again, and spend more time with that than SQLite with the row.
    """

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        super().__init__(columns)
        self.c = {name: sa.bindparam(f"row_{name}", type_=kind) for name, kind in columns.items()}

    def insert(self, insert: sa.Insert, fixed: Mapping[str, Any]) -> sa.Insert:
        return insert.values(**fixed, **self.c)

    def execute(self, connection: Connection, statement: sa.UpdateBase, rows: Sequence[Row]) -> CursorResult[Any]:
        compiled: Any = statement.compile(dialect=connection.dialect)
        by_column = zip(self._types.items(), zip(*rows, strict=True), strict=True)
        parameters = {f"row_{name}": self._encoded(kind, values, connection) for (name, kind), values in by_column}
        order = compiled.positiontup
        columns = [parameters.get(name) or [compiled.params[name]] * len(rows) for name in order]
        return connection.exec_driver_sql(str(compiled), list(zip(*columns, strict=True)))


class _Json(RowSet):
    """One parameter holds all rows as JSON, which the database reads as a table; bytes travel as hexadecimal text.

    JSON is written in C. Arrays, one for each column, were tried: psycopg escapes them in Python, value by value.
    """

    def __init__(self, columns: Mapping[str, TypeEngine[Any]]) -> None:
        super().__init__(columns)
        kinds = [
            "bytes" if isinstance(kind, sa.LargeBinary) else "integer" if isinstance(kind, sa.Integer) else "text"
            for kind in columns.values()
        ]
        text = sa.text(self.source(list(zip(columns, kinds, strict=True))))
        row_table = text.columns(**columns).subquery("given")
        self.c = {name: row_table.c[name] for name in columns}

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
        columns: list[Sequence[Any]] = []
        for kind, values in zip(self._types.values(), zip(*rows, strict=True), strict=True):
            is_binary = isinstance(kind, sa.LargeBinary)
            columns.append([value.hex() for value in values] if is_binary else self._encoded(kind, values, connection))
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


IDLE = "idle_in_transaction_session_timeout"


class Trouble(Enum):
    """What a database's error means for the caller."""

    ROLLED_BACK = "the database undid the transaction, which may run again at once"
    PASSING = "the same may succeed in a moment; whether a commit took place is unknown"
    CONFIGURATION = "nothing helps but another URL, driver, schema or permission"
    OTHER = "none of these is known"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database.

    `driver`: the SQLAlchemy driver where the URL names none; `extra` of our package brings it. `now`: its clock as
    microseconds since 1970 UTC, constant within a statement (a volatile bound uses no index). `on_connect` may hold
    `{seconds}` and `{milliseconds}` of patience. `trouble` says what a driver's exception means, `unusable` why a
    database that a new connection has reached cannot be used at all ("": it can).
    `session`: settings of each session, those that the server knows and the URL does not name; `set_session` makes of
    them what is run. `allow_idle` has the transaction that is open last while nothing is asked.
    `row_set` makes statements over many rows; `among` tests a column against many values. `longest_statement` asks for
    the bytes that one may have, where that is not many.
    """

    name: str
    driver: str
    now: str
    extra: str | None
    insert_if_absent: Callable[[Table], Insert]
    trouble: Callable[[BaseException], Trouble]
    in_transaction: Callable[[Any], bool]  # whether a driver's connection is inside a transaction, or will be
    row_set: Callable[[Mapping[str, TypeEngine[Any]]], RowSet]
    among: Callable[[sa.ColumnElement[Any], Sequence[Any]], sa.ColumnElement[bool]]
    unusable: Callable[[Any], str] = lambda connection: ""
    lock_schema: str | None = None  # held while tables are made
    unlock_schema: str | None = None  # where the end of the transaction does not do it
    transactional_ddl: bool = True
    isolation_level: str | None = None
    begin_write: str | None = None  # takes the write lock at once, where one lock is for the whole database
    begin_read: str | None = None
    connect_args: Mapping[str, Any] = field(default_factory=dict)
    on_connect: tuple[str, ...] = ()
    session: Mapping[str, str] = field(default_factory=dict)
    set_session: Callable[[Mapping[str, str]], str] = lambda settings: ""
    allow_idle: str | None = None
    longest_kept: int = -1  # seconds after which a connection is made anew, where the server would end it soon
    counts_inserts: bool = True  # insert_if_absent's row count is the rows that were absent
    trusts_rowcount: bool = True
    longest_statement: str | None = None

    @property
    def one_writer(self) -> bool:
        """Return whether writing transactions exclude each other: nothing can change between two statements of one."""
        return self.begin_write is not None


_NEXT_STEPS = (
    (("is full", "Disk full", "No space left"), "free space on its disk"),
    (("disk I/O error",), "free space on its disk, or mend what the system's log says of it"),
    (("refused", "Can't connect"), "check that the server runs, and the host and port of the URL"),
)


def next_step(cause: str) -> str:
    """Return what a user can do about passing trouble that does not pass by itself, behind a semicolon; else ""."""
    return next((f"; {step}" for texts, step in _NEXT_STEPS if any(text in cause for text in texts)), "")


def _sqlite_trouble(error: BaseException) -> Trouble:
    text = str(error)
    if any(t in text for t in ("locked", "busy", "is full", "disk I/O error")):
        return Trouble.PASSING
    wrong = ("unable to open", "readonly database", "not a database", "malformed", "no such table", "no such column")
    if any(t in text for t in (*wrong, "has no column")):
        return Trouble.CONFIGURATION
    return Trouble.OTHER


def _postgresql_trouble(error: BaseException) -> Trouble:
    state = getattr(error, "sqlstate", None)
    if state is None:  # no server sent it: the connection failed, or it is a mistake of ours
        text = str(error)
        wrong = (
            "authentication failed",
            "no password supplied",
            "does not exist",
            "no pg_hba.conf entry",
            "could not translate host name",
            "failed to resolve host",
            "permission denied",
            "invalid dsn",
            "invalid connection option",
            'missing "="',
        )
        if any(t in text for t in wrong):
            return Trouble.CONFIGURATION
        kinds = {kind.__name__ for kind in type(error).__mro__}
        return Trouble.PASSING if kinds & {"OperationalError", "InterfaceError", "InternalError"} else Trouble.OTHER
    if state in ("40001", "40P01"):
        return Trouble.ROLLED_BACK
    if state in ("55P03", "25P03") or state[:2] in ("08", "57", "53"):
        return Trouble.PASSING
    # 42P01, 42703, 3F000: tables, columns or schemas that are not there
    if state[:2] in ("28", "3D") or state in ("42501", "25006", "42P01", "42703", "3F000"):
        return Trouble.CONFIGURATION
    return Trouble.OTHER


def _postgresql_unusable(connection: Any) -> str:
    if connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        return ""
    return (
        "its encoding is SQL_ASCII, in which PostgreSQL neither checks nor converts text; use a UTF-8 database, made "
        "with: CREATE DATABASE cuesqueue ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )


_MYSQL_PASSING = {1205, 1040, 1053, 1158, 1159, 1160, 1161, 1021, 1114, 2003, 2006, 2013, 2014, 2055, 3024, 4031, 0}
_MYSQL_CONFIGURATION = {1044, 1045, 1049, 1054, 1142, 1143, 1146, 1227, 1290, 1698, 1792, 1836, 2005}


def _mysql_trouble(error: BaseException) -> Trouble:
    code = error.args[0] if error.args else None
    if code == 1213:
        return Trouble.ROLLED_BACK
    if code in _MYSQL_PASSING:
        return Trouble.PASSING
    return Trouble.CONFIGURATION if code in _MYSQL_CONFIGURATION else Trouble.OTHER


def _mysql_insert_if_absent(table: Table) -> Insert:
    """Insert where absent; not by INSERT IGNORE, which also cuts off long texts, and swallows other errors."""
    insert = mysql.insert(table)
    key = next(iter(table.primary_key.columns))
    return insert.on_duplicate_key_update({key.name: key})


def _in_blob(column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Pass keys of one length as one value, which SQLite takes apart: a parameter for each costs twice the time."""
    if not isinstance(column.type, Digest) or not values:
        return column.in_(values)
    size = len(values[0])
    text = sa.text(
        f"WITH RECURSIVE places(place) AS (SELECT 1 UNION ALL SELECT place + {size} FROM places "
        f"WHERE place + {size} <= length(:keys)) SELECT substr(:keys, place, {size}) AS key FROM places"
    )
    keys = text.bindparams(sa.bindparam("keys", b"".join(values), Digest())).columns(key=Digest()).subquery("given")
    return column.in_(sa.select(keys.c.key))


class _Keys(sa.types.UserDefinedType[Any]):
    """An array of bytes whose text we write by ourselves: the driver escapes it in Python, value by value."""

    cache_ok = True
    render_bind_cast = True  # a cast in the statement would hide the array's length from the planner

    def get_col_spec(self, **_: Any) -> str:
        return "BYTEA[]"

    def bind_processor(self, dialect: Any) -> Callable[[Any], str]:
        return lambda values: "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"


def _in_array(column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    kind = _Keys() if isinstance(column.type, sa.LargeBinary) else postgresql.ARRAY(column.type)
    return column == sa.any_(sa.literal(list(values), kind))


def _postgresql_settings(settings: Mapping[str, str]) -> str:
    pairs = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    of_server = f"(VALUES {pairs}) AS wanted(name, value) JOIN pg_settings USING (name)"  # servers before 12 lack one
    return f"SELECT set_config(name, value, false) FROM {of_server}"


def _mysql_settings(settings: Mapping[str, str]) -> str:
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())


_SQLITE = Dialect(
    name="sqlite",
    driver="sqlite+pysqlite",
    # whole milliseconds: SQLite's own resolution
    now="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
    extra=None,
    insert_if_absent=lambda t: sqlite.insert(t).on_conflict_do_nothing(),
    trouble=_sqlite_trouble,
    in_transaction=lambda connection: bool(connection.in_transaction),
    row_set=Bound,
    among=_in_blob,
    begin_write="BEGIN IMMEDIATE",
    begin_read="BEGIN",
    on_connect=(
        "PRAGMA busy_timeout = {milliseconds}",
        # FULL: a message is acknowledged after the commit, so the commit must survive a power cut (invariant 1)
        "PRAGMA synchronous = FULL",
        "PRAGMA cache_size = -4096",  # KiB: what a batch touches of a million shards' tree; the system caches the rest
    ),
)
_POSTGRESQL = Dialect(
    name="postgresql",
    driver="postgresql+psycopg",
    now="CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT)",
    extra="postgres",
    insert_if_absent=lambda t: postgresql.insert(t).on_conflict_do_nothing(),
    trouble=_postgresql_trouble,
    in_transaction=lambda connection: not connection.autocommit,
    unusable=_postgresql_unusable,
    row_set=PostgresJson,
    among=_in_array,
    lock_schema="SELECT pg_advisory_xact_lock(7215003361)",
    isolation_level="READ COMMITTED",
    # a server that has disappeared without an answer is noticed within a minute
    connect_args={
        "connect_timeout": 10,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60000,
    },
    # And a client that has disappeared by the server, before the locks of its transaction have stopped others for a
    # minute: a dead machine after 40 s without an answer (the system's default is 2 hours); one behind a proxy or a
    # pooler, which goes on to answer, and a process that hangs, after 60 s in which a transaction asks nothing. Ours do
    # not think for so long; where work of others is part of a transaction, that is allowed (`allow_idle`)
    session={
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "40000",
        IDLE: "60000",
    },
    set_session=_postgresql_settings,
    allow_idle=f"SET LOCAL {IDLE} = 0",
    # a plan made once for all parameters, while the table was small, reads the whole table for each of 1,000 keys
    on_connect=("SET lock_timeout = {milliseconds}; SET plan_cache_mode = force_custom_plan",),
)
_MYSQL = Dialect(
    name="mysql",
    driver="mysql+pymysql",
    # not unix_timestamp(): it goes through the session's time zone, and back by an hour when summer ends
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    extra="mysql",
    insert_if_absent=_mysql_insert_if_absent,
    trouble=_mysql_trouble,
    in_transaction=lambda connection: not connection.get_autocommit(),
    row_set=MySqlJson,
    among=lambda column, values: column.in_(values),
    lock_schema="SELECT GET_LOCK('cuesqueue schema', {seconds})",
    unlock_schema="SELECT RELEASE_LOCK('cuesqueue schema')",
    transactional_ddl=False,
    # the default, REPEATABLE READ, would show a transaction rows as they were before it had its locks
    isolation_level="READ COMMITTED",
    connect_args={"connect_timeout": 10},
    # it has no keepalive of a session's own: a connection that asks nothing ends, in a transaction or not; the pool
    # makes a new one then
    session={"wait_timeout": "60"},
    set_session=_mysql_settings,
    allow_idle="SET SESSION wait_timeout = 28800",  # as it is by default
    longest_kept=50,
    on_connect=("SET innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}",),
    counts_inserts=False,
    longest_statement="SELECT @@max_allowed_packet",
)
DIALECTS: dict[str, Dialect] = {
    "sqlite": _SQLITE,
    "postgresql": _POSTGRESQL,
    "mysql": _MYSQL,
    "mariadb": replace(_MYSQL, driver="mariadb+pymysql"),
}
