"""An in-memory model of the store's promises, and the actors that use the store as pipelines do.

The model does not compute what the store should answer. It watches the tables after every step, knows what each kind
of step may change, and keeps the ranges whose rows have become visible: the invariants are checked against these.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from shard_store.errors import ShardStoreError
from shard_store.model import (
    BEGINNING,
    Content,
    ErrorRecord,
    Plan,
    Position,
    PublishToken,
    Range,
    Shard,
    ShardKey,
    Split,
)
from shard_store.sql.schema import attempts, metadata, pipelines, shards, snapshots, splits
from shard_store.store import ShardStore, open_store

STALE = 60.0
SIZE = 10
T = TypeVar("T")
_MESSAGES = count()


class Crash(Exception):
    """The process died here."""


class World:
    """One store in a file, a clock that is moved by hand, and faults between any two statements."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_700_000_000.0
        self.store = open_store(f"sqlite:///{folder / 'store.db'}", clock=lambda: self.now)
        self._left: int | None = None
        engine = self.store.database.engine
        sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
        engine.dispose()
        sa.event.listen(engine, "before_cursor_execute", self._step)
        sa.event.listen(engine, "commit", self._step)

    def _step(self, *_: object) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise Crash

    @contextmanager
    def dying_after(self, statements: int | None) -> Iterator[None]:
        self._left = statements
        try:
            yield
        finally:
            self._left = None

    def close(self) -> None:
        self.store.close()

    def table(self, table: sa.Table) -> list[dict[str, Any]]:
        with self.store.database.engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


@dataclass
class Checkpoint:
    """What Spark keeps of a query: what is done, and the batch that it has logged and will repeat until it is done."""

    done: int = 0
    batch: tuple[int, int] | None = None
    taken: dict[tuple[int, int], list[Range]] = field(default_factory=dict)  # by a foreign sink, once a batch
    planned: dict[tuple[int, int], set[Range]] = field(default_factory=dict)  # what every attempt at a batch has had

    def note(self, batch: tuple[int, int], plan: Plan) -> None:
        """Decision 0032: what one attempt left out is left out by every later one, whoever owns it by then."""
        before = self.planned.get(batch, set(plan.ranges))
        assert before.issuperset(plan.ranges), "a range that an attempt left out came back to its plan"
        self.planned[batch] = set(plan.ranges)


@dataclass
class Actor:
    """One incarnation of a pipeline: what its process remembers. A crash is the loss of this object."""

    store: ShardStore
    checkpoint: Checkpoint
    foreign: bool
    token: PublishToken
    confirmed: int
    last_seq: int
    ready: dict[ShardKey, Shard] = field(default_factory=dict)
    seen: dict[ShardKey, PublishToken | None] = field(default_factory=dict)
    planned: set[ShardKey] = field(default_factory=set)
    plan: Plan | None = None

    @classmethod
    def start(cls, store: ShardStore, name: str, checkpoint: Checkpoint, foreign: bool) -> Actor:
        started = store.start("s", name, stale_after=STALE)
        actor = cls(store, checkpoint, foreign, started.token, started.confirmed_seq, started.last_seq)
        actor.planned = {r.key for snapshot in started.unconfirmed for r in snapshot.ranges}
        actor.route(list(started.unfinished))
        return actor

    def route(self, found: list[Shard]) -> None:
        for shard in found:
            self.ready.pop(shard.key, None)
            if shard.state.value != "open":
                self.seen.pop(shard.key, None)
            elif shard.token == self.token:
                self.seen.pop(shard.key, None)
                if shard.key not in self.planned:
                    self.ready[shard.key] = shard
            else:
                self.seen[shard.key] = shard.token

    def open(self, ids: list[str], size: int = SIZE, etag: str | None = None) -> None:
        """Each time by messages that nobody has seen; a reader also looks for what was opened again without one."""
        self.route(list(self.store.renewed(self.token).values()))
        contents = [Content(i, i, size, etag, message_id=f"m{next(_MESSAGES)}") for i in ids]
        self.route(list(self.store.open_shards(self.token, "s", contents).values()))

    def acquire(self) -> None:
        won = self.store.acquire(self.token, dict(self.seen))
        self.route([shard for key, shard in self.store.look(list(self.seen)).items() if key in won])

    def release(self, count: int) -> None:
        keys = list(self.ready)[:count]
        self.store.release(self.token, keys)
        for key in keys:
            del self.ready[key]

    def snapshot(self, ends: list[Position]) -> None:
        chosen = list(self.ready.values())[: len(ends)]
        ranges = [Range(s.key, s.content, s.position, max(e, s.position)) for s, e in zip(chosen, ends, strict=False)]
        ranges = [r for r in ranges if r.start < r.end]
        self.store.advance(self.token, snapshot=(self.last_seq + 1, ranges))
        self.last_seq += 1
        for entry in ranges:
            self.planned.add(entry.key)
            del self.ready[entry.key]

    def make_plan(self) -> None:
        if self.checkpoint.done > self.confirmed:
            self.confirm()
        if self.checkpoint.batch is None:
            if self.last_seq <= self.checkpoint.done:
                return
            self.checkpoint.batch = (self.checkpoint.done, self.last_seq)
        self.plan = self.store.plan(self.token, *self.checkpoint.batch)
        self.checkpoint.note(self.checkpoint.batch, self.plan)

    def take(self) -> None:
        """A foreign sink has the rows; of a batch that comes again it takes the first attempt only."""
        if self.foreign and self.plan is not None and self.checkpoint.batch is not None:
            self.checkpoint.taken.setdefault(self.checkpoint.batch, list(self.plan.ranges))

    def deliver(self) -> None:
        """The sink of this batch, and Spark's note that the batch is done."""
        if self.plan is None or self.checkpoint.batch is None:
            return
        self.take()
        if not self.foreign:
            self.store.publish(
                [self.plan.identity], [Split(ranges_of(self.plan), 1, 1)], batch_id=self.checkpoint.batch[1]
            )
        self.checkpoint.done, self.checkpoint.batch, self.plan = self.checkpoint.batch[1], None, None

    def deliver_without_bad(self, cause: str) -> None:
        """A task finds the first object bad, so that no sink gets rows of it, and the batch is done."""
        if self.plan is None or self.plan.published or self.checkpoint.batch in self.checkpoint.taken:
            return
        for bad in self.plan.ranges[:1]:
            subject, identity = bad.content.shard_id, self.plan.identity
            error = ErrorRecord("object", cause, "", subject, identity.delivery_hash, bad.start)
            self.store.record_errors("s", self.token.pipeline, [error])
        self.plan = replace(self.plan, ranges=self.plan.ranges[1:])
        self.deliver()

    def confirm(self) -> None:
        done = self.checkpoint.done
        if done <= self.confirmed:
            return
        self.store.advance(self.token, confirm=done, keys=list(self.planned))
        self.confirmed = done
        if self.confirmed == self.last_seq:
            keys, self.planned = list(self.planned), set()
            self.route(list(self.store.look(keys).values()))


def ranges_of(plan: Plan) -> str:
    """A split's path that says which ranges its rows are of."""
    return json.dumps([[r.key.hex(), r.start, r.end] for r in plan.ranges])


class Model:
    """What was true after the step before; `check` compares with what is true now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shards: dict[bytes, dict[str, Any]] = {}
        self._pipelines: dict[str, dict[str, Any]] = {}
        self._snapshots: dict[tuple[str, int, int], tuple[str, str]] = {}
        self._attempts: dict[str, dict[str, Any]] = {}
        self._splits = 0
        self._visible: dict[bytes, list[tuple[str, str]]] = {}  # of the shard's present life
        self._by_others: dict[bytes, list[tuple[str, str]]] = {}  # taken by a foreign sink

    def check(self, step: str, actor: PublishToken | None, checkpoints: dict[str, Checkpoint]) -> None:
        self._check_pipelines()
        self._check_snapshots(step, checkpoints)
        self._note_rows(checkpoints)
        self._check_shards(step, actor, checkpoints)
        self._check_attempts()

    def _check_pipelines(self) -> None:
        found = {row["pipeline"]: row for row in self._world.table(pipelines)}
        for name, before in self._pipelines.items():
            for column in ("incarnation", "last_seq", "confirmed_seq"):
                assert found[name][column] >= before[column], f"{name}: {column} fell"
            assert found[name]["confirmed_seq"] <= found[name]["last_seq"]
        self._before = self._pipelines or found
        self._pipelines = found

    def _check_snapshots(self, step: str, checkpoints: dict[str, Checkpoint]) -> None:
        """Invariant 3: what an offset stands for never changes, and is there until Spark is done with it."""
        found = {
            (r["pipeline"], r["seq"], r["chunk"]): (r["moves"], r["contents"]) for r in self._world.table(snapshots)
        }
        for key, text in self._snapshots.items():
            if key in found:
                assert found[key] == text
            else:
                assert step in ("prune", "confirm", "plan"), f"{step} removed a snapshot"  # to plan is to confirm first
                assert key[1] <= self._pipelines[key[0]]["confirmed_seq"]
                assert key[1] <= checkpoints[key[0]].done, "Spark may plan this snapshot again"
        self._snapshots = found

    def _note_rows(self, checkpoints: dict[str, Checkpoint]) -> None:
        rows = self._world.table(splits)
        for row in rows[self._splits :]:
            for key, start, end in json.loads(row["path"]):
                self._visible.setdefault(bytes.fromhex(key), []).append((start, end))
        self._splits = len(rows)
        self._by_others = {}
        for checkpoint in checkpoints.values():
            for taken in checkpoint.taken.values():
                for r in taken:
                    self._by_others.setdefault(r.key, []).append((r.start, r.end))

    def _check_shards(self, step: str, actor: PublishToken | None, checkpoints: dict[str, Checkpoint]) -> None:
        found = {bytes(row["shard_key"]): row for row in self._world.table(shards)}
        for key, before in self._shards.items():
            if key not in found:
                assert step == "prune", f"a shard was lost by {step}"
                given_up = before["owner"] is None and before["position"] == BEGINNING  # released, and taken by nobody
                assert before["finished_at"] is not None or given_up, "invariant 6: an open shard was pruned"
                self._forget(key, checkpoints)
                continue
            now = found[key]
            opened_again = before["state"] == "quarantined" and now["state"] == "open"
            if opened_again:
                assert step in ("open", "operator"), f"{step} opened a quarantined shard again"
                continue
            assert now["position"] >= before["position"], "invariant 2: a position fell"
            if now["position"] != before["position"]:
                assert actor is not None
                owner = PublishToken(before["owner"], before["incarnation"])
                assert owner == actor, f"invariant 2: {actor} moved a shard of {owner}"
            self._check_owner(step, actor, before, now)
        for key, row in found.items():
            self._check_rows(key, row)
        self._shards = found

    def _forget(self, key: bytes, checkpoints: dict[str, Checkpoint]) -> None:
        """Announced again, a pruned shard is read again."""
        self._visible.pop(key, None)
        self._by_others.pop(key, None)
        for checkpoint in checkpoints.values():
            for batch, taken in checkpoint.taken.items():
                checkpoint.taken[batch] = [r for r in taken if r.key != key]

    def _check_owner(self, step: str, actor: PublishToken | None, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Invariant 5."""
        if (before["owner"], before["incarnation"]) == (now["owner"], now["incarnation"]):
            return
        assert before["finished_at"] is None, "a finished shard changed hands"
        assert actor is not None
        if step == "start":
            assert before["owner"] == now["owner"] == actor.pipeline
        elif step == "release":
            assert (before["owner"], before["incarnation"]) == (actor.pipeline, actor.incarnation)
            assert now["owner"] is None
        else:
            assert step == "acquire", f"{step} changed an owner"
            assert (now["owner"], now["incarnation"]) == (actor.pipeline, actor.incarnation)
            owner = self._before.get(before["owner"])
            fresh = (
                owner is not None
                and owner["incarnation"] == before["incarnation"]
                and owner["stale_at"] > self._world.now * 1_000_000
            )
            assert not fresh, "a shard was taken from a living owner"

    def _check_rows(self, key: bytes, row: dict[str, Any]) -> None:
        """Invariants 2 and 4: what is visible of a shard is what its position says, each part once."""
        visible = sorted(self._visible.get(key, []))
        others = self._by_others.get(key, [])
        reached = BEGINNING
        pool = sorted([*visible, *others])
        for start, end in pool:
            if start <= reached < end:
                reached = Position(end)
        for (_, end), (start, _) in pairwise(visible):
            assert end <= start, "rows were published twice"
        if row["state"] == "quarantined":  # nothing of it is published from where it was found bad
            return
        assert reached >= row["position"], "rows were lost: the position is beyond what any sink has"
        if not others and visible:
            assert visible[-1][1] == row["position"]
        assert (row["finished_at"] is not None) == row["position"].startswith("~")

    def _check_attempts(self) -> None:
        """Invariant 4: one attempt a plan."""
        found = {row["delivery_hash"]: row for row in self._world.table(attempts)}
        plans = [(r["pipeline"], r["start_seq"], r["end_seq"]) for r in found.values()]
        assert len(plans) == len(set(plans))
        for digest, before in self._attempts.items():
            assert digest not in found or found[digest] == before
        self._attempts = found


class Twins:
    """Two stores that get the same calls. A call returns what both have answered, or raises what both have raised."""

    def __init__(self, *stores: ShardStore) -> None:
        self.stores = stores

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def answer(store: ShardStore, *args: Any, **settings: Any) -> tuple[Any, ShardStoreError | None]:
            try:
                value = getattr(store, verb)(*args, **settings)
            except ShardStoreError as error:
                return (type(error), str(error)), error
            return (list(value) if isinstance(value, Iterator) else value), None

        def call(*args: Any, **settings: Any) -> Any:
            (first, error), (second, _) = (answer(store, *args, **settings) for store in self.stores)
            assert first == second, f"{verb} has two answers: {first!r} and {second!r}"
            if error is not None:
                raise error
            return first

        return call


class TwinWorld(World):
    """A store whose row counts are trusted, and one with another way to the same, as for drivers that report none.

    No process dies between two statements, since the stores do not have the same ones.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copy(folder / "store.db", folder / "twin.db")
        twin = open_store(f"sqlite:///{folder / 'twin.db'}", clock=lambda: self.now, trusts_rowcount=False)
        sa.event.listen(twin.database.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
        twin.database.engine.dispose()
        self.store = cast(ShardStore, Twins(self.store, twin))  # it answers to the same names
        self._files = [sqlite3.connect(folder / name) for name in ("store.db", "twin.db")]  # SQLAlchemy takes long

    @contextmanager
    def dying_after(self, statements: int | None) -> Iterator[None]:
        yield

    def check(self, step: str, actor: PublishToken | None, checkpoints: dict[str, Checkpoint]) -> None:
        """As that of `Model`: here both stores have the same in all tables."""
        for table in metadata.tables:
            query = f"SELECT * FROM {table}"
            first, second = (sorted(map(repr, file.execute(query))) for file in self._files)
            assert first == second, f"{step} left different rows in {table}"

    def close(self) -> None:
        super().close()
        for file in self._files:
            file.close()


def run(world: World, fault: int | str | None, call: Callable[[], T]) -> T:
    """Make the call with a fault: die after so many statements; or lose the answer, and call once more."""
    if fault == "lost answer":
        call()
        return call()
    with world.dying_after(fault if isinstance(fault, int) else None):
        return call()
