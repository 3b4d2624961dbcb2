"""The store's tables in a database: found at the right revision, created, or migrated.

Opening costs one statement. An empty database is created from `schema.py` and stamped with its revision, without
loading Alembic; a test proves that a migrated store of 0.3, the oldest that there can be, has the same tables.

Two revisions are stamped: the one that the tables are, and the oldest whose code can use them. So queries of an older
version go on, and start again, while a store grows under them (decision 0053).

With its tables a store gets a random id, by which a task recognises the store of its plan.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from shard_store.errors import ShardStoreError, StoreConfigurationError, StoreUnavailable
from shard_store.sql.database import Database, Transaction
from shard_store.sql.schema import (
    READERS_FROM,
    REVISION,
    applied,
    attempts,
    identity,
    metadata,
    pipelines,
    version,
)

if TYPE_CHECKING:
    from importlib.abc import Traversable

COMMAND = "cuesqueue migrate --store URL"

OLDEST = "0013"
"""The revision of version 0.3, before which no store is migrated."""


class Installed(NamedTuple):
    """The revision of a store's tables, and the oldest revision whose code can use them."""

    revision: str
    readers_from: str

    @property
    def usable(self) -> bool:
        """Return whether this code can use the tables: they are its own, or newer ones that have all that it knows."""
        return self.revision == REVISION or (self.revision not in _revisions() and self.readers_from in _revisions())


def ensure(database: Database, *, create: bool) -> None:
    """Return when the tables are there, and of a revision that this code can use.

    `create` makes them in a database that has none. Any number of processes may do it at once. Raises
    StoreConfigurationError for a schema that is older, or too new.
    """
    file = database.file()
    if not create and file is not None and not file.exists():
        raise StoreConfigurationError(f"database {database.name!r}: there is no such file, and so no store")
    stamps = _stamps(database)
    if stamps is None and not create:
        raise StoreConfigurationError(f"database {database.name!r}: there is no store in it")
    if stamps is None:
        database.write(_create)
        stamps = _stamps(database)
    if stamps is None or not stamps.usable:
        raise StoreConfigurationError(_refusal(database, "none" if stamps is None else stamps.revision))


def migrate(database: Database) -> tuple[str | None, str]:
    """Bring the tables to this version's revision, from those of 0.3 on or from none; returns it before and after.

    Code from READERS_FROM on may use the store meanwhile. Raises StoreConfigurationError, and changes nothing, for the
    store of a version before 0.3, and while older code runs or has left a batch unfinished.
    """
    before = installed(database)
    if before is None:
        ensure(database, create=True)
        return None, REVISION
    if before not in _revisions():
        raise StoreConfigurationError(_refusal(database, before))
    from alembic import command  # here: it takes longer to load than opening a store takes
    from alembic.config import Config

    settings = Config()

    def upgrade(transaction: Transaction) -> None:
        with schema_lock(transaction):
            settings.attributes["connection"] = transaction.connection
            now = _read_stamp(transaction, applied) or before
            if now < READERS_FROM:
                _refuse_unfinished(transaction)
            if now < REVISION:  # else another process was faster
                command.upgrade(settings, REVISION)
            # have code of earlier revisions not open the store from now on
            _stamp(transaction, version, max(READERS_FROM, _read_stamp(transaction, version) or ""))

    with _migrations() as folder:
        settings.set_main_option("script_location", str(folder).replace("%", "%%"))
        database.write(upgrade)
    return before, REVISION


def _refuse_unfinished(transaction: Transaction) -> None:
    """Make sure that no reader of older code runs, and that none has left a batch: it may be in a target already, under
    a hash that this code would not look for. And that 0.3 has recorded the options and names of each pipeline.
    """
    c = pipelines.c
    old = transaction.execute(sa.select(c.pipeline).where(c.settings.is_(None), c.incarnation > 0).limit(1)).scalar()
    if old is not None:
        raise StoreConfigurationError(
            f"database {transaction.database!r}: pipeline {old!r} was last started by a version before 0.3; start its "
            "query once with 0.3, with trigger availableNow, and migrate when it has ended, or begin with a new store; "
            "nothing is changed"
        )
    delivered = sa.select(sa.func.max(attempts.c.end_seq)).where(attempts.c.pipeline == c.pipeline).scalar_subquery()
    unfinished = sa.and_(c.last_seq > c.confirmed_seq, c.last_seq > sa.func.coalesce(delivered, 0))
    running = sa.and_(c.driver != "", c.stale_at > transaction.now())
    rows = transaction.execute(sa.select(c.pipeline, running).where(sa.or_(unfinished, running)).order_by(c.pipeline))
    if unended := rows.all():
        names = ", ".join(repr(name) for name, _ in unended[:10]) + (", ..." if len(unended) > 10 else "")
        what = "runs, or was killed a moment ago" if any(is_running for _, is_running in unended) else "is not finished"
        raise StoreConfigurationError(
            f"database {transaction.database!r}: a batch of pipeline {names} {what}; start its query once more with "
            "the version that it had, with trigger availableNow, and migrate when it has ended (one without a use "
            "can be given up by that version's `cuesqueue reset`); nothing is changed"
        )


@contextmanager
def _migrations() -> Iterator[Path]:
    """Yield the folder that Alembic reads. Where we are imported from an archive (`--py-files`), a copy of it."""
    folder_of_package = resources.files("shard_store.sql") / "migrations"
    if isinstance(folder_of_package, Path):
        yield folder_of_package
        return
    with TemporaryDirectory(prefix="cuesqueue-migrations-") as folder:
        _copy(folder_of_package, Path(folder))
        yield Path(folder)


def _copy(origin: Traversable, folder: Path) -> None:
    for entry in origin.iterdir():
        target = folder / entry.name
        if entry.is_dir():
            target.mkdir()
            _copy(entry, target)
        else:
            target.write_bytes(entry.read_bytes())


def installed(database: Database) -> str | None:
    """Return the revision of the tables in the database; None when there is no store."""
    stamps = _stamps(database)
    return None if stamps is None else stamps.revision


def _stamps(database: Database) -> Installed | None:
    both = sa.select(applied.c.version_num, sa.select(version.c.version_num).scalar_subquery())
    try:
        stamps = database.read(lambda transaction: transaction.execute(both).one_or_none())
        return None if stamps is None else Installed(*stamps)
    except StoreUnavailable:
        raise
    except ShardStoreError:
        # the answer to a table that is not there, or was not a moment ago; anything else comes up again here
        return database.read(_one_by_one)


def _one_by_one(transaction: Transaction) -> Installed | None:
    """Return the stamps where there may be none, or one: versions before 0.3 had `version` alone, as their revision.

    Another process may be making the store: `version` is looked at first, since it is written last.
    """
    readers_from, revision = (_read_stamp(transaction, table) for table in (version, applied))
    stamp = revision or readers_from
    return None if stamp is None else Installed(stamp, readers_from or stamp)


def _read_stamp(transaction: Transaction, table: sa.Table) -> str | None:
    if not sa.inspect(transaction.connection).has_table(table.name):
        return None
    stamp: str | None = transaction.execute(sa.select(table.c.version_num)).scalar_one_or_none()
    return stamp


def _stamp(transaction: Transaction, table: sa.Table, revision: str) -> None:
    """Write the revision, also where a process has died before it was done."""
    table.create(transaction.connection, checkfirst=True)
    stamped = transaction.execute(sa.select(table.c.version_num)).scalar_one_or_none()
    if stamped is None:
        transaction.execute(table.insert().values(version_num=revision))
    elif stamped != revision:
        transaction.execute(table.update().values(version_num=revision))


def _create(transaction: Transaction) -> None:
    with schema_lock(transaction):
        inspector = sa.inspect(transaction.connection)
        if _one_by_one(transaction) is not None:
            return  # another process was faster
        # without transactions around tables a process may have died half-way: what is missing is added
        if transaction.dialect.transactional_ddl and inspector.has_table(pipelines.name):
            raise StoreConfigurationError(
                f"database {transaction.database!r}: its cuesqueue tables have no revision: a development version made "
                "them; name another database in 'storeUrl', or drop these tables"
            )
        metadata.create_all(transaction.connection, checkfirst=True)
        values = {"one": 1, "store_id": uuid.uuid4().hex, "created_at": transaction.now()}
        transaction.execute(transaction.dialect.insert_if_absent(identity).values(**values))
        _stamp(transaction, applied, REVISION)
        _stamp(transaction, version, READERS_FROM)


@contextmanager
def schema_lock(transaction: Transaction) -> Iterator[None]:
    """Let one process at a time make or change tables."""
    dialect, connection = transaction.dialect, transaction.connection
    if dialect.lock_schema is not None:
        seconds = max(1, round(transaction.patience))
        if connection.exec_driver_sql(dialect.lock_schema.format(seconds=seconds)).scalar() == 0:  # MySQL: timed out
            raise StoreUnavailable(
                f"database {transaction.database!r}: another process has been changing its tables for {seconds} s; "
                "try again when it is done"
            )
    try:
        yield
        if dialect.unlock_schema is not None:  # the lock ends before our transaction: what we wrote must be seen then
            connection.exec_driver_sql("COMMIT")
    finally:
        if dialect.unlock_schema is not None:
            connection.exec_driver_sql(dialect.unlock_schema)


def _refusal(database: Database, revision: str) -> str:
    if revision < OLDEST:
        return (
            f"database {database.name!r}: a version before 0.3 made the store (schema {revision}); migrate it with "
            "cuesqueue 0.3 first, or name another database in 'storeUrl'"
        )
    if revision in _revisions():
        stop = "" if revision >= READERS_FROM else "stop the queries that use it and "
        return (
            f"database {database.name!r}: the store's schema is {revision}, older than this version's {REVISION}; "
            f"{stop}run: {COMMAND}"
        )
    return (
        f"database {database.name!r}: the store's schema is {revision}, which this version (schema {REVISION}) does "
        "not know: a newer cuesqueue made it; install that version here (a schema is never taken back), or name "
        f"another database in 'storeUrl'; after an update run: {COMMAND}"
    )


def _revisions() -> set[str]:
    """Return all revisions that this version knows, by the names of their files (`0014_versions.py`)."""
    folder = resources.files("shard_store.sql") / "migrations" / "versions"
    return {entry.name.partition("_")[0] for entry in folder.iterdir() if entry.name[:1].isdigit()}


def store_id(transaction: Transaction) -> str:
    """Return the id of the store: the same in every process that uses it, and another in all stores but its copies."""
    store: str | None = transaction.execute(sa.select(identity.c.store_id)).scalar_one_or_none()
    if store is None:
        raise StoreConfigurationError(
            f"database {transaction.database!r}: its table {identity.name} is empty, so nobody can tell which store "
            "this is; restore the table from a backup, or name another database in 'storeUrl'"
        )
    return store
