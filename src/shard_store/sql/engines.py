"""Engines of SQLAlchemy by URL, and databases in memory.

A database may be replaced under a query that runs: by a replica that had not received everything, by a backup, by an
older copy of its file. Whatever took its place is as the store was at some moment. A reader counts its changes in the
row that it locks anyway. If the row has all that it has counted, then all that it has seen before is there as well.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, Connection, Engine, make_url

from shard_store.errors import LostProgress
from shard_store.model import PublishToken
from shard_store.sql.dialects import DIALECTS, Dialect

if TYPE_CHECKING:
    from sqlalchemy.engine import Row


@dataclass
class Memory:
    """Of the incarnations that have started here: their drivers, and how many changes are committed.

    A process in which none has started remembers nothing, and checks nothing.
    """

    _drivers: dict[PublishToken, str] = field(default_factory=dict)
    _changes: dict[PublishToken, int] = field(default_factory=dict)
    _breaks: int = 0  # of connections to the database
    _planned: dict[PublishToken, int] = field(default_factory=dict)  # how many there were when a plan was made last
    _lapsed: set[PublishToken] = field(default_factory=set)

    def begin(self, token: PublishToken, driver: str, changes: int) -> None:
        self._drivers[token], self._changes[token] = driver, changes

    def keep(self, token: PublishToken, changes: int) -> None:
        """Remember the changes. Two threads may commit in one order and come here in another."""
        if token in self._changes:
            self._changes[token] = max(self._changes[token], changes)

    def knows(self, token: PublishToken) -> bool:
        """Return whether the incarnation has started here."""
        return token in self._changes

    def connection_broke(self) -> None:
        """Note that from now on another server, or another file, may be behind the database's URL."""
        self._breaks += 1

    def plan(self, token: PublishToken) -> None:
        """Note that the plan on record is made by us."""
        self._planned[token] = self._breaks

    def lapse(self, token: PublishToken) -> None:
        """Note that others may have taken what the incarnation has: its heartbeats had stopped for a while."""
        self._lapsed.add(token)

    def has_lapsed(self, token: PublishToken) -> bool:
        return token in self._lapsed

    def may_have_changed(self, token: PublishToken) -> bool:
        """Return whether another database may have taken the place of the one in which the last plan was made."""
        return self._breaks != self._planned.get(token, self._breaks)

    def lacks(self, row: Row[Any], token: PublishToken) -> str | None:
        """Return what the row, whose incarnation is that of the token, lacks of what is known of it."""
        if token not in self._changes:
            return None
        if row.driver not in ("", self._drivers[token]):
            return f"its incarnation {token.incarnation} was started by another driver"
        if (row.changes or 0) < self._changes[token]:
            return f"it has {row.changes or 0} changes of this reader, which has made {self._changes[token]}"
        return None


def went_back(store: str, token: PublishToken, lacking: str, otherwise: str = "") -> LostProgress:
    """Return the error. `store` is its URL without secrets; `lacking`: by what that is seen.

    `otherwise`: what else may be the cause of that.
    """
    going_back = f"may have gone back in time under the running query: {lacking}"
    if not otherwise:
        going_back = f"has gone back in time under the running query: {lacking}"
    return LostProgress(
        f"pipeline {token.pipeline!r}: the store {store} {going_back}. A replica that had not received everything took "
        f"the place of the database, or a backup was restored{otherwise and f', or {otherwise}'}. The query "
        "acknowledges nothing more; start it again: what was not published is read again, and if something that was "
        "published is missing it says so"
    )


_PORTS = {"postgresql": 5432, "mysql": 3306}


def parse_url(url: str | URL) -> URL:
    """Return the URL with its driver. Raises ValueError, with what to write instead, for one that cannot be used."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        # from None: SQLAlchemy's text holds the whole URL, with its password
        raise ValueError(
            "this is not a database URL; write for example sqlite:///cuesqueue.db or "
            "postgresql://user:password@host/database"
        ) from None
    if "@" in (parsed.host or ""):  # what follows the first @ would be shown as the host
        raise ValueError("the password holds an @; write it as %40 (and / as %2F, ? as %3F)")
    backend = parsed.get_backend_name()
    if backend not in DIALECTS:
        raise ValueError(f"{backend!r} is not supported; use one of {', '.join(sorted(DIALECTS))}")
    if backend == "sqlite" and (parsed.database or ":memory:") == ":memory:":
        raise ValueError("SQLite needs a file here, because several processes share it: sqlite:///PATH")
    return parsed.set(drivername=DIALECTS[backend].driver) if parsed.drivername == backend else parsed


def with_whole_path(url: URL) -> URL:
    """Return the URL with the path of a SQLite file as SQLAlchemy opens it: `link/..` is the folder of the link."""
    path = url.database or ""
    if url.get_backend_name() != "sqlite" or path in ("", ":memory:") or url.query.get("uri"):
        return url
    return url.set(database=os.path.abspath(path))  # noqa: PTH100 - it is not `Path.resolve`


def same_database(first: URL, second: URL) -> bool:
    """Return whether one transaction can change what is behind both URLs.

    Drivers and passwords may differ, and the names of one SQLite file. Everything else must be written alike: a user or
    a parameter may lead to another schema, and two names of one host cannot be recognised.
    """
    return _place(first) == _place(second)


def _place(url: URL) -> tuple[Any, ...]:
    kind = url.get_backend_name().replace("mariadb", "mysql")
    if kind == "sqlite" and not url.query.get("uri"):
        return kind, Path(with_whole_path(url).database or "").resolve()
    host = (url.host or "").lower()
    return kind, host, url.port or _PORTS.get(kind), url.database, url.username, sorted(url.query.items())


class UnusableDatabase(Exception):
    """A database that answers, and in which nothing can be kept reliably; the message has the next step."""


def make_engine(url: URL, dialect: Dialect, patience: float) -> Engine:
    """Make the engine of this process. Locks are waited for at most `patience` seconds."""
    settings: dict[str, Any] = {}
    if dialect.isolation_level is not None:
        settings["isolation_level"] = dialect.isolation_level
    if url.drivername == dialect.driver:
        settings["connect_args"] = {k: v for k, v in dialect.connect_args.items() if k not in url.query}
    engine = sa.create_engine(
        url,
        hide_parameters=True,  # contents and bodies stay out of error texts
        pool_pre_ping=not dialect.one_writer,
        pool_size=5,
        max_overflow=45,
        pool_timeout=patience,
        pool_recycle=dialect.longest_kept,
        pool_use_lifo=True,  # the same few connections, whose caches are warm; in turn, each would fill its own
        **settings,
    )
    statements = [
        s.format(seconds=max(1, round(patience)), milliseconds=round(patience * 1000)) for s in dialect.on_connect
    ]
    if settings_of_session := _settings(url, dialect):
        statements.append(dialect.set_session(settings_of_session))

    @sa.event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy's own first questions, which may fail
    def connect(connection: Any, record: object) -> None:
        if problem := dialect.unusable(connection):
            connection.close()
            raise UnusableDatabase(problem)
        if dialect.one_writer:
            _set_up_sqlite(connection, statements, patience)
        else:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()

    if dialect.allow_idle is not None and not dialect.allow_idle.startswith("SET LOCAL"):

        @sa.event.listens_for(engine, "checkin")
        def end_idleness(connection: Any, record: Any) -> None:
            if record.info.pop(_MAY_IDLE, False) and connection is not None:
                with connection.cursor() as cursor:
                    cursor.execute(dialect.set_session(_settings(url, dialect)))

    if dialect.one_writer:

        @sa.event.listens_for(engine, "do_connect")
        def own_file(dialect: object, record: object, arguments: Any, keywords: Any) -> None:
            if not url.query.get("uri"):
                _make_private(arguments[0])

        @sa.event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # a transaction that reads first and writes then may fail at once as "locked", however long the time-out
            write = connection.get_execution_options().get("cuesqueue_write", True)
            connection.exec_driver_sql(str(dialect.begin_write if write else dialect.begin_read))

    return engine


def _settings(url: URL, dialect: Dialect) -> dict[str, str]:
    """Return what of `dialect.session` the URL does not set, as `?options=-c tcp_user_timeout=9000` does."""
    named = " ".join(value for values in url.normalized_query.values() for value in values)
    return {name: value for name, value in dialect.session.items() if not re.search(rf"\b{name}\b", named)}


_MAY_IDLE = "cuesqueue_may_idle"


def allow_idle(connection: Connection, dialect: Dialect) -> None:
    """Let the open transaction last while nothing is asked: what others do in it may take its time.

    Where the URL says for how long, that counts. The locks of a dead machine still end, by its keepalives.
    """
    statement, settings = dialect.allow_idle, _settings(connection.engine.url, dialect)
    if statement is not None and any(name in statement for name in settings):
        connection.exec_driver_sql(statement)
        connection.info[_MAY_IDLE] = True


def _make_private(path: str) -> None:
    """Make a new file its owner's alone, whatever the umask: it will hold bodies of messages. SQLite's own follow it.

    It gets its name when it is closed: a process that closes any descriptor of a file loses all its locks on it, those
    of other connections too, and two writers without locks destroy the database.
    """
    file = Path(path)
    if file.exists():
        return
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # readable by its owner only
        os.close(descriptor)
        try:
            os.link(draft, file)
        finally:
            Path(draft).unlink()
    except OSError:
        return  # another process was faster; or SQLite is about to say the same, and its errors have names here


def _set_up_sqlite(connection: sqlite3.Connection, statements: list[str], patience: float) -> None:
    connection.isolation_level = None  # we begin, not the driver: it would begin late and without the write lock
    for statement in statements:
        connection.execute(statement)
    # going to WAL needs the file alone for a moment, and SQLite does not wait for that by itself
    deadline = time.monotonic() + patience
    while True:
        try:
            for question in ("PRAGMA journal_mode", "PRAGMA journal_mode = WAL"):
                if connection.execute(question).fetchone()[0] == "wal":
                    return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise sqlite3.OperationalError("database is locked: it could not be put into WAL mode")
        time.sleep(0.02)
