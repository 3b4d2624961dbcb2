"""The shard store: one object over one database, each call one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store import error_records, leases, offsets, plans, publishing, read_marks, shards, starting, views
from shard_store.model import (
    Content,
    ErrorRecord,
    Plan,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    ReadMark,
    Shard,
    ShardKey,
    Split,
)
from shard_store.offsets import Confirmed
from shard_store.pruning import PruneResult, RetentionPolicy, prune
from shard_store.publishing import Published
from shard_store.semantics import Semantics
from shard_store.sql import install
from shard_store.sql.database import Database
from shard_store.sql.schema import pipelines
from shard_store.sql.transaction import Transaction
from shard_store.starting import Started
from shard_store.views import AsOf

T = TypeVar("T")


class ShardStore:
    """Shards, their owners and their progress behind a SQLAlchemy URL. Threads may share one; processes may not.

    Every method is one transaction, which is tried again for a while when the database is in trouble. Those named
    `..._inside` are part of the caller's own transaction instead, in the store's database: they commit nothing, and
    try nothing again. All are safe to call again, and raise `shard_store.errors`. Used in the reader process, in the
    sink's commit process and, for errors only, in executors.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def __repr__(self) -> str:
        return f"ShardStore({self.database.name!r})"

    def __enter__(self) -> ShardStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    # shards and their owners

    def start(
        self,
        source: str,
        pipeline: str,
        *,
        driver: str = "",
        stale_after: float = 120.0,
        semantics: Semantics = Semantics.EXACTLY_ONCE,
        remembered: float = 0.0,
    ) -> Started:
        """Begin a new incarnation of the pipeline; fences the one before. Idempotent but for the number.

        `stale_after`: the seconds after its last heartbeat from which others may take the pipeline's shards.
        `remembered`: with at-least-once, for how many seconds what was delivered is reported as `recent`.
        """
        starting.check_name("source", source)
        starting.check_name("pipeline", pipeline)
        return self.database.write(
            lambda t: starting.start(
                t, source, pipeline, driver=driver, stale_after=stale_after, semantics=semantics, remembered=remembered
            )
        )

    def heartbeat(self, token: PublishToken, stale_after: float) -> None:
        """Say that the pipeline runs; raises PipelineTakenOver when another incarnation does."""
        self.database.write(lambda t: shards.heartbeat(t, token, stale_after))

    def retire(self, token: PublishToken) -> None:
        """Say that the incarnation has ended gracefully and plans nothing more."""
        self.database.write(lambda t: shards.retire(t, token))

    def open_shards(self, token: PublishToken, source: str, contents: Sequence[Content]) -> dict[ShardKey, Shard]:
        """Open new shards as ours and return all as they are now: one transaction, 1,000 rows a statement."""
        return self.database.write(lambda t: shards.open_shards(t, token, source, contents))

    def look(self, keys: Sequence[ShardKey]) -> dict[ShardKey, Shard]:
        """The shards as they are now; pruned ones are missing."""
        return self.database.read(lambda t: shards.look(t, keys))

    def acquire(self, token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]) -> set[ShardKey]:
        """Compare-and-set stale shards to our token; returns those that are ours now (invariant 5)."""
        return self.database.write(lambda t: shards.acquire(t, token, seen))

    def release(self, token: PublishToken, keys: Sequence[ShardKey]) -> None:
        """Give up open shards that are in no snapshot."""
        self.database.write(lambda t: shards.release(t, token, keys))

    # snapshots and plans

    def advance(
        self,
        token: PublishToken,
        *,
        confirm: int | None = None,
        keys: Collection[ShardKey] = (),
        snapshot: tuple[int, Sequence[Range]] | None = None,
    ) -> Confirmed:
        """Confirm up to a seq and write the next snapshot, together in one transaction; either may be left out."""
        return self.database.write(lambda t: offsets.advance(t, token, confirm=confirm, keys=keys, snapshot=snapshot))

    def adopt_offset(self, token: PublishToken, seq: int) -> None:
        """Continue after an offset that this store never gave."""
        self.database.write(lambda t: offsets.adopt_offset(t, token, seq))

    def plan(self, token: PublishToken, start_seq: int, end_seq: int) -> Plan:
        """The plan of the micro-batch (start_seq, end_seq], kept as the pipeline's current one."""
        return self.database.write(lambda t: plans.plan(t, token, start_seq, end_seq))

    def current_plan(self, pipeline: str, driver: str | None = None) -> PlanIdentity:
        """The plan that a sink built now belongs to; with `driver`, only if it is that driver's."""
        return self.database.read(lambda t: plans.current_plan(t, pipeline, driver))

    def current_plan_inside(self, connection: Connection, pipeline: str, driver: str | None = None) -> PlanIdentity:
        return self.database.inside(connection, lambda t: plans.current_plan(t, pipeline, driver))

    # publishing

    def publish(
        self,
        identities: Sequence[PlanIdentity],
        splits: Sequence[Split] | None,
        *,
        row_schema: str | None = None,
        batch_id: int | None = None,
    ) -> Published:
        """Make the splits of a micro-batch visible and advance its shards, once for each plan, fenced by the tokens.

        `identities`: the plans, one for each pipeline of the query: all advance, or none. The first one has the splits.
        A pipeline that is idle in this batch comes with the plan that it delivered last, and stays as it is. `splits`
        is None where the rows go elsewhere, uncounted; `row_schema` is their schema as Spark's JSON.
        The result's hash is that of the first one's attempt, its counts are over all. Raises PipelineTakenOver and
        ShardsLost; then nothing was published.
        """
        return self.database.write(
            lambda t: publishing.publish(t, identities, splits, row_schema=row_schema, batch_id=batch_id)
        )

    def publish_with(
        self,
        identities: Sequence[PlanIdentity],
        work: Callable[[Transaction, Published], T],
        *,
        batch_id: int,
        brought: tuple[int, int],
    ) -> T:
        """As `publish`, where rows become visible elsewhere in the store's database by `work`, in one transaction.

        `work` is called in that transaction, with what was published, and is run again with it when the database is
        in trouble; its result is returned. `brought`: how many rows and bytes it makes visible.
        """

        def publish(t: Transaction) -> T:
            return work(t, publishing.publish(t, identities, (), batch_id=batch_id, elsewhere=brought))

        return self.database.write(publish)

    def publish_inside(
        self,
        connection: Connection,
        identities: Sequence[PlanIdentity],
        splits: Sequence[Split] | None,
        batch_id: int | None = None,
    ) -> Published:
        """As `publish`, in the caller's transaction, which may hold rows of the caller's own tables."""
        return self.database.inside(connection, lambda t: publishing.publish(t, identities, splits, batch_id=batch_id))

    def delivered(self, identities: Sequence[PlanIdentity], batch_id: int) -> Published:
        """What `publish` would find: the hash of this micro-batch, and whether it is published already."""
        return self.database.read(lambda t: publishing.look(t, identities, batch_id))

    @contextmanager
    def held(self, identities: Sequence[PlanIdentity], batch_id: int) -> Iterator[None]:
        """While the block lasts, the micro-batch can be published, and nobody takes its shards over.

        Raises as `publish` does. Keep it short: the pipeline's heartbeats wait for it.
        """
        with self.database.begin() as connection:
            self.hold_inside(connection, identities, batch_id)
            yield

    def hold_inside(self, connection: Connection, identities: Sequence[PlanIdentity], batch_id: int) -> None:
        """As `held`, until the caller's transaction ends."""
        self.database.inside(connection, lambda t: publishing.hold(t, identities, batch_id))

    # errors

    def record_errors(self, source: str, pipeline: str, records: Sequence[ErrorRecord]) -> None:
        """Write errors where they happen; the same error twice is one. Runs in executors too.

        Errors of a plan become final when it is published; what comes later is not written.
        """
        if records:
            self.database.write(lambda t: error_records.record(t, source, pipeline, records))

    def reject(self, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
        """Write rows of the running plan that the user's function rejected; fenced, and the same row twice is one."""
        self.database.write(lambda t: error_records.reject(t, identity, records))

    def reject_inside(self, connection: Connection, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
        self.database.inside(connection, lambda t: error_records.reject(t, identity, records))

    def found_bad(self, identity: PlanIdentity) -> set[tuple[ShardKey, Position]]:
        """The ranges, by key and start, that an attempt at this plan found bad: they are not read again."""
        return self.database.read(lambda t: error_records.found_bad(t, identity.delivery_hash))

    # marks of reads: called by executors, for plans that have failed before

    def begin_read(self, identity: PlanIdentity, mark: ReadMark) -> None:
        """Mark a part of the plan as being read: what kills its reader leaves the mark behind."""
        self.database.write(lambda t: read_marks.begin(t, identity, mark))

    def end_read(self, identity: PlanIdentity, mark: ReadMark) -> None:
        """All of it was read. When it was read alone, what is in it is no longer suspected of anything."""
        self.database.write(lambda t: read_marks.end(t, identity, mark))

    def undo_read(self, identity: PlanIdentity, mark: ReadMark) -> None:
        """The read failed for a known reason: its reader is alive, and the read does not count."""
        self.database.write(lambda t: read_marks.undo(t, identity, mark))

    def read_marks(self, identity: PlanIdentity) -> list[ReadMark]:
        """The reads of this plan that have begun and not ended."""
        return self.database.read(lambda t: read_marks.of_plan(t, identity.delivery_hash))

    # views and pruning

    def pages(
        self, view: str, *, source: str | None = None, pipeline: str | None = None, as_of: AsOf | None = None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a view, in pages."""
        return views.pages(self.database, view, source=source, pipeline=pipeline, as_of=as_of)

    def published_names(self, paths: Sequence[str]) -> set[str]:
        """Which of the files are splits, by their names: the same, whatever their folder is called."""
        return self.database.read(lambda t: views.published_names(t, paths))

    def row_schema(self, pipeline: str | None = None) -> str | None:
        """The schema (Spark's JSON) of what the sink published last, of this pipeline or of any."""
        query = sa.select(pipelines.c.row_schema).where(pipelines.c.row_schema.is_not(None))
        if pipeline is not None:
            query = query.where(pipelines.c.pipeline == pipeline)
        query = query.order_by(pipelines.c.heartbeat_at.desc()).limit(1)
        return self.database.read(lambda t: t.execute(query).scalar_one_or_none())

    def win_interval(self, name: str, interval: float) -> bool:
        """True for one caller over all pipelines in each `interval` seconds."""
        return leases.win_interval(self.database, name, interval)

    def prune(
        self, policy: RetentionPolicy, now: datetime | None = None, *, dry_run: bool = False, time_out: float = 60.0
    ) -> PruneResult:
        """Remove what the policy lets go, in small transactions, for at most `time_out` seconds."""
        return prune(self.database, policy, now, dry_run=dry_run, time_out=time_out)


def open_store(
    url: str,
    *,
    create: bool = True,
    clock: Callable[[], float] | None = None,
    patience: float = 30.0,
    trusts_rowcount: bool = True,
) -> ShardStore:
    """Open the store behind an SQLAlchemy URL; in an empty database its tables are created.

    Args:
        url: An SQLAlchemy URL, as in the option `storeUrl`.
        create: Create the tables in an empty database.
        clock: For tests: replaces the database's clock.
        patience: Seconds for which temporary failures are retried.
        trusts_rowcount: For tests: False counts changed rows as for a driver that does not.

    Returns:
        The store. Close it, or use it in a `with` statement. Threads may share it; processes may not.

    Raises:
        StoreConfigurationError: The URL, the driver or the permissions are wrong, or the schema is older or newer than
            this version's (`cuesqueue migrate`).
        StoreUnavailable: The database failed for longer than `patience`.

    Process:
        Any.
    """
    database = Database(url, clock=clock, patience=patience, trusts_rowcount=trusts_rowcount)
    try:
        install.ensure(database, create=create)
    except BaseException:
        database.close()
        raise
    return ShardStore(database)
