"""Reading the tables as people and batch queries see them: columns by name, times as microseconds since 1970 UTC.

`files_state` has a row for each shard, and what other tables know of it: as far as they are not pruned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.positions import MARKS
from shard_store.completeness.comparing import EMPTY, UNPUBLISHED, Category
from shard_store.error_table.records import error_state
from shard_store.errors import StoreConfigurationError
from shard_store.model import Pending, ShardState, micros, shard_key, split_key, time_of
from shard_store.sql.database import Database, Transaction
from shard_store.sql.schema import (
    AnyText,
    AsHex,
    attempts,
    certificates,
    cleanings,
    errors,
    pipelines,
    shards,
    sources,
    splits,
)

PAGE = 10_000
OPENING = 4 << 20
"""What opening a file costs, in bytes that could be read instead, as in Spark's `openCostInBytes`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view. `kind`: text, integer, time (microseconds UTC), boolean, binary."""

    name: str
    kind: str
    expression: sa.ColumnElement[Any]


def _columns(table: sa.Table, spec: str) -> tuple[Column, ...]:
    """Make columns of a view. `spec` names them as `name:kind`, kind text when left out."""
    parts = (part.partition(":") for part in spec.split())
    return tuple(Column(name, kind or "text", table.c[name]) for name, _, kind in parts)


_TOKEN = shards.c.owner + "/" + sa.cast(shards.c.incarnation, sa.String(20))
_LEAD = attempts.alias("lead_attempts")
_ONLY_SPLIT = sa.case(
    (
        _LEAD.c.splits == 1,
        sa.select(splits.c.path)
        .where(splits.c.delivery_hash == _LEAD.c.delivery_hash, splits.c.replaced_by.is_(None))
        .limit(1)
        .scalar_subquery(),
    )
)
_ONLY_ROWS = sa.case((attempts.c.shards == 1, attempts.c.rows))
_FINAL = sa.or_(errors.c.delivery_hash == "", attempts.c.delivery_hash.is_not(None))

_MARKED = sa.and_(shards.c.state == ShardState.DONE.value, shards.c.pending.in_(MARKS))
_FILE_STATE = sa.case((_MARKED, shards.c.pending), else_=shards.c.state)
_COMMITTED = sa.case((sa.and_(_MARKED, shards.c.pending != Pending.SKIPPED.value), None), else_=shards.c.finished_at)

_VERDICT = sa.case(
    (certificates.c.objects == 0, EMPTY),
    (sa.or_(*(certificates.c[category.value] > 0 for category in UNPUBLISHED)), "incomplete"),
    (certificates.c[Category.BEYOND_MEMORY.value] > 0, "unknown"),
    else_="complete",
)

VIEWS: dict[str, tuple[Column, ...]] = {
    "splits": (
        *_columns(splits, "path rows:integer bytes:integer source pipeline"),
        Column("delivery_hash", "text", sa.func.nullif(splits.c.delivery_hash, "")),
        *_columns(splits, "published_at:time"),
    ),
    "shards": (
        *_columns(shards, "source shard_id state position size:integer etag queue message_id receive_count:integer"),
        Column("pipeline", "text", shards.c.owner),
        Column("publish_token", "text", _TOKEN),
        *_columns(shards, "end_seq:integer opened_at:time finished_at:time"),
        Column("last_heartbeat", "time", pipelines.c.heartbeat_at),
        *_columns(shards, "pending shard_key:binary"),
    ),
    "attempts": _columns(
        attempts,
        "delivery_hash lead_hash source pipeline incarnation:integer start_seq:integer end_seq:integer "
        "batch_id:integer kind shards:integer lost:integer errors:integer splits:integer rows:integer "
        "bytes:integer published_at:time",
    ),
    "errors": (
        *_columns(errors, "source pipeline scope cause detail subject position queue message_id input:binary"),
        Column("delivery_hash", "text", errors.c.delivery_hash),
        Column("final", "boolean", _FINAL),
        *_columns(errors, "occurred_at:time"),
        Column("error_id", "text", sa.type_coerce(errors.c.error_key, AsHex)),
        Column("state", "text", error_state(_FINAL)),
        *_columns(errors, "input_size:integer delivered_at:time delivered_to requeued_at:time reopened_at:time"),
    ),
    "cleanings": (
        *_columns(cleanings, "source uri action target size:integer etag version read_at:time planned_at:time"),
        *_columns(cleanings, "due_at:time attempts:integer ended_at:time outcome cause detail"),
    ),
    "files_state": (
        Column("path", "text", sa.func.coalesce(shards.c.uri, shards.c.shard_id, type_=AnyText())),
        Column("size", "integer", shards.c.size),
        Column("state", "text", _FILE_STATE),
        Column("source", "text", shards.c.source),
        Column("pipeline", "text", shards.c.owner),
        Column("discovery_time", "time", shards.c.opened_at),
        Column("processed_time", "time", attempts.c.snapshot_at),
        Column("commit_time", "time", _COMMITTED),
        Column("rows", "integer", _ONLY_ROWS),
        *_columns(shards, "queue message_id receive_count:integer shard_id"),
        Column("delivery_hash", "text", attempts.c.delivery_hash),
        Column("attempt", "text", attempts.c.kind),
        Column("batch_id", "integer", attempts.c.batch_id),
        Column("batch_files", "integer", attempts.c.shards),
        Column("batch_rows", "integer", attempts.c.rows),
        Column("batch_splits", "integer", _LEAD.c.splits),
        Column("split", "text", _ONLY_SPLIT),
    ),
    "completeness": (
        Column("certificate", "integer", certificates.c.id),
        *_columns(certificates, "source prefix modified_since:time modified_before:time"),
        Column("verdict", "text", _VERDICT),
        *_columns(
            certificates,
            "objects:integer published:integer waiting:integer quarantined:integer missing:integer changed:integer "
            "beyond_memory:integer before_beginning:integer left_out:integer evidence choice digest unpublished actor "
            "written_at:time skipped:integer given_up:integer",
        ),
    ),
}
"""The views' columns. An error is `final` once its plan was published; before, the attempt may still be repeated.

Its `state`: `pending` (not final), `recorded`, `delivered` (to the error queue), `requeued` (`cuesqueue errors`),
`reopened` (its object is read again). A shard's `pending` is what its next plan will do: see `model.Pending`.
"""

_FROM = {
    "splits": splits,
    "shards": shards.outerjoin(
        pipelines, sa.and_(pipelines.c.pipeline == shards.c.owner, pipelines.c.incarnation == shards.c.incarnation)
    ),
    "attempts": attempts,
    "errors": errors.outerjoin(attempts, attempts.c.delivery_hash == errors.c.delivery_hash),
    "cleanings": cleanings,
    "files_state": shards.outerjoin(
        attempts,
        sa.and_(
            attempts.c.pipeline == shards.c.owner,
            attempts.c.end_seq == shards.c.end_seq,
            attempts.c.start_seq < attempts.c.end_seq,
        ),
    ).outerjoin(_LEAD, _LEAD.c.delivery_hash == attempts.c.lead_hash),
    "completeness": certificates,
}
BY_SHARD = ("shards", "files_state")
"""The views with a row for each shard, which may be read in ranges of its key."""

SAMPLE = 10_000
"""Rows by which the size of the table of shards is estimated: within some percent, for one short read."""

_KEYS = 1 << 256


@dataclass(frozen=True, slots=True)
class AsOf:
    """What was published at a time, or when an attempt (its delivery hash) had been: for the view `splits` alone."""

    time: datetime | None = None
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Shards whose key is at least `first` and less than `end`; without one of them, all from or up to there."""

    first: bytes | None = None
    end: bytes | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        conditions = [] if self.first is None else [shards.c.shard_key >= self.first]
        return conditions if self.end is None else [*conditions, shards.c.shard_key < self.end]


def key_ranges(transaction: Transaction, size: int) -> list[KeyRange]:
    """Divide all shards into parts of about `size` rows, which processes read side by side by the table's primary key.

    Keys are digests: they are spread evenly, so the first of them tell how many there are, and equal ranges hold
    equally many.
    """
    after_some = sa.select(shards.c.shard_key).order_by(shards.c.shard_key).offset(SAMPLE).limit(1)
    key = transaction.execute(after_some).scalar_one_or_none()
    if key is None:
        return [KeyRange()]
    rows = SAMPLE * _KEYS // max(1, int.from_bytes(bytes(key), "big"))
    parts = -(-rows // size)
    edges = [(_KEYS * place // parts).to_bytes(32, "big") for place in range(1, parts)]
    return [KeyRange(first, end) for first, end in zip([None, *edges], [*edges, None], strict=True)]


def pages(
    database: Database,
    view: str,
    *,
    source: str | None = None,
    pipeline: str | None = None,
    as_of: AsOf | None = None,
    keys: KeyRange | None = None,
    files: DataFiles | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a view in pages of up to 10,000, ordered by the table's key; memory holds one page.

    `keys`: only these, of a view that is in `BY_SHARD`. `files`: only these, of the view `splits`. `columns`: only
    these, in their order; without it all.
    """
    joined = _FROM[view]
    table: Any = joined
    while isinstance(table, sa.Join):
        table = table.left
    by_name = {column.name: column for column in VIEWS[view]}
    chosen = [by_name[name].expression.label(name) for name in columns or by_name]
    query = sa.select(*chosen).select_from(joined)
    if source is not None:
        query = query.where(table.c.source == source)
    if pipeline is not None and "pipeline" not in by_name:
        query = query.where(sa.false())  # they are of sources
    elif pipeline is not None:
        query = query.where((table.c.owner if table is shards else table.c.pipeline) == pipeline)
    if keys is not None:
        query = query.where(*keys.conditions())
    if view == "splits":
        files = files or published_files(database, source=source, pipeline=pipeline, as_of=as_of)
        query = query.where(*files.conditions())
    yield from by_key(database, query, next(iter(table.primary_key.columns)), files)


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Which data files a query reads: their ids from `first` to `last`, and the filters that hold among them.

    A few numbers, however many files there are: the tasks of a query get one each, and list their own files. Whenever
    they do, they find the same: a file that was joined with others (`compacting`) counts until the one in its place
    does, and that counts if its id is up to `newest`, and its time up to `until`.
    """

    first: int
    last: int
    newest: int
    source: str | None = None
    pipeline: str | None = None
    until: int | None = None  # published by then, in microseconds

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        c = splits.c
        is_shown = sa.or_(c.replaced_by.is_(None), c.replaced_by > self.newest)
        if self.until is not None:
            is_shown = sa.or_(is_shown, c.replaced_at > self.until)
            is_shown = sa.and_(is_shown, sa.func.coalesce(c.compacted_at, c.published_at) <= self.until)
        return [c.id.between(self.first, self.last), is_shown, *self._chosen(splits)]

    def refuse_lost(self, transaction: Transaction) -> None:
        """Raise StoreConfigurationError where files of this past were joined later, and vacuum has removed them."""
        joined = splits.alias("joined")
        c = joined.c
        is_later, begins = c.id > self.newest, c.first_id <= self.newest
        if self.until is not None:
            is_later, begins = sa.or_(is_later, c.compacted_at > self.until), sa.and_(begins, c.first_at <= self.until)
        kept = sa.select(sa.func.count()).where(splits.c.replaced_by == c.id).scalar_subquery()
        lost = c.compacted_at.is_not(None), is_later, begins, kept < c.joined, *self._chosen(joined)
        since: int | None = transaction.execute(sa.select(sa.func.max(c.compacted_at)).where(*lost)).scalar_one()
        if since is not None:
            raise StoreConfigurationError(
                "data files of this past were joined by `cuesqueue compact`, and `cuesqueue vacuum` or `prune` has "
                f"removed them from {transaction.database!r}; read what is published now, or was at "
                f"{time_of(since).isoformat()} or later"
            )

    def _chosen(self, table: sa.FromClause) -> list[sa.ColumnElement[bool]]:
        names = {"source": self.source, "pipeline": self.pipeline}
        return [table.c[column] == name for column, name in names.items() if name is not None]


def published_files(
    database: Database, *, source: str | None = None, pipeline: str | None = None, as_of: AsOf | None = None
) -> DataFiles:
    """Return the files that are published at this moment, or were `as_of` another; later ones are not among them."""
    as_of = as_of or AsOf()
    until = None if as_of.time is None else micros(as_of.time)

    def last_published(transaction: Transaction) -> int:
        """Return the highest id, while no publish is under way: each is on one side of it as a whole."""
        await_publishes(transaction)
        return transaction.execute(sa.select(sa.func.max(splits.c.id))).scalar_one() or 0

    last = database.write(last_published)
    if (attempt := as_of.attempt) is not None:
        last = database.read(lambda t: _last_split(t, attempt))
    files = DataFiles(0, last, last, source, pipeline, until)
    database.read(files.refuse_lost)  # also where no file is left, and so nothing is listed
    return files


def data_files(
    database: Database,
    size: int,
    *,
    source: str | None = None,
    pipeline: str | None = None,
    as_of: AsOf | None = None,
) -> list[DataFiles]:
    """Divide the published files into parts of about `size` bytes, by the database; none when there are no files."""
    everything = published_files(database, source=source, pipeline=pipeline, as_of=as_of)

    def divide(transaction: Transaction) -> list[DataFiles]:
        cost = splits.c.bytes + OPENING
        before = sa.cast(sa.func.sum(cost).over(order_by=splits.c.id) - cost, sa.BigInteger)
        conditions = everything.conditions()
        numbered = sa.select(splits.c.id, (before // size).label("part")).where(*conditions).subquery()
        first, end = sa.func.min(numbered.c.id), sa.func.max(numbered.c.id)
        edges = transaction.execute(sa.select(first, end).group_by(numbered.c.part).order_by(first))
        return [replace(everything, first=first, last=last) for first, last in edges]

    return database.read(divide)


def paths(database: Database, files: DataFiles) -> Iterator[str]:
    """Yield the paths of the files, in the order in which they were published; memory holds one page."""
    query = sa.select(splits.c.path).where(*files.conditions())
    for page in by_key(database, query, splits.c.id, files):
        yield from (path for (path,) in page)


def await_publishes(transaction: Transaction) -> None:
    """Return when every publish that was under way has ended, one way or the other.

    A publish has its ids and its time before it is committed, and after it has locked its pipeline's row. So from now
    on nothing appears among what has a lower id or an earlier time: the past is complete, and stays what it is.
    """
    locked = sa.select(pipelines.c.pipeline).order_by(pipelines.c.pipeline).with_for_update(read=True)
    transaction.execute(locked).all()


def by_key(
    database: Database, query: sa.Select[Any], key: sa.Column[Any], files: DataFiles | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield pages of the query, each of which continues after the last key: as quick at the end as at the beginning.

    Of `files`, it is made sure after each page that none has gone before it.
    """
    query = query.add_columns(key.label("_key")).order_by(key).limit(PAGE)
    last: Any = None

    def read_page(transaction: Transaction) -> Sequence[Row[Any]]:
        page = transaction.execute(query if last is None else query.where(key > last)).all()
        if files is not None:
            files.refuse_lost(transaction)
        return page

    while True:
        page = database.read(read_page)
        if not page:
            return
        yield [tuple(row[:-1]) for row in page]
        last = page[-1][-1]
        if len(page) < PAGE:
            return


def _last_split(transaction: Transaction, delivery_hash: str) -> int:
    """Return the id of the last split that was published with or before an attempt: ids rise with time."""
    attempt = transaction.execute(
        sa.select(attempts.c.lead_hash, attempts.c.published_at).where(attempts.c.delivery_hash == delivery_hash)
    ).one_or_none()
    c = splits.c
    lead = delivery_hash if attempt is None else attempt.lead_hash  # of a pruned attempt the splits are still there
    last = sa.func.max(c.id), sa.func.max(c.published_at)
    own = sa.select(*last).where(c.delivery_hash == lead, c.compacted_at.is_(None))
    split_id, at = transaction.execute(own).one()
    if split_id is not None:  # of its files, some may have been joined later
        begun = sa.select(sa.func.max(c.first_id)).where(c.first_at == at)
        split_id = max(split_id, transaction.execute(begun).scalar_one() or 0)
    elif attempt is not None:
        # of what was joined later at least the beginning: where its files are gone, the past is refused
        at = attempt.published_at
        place = sa.case((c.compacted_at > at, c.first_id), else_=c.id)
        before = sa.select(sa.func.max(place)).where(sa.func.coalesce(c.first_at, c.published_at) <= at)
        split_id = transaction.execute(before).scalar_one() or 0
    if split_id is None:
        raise StoreConfigurationError(
            f"option 'asOfAttempt': the store {transaction.database!r} has no attempt {delivery_hash[:64]!r}; take a "
            "delivery_hash of the view 'attempts'"
        )
    return int(split_id)


def row_schema(transaction: Transaction, pipeline: str | None = None, source: str | None = None) -> str | None:
    """Return the schema (Spark's JSON) of what the sink published last, of this pipeline and source or of any."""
    query = sa.select(pipelines.c.row_schema).where(pipelines.c.row_schema.is_not(None))
    if pipeline is not None:
        query = query.where(pipelines.c.pipeline == pipeline)
    if source is not None:
        query = query.where(pipelines.c.source == source)
    return transaction.execute(query.order_by(pipelines.c.heartbeat_at.desc()).limit(1)).scalar_one_or_none()


def announced_uris(transaction: Transaction, uris: Sequence[str]) -> set[str]:
    """Return which of the URIs are objects that some source of the store knows, in any state and version."""
    names = transaction.execute(sa.select(sources.c.source)).scalars().all()
    by_key = {bytes(shard_key(source, uri)): uri for source in names for uri in uris}
    rows = transaction.select_among(sa.select(shards.c.shard_key), shards.c.shard_key, by_key)
    with_version = transaction.select_among(sa.select(shards.c.uri), shards.c.uri, uris)
    return {by_key[bytes(key)] for (key,) in rows} | {uri for (uri,) in with_version}


def published_names(transaction: Transaction, paths: Sequence[str], replaced_since: int = 0) -> set[str]:
    """Return which of the paths name a split, whatever their folder is called; not those replaced before a time."""
    by_name = {split_key(path): path for path in paths}
    is_kept = sa.func.coalesce(splits.c.replaced_at, replaced_since) >= replaced_since
    rows = transaction.select_among(sa.select(splits.c.name_key).where(is_kept), splits.c.name_key, by_name)
    return {by_name[bytes(key)] for (key,) in rows}
