"""The databases that the store's contract runs over. A new one adds a name here, and no test.

Each test gets an empty store; the servers' databases are emptied in between, which is faster than new ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from shard_store.batches.publishing import Published
from shard_store.model import (
    BEGINNING,
    Content,
    Plan,
    Position,
    PublishToken,
    Range,
    Semantics,
    Shard,
    ShardKey,
    Split,
    end_at,
)
from shard_store.sql.schema import READERS_FROM, identity, leases, metadata, version
from shard_store.store import ShardStore, open_store
from shard_store.upkeep import timing
from support.queues.backend import Clock

MYSQL_URL = os.environ.get("CUESQUEUE_TEST_MYSQL_URL", "")
"""A MySQL or MariaDB server whose user may create databases: `make integration` starts one."""

SERVERS = ["postgresql", *(["mysql"] if MYSQL_URL else [])]
BACKENDS = ["sqlite", *SERVERS]
STALE = 60.0
"""Seconds after which the pipelines of these tests are stale."""


@dataclass
class StoreBackend:
    """One empty store; `open` gives views with connections of their own, as other processes would have."""

    name: str
    url: str
    clock: Clock = field(default_factory=Clock)
    views: list[ShardStore] = field(default_factory=list)

    def open(self, **settings: Any) -> ShardStore:
        self.views.append(open_store(self.url, **{"clock": self.clock, "patience": 20.0, **settings}))
        return self.views[-1]

    def run_for(self, seconds: float) -> None:
        """Let time pass in which readers run, and prune: so that the clock is trusted afterwards."""
        self.clock.advance(seconds)
        with open_store(self.url) as store, store.database.engine.begin() as connection:
            connection.execute(leases.delete().where(leases.c.name.in_(timing.NAMES)))

    def wipe(self) -> None:
        with open_store(self.url) as store, store.database.engine.begin() as connection:
            for table in metadata.sorted_tables:
                if table is not identity:  # the same store, empty
                    connection.execute(table.delete())
            connection.execute(version.update().values(version_num=READERS_FROM))

    def close(self) -> None:
        for view in self.views:
            view.close()
        self.views.clear()


def content(shard_id: str, size: int | None = 10) -> Content:
    return Content(shard_id, shard_id, size, None, "queue", f"message of {shard_id[:50]}")


@dataclass
class Pipeline:
    """One running pipeline, as the coordinator would drive it; each call is one of the store's."""

    store: ShardStore
    token: PublishToken
    source: str
    seq: int = 0
    confirmed: int = 0

    @classmethod
    def start(
        cls,
        store: ShardStore,
        name: str = "p",
        source: str = "s",
        driver: str = "",
        semantics: Semantics = Semantics.EXACTLY_ONCE,
    ) -> Pipeline:
        settings = {"allowedPrefixes": "file:///"}
        started = store.start(source, name, driver=driver, stale_after=STALE, semantics=semantics, settings=settings)
        return cls(store, started.token, source, started.last_seq, started.confirmed_seq)

    def open(self, *ids: str) -> dict[str, Shard]:
        found = self.store.open_shards(self.token, self.source, [content(i) for i in ids])
        return {shard.content.shard_id: shard for shard in found.values()}

    def snapshot(self, *shards: Shard, ends: Sequence[Position] = ()) -> tuple[Range, ...]:
        """Write the next snapshot: each shard from where it stands to its end, or to `ends`."""
        to = list(ends) or [end_at(shard.content.size or 0) for shard in shards]
        ranges = tuple(Range(s.key, s.content, s.position, e) for s, e in zip(shards, to, strict=True))
        return self.write(*ranges)

    def write(self, *ranges: Range) -> tuple[Range, ...]:
        self.store.advance(self.token, snapshot=(self.seq + 1, ranges))
        self.seq += 1
        return ranges

    def plan(self) -> Plan:
        """Of everything that is not confirmed."""
        return self.store.plan(self.token, self.confirmed, self.seq)

    def planned(self, *ids: str) -> Plan:
        self.snapshot(*self.open(*ids).values())
        return self.plan()

    def publish(
        self, plan: Plan, *splits: Split, connection: sa.Connection | None = None, **settings: Any
    ) -> Published:
        """With `connection`: in the caller's transaction."""
        if connection is not None:
            return self.store.publish_inside(connection, [plan.identity], splits, **settings)
        return self.store.publish([plan.identity], splits, **settings)

    def confirm(self, keys: Sequence[ShardKey] = ()) -> set[ShardKey]:
        confirmed = self.store.advance(self.token, confirm=self.seq, keys=keys)
        self.confirmed = self.seq
        return set(confirmed.finished)

    def deliver(self, *ids: str) -> Plan:
        """A whole micro-batch into splits."""
        plan = self.planned(*ids)
        self.publish(plan, Split(f"/split-{self.seq}", len(ids), 1))
        self.confirm()
        return plan

    def look(self, *ids: str) -> dict[str, Shard]:
        from shard_store.model import shard_key

        found = self.store.look([shard_key(self.source, i) for i in ids])
        return {shard.content.shard_id: shard for shard in found.values()}


def whole(shard: Shard) -> Range:
    return Range(shard.key, shard.content, BEGINNING, end_at(shard.content.size or 0))


def rows(store: ShardStore, view: str) -> list[dict[str, Any]]:
    from shard_store.operators.views import VIEWS

    names = [column.name for column in VIEWS[view]]
    return [dict(zip(names, row, strict=True)) for page in store.pages(view) for row in page]
