"""The database under a SQL queue: its URL, table, engine, and what differs between databases as data.

Nothing is opened at import. `create_queue_engine` is the only place that sets up connections.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    exc,
    inspect,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.engine import URL, make_url

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from shard_store.redaction import redact_url as redact

BUSY_SECONDS = 30
LONGEST_NAME = 255  # of queues and groups: both are index columns


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between databases; `now` is SQL for microseconds since 1970 (UTC) by the database's clock.

    `now` must be constant within a statement, or no index is used for it. `one_writer`: writing transactions exclude
    each other, so that nothing can change between two statements of one. The signs are looked for in error texts.
    """

    driver: str
    now: str
    extra: str | None = None  # of this package, which brings the driver
    one_writer: bool = False
    isolation_level: str | None = None  # a second statement must see what was committed since the first
    connect_args: Mapping[str, object] = field(default_factory=dict)
    on_connect: tuple[str, ...] = ()
    configuration_signs: tuple[str, ...] = ()
    retry_signs: tuple[str, ...] = ()  # the database rolled back a transaction that may simply run again


_SQLITE = Dialect(
    driver="sqlite+pysqlite",
    # whole milliseconds: SQLite's own resolution
    now="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000",
    one_writer=True,
    on_connect=(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}", "PRAGMA synchronous = FULL"),
    configuration_signs=(
        "unable to open database file",
        "readonly database",
        "not a database",
        "malformed",
        "no such table",
        "no such column",
        "has no column",
    ),
)
_POSTGRESQL = Dialect(
    driver="postgresql+psycopg",
    # not clock_timestamp(): it is volatile, and a volatile bound never uses an index
    now="CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)",
    extra="postgres",
    isolation_level="READ COMMITTED",
    connect_args={"connect_timeout": 10},
    configuration_signs=(
        "authentication failed",
        "no password supplied",
        "does not exist",
        "no pg_hba.conf entry",
        "permission denied",
        "invalid dsn",
        "invalid connection option",
    ),
    retry_signs=("deadlock detected", "could not serialize"),
)
_MYSQL = Dialect(
    driver="mysql+pymysql",
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    extra="mysql",
    isolation_level="READ COMMITTED",
    connect_args={"connect_timeout": 10},
    configuration_signs=(
        "Access denied",
        "Unknown database",
        "command denied",
        "doesn't exist",
        "Unknown column",
    ),
    retry_signs=("Deadlock found",),
)
DIALECTS: Mapping[str, Dialect] = {
    "sqlite": _SQLITE,
    "postgresql": _POSTGRESQL,
    "mysql": _MYSQL,
    "mariadb": Dialect(**{name: getattr(_MYSQL, name) for name in Dialect.__slots__} | {"driver": "mariadb+pymysql"}),
}

metadata = MetaData()

# A message waits when visible_at <= now. It is leased when visible_at > now and it has a receipt; without a receipt it
# was given back with a delay. Times are microseconds since 1970. Ids are never used twice.
messages = Table(
    "cuesqueue_messages",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("queue", String(LONGEST_NAME), nullable=False),
    Column("message_id", String(64), nullable=False),
    Column("body", LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb"), nullable=False),
    Column("tag", Text().with_variant(LONGTEXT, "mysql", "mariadb"), nullable=False),
    Column("headers", Text().with_variant(LONGTEXT, "mysql", "mariadb"), nullable=False),
    Column("group_name", String(LONGEST_NAME)),
    Column("sent_at", BigInteger, nullable=False),
    Column("visible_at", BigInteger, nullable=False),
    Column("receive_count", Integer, nullable=False, default=0),
    Column("receipt", String(64)),
    sqlite_autoincrement=True,
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    mariadb_charset="utf8mb4",
    mariadb_collate="utf8mb4_bin",
)
Index("ix_cuesqueue_messages_visible", messages.c.queue, messages.c.visible_at, messages.c.id)
Index("ix_cuesqueue_messages_sent", messages.c.queue, messages.c.id)
Index(
    "ix_cuesqueue_messages_group",
    messages.c.queue,
    messages.c.group_name,
    # messages without a group do not pay for those with one, and the planner cannot mistake this index for the other
    sqlite_where=messages.c.group_name.is_not(None),
    postgresql_where=messages.c.group_name.is_not(None),
)


@dataclass(frozen=True, slots=True)
class Address:
    """A `sql+...` URL taken apart: the database, the queue in it, and the name for people (without secrets)."""

    url: URL
    queue: str
    name: str

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.url.get_backend_name()]


def parse_address(url: str) -> Address:
    """Take `sql+SQLALCHEMY-URL?queue=NAME` apart; `queue` is ours, every other parameter is the database's."""
    name = redact(url)
    try:
        parsed = make_url(url.removeprefix("sql+"))
    except (exc.ArgumentError, ValueError):
        # from None: SQLAlchemy's text holds the whole URL, with its password
        raise QueueConfigurationError(
            name, "not a database URL; write sql+sqlite:///FILE?queue=NAME or sql+postgresql://USER@HOST/DB?queue=NAME"
        ) from None
    backend = parsed.get_backend_name()
    if backend not in DIALECTS:
        kinds = ", ".join(DIALECTS)
        raise QueueConfigurationError(name, f"a queue cannot live in {backend!r}; use one of {kinds}")
    queue = parsed.query.get("queue", "")
    if not isinstance(queue, str):
        raise QueueConfigurationError(name, "the URL has several queue= parameters; name one")
    if not queue or queue != queue.strip() or len(queue) > LONGEST_NAME or not queue.isprintable():
        raise QueueConfigurationError(
            name,
            f"the URL needs queue=NAME (1 to {LONGEST_NAME} printable characters), as in sql+sqlite:///jobs.db?queue=jobs",
        )
    parsed = parsed.difference_update_query(["queue"])
    if parsed.drivername == backend:
        parsed = parsed.set(drivername=DIALECTS[backend].driver)
    if backend == "sqlite" and (parsed.database or ":memory:") == ":memory:":
        raise QueueConfigurationError(name, "a database in memory is seen by one connection only; name a file")
    return Address(parsed, queue, name)


def create_queue_engine(address: Address) -> Engine:
    """The engine of this process; errors are SQLAlchemy's, to be mapped by `mapped_errors`."""
    dialect = address.dialect
    options: dict[str, Any] = {}
    if address.url.drivername == dialect.driver:
        options["connect_args"] = dict(dialect.connect_args)
    if dialect.isolation_level:
        options["isolation_level"] = dialect.isolation_level
    engine = create_engine(
        address.url,
        hide_parameters=True,  # bodies and headers stay out of error texts
        pool_pre_ping=not dialect.one_writer,
        pool_size=5,
        max_overflow=45,
        pool_timeout=BUSY_SECONDS,
        **options,
    )
    if dialect.one_writer:
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy begins, not the driver
    for statement in _SQLITE.on_connect:
        connection.execute(statement)
    # going to WAL needs the file alone for a moment, and SQLite does not wait for that by itself
    for _ in range(BUSY_SECONDS * 20):
        try:
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
        time.sleep(0.05)
    raise sqlite3.OperationalError("database is locked: it could not be put into WAL mode")


def _begin_sqlite(connection: Connection) -> None:
    # a transaction that reads first and then writes can fail at once as "locked", however long the busy timeout
    reading = connection.get_execution_options().get("cuesqueue_read", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def create_table(engine: Engine) -> None:
    """Create the table when absent; several processes may do it at once, and one of them wins."""
    if inspect(engine).has_table(messages.name):
        return
    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
    except exc.DBAPIError:
        if not inspect(engine).has_table(messages.name):
            raise


@contextmanager
def mapped_errors(address: Address) -> Iterator[None]:
    """Turn the database's errors into `QueueConfigurationError` and `QueueUnavailable`, without secrets."""
    dialect, name = address.dialect, address.name
    try:
        yield
    except QueueError:
        raise
    except exc.NoSuchModuleError:
        raise QueueConfigurationError(name, f"no driver {address.url.drivername!r}; use {dialect.driver!r}") from None
    except ImportError as error:
        hint = f"pip install 'cuesqueue[{dialect.extra}]'" if dialect.extra else f"install {error.name or 'its driver'}"
        raise QueueConfigurationError(name, f"the driver {error.name!r} is not installed: {hint}") from error
    except exc.DBAPIError as error:
        text = _first_line(address, error)
        if isinstance(error, exc.ProgrammingError | exc.NotSupportedError) or any(
            sign.lower() in text.lower() for sign in dialect.configuration_signs
        ):
            raise QueueConfigurationError(name, text) from error
        raise QueueUnavailable(name, text) from error
    except exc.TimeoutError as error:
        raise QueueUnavailable(name, f"no free database connection within {BUSY_SECONDS} s") from error
    except exc.ArgumentError as error:
        raise QueueConfigurationError(name, f"the database URL is not usable: {error}") from error


def may_run_again(dialect: Dialect, error: exc.DBAPIError) -> bool:
    """Whether the database chose this transaction to be rolled back, and it may simply be run again."""
    return any(sign in str(error.orig) for sign in dialect.retry_signs)


def _first_line(address: Address, error: exc.DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    text = lines[0]
    if address.url.password:
        text = text.replace(str(address.url.password), "***")
    return f"the database says: {text}"
