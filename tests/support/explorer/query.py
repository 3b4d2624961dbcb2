"""Spark's part of one query: its checkpoint, which outlives it, its tasks, which may read twice, and its sink."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import sqlalchemy as sa

from queue_source.foreach_batch import delivery
from queue_source.read.task import read_work
from queue_source.sinks.base import Batch, open_sink
from queue_source.sinks.splits import write_split
from queue_source.spark.process import arrow_schema
from queue_source.spark.reader import WorkPartition
from queue_source.spark.writer import noted_plans
from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost
from shard_store.model import SINK, PlanIdentity, Reading
from support.explorer.casts import TABLES, Kind
from support.explorer.points import POINTS as FAILPOINTS
from support.explorer.points import Death
from support.explorer.reader import SCHEMA, Reader
from support.explorer.tables import ROWS
from support.explorer.world import Offsets, World

POINTS = ("latest", "logged", "planned", "read", "output", "by-hash", "prepared", "published", "committed")
"""Between these a process may die."""
OF_TABLES = ("table-files-written", "table-committed")
"""Failpoints of sinks with tables: there they die, too."""

READINGS = (1, 1, 1, 2)
"""How often a batch is read. Spark does so twice for a range partitioning, for two actions, or in copies of a task."""


class _Task(NamedTuple):
    """A task of Spark's, and the source that it reads."""

    source: str
    planned: WorkPartition


class _Read(NamedTuple):
    """What one task attempt has read."""

    rows: list[str]
    attempt: int


class Query:
    """One life of a query's driver; a Death in any of its calls ends it.

    One that it replaces has the same checkpoint, and may log batches until this one has started: these are repeated. So
    it is with Spark, where a batch that another driver has logged under the number ends a query, which starts again.
    What the replaced one logs later, it cannot read: from then on it has a copy of its own.
    """

    def __init__(self, world: World, kind: Kind, choose: random.Random, order: Sequence[str] = ()) -> None:
        self.world, self.kind, self.choose = world, kind, choose
        self.checkpoint = world.checkpoints[kind]
        self.order = tuple(order or kind.names)  # in which the sink's options name the pipelines
        self.die_at: str | None = None
        self._stage = self._attempt = 0  # Spark's numbers of stages and of task attempts
        self.readers: list[Reader] = []
        self.is_stopping = False
        try:
            for pipeline, source in kind.pipelines:
                self.readers.append(Reader(world, source, pipeline))
        except BaseException:
            self.die()
            raise
        self.checkpoint = world.checkpoints[kind] = self.checkpoint.copy()

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
        tasks: list[_Task] = []
        for reader in self.readers:
            planned = reader.spark.partitions(begin[reader.pipeline], end[reader.pipeline])
            tasks += [_Task(reader.source, task) for task in planned]  # type: ignore[arg-type]
        self.point("planned")
        seqs = [(begin[name]["seq"], end[name]["seq"]) for name in self.kind.names]
        self.world.log(f"  batch {number} of {self.kind.names}: {seqs}")
        identities = self._planned_sink() if self.kind.sink in ("ours", *TABLES) else ()
        rows, winners = self._read(tasks)
        rows += self.checkpoint.state_of(number, self.kind.names)
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
            case _:
                if tasks or rows:
                    self._commit(identities, rows, number, winners)
        self.point("published")

    def _read(self, tasks: Sequence[_Task]) -> tuple[list[str], frozenset[int]]:
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
                if not self.world.is_calm:
                    self._change_objects(tasks)
            if number == 0 or not copies:
                self._stage += 1
            repeated = copies and number > 0
            read.append([])
            for partition, task in enumerate(tasks):
                read[-1].append(self._task(task, partition, repeated))
                uris = [piece.content.uri for piece in task.planned.work.pieces]
                self.world.lately += uris
                self.world.between_tasks(uris)
        chosen = [self.choose.choice(task) for task in zip(*read, strict=True)] if copies else read[-1]
        return [row for task in chosen for row in task.rows], frozenset(task.attempt for task in chosen)

    def _change_objects(self, tasks: Sequence[_Task]) -> None:
        objects = self.world.objects
        for uri in [piece.content.uri for task in tasks for piece in task.planned.work.pieces]:
            if self.choose.random() < 0.4:
                (objects.vanish if objects.is_there(uri) else objects.appear)(uri)

    def _task(self, task: _Task, partition: int, repeated: bool) -> _Read:
        reading = Reading(self._stage, partition, self._attempt, repeated)
        self._attempt += 1
        batches = read_work(task.planned.work, arrow_schema(SCHEMA), repeated=repeated, reading=reading)
        rows = [row for batch in batches for row in batch.column(0).to_pylist()]
        return _Read([f"{task.source}|{row}" for row in rows], reading.task)

    # --- sinks --------------------------------------------------------------------------------------------------------

    def _planned_sink(self) -> tuple[PlanIdentity, ...]:
        noted = noted_plans(self.world.driver)
        return tuple(self.world.store.take_plan(name, self.world.driver.name, SINK, noted) for name in self.order)

    def _publish(
        self, identities: tuple[PlanIdentity, ...], rows: list[str], number: int, winners: frozenset[int]
    ) -> None:
        self.point("prepared")
        batches = [pa.record_batch([rows], ROWS)] if rows else []
        prefix = f"split-{Batch(identities).digest[:12]}"
        written = write_split(batches, ROWS, str(self.world.data), prefix, "snappy")
        winners = self._writers(winners)
        self.world.store.publish(identities, written, batch_id=number, winners=winners)

    def _commit(
        self, identities: tuple[PlanIdentity, ...], rows: list[str], number: int, winners: frozenset[int]
    ) -> None:
        """Into a table, by the calls of the sink's writer: at planning, in a task, in the commit process."""
        store, batch = self.world.store, Batch(identities)
        options = self.world.tables[self.kind].options(self.order)
        with FAILPOINTS.dying(self.die_at if self.die_at in OF_TABLES else None):
            sink = open_sink(options)
            sink.prepare(store, ROWS, identities)
            written = sink.write(iter([pa.record_batch([rows], ROWS)] if rows else []), ROWS, batch)
            self.point("prepared")
            batch = replace(batch, winners=self._writers(winners))
            before = self.world.tables[self.kind].state()
            open_sink(options).commit(store, batch, [written], row_schema="{}", batch_id=number)
            if rows and before != self.world.tables[self.kind].state():  # else it has come again, and was done
                self.world.promises.check_table_is_whole(self.kind, rows)

    def _writers(self, winners: frozenset[int]) -> frozenset[int]:
        """The tasks that write: those that have read, or others behind a shuffle."""
        if self.choose.random() < 0.5:
            first, self._attempt = self._attempt, self._attempt + self.choose.choice([0, 1, 3])
            return frozenset(range(first, self._attempt))
        return winners

    def _deliver(self, rows: list[str], number: int) -> None:
        in_driver = mock.patch("queue_source.foreach_batch.presence_folder", side_effect=lambda: self.world.driver)
        named = mock.patch("queue_source.foreach_batch.driver_identity", side_effect=lambda: self.world.driver.name)
        with in_driver, named, delivery(self.world.store, self.order, number) as batch:
            self.world.promises.check_hash(batch.hash, (self.checkpoint.name, number))
            with batch.output("audit", self.world.elsewhere) as output:
                if not output.already:
                    self._insert(output.connection, "audit", rows)
                elif batch.hash in self.world.lost_outputs:  # what was read before may have been other rows
                    self.world.unaudited |= {(self.kind.names[0], row) for row in rows}
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
        """Spark calls nothing of it any more. A reader that fails on its way has ended, too."""
        readers, self.readers, self.is_stopping = self.readers, [], True
        try:
            while readers:
                readers.pop(0).stop()
        finally:
            self.readers, self.is_stopping = readers, False

    def die(self) -> None:
        for reader in self.readers:
            with suppress(LostProgress, PipelineTakenOver, ShardsLost):
                reader.die()
        self.readers = []


def _kept(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark's log keeps it."""
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept
