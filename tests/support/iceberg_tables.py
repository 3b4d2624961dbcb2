"""An Iceberg table, pipelines that fill it through the sink's own calls, and two readers that share no code of ours."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pytest
from datafusion import SessionContext
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable, Table

from queue_source.options import parse_sink_options
from queue_source.sinks.base import Batch, open_sink
from shard_store import failpoints
from shard_store.model import Plan
from shard_store.store import ShardStore
from support.store_backends import Pipeline

Row = dict[str, Any]


def table_of(ids: Sequence[int], **columns: Any) -> pa.Table:
    """Rows with an id and a name each; further columns as given."""
    names = pa.array([f"n{i % 3}" for i in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "name": names, **columns})


@dataclass
class Lake:
    """The options of a sink, and where its table is read back from."""

    store: ShardStore
    options: dict[str, str]
    reading: dict[str, str]
    name: str = "db.events"
    catalog_name: str = "cuesqueue"
    _catalog: list[Catalog] = field(default_factory=list)

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        """A catalog of its own, as any PyIceberg program has one."""
        catalog = load_catalog(self.catalog_name, **self.reading)
        try:
            yield catalog
        finally:
            catalog.close()

    def table(self) -> Table:
        with self.catalog() as catalog:
            return catalog.load_table(self.name)

    def read(self) -> list[Row]:
        """All rows, equal by both readers."""
        table = self.table()
        rows = by_id(table.scan().to_arrow().to_pylist())
        assert by_id(read_with_rust(table).to_pylist()) == rows
        return rows

    def ids(self) -> list[int]:
        return [row["id"] for row in self.read()]

    def snapshots(self) -> list[dict[str, str]]:
        """The properties of each snapshot, the oldest first."""
        return [dict(s.summary.additional_properties) for s in self.table().snapshots() if s.summary]


def read_with_rust(table: Table) -> pa.Table:
    """The table as DataFusion with the core in Rust reads it, from its metadata file."""
    context = SessionContext()
    context.register_table("given", StaticTable.from_metadata(table.metadata_location))
    return context.table("given").to_arrow_table()


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


class SinkTarget(Protocol):
    """A store, and the options of a sink."""

    store: ShardStore
    options: dict[str, str]


@dataclass
class Query:
    """A running query of one pipeline into the table: each `batch` is a micro-batch with an object of its own."""

    lake: SinkTarget
    name: str = "p"
    options: dict[str, str] = field(default_factory=dict)
    batch_id: int = -1
    plan: Plan | None = None

    def __post_init__(self) -> None:
        self.pipeline = Pipeline.start(self.lake.store, self.name, f"source of {self.name}")

    def sink(self) -> Any:
        return open_sink(parse_sink_options({"pipeline": self.name, **self.lake.options, **self.options}))

    def batch(self, *tasks: pa.Table) -> None:
        self.begin()
        self.attempt(*tasks)
        self.end()

    def begin(self, *objects: str) -> None:
        self.batch_id += 1
        self.pipeline.snapshot(*self.pipeline.open(*(objects or [f"object {self.batch_id}"])).values())

    def attempt(self, *tasks: pa.Table) -> None:
        """Plan, write and commit as Spark would, with pickling wherever Spark pickles."""
        self.commit(*self.written(*tasks))

    def written(self, *tasks: pa.Table) -> tuple[Batch, list[Any]]:
        self.plan = self.pipeline.plan()
        schema = tasks[0].schema
        sink = self.sink()
        batch = Batch((self.plan.identity,))
        sink.prepare(self.lake.store, schema, batch.plans)
        sink = pickle.loads(pickle.dumps(sink))
        done = [sink.write(iter(task.to_batches()), schema, batch) for task in tasks]
        return batch, pickle.loads(pickle.dumps(done))

    def commit(self, batch: Batch, written: list[Any]) -> None:
        settings: dict[str, Any] = {"row_schema": "{}", "batch_id": self.batch_id}
        self.sink().commit(self.lake.store, batch, written, **settings)

    def end(self) -> None:
        self.pipeline.confirm()

    def restart(self) -> None:
        """A new incarnation, as after a crash."""
        confirmed = self.pipeline.confirmed
        self.pipeline = Pipeline.start(self.lake.store, self.name, f"source of {self.name}")
        self.pipeline.confirmed = confirmed


@contextmanager
def failing_at(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[None]:
    """The place raises, the first time it is reached."""
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_armed", failpoints._parse(f"{place}=raise"))
        patch.setattr(failpoints, "_reached", {})
        with pytest.raises(failpoints.FailpointReached):
            yield
