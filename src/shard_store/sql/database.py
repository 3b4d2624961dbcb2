"""Runs what it is given in a transaction, and again after passing trouble."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import sqlalchemy as sa
import tenacity
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, CursorResult, Engine, Row

from shard_store.errors import ShardStoreError, StoreConfigurationError, StoreUnavailable
from shard_store.redaction import redact_url, without_password
from shard_store.sql.dialects import DIALECTS, Dialect, RowSet, Trouble, next_step
from shard_store.sql.engines import Memory, UnusableDatabase, allow_idle, make_engine, parse_url, with_whole_path

if TYPE_CHECKING:
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

    def allow_idle(self) -> None:
        """Let it last while nothing is asked: what others do in it may take its time."""
        allow_idle(self.connection, self.dialect)

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


logger = logging.getLogger("cuesqueue")


_MOMENT = 1.0  # seconds of trouble that no line is worth


@dataclass(frozen=True, slots=True)
class ErrorKinds:
    """The exceptions that a user of a `Database` wants, each made from a sentence without secrets."""

    configuration: Callable[[str], Exception]
    unavailable: Callable[[str], Exception]
    other: Callable[[str], Exception]


class Again(StoreUnavailable):
    """Raised by work that another transaction has overtaken: what it has written is undone, and it runs once more."""


class Database:
    """A database behind a SQLAlchemy URL. Safe to use from several threads, and after a fork.

    `clock` (seconds since 1970) replaces the database's own clock, for tests. Locks are waited for `patience` seconds,
    and for as long a transaction that failed with one of the troubles `again` is run again.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        clock: Callable[[], float] | None = None,
        patience: float = 30.0,
        again: frozenset[Trouble] = frozenset({Trouble.ROLLED_BACK, Trouble.PASSING}),
        trusts_rowcount: bool = True,
        errors: ErrorKinds | None = None,
    ) -> None:
        self.name = redact_url(url if isinstance(url, str) else url.render_as_string(hide_password=False))
        self._errors = errors or ErrorKinds(
            configuration=lambda problem: StoreConfigurationError(f"database {self.name!r}: {problem}"),
            unavailable=lambda problem: StoreUnavailable(f"database {self.name!r}: {problem}"),
            other=lambda problem: ShardStoreError(f"database {self.name!r}: {problem}"),
        )
        try:
            self.url: URL = with_whole_path(parse_url(url))  # a process that changes its folder keeps the file
        except ValueError as problem:
            raise self._errors.configuration(str(problem)) from None
        self.dialect: Dialect = DIALECTS[self.url.get_backend_name()]
        self.trusts_rowcount = trusts_rowcount and self.dialect.trusts_rowcount
        self.patience = patience
        self._again = again
        self._clock = clock
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None  # which one the connections of a SQLite database are to
        self._closed = False
        self.memory = Memory()

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    @property
    def engine(self) -> Engine:
        """Return the engine, made at its first use in this process; a child that was forked makes its own."""
        if self._process != os.getpid():
            self._process, self._lock, self._engine = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._closed:
                raise self._errors.configuration("is closed; open it again")
            if self._engine is None:
                self._engine = self._create_engine()
            return self._engine

    def file(self) -> Path | None:
        """Return the file that a SQLite database is kept in; None for a server, and where a URI names the file."""
        if not self.dialect.one_writer or self.url.query.get("uri") or self.url.database is None:
            return None
        return Path(self.url.database)

    def file_status(self) -> tuple[int, int] | None:
        """Return what distinguishes the file from another that comes to its place; None for a server, or without it."""
        file = self.file()
        with suppress(FileNotFoundError, NotADirectoryError):
            if file is not None:
                status = file.stat()
                return status.st_dev, status.st_ino
        return None

    def close(self) -> None:
        """Close the database for good. A transaction of another thread goes on; its connection is closed after it."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None and self._process == os.getpid():
            engine.dispose()

    def limit_patience(self, seconds: float) -> None:
        """Retry temporary failures for no longer than that from here on: this process is about to end."""
        self.patience = min(self.patience, seconds)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction that only reads."""
        return self._run(work, write=False)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction and commit it.

        Passing trouble runs `work` again, also when the connection was lost during COMMIT and the outcome is unknown:
        so `work` must find out by itself what is already there (the delivery hash, a seq, a token). So does `Again`.
        """
        return self._run(work, write=True)

    def begin(self) -> Connection:
        """Return a connection in a transaction that the caller ends, by a commit or by closing it.

        The connection is waited for; from then on nothing is tried again.
        """

        def begun() -> Connection:
            connection = self._connect(self.engine, write=True)
            try:
                connection.begin()
                self.allow_idle(connection)
            except BaseException:
                connection.close()
                raise
            return connection

        try:
            opened: Connection = self._patiently()(begun)
            return opened
        except exc.SQLAlchemyError as error:
            raise self._mapped(error) from error

    def allow_idle(self, connection: Connection) -> None:
        """Let the connection's transaction last while nothing is asked: work of others is part of it."""
        allow_idle(connection, self.dialect)

    def inside(self, connection: Connection, work: Callable[[Transaction], T]) -> T:
        """Run `work` in the caller's own transaction, which the caller commits.

        Nothing is tried again. When `work` raises, everything that it wrote is undone, and the caller may go on.
        """
        try:
            raw = connection.connection.dbapi_connection
            if not self.dialect.in_transaction(raw):
                if self.dialect.begin_write is None:
                    raise self._errors.configuration(
                        "the connection passed in commits each statement by itself (autocommit); "
                        "pass one that is inside a transaction"
                    )
                # Python's sqlite3 begins late: our savepoint would be the outermost, and its release a commit
                connection.exec_driver_sql(self.dialect.begin_write)
            with connection.begin_nested():
                return work(self._transaction(connection))
        except exc.SQLAlchemyError as error:
            raise self._mapped(error) from error

    def _transaction(self, connection: Connection) -> Transaction:
        return Transaction(
            connection, self.dialect, self.name, self.patience, self.trusts_rowcount, self._clock, self.memory
        )

    def _run(self, work: Callable[[Transaction], T], *, write: bool) -> T:
        try:
            result: T = self._patiently()(self._once, work, write)
            return result
        except exc.SQLAlchemyError as error:
            raise self._mapped(error) from error

    def _patiently(self) -> tenacity.Retrying:
        is_said = False

        def say(state: tenacity.RetryCallState) -> None:
            """Say once what is waited for, and for how long, when it is more than a moment."""
            nonlocal is_said
            error = None if state.outcome is None else state.outcome.exception()
            if is_said or error is None or (state.seconds_since_start or 0.0) < _MOMENT:
                return
            is_said = True
            cause = self._readable(getattr(error, "orig", None) or error)
            logger.warning(
                "database %r does not answer (%s); trying again for up to %s s", self.name, cause, f"{self.patience:g}"
            )

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: self._trouble(error) in self._again),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
            stop=tenacity.stop_after_delay(self.patience),
            before_sleep=say,
            reraise=True,
        )

    def _once(self, work: Callable[[Transaction], T], write: bool) -> T:
        engine = self.engine
        # connections to a file that was replaced would go on with one that no other process can open any more
        if (status := self.file_status()) is not None:
            before, self._file = self._file, status
            if before not in (None, status):
                self.memory.connection_broke()
                engine.dispose()
        pool = engine.pool
        try:
            with self._connect(engine, write) as connection:
                transaction = self._transaction(connection)
                with connection.begin():
                    result = work(transaction)
                for call in transaction.on_commit:
                    call()
                return result
        finally:
            if self._closed:  # meanwhile, by another thread, which could not close a connection in use
                pool.dispose()

    def _connect(self, engine: Engine, write: bool) -> Connection:
        try:
            return engine.connect().execution_options(cuesqueue_write=write)
        except UnusableDatabase as problem:
            raise self._errors.configuration(str(problem)) from None
        except (TypeError, ValueError) as error:  # a driver's answer to a parameter of the URL that it does not know
            raise self._unsuitable(error) from error

    def _create_engine(self) -> Engine:
        dialect = self.dialect
        try:
            engine = make_engine(self.url, dialect, self.patience)
            event.listen(engine, "invalidate", lambda *_: self.memory.connection_broke())
            return engine
        except (ImportError, exc.NoSuchModuleError) as error:
            hint = f"pip install 'cuesqueue[{dialect.extra}]'" if dialect.extra else "install it"
            other = "" if self.url.drivername == dialect.driver else f", or write {dialect.driver}://..."
            raise self._errors.configuration(
                f"the driver of {self.url.drivername!r} is not installed ({error}): {hint}{other}"
            ) from error
        except (exc.ArgumentError, TypeError, ValueError) as error:
            raise self._unsuitable(error) from error

    def _unsuitable(self, error: BaseException) -> Exception:
        return self._errors.configuration(f"the URL does not suit its driver: {self._readable(error)}")

    def _trouble(self, error: BaseException) -> Trouble:
        if isinstance(error, Again):
            return Trouble.ROLLED_BACK
        if isinstance(error, exc.TimeoutError):  # no connection became free in the pool
            return Trouble.PASSING
        if isinstance(error, exc.DBAPIError):
            if error.connection_invalidated:
                return Trouble.PASSING
            if error.orig is not None:
                return self.dialect.trouble(error.orig)
        return Trouble.OTHER

    def _mapped(self, error: exc.SQLAlchemyError) -> Exception:
        kind = self._trouble(error)
        cause = self._readable(error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error)
        if kind is Trouble.CONFIGURATION:
            return self._errors.configuration(f"cannot be used: {cause}; check the URL, the password and the rights")
        if kind is Trouble.OTHER:
            return self._errors.other(f"failed: {cause}")
        tried = f" within {self.patience:g} s" if kind in self._again else ""
        return self._errors.unavailable(f"did not serve us{tried}: {cause}{next_step(cause)}")

    def _readable(self, error: BaseException) -> str:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return without_password(
            " ".join(lines[0].split()), None if self.url.password is None else str(self.url.password)
        )
