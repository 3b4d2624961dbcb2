"""One way to reach a database: engine, clock, transactions that are tried again, errors of our own.

Used by the shard store and by the SQL queue. Engines are made lazily in the process that uses them, because Spark's
Python workers are forked and an engine must never cross a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
import tenacity
from sqlalchemy import exc
from sqlalchemy.engine import URL, Connection, Engine, make_url

from shard_store.dialects import DIALECTS, Dialect, Trouble
from shard_store.errors import ShardStoreError, StoreConfigurationError, StoreUnavailable

ROWS_PER_STATEMENT = 1000
T = TypeVar("T")


def chunks(items: Iterable[T], size: int = ROWS_PER_STATEMENT) -> Iterator[list[T]]:
    """Lists of up to `size` items: no statement handles more rows than this."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def redact(url: str) -> str:
    """`url` without its password, for people and logs."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except exc.ArgumentError:
        return url.split("//", 1)[0] + "//***" if "@" in url else url


class Database:
    """A database behind a SQLAlchemy URL. Safe to use from several threads; make one in each process.

    `clock` (seconds since 1970) replaces the database's own clock, for tests. `patience` is how many seconds a
    transaction is tried again after passing trouble (locks, deadlocks, a lost connection).
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        patience: float = 30.0,
        trusts_rowcount: bool = True,
    ) -> None:
        self.url: URL = _parse(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.dialect: Dialect = _dialect(self.url, self.name)
        self.trusts_rowcount = trusts_rowcount and self.dialect.trusts_rowcount
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None:
                self._engine = _create_engine(self.url, self.name, self.dialect)
            return self._engine

    def now(self) -> sa.ColumnElement[int]:
        """The database's clock as microseconds since 1970 UTC, as a SQL expression."""
        if self._clock is not None:
            return sa.literal(int(self._clock() * 1_000_000), sa.BigInteger)
        return sa.literal_column(self.dialect.now, sa.BigInteger)

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction that only reads."""
        return self._run(work, write=False)

    def write(self, work: Callable[[Connection], T], connection: Connection | None = None) -> T:
        """Run `work` in one transaction and commit it; with `connection`, inside the caller's, committing nothing.

        Passing trouble runs `work` again, also when the connection was lost during COMMIT and nobody knows the
        outcome: so `work` must find out by itself what is already there (the delivery hash, a seq, a token).
        """
        if connection is not None:
            return work(connection)
        return self._run(work, write=True)

    def _run(self, work: Callable[[Connection], T], *, write: bool) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._passes),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
            stop=tenacity.stop_after_delay(self._patience),
            reraise=True,
        )
        try:
            result: T = retrying(self._once, work, write)
            return result
        except exc.DBAPIError as error:
            raise self._mapped(error) from error

    def _once(self, work: Callable[[Connection], T], write: bool) -> T:
        with self.engine.connect() as plain:
            connection = plain.execution_options(cuesqueue_write=write)
            with connection.begin():
                return work(connection)

    def _trouble(self, error: BaseException) -> Trouble:
        if isinstance(error, exc.DBAPIError):
            if error.connection_invalidated:
                return Trouble.RETRY
            if error.orig is not None:
                return self.dialect.trouble(error.orig)
        return Trouble.OTHER

    def _passes(self, error: BaseException) -> bool:
        return self._trouble(error) is Trouble.RETRY

    def _mapped(self, error: exc.DBAPIError) -> ShardStoreError:
        cause = " ".join(str(error.orig).split()) or type(error.orig).__name__
        kind = self._trouble(error)
        if kind is Trouble.RETRY:
            return StoreUnavailable(f"database {self.name!r} did not serve us for {self._patience:g} s: {cause}")
        if kind is Trouble.CONFIGURATION:
            return StoreConfigurationError(
                f"database {self.name!r} cannot be used: {cause}; check the URL, the password and the permissions"
            )
        return ShardStoreError(f"database {self.name!r} failed: {cause}")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise StoreConfigurationError(
            f"{redact(url)!r} is not a database URL; write for example sqlite:///cuesqueue.db or "
            "postgresql+psycopg://user:password@host/database"
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreConfigurationError("a SQLite store needs a file, because several processes share it: sqlite:///PATH")
    return parsed


def _dialect(url: URL, name: str) -> Dialect:
    backend = url.get_backend_name()
    if backend not in DIALECTS:
        known = ", ".join(sorted(DIALECTS))
        raise StoreConfigurationError(f"database {name!r}: {backend!r} is not supported; use one of {known}")
    return DIALECTS[backend]


def _create_engine(url: URL, name: str, dialect: Dialect) -> Engine:
    settings: dict[str, Any] = {}
    if dialect.isolation_level is not None:
        settings["isolation_level"] = dialect.isolation_level
    try:
        engine = sa.create_engine(url, pool_pre_ping=dialect.begin_write is None, pool_size=10, **settings)
    except (ModuleNotFoundError, exc.NoSuchModuleError) as error:
        hint = f"pip install 'cuesqueue[{dialect.extra}]'" if dialect.extra else "install its driver"
        raise StoreConfigurationError(f"database {name!r}: the driver is missing ({error}); {hint}") from error
    if dialect.begin_write is not None:
        _take_over_transactions(engine, dialect)
    return engine


def _take_over_transactions(engine: Engine, dialect: Dialect) -> None:
    """Send BEGIN ourselves: the sqlite3 driver would begin late and without the write lock, and then deadlock."""

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: object) -> None:
        connection.isolation_level = None
        for statement in dialect.on_connect:
            connection.execute(statement)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("cuesqueue_write", True)
        connection.exec_driver_sql(str(dialect.begin_write if write else dialect.begin_read))


def matched(database: Database, connection: Connection, update: sa.Update, after: sa.Select[Any]) -> int:
    """How many rows `update` matched; where the driver's row count is not trusted, by selecting them `after` it."""
    result = connection.execute(update)
    return result.rowcount if database.trusts_rowcount else len(connection.execute(after).all())
