"""Spark's part of one query: its checkpoint, which outlives it, its tasks, which may read twice, and its sink."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import sqlalchemy as sa

from queue_source.foreach_batch.delivery import delivery
from queue_source.read.task import read_work
from queue_source.spark.compat import arrow_schema
from queue_source.spark.noted_plan import noted_plans
from queue_source.spark.reader import WorkPartition
from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost
from shard_store.model import SINK, PlanIdentity, Reading, Split
from support.explorer.reader import SCHEMA, Reader
from support.explorer.world import World

Offsets = dict[str, dict[str, Any]]
"""What a batch of a query begins or ends with: the offset of each of its pipelines."""

POINTS = ("latest", "logged", "planned", "read", "output", "by-hash", "prepared", "published", "committed")
"""Between these a process may die."""


READINGS = (1, 1, 1, 2)
"""How often a batch is read. Spark does so twice for a range partitioning, for two actions, or in copies of a task."""


class Death(Exception):
    """The driver dies here."""


@dataclass
class Checkpoint:
    """Spark's folder of a query: the batches that were logged, and those that are done."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    starts: Offsets | None = None
    batches: dict[int, tuple[Offsets, Offsets]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    @property
    def unfinished(self) -> int | None:
        last = max(self.batches, default=None)
        return last if last is not None and last not in self.done else None

    def end(self) -> Offsets | None:
        return self.batches[max(self.batches)][1] if self.batches else None

    def copy(self) -> Checkpoint:
        return Checkpoint(self.name, self.starts, dict(self.batches), set(self.done))


@dataclass(frozen=True)
class Kind:
    """A query: its pipelines and their sources, and what becomes of its rows."""

    pipelines: tuple[tuple[str, str], ...]
    sink: str  # "ours", "other", "delivery"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pipeline for pipeline, _ in self.pipelines)


class _Read(NamedTuple):
    """What one task attempt has read."""

    rows: list[str]
    attempt: int


class Query:
    """One life of a query's driver; a Death in any of its calls ends it."""

    def __init__(self, world: World, kind: Kind, checkpoint: Checkpoint, choose: random.Random) -> None:
        self.world, self.kind, self.checkpoint, self.choose = world, kind, checkpoint, choose
        self.die_at: str | None = None
        self._stage = self._attempt = 0  # Spark's numbers of stages and of task attempts
        self.readers: list[Reader] = []
        try:
            for pipeline, source in kind.pipelines:
                self.readers.append(Reader(world, source, pipeline))
        except BaseException:
            self.die()
            raise

    def point(self, name: str) -> None:
        self.world.remember_state()
        if self.die_at == name:
            self.world.log(f"  {self.kind.names} dies at {name}")
            raise Death

    # --- batches ------------------------------------------------------------------------------------------------------

    def trigger(self, *, without_data: bool = False) -> bool:
        """A micro-batch, if there is anything to do; `without_data`: also if there is not, as queries with state do."""
        checkpoint = self.checkpoint
        if (number := checkpoint.unfinished) is None:
            begin = checkpoint.end() or self._first()
            end = {reader.pipeline: _kept(reader.spark.latestOffset(begin[reader.pipeline])) for reader in self.readers}
            self.point("latest")
            if end == begin and not (without_data and checkpoint.batches):
                return False
            number = max(checkpoint.batches, default=-1) + 1
            checkpoint.batches[number] = begin, end
            self.point("logged")
            if number and self.choose.random() < 0.8:  # Spark's `commit`, of the batch before
                for reader in self.readers:
                    reader.spark.commit(begin[reader.pipeline])
        self._run(number)
        checkpoint.done.add(number)
        self.point("committed")
        return True

    def _first(self) -> Offsets:
        return {reader.pipeline: _kept(reader.spark.initialOffset()) for reader in self.readers}

    def _run(self, number: int) -> None:
        begin, end = self.checkpoint.batches[number]
        tasks: list[WorkPartition] = []
        for reader in self.readers:
            name = reader.pipeline
            tasks += reader.spark.partitions(begin[name], end[name])  # type: ignore[arg-type]
        self.point("planned")
        seqs = [(begin[name]["seq"], end[name]["seq"]) for name in self.kind.names]
        self.world.log(f"  batch {number} of {self.kind.names}: {seqs}")
        identities = self._planned_sink() if self.kind.sink == "ours" else ()
        rows, winners = self._read(tasks)
        if begin == end:
            rows.append(f"state of {self.checkpoint.name}, batch {number}")
        self.world.log(f"  rows: {rows}")
        self.point("read")
        match self.kind.sink:
            case "ours":
                if tasks or rows:  # without a task there is no message of a commit
                    self._publish(identities, rows, number, winners)
            case "delivery":
                self._deliver(rows, number)
            case "other":
                self.world.taken.setdefault((self.checkpoint.name, number), rows)
        self.point("published")

    def _read(self, tasks: Sequence[WorkPartition]) -> tuple[list[str], frozenset[int]]:
        """The rows that go out, and the task attempts that have read them.

        A batch may be read twice, each time in another state of the world, and the rows of one reading go out: it was
        sampled for a range partitioning, or has two actions. Or, as with speculation, of each task one of two copies.
        """
        if not tasks:
            return [], frozenset()
        readings = self.choose.choice(READINGS)
        copies = readings == 2 and self.choose.random() < 0.5
        read: list[list[_Read]] = []
        for number in range(readings):
            if number:
                self.world.log("  read twice" + ", one copy counts" * copies)
                self._change_objects(tasks)
            if number == 0 or not copies:
                self._stage += 1
            repeated = copies and number > 0
            read.append([self._task(task, partition, repeated) for partition, task in enumerate(tasks)])
        chosen = [self.choose.choice(task) for task in zip(*read, strict=True)] if copies else read[-1]
        return [row for task in chosen for row in task.rows], frozenset(task.attempt for task in chosen)

    def _change_objects(self, tasks: Sequence[WorkPartition]) -> None:
        for piece in [piece for task in tasks for piece in task.work.pieces]:
            if self.choose.random() < 0.4:
                flip = self.world.vanish if self.world.is_there(piece.content.uri) else self.world.appear
                flip(piece.content.uri)

    def _task(self, task: WorkPartition, partition: int, repeated: bool) -> _Read:
        reading = Reading(self._stage, partition, self._attempt, repeated)
        self._attempt += 1
        batches = read_work(task.work, arrow_schema(SCHEMA), repeated=repeated, reading=reading)
        return _Read([row for batch in batches for row in batch.column(0).to_pylist()], reading.task)

    # --- sinks --------------------------------------------------------------------------------------------------------

    def _planned_sink(self) -> tuple[PlanIdentity, ...]:
        noted = noted_plans(self.world.driver)
        return tuple(self.world.store.take_plan(name, None, SINK, noted) for name in self.kind.names)

    def _publish(
        self, identities: tuple[PlanIdentity, ...], rows: list[str], number: int, winners: frozenset[int]
    ) -> None:
        self.point("prepared")
        if self.choose.random() < 0.5:  # a shuffle: other tasks write than have read
            first, self._attempt = self._attempt, self._attempt + self.choose.choice([0, 1, 3])
            winners = frozenset(range(first, self._attempt))
        split = Split(f"{uuid.uuid4().hex}:{json.dumps(rows)}", len(rows), 1)
        self.world.store.publish(identities, [split] if rows else [], batch_id=number, winners=winners)

    def _deliver(self, rows: list[str], number: int) -> None:
        in_driver = mock.patch("queue_source.foreach_batch.delivery.presence_folder", return_value=self.world.driver)
        with in_driver, delivery(self.world.store, self.kind.names, number) as batch:
            self.world.check_hash(batch.hash, (self.checkpoint.name, number))
            with batch.output("audit", self.world.elsewhere) as output:
                if not output.already:
                    self._insert(output.connection, "audit", rows)
            self.point("output")
            if not batch.already:
                self._write_by_hash(batch.hash, rows)
                self.point("by-hash")
                self._insert(batch.connection, "delivered", rows)
            self.point("prepared")

    def _write_by_hash(self, digest: str, rows: list[str]) -> None:
        with self.world.elsewhere.begin() as connection:
            values = {"hash": digest, "query": self.kind.names[0], "row_ids": json.dumps(rows)}
            connection.execute(sa.text("INSERT OR REPLACE INTO batches VALUES (:hash, :query, :row_ids)"), values)

    def _insert(self, connection: sa.Connection, table: str, rows: Sequence[str]) -> None:
        if rows:
            values = [{"query": self.kind.names[0], "row": row} for row in rows]
            connection.execute(sa.text(f"INSERT INTO {table} VALUES (:query, :row)"), values)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        for reader in self.readers:
            reader.stop()
        self.readers = []

    def die(self) -> None:
        for reader in self.readers:
            with suppress(LostProgress, PipelineTakenOver, ShardsLost):
                reader.die()
        self.readers = []


def _kept(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark's log keeps it."""
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept
