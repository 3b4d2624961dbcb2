"""One query into each kind of sink, which dies at a named point; another goes on, and then everything is looked at.

Spark's loop without Spark, but with all that is ours: the reader, the writer, real objects, sinks, queues and stores.
Of six objects in batches of three one is missing, and one has a bad record; one is announced twice. What a cell of the
sweep is: a sink (`COLUMNS`), a point, and how it fails there.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructField, StructType

from contracts.store_backends import rows
from coordinator_world import EMPTY
from driver_loop import DriverLoop, reader_options, states
from queue_source.coordinator import Coordinator
from queue_source.delivery import delivery
from queue_source.options import parse_sink_options
from queue_source.queues import open_queue
from queue_source.queues.sql.database import messages
from queue_source.queues.sql.staging import staged
from queue_source.sinks.queue_rows import HASH_HEADER, INDEX_HEADER
from queue_source.spark import reader as reader_module
from queue_source.spark import writer as writer_module
from queue_source.spark.compat import WRITES_ARROW
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.writer import CuesqueueStreamWriter
from shard_store import failpoints, schema
from shard_store.failpoints import POINTS, reach
from shard_store.store import ShardStore, open_store

SCHEMA = StructType([StructField("value", StringType())])
OBJECTS = ("first", "missing", "bad", "second", "third", "fourth", "second")
"""As they are announced."""
FIRST_BATCH = OBJECTS[:3]
EXPECTED = Counter(f"{name} {line}" for name in set(OBJECTS) - {"missing"} for line in range(2))
USERS = sa.Table("users_rows", sa.MetaData(), sa.Column("value", sa.String(100)))


@dataclass(frozen=True)
class Cell:
    """One query of its own: its column, and where everything of it is. `elsewhere` is another database."""

    column: str
    folder: Path
    store: str
    elsewhere: str

    @property
    def sink(self) -> Sink:
        return COLUMNS[self.column]

    @property
    def errors_url(self) -> str:
        return f"sql+{self.store if self.sink.errors_inside else self.elsewhere}?queue=errors"

    def prepare(self) -> None:
        """Objects, their announcements, and tables of the user's."""
        objects = self.folder / "objects"
        objects.mkdir(parents=True)
        for name in OBJECTS:
            lines = [json.dumps({"value": f"{name} {line}"}) for line in range(2)]
            if name == "bad":
                lines.insert(1, '{"value": ')
            if name != "missing":
                (objects / f"{name}.json").write_text("\n".join(lines))
        for url in (self.store, self.elsewhere):
            with database(url) as engine:
                USERS.create(engine)
        with open_queue(f"sql+{self.elsewhere}?queue=files") as queue:
            queue.publish([f"file://{objects}/{name}.json" for name in OBJECTS])
            queue.publish(["no notification"] if self.sink.errors_inside else [])

    def end_leases(self) -> None:
        """As time would: what a dead reader had received becomes visible."""
        with database(self.elsewhere) as engine, engine.begin() as connection:
            connection.execute(sa.update(messages).where(messages.c.queue == "files").values(visible_at=0))


class database:
    """An engine of one's own, for a moment."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url)

    def __enter__(self) -> sa.Engine:
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()


@dataclass(frozen=True)
class Sink:
    """A column. `options`: of the sink, when it is one of ours; else `deliver` takes a batch's rows.

    `found` are the rows that can be seen, `check` looks at what else the sink keeps. `doubling` and `losing`: the
    points at which a crash may double rows, or loses those of its batch, as it is documented.
    """

    found: Callable[[Cell], Counter[str]]
    options: Callable[[Cell], dict[str, str]] | None = None
    deliver: Callable[[Cell, Callable[[], list[str]], int], None] | None = None
    check: Callable[[Cell, ShardStore], None] = lambda cell, store: None
    doubling: frozenset[str] = frozenset()
    errors_inside: bool = False
    semantics: str = "exactly-once"
    losing: frozenset[str] = frozenset()


class SweepLoop(DriverLoop):
    """As Spark runs the query: reader, tasks and writer are pickled wherever Spark pickles them."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        options = reader_options(
            f"sql+{cell.elsewhere}?queue=files",
            cell.store,
            mode="DROPMALFORMED",
            allowedPrefixes="file:///",
            errorQueueUrl=cell.errors_url,
            pipeline="p",
            source="s",
            visibilityTimeout="60s",
            pendingTimeout="50s",
            commitTimeout="20s",
            waitTime="10ms",
            maxFilesPerTrigger=str(len(FIRST_BATCH)),
            minPartitions="2",
            deliverySemantics=cell.sink.semantics,
        )
        self.reader = CuesqueueStreamReader(options, SCHEMA)
        super().__init__(options, cell.folder / "checkpoint", cell.folder / "output")

    def _start_coordinator(self, driver: str) -> Coordinator:
        self.reader._coordinator = reader_module._start(self.options)  # as its first call, without a handler of signals
        return self.reader._coordinator

    def _run(self, number: int) -> None:
        start, end = ({"seq": self._log[number][name]} for name in ("start", "end"))
        partitions = self.reader.partitions(start, end)
        sink = self.cell.sink

        def read() -> list[Iterator[Any]]:
            executor = _pickled(self.reader)
            return [executor.read(_pickled(partition)) for partition in partitions]

        if sink.options is not None:
            options = parse_sink_options({"store": self.cell.store, "pipeline": "p", **sink.options(self.cell)})
            task = _pickled(CuesqueueStreamWriter(options, SCHEMA))
            written = []
            for place, batches in enumerate(read()):
                with patch.object(writer_module, "task_name", lambda place=place: f"{number}.{place}"):
                    written.append(_pickled(task.write(batches if WRITES_ARROW else _rows(batches))))
            CuesqueueStreamWriter(options, SCHEMA).commit(written, number)
        else:
            assert sink.deliver is not None
            sink.deliver(self.cell, lambda: [row.value for batches in read() for row in _rows(batches)], number)
        self._write("commits", number, {})
        self._done[number] = {}
        self._start = self._log[number]["end"]


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _rows(batches: Iterator[Any]) -> Iterator[Row]:
    return (Row(value=value) for batch in batches for value in batch.column("value").to_pylist())


# --- sinks ---


def in_splits(cell: Cell) -> Counter[str]:
    with open_store(cell.store) as store:
        paths = [row["path"] for row in rows(store, "splits")]
    return Counter(value for path in paths for value in pq.read_table(path).column("value").to_pylist())


def catalog(uri: str) -> Any:
    return load_catalog("cuesqueue", type="sql", uri=uri)


def _table_of(cell: Cell) -> Any:
    opened = catalog(cell.elsewhere if COLUMNS["Iceberg elsewhere"] is cell.sink else cell.store)
    try:
        return opened.load_table("db.events")
    finally:
        opened.close()


def in_table(cell: Cell) -> Counter[str]:
    return Counter(_table_of(cell).scan().to_arrow().column("value").to_pylist())


def check_snapshots(cell: Cell, store: ShardStore) -> None:
    """One for each attempt that brought rows, in one line, and no other."""
    metadata = _table_of(cell).metadata
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    line, newest = [], metadata.current_snapshot_id
    while newest is not None:
        line.append(known[newest].summary.additional_properties["cuesqueue.delivery-hash"])
        newest = known[newest].parent_snapshot_id
    assert len(line) == len(known), "snapshots beside the line of the table"
    brought = [attempt["delivery_hash"] for attempt in rows(store, "attempts") if attempt["rows"]]
    assert sorted(line) == sorted(brought), "snapshots are not those of the attempts"


def table_options(cell: Cell) -> dict[str, str]:
    return {"table": "db.events", "warehouse": str(cell.folder / "warehouse")}


def table_elsewhere(cell: Cell) -> dict[str, str]:
    return {**table_options(cell), "catalog.type": "sql", "catalog.uri": cell.elsewhere}


def in_queue(url: Callable[[Cell], str]) -> Callable[[Cell], Counter[str]]:
    def found(cell: Cell) -> Counter[str]:
        with open_queue(url(cell)) as queue:
            return Counter(message.body.decode() for message in queue.peek(1000))  # type: ignore[attr-defined]

    return found


def check_stamps(cell: Cell, store: ShardStore) -> None:
    """Whoever drops messages with a stamp that was there before has every row once."""
    with open_queue(queue_elsewhere(cell)) as queue:
        arrived = queue.peek(1000)  # type: ignore[attr-defined]
    first = {
        (message.headers[HASH_HEADER], message.headers[INDEX_HEADER]): message.body.decode() for message in arrived
    }
    assert Counter(first.values()) == EXPECTED, "stamps do not tell which messages are the same row"


def check_nothing_staged(cell: Cell, store: ShardStore) -> None:
    with store.database.engine.connect() as connection:
        hidden = sa.select(sa.func.count()).select_from(messages).where(messages.c.queue.startswith(" "))
        assert connection.execute(hidden).scalar_one() == 0, "staged messages are left"
        assert connection.execute(sa.select(sa.func.count()).select_from(staged)).scalar_one() == 0


def queue_inside(cell: Cell) -> str:
    return f"sql+{cell.store}?queue=out"


def queue_elsewhere(cell: Cell) -> str:
    return f"sql+{cell.elsewhere}?queue=out"


def upsert_and_copy(cell: Cell, read: Callable[[], list[str]], number: int) -> None:
    """foreachBatch: rows into the store's database, and as a named output into another one."""
    found = [{"value": value} for value in read()]
    with database(cell.elsewhere) as copies, delivery(cell.store, "p", number) as batch:
        with batch.output("copies", copies) as output:
            if not output.already and found:
                output.connection.execute(USERS.insert(), found)
        if not batch.already and found:
            batch.connection.execute(USERS.insert(), found)


def users_rows(url: str) -> Counter[str]:
    with database(url) as engine, engine.connect() as connection:
        return Counter(connection.execute(sa.select(USERS.c.value)).scalars())


def check_copies(cell: Cell, store: ShardStore) -> None:
    assert users_rows(cell.elsewhere) == EXPECTED, "the named output has other rows"
    with database(cell.elsewhere) as engine, engine.connect() as connection:
        recorded = connection.execute(sa.select(schema.deliveries.c.output)).scalars().all()
    assert recorded == ["copies"]


def foreign(name: Callable[[int], str]) -> Callable[[Cell, Callable[[], list[str]], int], None]:
    """A sink that knows nothing of us: a file for each batch."""

    def deliver(cell: Cell, read: Callable[[], list[str]], number: int) -> None:
        found = read()
        reach("before-publish")
        file = cell.folder / "output" / f"batch-{name(number)}.json"
        if not file.exists():
            file.with_suffix(".partial").write_text(json.dumps(found))
            file.with_suffix(".partial").replace(file)
        reach("published")

    return deliver


def in_files(cell: Cell) -> Counter[str]:
    return Counter(value for file in cell.folder.glob("output/batch-*.json") for value in json.loads(file.read_text()))


def path_options(cell: Cell) -> dict[str, str]:
    return {"path": str(cell.folder / "output")}


_anew = foreign(lambda number: f"{number}-{uuid.uuid4().hex}")
_ANYWHERE = frozenset(("", *POINTS))
_BEGUN = frozenset({"plan-made", "object-read", "split-written", "before-publish"})
"""Where a batch is begun and its rows are nowhere yet: there at-most-once loses them."""

COLUMNS: dict[str, Sink] = {
    "path": Sink(in_splits, path_options, errors_inside=True),
    "Iceberg": Sink(in_table, table_options, check=check_snapshots),
    "Iceberg elsewhere": Sink(in_table, table_elsewhere, check=check_snapshots),
    "queue": Sink(in_queue(queue_inside), lambda cell: {"queueUrl": queue_inside(cell)}, check=check_nothing_staged),
    "queue elsewhere": Sink(
        in_queue(queue_elsewhere),
        lambda cell: {"queueUrl": queue_elsewhere(cell)},
        check=check_stamps,
        doubling=frozenset({"rows-sent", "before-publish", "published"}),  # where tasks run again
    ),
    "foreachBatch": Sink(lambda cell: users_rows(cell.store), deliver=upsert_and_copy, check=check_copies),
    "foreign": Sink(in_files, deliver=foreign(str)),
    "path, at least once": Sink(in_splits, path_options, semantics="at-least-once", doubling=_ANYWHERE),
    "foreign, at least once": Sink(in_files, deliver=_anew, semantics="at-least-once", doubling=_ANYWHERE),
    "path, at most once": Sink(in_splits, path_options, semantics="at-most-once", losing=_BEGUN),
    "foreign, at most once": Sink(in_files, deliver=_anew, semantics="at-most-once", losing=_BEGUN),
}

_PATHS = {name for name in COLUMNS if name.startswith("path")}
_TABLES = {"Iceberg", "Iceberg elsewhere"}
ONLY: dict[str, tuple[set[str], str]] = {
    "split-written": (_PATHS, "no split files"),
    "table-files-written": (_TABLES, "no Iceberg table"),
    "table-committed": (_TABLES, "no Iceberg table"),
    "rows-staged": ({"queue"}, "nothing is staged"),
    "rows-shown": ({"queue"}, "nothing is staged"),
    "rows-sent": ({"queue elsewhere"}, "nothing is sent to a queue elsewhere"),
    "output-delivered": ({"foreachBatch"}, "no named output"),
    "errors-sent": (COLUMNS.keys() - {"path"}, "the error queue is in the store: sent and marked in one transaction"),
}
"""The points that not every column reaches: those that do, and why the others do not. All others are reached by all."""


def reaching(point: str) -> list[str]:
    """The columns that have to reach the point."""
    wanted, _ = ONLY.get(point, (COLUMNS.keys(), ""))
    return [name for name in COLUMNS if name in wanted]


# --- running, and looking ---


@dataclass
class Outcome:
    """How the first query ended, and which points it came to."""

    failed: Exception | None = None
    reached: set[str] = field(default_factory=set)


def run(cell: Cell, armed: str = "", *, dies: bool = False) -> Outcome:
    """One query until everything is done, or until it fails; `dies`: then as by SIGKILL, else it is stopped."""
    outcome = Outcome()
    counted = dict.fromkeys(POINTS, (1_000_000, "", ""))
    with patch.multiple(failpoints, _armed={**counted, **failpoints._parse(armed)}, _reached={}):
        loop = SweepLoop(cell)
        try:
            loop.drain()
        except Exception as error:  # noqa: BLE001 - the caller says which it expected
            outcome.failed = error
            if dies:
                loop.die()
        finally:
            loop.stop()
        outcome.reached = set(failpoints._reached)
    return outcome


def recover(cell: Cell) -> None:
    """Another query of the pipeline, which nothing disturbs."""
    cell.end_leases()
    failed = run(cell).failed
    if failed is not None:
        raise failed


def check(cell: Cell, point: str, *, failed: bool) -> None:
    """The rows, the store, the queues: what stands when nothing is left to do. Raises AssertionError."""
    sink = cell.sink
    found = sink.found(cell)
    lost, doubled = EXPECTED - found, found - EXPECTED
    assert bool(lost) == (failed and point in sink.losing), f"lost: {lost}"
    assert not lost or lost == Counter(v for v in EXPECTED.elements() if v.split()[0] in FIRST_BATCH), f"lost: {lost}"
    assert not doubled or (point in sink.doubling and doubled.keys() <= EXPECTED.keys()), f"doubled: {doubled}"
    with open_store(cell.store) as store:
        check_store(cell, store)
        sink.check(cell, store)
        if sink.semantics == "exactly-once":
            check_errors(cell, store, point)
        if lost:
            assert sum(attempt["lost"] for attempt in rows(store, "attempts")) == len(FIRST_BATCH)
    with open_queue(f"sql+{cell.elsewhere}?queue=files") as queue:
        assert queue.depth() == EMPTY, "messages are left"


def check_store(cell: Cell, store: ShardStore) -> None:
    if cell.sink.semantics == "at-least-once":
        assert states(store) == {}
    elif cell.sink.semantics == "exactly-once":
        assert states(store) == {"done": len(set(OBJECTS)) - 1, "quarantined": 1}
    else:  # a batch that was given up told of no bad objects
        assert states(store).keys() <= {"done", "quarantined"}
        assert sum(states(store).values()) == len(set(OBJECTS))
    with store.database.engine.connect() as connection:
        query = sa.select(schema.pipelines.c.confirmed_seq, schema.pipelines.c.last_seq)
        confirmed, last = connection.execute(query).one()
    attempts = sorted((attempt["start_seq"], attempt["end_seq"]) for attempt in rows(store, "attempts"))
    starts, ends = [0, *(end for _, end in attempts)], [*(start for start, _ in attempts), last]
    assert starts == ends, f"not one attempt for each plan: {attempts}"
    assert confirmed == last, "a snapshot is not confirmed"


def check_errors(cell: Cell, store: ShardStore, point: str) -> None:
    told = rows(store, "errors")
    scopes = sorted(error["scope"] for error in told)
    assert scopes == [*(["message"] if cell.sink.errors_inside else []), "object", "record"]
    assert {error["state"] for error in told} == {"delivered"}
    with open_queue(cell.errors_url) as queue:
        sent = [json.loads(message.body)["error_id"] for message in queue.peek(1000)]  # type: ignore[attr-defined]
    assert set(sent) == {error["error_id"] for error in told}
    assert len(sent) == len(told) or point == "errors-sent", "an error was sent twice"
