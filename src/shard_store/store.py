"""The shard store: one object over one database, each call one transaction (design.md section 5)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from shard_store import error_records, plans, poison, publishing, shards, starting, views
from shard_store.model import (
    Content,
    ErrorRecord,
    Plan,
    PlanIdentity,
    Position,
    PublishToken,
    Range,
    Shard,
    ShardKey,
    Split,
)
from shard_store.plans import Confirmed
from shard_store.pruning import PruneResult, RetentionPolicy, prune, win_interval
from shard_store.publishing import Published
from shard_store.semantics import Semantics
from shard_store.sql import install as installing
from shard_store.sql.database import Database
from shard_store.sql.schema import pipelines
from shard_store.starting import Started
from shard_store.views import AsOf


class ShardStore:
    """Shards, their owners and their progress behind a SQLAlchemy URL. Threads may share one; processes may not.

    Every method is one transaction (or, with `connection`, part of the caller's, which commits), is safe to call
    again, and raises `shard_store.errors`. Used in the reader process, in the sink's commit process and, for errors
    only, in executors. `stale_after` is the time in seconds after its last heartbeat at which a pipeline's shards
    may be taken by others.
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

    # ownership

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

        `remembered`: with at-least-once, the seconds for which what was delivered is told as `recent`.
        """
        starting.check_name("source", source)
        starting.check_name("pipeline", pipeline)
        return self.database.write(
            lambda c: starting.start(self.database, c, source, pipeline, driver, stale_after, semantics, remembered)
        )

    def heartbeat(self, token: PublishToken, stale_after: float) -> None:
        self.database.write(lambda c: shards.heartbeat(self.database, c, token, stale_after))

    def retire(self, token: PublishToken) -> None:
        """Say that the incarnation has ended gracefully and plans nothing more."""
        self.database.write(lambda c: shards.retire(c, token))

    def open_shards(self, token: PublishToken, source: str, contents: Sequence[Content]) -> dict[ShardKey, Shard]:
        """Open new shards as ours and tell how each stands: one transaction, 1,000 rows a statement."""
        return self.database.write(lambda c: shards.open_shards(self.database, c, token, source, contents))

    def look(self, keys: Sequence[ShardKey]) -> dict[ShardKey, Shard]:
        return self.database.read(lambda c: shards.look(self.database, c, keys))

    def acquire(self, token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]) -> set[ShardKey]:
        """Compare-and-set stale shards to our token; returns those that are ours now (invariant 5)."""
        return self.database.write(lambda c: shards.acquire(self.database, c, token, seen))

    def release(self, token: PublishToken, keys: Sequence[ShardKey]) -> None:
        self.database.write(lambda c: shards.release(self.database, c, token, keys))

    # progress

    def advance(
        self,
        token: PublishToken,
        *,
        confirm: int | None = None,
        keys: Iterable[ShardKey] = (),
        snapshot: tuple[int, Sequence[Range]] | None = None,
    ) -> Confirmed:
        """Confirm up to a seq and write the next snapshot, together in one transaction; either may be left out."""

        def work(c: Connection) -> Confirmed:
            confirmed = Confirmed(frozenset())
            if confirm is not None:
                confirmed = plans.confirm(self.database, c, token, confirm, keys)
            if snapshot is not None:
                written = plans.write_snapshot(self.database, c, token, *snapshot)
                confirmed = replace(confirmed, written=written)
            return confirmed

        keys = list(keys)
        return self.database.write(work)

    def plan(self, token: PublishToken, start_seq: int, end_seq: int) -> Plan:
        return self.database.write(lambda c: plans.plan(self.database, c, token, start_seq, end_seq))

    def current_plan(
        self, pipeline: str, driver: str | None = None, connection: Connection | None = None
    ) -> PlanIdentity:
        if connection is not None:
            return self.database.write(lambda c: plans.current_plan(c, pipeline, driver), connection)
        return self.database.read(lambda c: plans.current_plan(c, pipeline, driver))

    def adopt_offset(self, token: PublishToken, seq: int) -> None:
        self.database.write(lambda c: plans.adopt_offset(c, token, seq))

    def publish(
        self,
        identity: PlanIdentity,
        splits: Sequence[Split],
        *,
        row_schema: str | None = None,
        batch_id: int | None = None,
        elsewhere: tuple[int, int] = (0, 0),
        connection: Connection | None = None,
    ) -> Published:
        """Make the splits visible and advance the shards, once for each plan; fenced by the token (section 2).

        `elsewhere`: how many rows and bytes become visible with this transaction in another place than splits.
        """
        return self.publish_all(
            (identity,),
            splits,
            row_schema=row_schema,
            batch_id=batch_id,
            elsewhere=elsewhere,
            connection=connection,
        )

    def publish_all(
        self,
        identities: Sequence[PlanIdentity],
        splits: Sequence[Split] | None,
        *,
        row_schema: str | None = None,
        batch_id: int | None = None,
        elsewhere: tuple[int, int] = (0, 0),
        connection: Connection | None = None,
    ) -> Published:
        """Publish a micro-batch of several pipelines as one: all advance, or none. The first one has the splits.

        A pipeline that is idle in this batch comes with the plan that it delivered last, and stays as it is. The
        result's hash is that of the first one's attempt, its counts are over all. `splits` is None where the rows go
        elsewhere, uncounted.
        """

        def work(c: Connection) -> Published:
            return publishing.publish(
                self.database, c, identities, splits, row_schema=row_schema, batch_id=batch_id, elsewhere=elsewhere
            )

        return self.database.write(work, connection)

    def delivered(self, identities: Sequence[PlanIdentity], batch_id: int) -> Published:
        """What `publish_all` would find: the hash of this micro-batch, and whether it is published already."""
        return self.database.read(lambda c: publishing.look(c, identities, batch_id))

    @contextmanager
    def held(
        self, identities: Sequence[PlanIdentity], batch_id: int, connection: Connection | None = None
    ) -> Iterator[None]:
        """While the block lasts, the micro-batch can be published, and nobody takes its shards over.

        With `connection`: as long as the caller's transaction. Raises as `publish_all` does. Keep it short: the
        pipeline's heartbeats wait for it.
        """
        with ExitStack() as stack:
            if connection is None:
                connection = stack.enter_context(self.database.engine.begin())
            self.database.write(lambda c: publishing.hold(self.database, c, identities, batch_id), connection)
            yield

    def created_at(self, pipeline: str, connection: Connection) -> int:
        """When the pipeline started first: tells it from one of the same name in another store."""
        query = sa.select(pipelines.c.created_at).where(pipelines.c.pipeline == pipeline)
        return int(connection.execute(query).scalar_one())

    # errors, views, housekeeping

    def record_errors(self, source: str, pipeline: str, records: Sequence[ErrorRecord]) -> None:
        """Write errors where they happen; the same error twice is one. Runs in executors too.

        Errors of a plan become final when it is published; what comes later is not written.
        """
        if records:
            self.database.write(lambda c: error_records.record(self.database, c, source, pipeline, records))

    def reject(
        self, identity: PlanIdentity, records: Sequence[ErrorRecord], connection: Connection | None = None
    ) -> None:
        """Write rows of the running plan that the user's function rejected; fenced, and the same row twice is one."""

        def work(c: Connection) -> None:
            shards.fence(c, identity.token)
            error_records.record(self.database, c, identity.source, identity.token.pipeline, records)

        self.database.write(work, connection)

    def found_bad(self, identity: PlanIdentity) -> set[tuple[ShardKey, Position]]:
        """The ranges, by key and start, that an attempt at this plan found bad: they are not read again."""
        return self.database.read(lambda c: error_records.found_bad(c, identity.delivery_hash))

    def begin_read(self, identity: PlanIdentity, entry: Range) -> int:
        """Mark a range as being read in isolation; returns how many earlier reads of it have never ended.

        Called by executors, for plans that have failed before: what kills its reader leaves its mark behind.
        """
        return self.database.write(lambda c: poison.begin(self.database, c, identity, entry))

    def end_read(self, identity: PlanIdentity, entry: Range) -> None:
        """The reader of the range is alive, whatever it found."""
        self.database.write(lambda c: poison.end(c, identity, entry))

    def pages(
        self, view: str, *, source: str | None = None, pipeline: str | None = None, as_of: AsOf | None = None
    ) -> Iterator[list[tuple[Any, ...]]]:
        return views.pages(self.database, view, source=source, pipeline=pipeline, as_of=as_of)

    def published_names(self, paths: Sequence[str]) -> set[str]:
        """Which of the files are splits, by their names: the same, whatever their folder is called."""
        return self.database.read(lambda c: views.published_names(self.database, c, paths))

    def row_schema(self, pipeline: str | None = None) -> str | None:
        """The schema (Spark's JSON) of what the sink published last, of this pipeline or of any."""
        query = sa.select(pipelines.c.row_schema).where(pipelines.c.row_schema.is_not(None))
        if pipeline is not None:
            query = query.where(pipelines.c.pipeline == pipeline)
        query = query.order_by(pipelines.c.heartbeat_at.desc()).limit(1)
        return self.database.read(lambda c: c.execute(query).scalar_one_or_none())

    def win_interval(self, name: str, interval: float) -> bool:
        """True for one caller over all pipelines in each `interval` seconds."""
        holder = uuid.uuid4().hex
        return win_interval(self.database, name, holder, interval)

    def prune(
        self,
        policy: RetentionPolicy,
        now: datetime | None = None,
        *,
        dry_run: bool = False,
        time_out: float = 60.0,
    ) -> PruneResult:
        return prune(self.database, policy, now, dry_run=dry_run, time_out=time_out)


def open_store(
    url: str,
    *,
    create: bool = True,
    clock: Callable[[], float] | None = None,
    patience: float = 30.0,
    trusts_rowcount: bool = True,
) -> ShardStore:
    """Open the store behind a SQLAlchemy URL; in an empty database it is created, unless `create` is false.

    `patience`: seconds for which passing trouble is tried again before StoreUnavailable. `clock` and
    `trusts_rowcount` are for tests. Raises StoreConfigurationError when the URL, driver or permissions are wrong, or
    when the schema is older or newer than this version's (`cuesqueue migrate`).
    """
    database = Database(url, clock=clock, patience=patience, trusts_rowcount=trusts_rowcount)
    try:
        installing.ensure(database, create=create)
    except BaseException:
        database.close()
        raise
    return ShardStore(database)
