"""The columns of the crash sweep: every kind of sink, what it promises, and how what it holds is found.

Of six objects in batches of three one is missing, and one has a bad record; one is announced twice. Where each batch
is read twice, the missing one is there from the second reading on, and is announced again at the end.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from queue_source.foreach_batch import delivery
from queue_source.queues import open_queue
from queue_source.queues.sql.database import messages
from queue_source.queues.sql.staging import staged
from queue_source.sinks.queue import HASH_HEADER, INDEX_HEADER
from shard_store.failpoints import POINTS, ROUTING_POINTS, reach
from shard_store.sql import schema
from shard_store.store import ShardStore, open_store
from support.store_backends import rows

OBJECTS = ("first", "missing", "bad", "second", "third", "fourth", "second")
"""As they are announced."""
FIRST_BATCH = OBJECTS[:3]
EXPECTED = Counter(f"{name} {line}" for name in set(OBJECTS) - {"missing"} for line in range(2))
REGISTERED = Counter({row: count for row, count in EXPECTED.items() if not row.startswith("bad ")})
"""Nobody reads an object: one with a bad record is one that is no Parquet."""
LATE = Counter(f"missing {line}" for line in range(2))
"""The rows of the one that only the second reading finds."""
ANNOUNCED = Counter(set(OBJECTS))
"""The rows of objects by reference, by their names: nobody looks at what is in them, or whether they are there."""
USERS = sa.Table("users_rows", sa.MetaData(), sa.Column("value", sa.String(100)))


@dataclass(frozen=True)
class Cell:
    """One query of its own: its column, and where everything of it is. `elsewhere` is another database.

    `twice`: Spark reads each batch twice, first to look at it, then to deliver it (as range partitioning does).
    """

    column: str
    folder: Path
    store: str
    elsewhere: str
    twice: bool = False

    @property
    def sink(self) -> Sink:
        return COLUMNS[self.column]

    @property
    def root(self) -> str:
        """What the names of its objects begin with."""
        return f"s3://{self.folder.name}/objects/" if self.sink.in_bucket else f"file://{self.folder}/objects/"

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
            if name == "missing":
                continue
            if self.sink.registers and name != "bad":
                pq.write_table(pa.table({"value": [f"{name} {line}" for line in range(2)]}), objects / f"{name}.json")
            else:
                (objects / f"{name}.json").write_text("\n".join(lines))
        for url in (self.store, self.elsewhere):
            with database(url) as engine:
                USERS.create(engine)
        with open_queue(f"sql+{self.elsewhere}?queue=files") as queue:
            queue.publish([f"{self.root}{name}.json" for name in OBJECTS])
            queue.publish(["no notification"] if self.sink.errors_inside else [])

    def complete(self) -> None:
        """The missing object is there from now on, in one version."""
        if not (missing := self.folder / "objects" / "missing.json").exists():
            missing.write_text("\n".join(json.dumps({"value": row}) for row in LATE))

    def announce_again(self) -> None:
        with open_queue(f"sql+{self.elsewhere}?queue=files") as queue:
            queue.publish([f"{self.root}missing.json"])

    def expected(self, found: Counter[str]) -> Counter[str]:
        """Where each batch is read twice, the rows of the late object are among them once, or not at all."""
        return self.sink.expected + (LATE if self.twice and found & LATE else Counter())

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

    `shows_early`: its rows may be seen before the store's transaction that publishes them.
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
    by_reference: bool = False
    registers: bool = False
    loads: bool = False
    shows_early: bool = False
    in_bucket: bool = False  # of the endpoint in the environment, whose buckets are the folders of cells
    routed: bool = False  # a receiver records what the queue announces, and the reader has no queue

    @property
    def expected(self) -> Counter[str]:
        if self.registers:
            return REGISTERED
        return ANNOUNCED if self.by_reference and not self.loads else EXPECTED

    @property
    def names_objects(self) -> bool:
        """Whether its rows are objects with what tells whether they were replaced."""
        return self.registers or self.loads

    @property
    def bad(self) -> list[str]:
        """The scopes of the errors that the objects bring."""
        if self.registers:
            return ["object", "object"]
        return [] if self.by_reference and not self.loads else ["object", "record"]


def in_splits(cell: Cell) -> Counter[str]:
    return Counter(_values_in_splits(cell, "value"))


def referenced(cell: Cell) -> Counter[str]:
    return Counter(Path(uri).stem for uri in _values_in_splits(cell, "uri"))


def _values_in_splits(cell: Cell, column: str) -> list[str]:
    with open_store(cell.store) as store:
        paths = [row["path"] for row in rows(store, "splits")]
    return [value for path in paths for value in pq.read_table(path).column(column).to_pylist()]


def catalog(uri: str) -> Any:
    return load_catalog("cuesqueue", type="sql", uri=uri)


def _table_of(cell: Cell) -> Any:
    opened = catalog(cell.elsewhere if cell.column.startswith("Iceberg elsewhere") else cell.store)
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


def in_delta_table(cell: Cell) -> Counter[str]:
    return Counter(pa.table(DeltaTable(str(cell.folder / "delta")).scan()).column("value").to_pylist())


def check_commits(cell: Cell, store: ShardStore) -> None:
    """One for each attempt that brought rows, and no other."""
    history = DeltaTable(str(cell.folder / "delta")).history()
    commits = [commit["cuesqueue.delivery-hash"] for commit in history if commit["operation"] == "WRITE"]
    brought = [attempt["delivery_hash"] for attempt in rows(store, "attempts") if attempt["rows"]]
    assert sorted(commits) == sorted(brought), "commits are not those of the attempts"


def delta_options(cell: Cell) -> dict[str, str]:
    return {"delta": str(cell.folder / "delta")}


def registering(options: Callable[[Cell], dict[str, str]]) -> Sink:
    """Objects by reference, which become data files where they are."""
    return Sink(
        in_table,
        lambda cell: {**options(cell), "register": "uri"},
        check=check_snapshots,
        by_reference=True,
        registers=True,
    )


def loading(options: Callable[[Cell], dict[str, str]], **more: Any) -> Sink:
    """Objects by reference, which the sink's tasks read."""
    reading = {"load": "json", "schema": "value STRING", "mode": "DROPMALFORMED"}
    return Sink(options=lambda cell: {**options(cell), **reading}, by_reference=True, loads=True, **more)


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
    kept = Counter(first.values())
    assert kept == cell.expected(kept), "stamps do not tell which messages are the same row"


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
    copies = users_rows(cell.elsewhere)
    assert copies == cell.expected(copies), "the named output has other rows"
    with database(cell.elsewhere) as engine, engine.connect() as connection:
        recorded = connection.execute(sa.select(schema.outputs.c.output)).scalars().all()
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
    "Iceberg, registering": registering(table_options),
    "Iceberg elsewhere, registering": registering(table_elsewhere),
    "path, routed": Sink(in_splits, path_options, routed=True),
    "path, bucket": Sink(in_splits, path_options, in_bucket=True),
    "path, loading, bucket": loading(path_options, found=in_splits, in_bucket=True),
    "path, loading": loading(path_options, found=in_splits, errors_inside=True),
    "Iceberg, loading": loading(table_options, found=in_table, check=check_snapshots),
    "Iceberg elsewhere, loading": loading(table_elsewhere, found=in_table, check=check_snapshots),
    "Delta": Sink(in_delta_table, delta_options, check=check_commits),
    "Delta, loading": loading(delta_options, found=in_delta_table, check=check_commits),
    "queue": Sink(in_queue(queue_inside), lambda cell: {"queueUrl": queue_inside(cell)}, check=check_nothing_staged),
    "queue elsewhere": Sink(
        in_queue(queue_elsewhere),
        lambda cell: {"queueUrl": queue_elsewhere(cell)},
        check=check_stamps,
        doubling=frozenset({"rows-sent", "before-publish", "published"}),  # where tasks run again
        shows_early=True,
    ),
    "foreachBatch": Sink(
        lambda cell: users_rows(cell.store), deliver=upsert_and_copy, check=check_copies, shows_early=True
    ),
    "foreign": Sink(in_files, deliver=foreign(str), shows_early=True),
    "path, by reference": Sink(referenced, path_options, errors_inside=True, by_reference=True),
    "path, at least once": Sink(in_splits, path_options, semantics="at-least-once", doubling=_ANYWHERE),
    "foreign, at least once": Sink(in_files, deliver=_anew, semantics="at-least-once", doubling=_ANYWHERE),
    "path, at most once": Sink(in_splits, path_options, semantics="at-most-once", losing=_BEGUN),
    "foreign, at most once": Sink(in_files, deliver=_anew, semantics="at-most-once", losing=_BEGUN),
}

SWEPT = (*POINTS, *ROUTING_POINTS)
"""The points at which a query, or its receiver, dies."""

READ_TWICE = [name for name, sink in COLUMNS.items() if not sink.by_reference]
"""Where tasks of the source read objects: only there one reading can find another thing than the other."""

_PATHS = {name for name in COLUMNS if name.startswith("path")}
_TABLES = {name for name in COLUMNS if name.startswith(("Iceberg", "Delta"))}
ONLY: dict[str, tuple[set[str], str]] = {
    "object-read": (
        {name for name, sink in COLUMNS.items() if sink.loads or not sink.by_reference},
        "nobody reads the objects",
    ),
    "split-written": (_PATHS, "no split files"),
    "table-files-written": (_TABLES, "no table"),
    "table-committed": (_TABLES, "no table"),
    "rows-staged": ({"queue"}, "nothing is staged"),
    "rows-shown": ({"queue"}, "nothing is staged"),
    "rows-sent": ({"queue elsewhere"}, "nothing is sent to a queue elsewhere"),
    "output-delivered": ({"foreachBatch"}, "no named output"),
    "acknowledged": ({name for name, sink in COLUMNS.items() if not sink.routed}, "its receiver acknowledges"),
    **dict.fromkeys(ROUTING_POINTS, ({name for name, sink in COLUMNS.items() if sink.routed}, "there is no receiver")),
    "errors-sent": (
        {name for name, sink in COLUMNS.items() if not sink.errors_inside},
        "the error queue is in the store: sent and marked in one transaction",
    ),
}
"""The points that not every column reaches: those that do, and why the others do not. All others are reached by all."""


def reaching(point: str) -> list[str]:
    """The columns that have to reach the point."""
    wanted, _ = ONLY.get(point, (COLUMNS.keys(), ""))
    return [name for name in COLUMNS if name in wanted]
