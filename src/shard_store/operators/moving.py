"""A source leaves a store and arrives in another one, with all that is known of it (`cuesqueue export`, `import`).

Leaving is one short transaction: from then on nothing of the source changes here, whatever still runs (invariants 2
and 4). What is read after it is what arrives, also in one transaction, in the one store that the source has left for.
Values are read and written as the database keeps them, so nothing is lost in types that only our code knows.

Of another reader's memory only objects arrive: what it has read counts as finished here (`cuesqueue adopt`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from shard_store.batches.progress import other_stores
from shard_store.batches.starting import check_name
from shard_store.errors import StoreConfigurationError
from shard_store.model import ShardState, end_at, shard_key
from shard_store.shards.sources import refuse_moved
from shard_store.sql import install, schema
from shard_store.sql.install import is_known
from shard_store.sql.schema import LongText, of_pipeline, pipelines, read_marks, shards, snapshots, sources
from shard_store.sql.transaction import Transaction, chunks

TABLES: tuple[sa.Table, ...] = (
    sources,
    pipelines,
    snapshots,
    schema.attempts,
    schema.shards,
    schema.splits,
    schema.errors,
    read_marks,
    schema.shard_changes,
    schema.listings,
    schema.certificates,
    schema.cleanings,
    schema.history,
)
"""What is known of a source, in the order in which it is written and read."""

LEFT_OUT: tuple[sa.Table, ...] = (schema.leases, schema.identity, schema.receivers, schema.registered)
"""What belongs to a store and not to a source: whose turn it is, which store it is, who records for many sources, and
the data files of its tables."""

ADOPTED = "adopted"
"""The queue of shards that another reader has read. They have no owner."""

Value = int | str | bytes | None


@dataclass(frozen=True, slots=True)
class Place:
    """A store as another one names it: its URL without secrets, and its id."""

    name: str
    store_id: str


@dataclass(frozen=True, slots=True)
class Cargo:
    """What a file with a source says of itself, before the rows.

    `export_id` is the same for each export of one move. `to_id`: the only store in which it may arrive, None of a copy.
    `moves`: how often the source has changed its store, with this time. `written_at` is microseconds since 1970.
    """

    export_id: str
    source: str
    revision: str
    from_id: str
    to_id: str | None
    moves: int
    written_at: int


def columns(table: sa.Table) -> list[str]:
    """Return the columns of a row in a file: all but the numbers that a database gives by itself."""
    return [column.name for column in table.columns if not _is_serial(column)]


def leave(transaction: Transaction, source: str, to: Place) -> None:
    """Have the source be in another store from now on, as far as this one is concerned. May be repeated.

    Queries that run on it publish nothing more: each transaction of theirs is refused with the name of that store.
    """
    row = _locked(transaction, source)
    if row is None:
        raise no_such_source(transaction, source)
    here = install.store_id(transaction)
    if here == to.store_id:
        raise StoreConfigurationError(
            f"{to.name} and {transaction.database} are one store, or copies of each other: their id is {here}; a "
            "source is moved to an empty database, or to one that cuesqueue has made by itself"
        )
    if row.moved_to is not None:
        if row.moved_to_id != to.store_id:
            raise StoreConfigurationError(_gone(transaction, source, row.moved_to))
        return
    this = sources.update().where(sources.c.source == source)
    transaction.execute(this.values(moves=(row.moves or 0) + 1, moved_to=to.name, moved_to_id=to.store_id))
    # after its row: a start locks both in the same order. A publication that is under way is waited for
    ours = pipelines.update().where(pipelines.c.source == source)
    transaction.execute(ours.values(incarnation=pipelines.c.incarnation + 1, driver=""))


def cargo(transaction: Transaction, source: str, copy_id: str | None) -> tuple[Cargo, dict[str, int]]:
    """Return what a file of the source begins with, and how many rows it has of each table.

    `copy_id`: a name for this copy of a source that stays; None of one that has left.
    """
    row = transaction.execute(sa.select(sources).where(sources.c.source == source)).one_or_none()
    if row is None:
        raise no_such_source(transaction, source)
    if copy_id is not None and row.moved_to is not None:
        raise StoreConfigurationError(_gone(transaction, source, row.moved_to))
    here = install.store_id(transaction)
    now = int(transaction.execute(sa.select(transaction.now())).scalar_one())
    moves = row.moves or 0
    export_id = copy_id or f"{here} {moves}"
    counted = {
        table.name: transaction.execute(
            sa.select(sa.func.count()).select_from(table).where(_of(table, source))
        ).scalar_one()
        for table in TABLES
    }
    return Cargo(export_id, source, schema.REVISION, here, row.moved_to_id, moves, now), counted


def rows(transaction: Transaction, table: sa.Table, source: str) -> Iterator[Sequence[Value]]:
    """Yield the rows of the source as the database keeps them, one at a time: memory does not grow with them."""
    query = sa.select(*(sa.type_coerce(table.c[name], _plain(table.c[name])) for name in columns(table)))
    query = query.where(_of(table, source))
    if serial := [column for column in table.columns if _is_serial(column)]:
        query = query.order_by(*serial)  # their order is that of time
    for row in transaction.connection.execute(query, execution_options={"yield_per": 1000}):
        yield tuple(bytes(value) if isinstance(value, memoryview | bytearray) else value for value in row)


def check_arrival(transaction: Transaction, source: str) -> None:
    """Raise what would be raised if the source arrived from another store, as far as that can be known before."""
    row = transaction.execute(sa.select(sources).where(sources.c.source == source)).one_or_none()
    if row is None or row.moved_to is None:
        _refuse_rows(transaction, source)


def arrive(transaction: Transaction, arriving: Cargo) -> bool:
    """Make room for the source and lock it; `insert` then fills it. False: it has arrived with this very file before.

    What is left here of a source that had moved away is replaced.
    """
    if not is_known(arriving.revision):
        raise StoreConfigurationError(
            f"the file was written by a newer cuesqueue (schema {arriving.revision}, this one has {schema.REVISION}); "
            "install that version here"
        )
    if arriving.revision < schema.READERS_FROM:
        raise StoreConfigurationError(
            f"the file was written by an older cuesqueue (schema {arriving.revision}, this one has {schema.REVISION}), "
            f"and may hold a batch that is not finished; run {install.COMMAND} for its store, and export again"
        )
    here, source = install.store_id(transaction), arriving.source
    if arriving.to_id not in (None, here):
        raise StoreConfigurationError(
            f"the file is for another store than {transaction.database}: the source was moved to the store with the id "
            f"{arriving.to_id}, and this is {here}; name that one with --store"
        )
    transaction.execute(transaction.dialect.insert_if_absent(sources).values(source=source, forgotten_before=0))
    row = _locked(transaction, source)
    assert row is not None
    if row.import_id == arriving.export_id and row.moved_to is None:
        return False
    if row.moved_to is None:
        _refuse_rows(transaction, source)
    elif arriving.to_id is None or arriving.moves <= (row.moves or 0):
        raise StoreConfigurationError(
            f"{_gone(transaction, source, row.moved_to)}: an older file, or a copy, does not bring it back"
        )
    for table in reversed(TABLES):  # those that others are chosen by come last
        if table is not sources:
            transaction.execute(table.delete().where(_of(table, source)))
    return True


def insert(transaction: Transaction, table: sa.Table, names: Sequence[str], values: Sequence[Sequence[Value]]) -> None:
    """Write rows of a file; `names` are those of its columns. Up to 1,000."""
    check_columns(table, names)
    records = [dict(zip(names, row, strict=True)) for row in values]
    if table is pipelines:
        _refuse_other_pipelines(transaction, [str(row["pipeline"]) for row in records])
    types = {name: sa.bindparam(f"given_{name}", type_=_plain(table.c[name])) for name in names}
    bound = [{f"given_{name}": value for name, value in row.items()} for row in records]
    if table is sources:
        this = sources.update().where(sources.c.source == types.pop("source"))
        transaction.execute(this.values(types), bound)
    else:
        transaction.execute(table.insert().values(types), bound)


def arrived(transaction: Transaction, arriving: Cargo) -> None:
    """Have the source be here, from this file, all of whose rows are there."""
    this = sources.update().where(sources.c.source == arriving.source)
    transaction.execute(
        this.values(moves=arriving.moves, moved_to=None, moved_to_id=None, import_id=arriving.export_id)
    )
    ours = pipelines.c.source == arriving.source
    # no reader has them here until one starts: otherwise those of a copy would count as dead
    transaction.execute(pipelines.update().where(ours).values(driver=""))
    query = sa.select(pipelines.c.pipeline, pipelines.c.last_seq, pipelines.c.stores).where(ours)
    for row in transaction.execute(query).all():
        stores = {**other_stores(row.stores), arriving.from_id: row.last_seq}  # checkpoints have that store's offsets
        transaction.execute(of_pipeline, [{"of": row.pipeline, "stores": json.dumps(stores)}])


def check_columns(table: sa.Table, names: Sequence[str]) -> None:
    """Refuse columns that are unknown, and the lack of one that may not be empty, as those added since may."""
    expected = set(columns(table))
    missing = [name for name in expected - set(names) if not table.c[name].nullable]
    if missing or set(names) - expected:
        raise StoreConfigurationError(
            f"the file's columns of {table.name} are not those of this version: missing {sorted(missing)}, unknown "
            f"{sorted(set(names) - expected)}; import it with the version that wrote it, and migrate then"
        )


def no_such_source(transaction: Transaction, source: str) -> StoreConfigurationError:
    """Return the error that names the sources that there are."""
    existing = transaction.execute(sa.select(sources.c.source).order_by(sources.c.source).limit(10)).scalars()
    names = ", ".join(map(repr, existing)) or "none"
    return StoreConfigurationError(f"there is no source {source!r} in {transaction.database}; there is {names}")


def _of(table: sa.Table, source: str) -> sa.ColumnElement[bool]:
    """Return the condition of rows that belong to the source."""
    ours = pipelines.c.source == source
    if table is snapshots:
        return snapshots.c.pipeline.in_(sa.select(pipelines.c.pipeline).where(ours))
    if table is read_marks:
        return read_marks.c.delivery_hash.in_(sa.select(pipelines.c.plan_hash).where(ours))
    return table.c.source == source


def _locked(transaction: Transaction, source: str) -> sa.Row[Any] | None:
    return transaction.execute(sa.select(sources).where(sources.c.source == source).with_for_update()).one_or_none()


def _refuse_rows(transaction: Transaction, source: str) -> None:
    for table in TABLES:
        if table is not sources and transaction.execute(sa.select(sa.exists().where(_of(table, source)))).scalar():
            raise StoreConfigurationError(
                f"the store {transaction.database} has a source {source!r} already, with rows in {table.name}: a "
                "source arrives only where there is none of its name"
            )


def _refuse_other_pipelines(transaction: Transaction, names: Sequence[str]) -> None:
    query = sa.select(pipelines.c.pipeline, pipelines.c.source).where(pipelines.c.pipeline.in_(names))
    if (other := transaction.execute(query).first()) is not None:
        raise StoreConfigurationError(
            f"the store {transaction.database} has a pipeline {other.pipeline!r} of the source {other.source!r}: "
            "pipelines of one store have different names; import into a store of its own"
        )


def _gone(transaction: Transaction, source: str, place: str) -> str:
    return f"source {source!r} was moved from {transaction.database} to the store {place}"


def _is_serial(column: sa.Column[Any]) -> bool:
    return column.autoincrement is True


def _plain(column: sa.Column[Any]) -> TypeEngine[Any]:
    """Return the type of the column without what our own types do with values."""
    kind = column.type
    if isinstance(kind, sa.types.TypeDecorator):
        return LongText
    return sa.LargeBinary() if isinstance(kind, sa.LargeBinary) else kind


class Adopted(NamedTuple):
    """An object that was read elsewhere; `size` in bytes and `etag` as far as they are known."""

    uri: str
    size: int | None = None
    etag: str | None = None


def adopt(transaction: Transaction, source: str, objects: Sequence[Adopted], origin: str) -> int:
    """Write these objects down as finished shards of the source, now; returns how many were not known.

    What is known stays as it is, also what is not finished: so it may be run again. `origin` is shown with each shard,
    in the place of its message.
    """
    check_name("source", source)
    transaction.execute(transaction.dialect.insert_if_absent(sources).values(source=source, forgotten_before=0))
    refuse_moved(transaction, source)
    by_key = {shard_key(source, adopted.uri): adopted for adopted in objects}
    keys = sorted(by_key)
    known_keys = {row.shard_key for row in transaction.select_among(shards.select(), shards.c.shard_key, keys)}
    names = ("shard_key", "shard_id", "size", "etag", "position")
    fixed = {
        "source": source,
        "queue": ADOPTED,
        "message_id": origin,
        "receive_count": 0,
        "state": ShardState.DONE.value,
        "opened_at": transaction.now(),
        "finished_at": transaction.now(),
    }
    row_set = transaction.row_set(**{name: shards.c[name] for name in names})
    insert = row_set.insert(transaction.dialect.insert_if_absent(shards), fixed)
    new = [key for key in keys if key not in known_keys]
    for chunk in chunks(new):
        values = [
            (key, (adopted := by_key[key]).uri, adopted.size, adopted.etag, end_at(adopted.size or 0)) for key in chunk
        ]
        row_set.execute(transaction.connection, insert, values)
    return len(new)
