"""What one pipeline asks of its store on PostgreSQL: statements, transactions, bytes and connections.

    python -m benchmarks.capacity [--messages 20000] [--idle 60]

Not times, so it may run on a busy machine: counts of the calls of one process that does what the reader and the sink of
a query do (`support/driver_loop.py`), and the database's own counts of bytes. Prints the rows of the tables in
`docs/explanation/capacity.md`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from queue_source.queues import open_queue
from shard_store.model import Plan, Split
from shard_store.store import kept_store
from support.driver_loop import DriverLoop, reader_options
from support.servers.postgres import new_database, postgres_server

SIZED = {1000: ("cuesqueue_shards",), 10: ("cuesqueue_attempts", "cuesqueue_splits")}
"""Objects in a batch -> tables that have many rows after such a run."""


@dataclass
class Calls:
    """Of all connections of this process to PostgreSQL."""

    statements: int = 0
    transactions: int = 0
    writes: int = 0  # of the transactions, those that wait for the disk


@contextmanager
def counted() -> Iterator[Calls]:
    calls = Calls()

    def on_statement(connection: sa.Connection, *_: Any) -> None:
        calls.statements += connection.dialect.name == "postgresql"

    def on_commit(connection: sa.Connection) -> None:
        ours = connection.dialect.name == "postgresql"
        calls.transactions += ours
        calls.writes += ours and connection.get_execution_options().get("cuesqueue_write", True)

    sa.event.listen(sa.Engine, "before_cursor_execute", on_statement)
    sa.event.listen(sa.Engine, "commit", on_commit)
    try:
        yield calls
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", on_statement)
        sa.event.remove(sa.Engine, "commit", on_commit)


class Observer:
    """A connection of its own that looks at the database from outside; it counts itself in nothing."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.NullPool)
        self._stopped = threading.Event()
        self.connections = 0

    def ask(self, question: str) -> int:
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql(question).scalar_one())

    def wal(self) -> int:
        """Bytes written to the write-ahead log so far."""
        return self.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")

    def size(self, table: str) -> int:
        """Bytes of the table with its indexes."""
        return self.ask(f"SELECT pg_total_relation_size('{table}')")

    def rows(self, table: str) -> int:
        return self.ask(f"SELECT count(*) FROM {table}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the greatest number of connections in `connections`."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def _watch(self) -> None:
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._stopped.wait(0.02):
                self.connections = max(self.connections, int(connection.exec_driver_sql(count).scalar_one()))


class Query(DriverLoop):
    """Its sink uses the store as the sink of Spark does: once to plan the writer, once to commit, and it stays open."""

    def _deliver(self, plan: Plan, number: int) -> None:
        url = self.options.store.reveal()
        with kept_store(url) as store:
            identity = store.current_plan(self.options.pipeline, None)
        with kept_store(url) as store:
            store.publish([identity], [Split(f"/split-{number}", len(plan.ranges), 1)], batch_id=number)


def run(folder: Path, url: str, messages: int, batch: int) -> None:
    """A whole run over so many messages, in micro-batches of `batch`, and what it came to for each of them."""
    name = f"run{batch}"
    queue_url = f"sql+sqlite:///{folder}/{name}.db?queue=files"
    with open_queue(queue_url) as queue:
        for first in range(0, messages, 1000):
            names = range(first, min(first + 1000, messages))
            queue.send([f"s3://bucket/landing/{name}/part-{number:08d}.parquet" for number in names])
    options = reader_options(
        queue_url, url, visibilityTimeout="10m", commitTimeout="60s", maxFilesPerTrigger=str(batch)
    )
    observer = Observer(url)
    before = observer.wal()
    with counted() as calls, observer.watching():
        loop = Query(options, folder / f"{name}-checkpoint", folder / f"{name}-output")
        start = replace(calls)
        try:
            loop.drain()
        finally:
            loop.stop()
    batches = observer.ask(f"SELECT count(*) FROM cuesqueue_attempts WHERE pipeline = '{options.pipeline}'")
    wal = observer.wal() - before
    print(
        f"| {batch:,} | {batches:,} | {(calls.statements - start.statements) / batches:.1f} | "
        f"{(calls.transactions - start.transactions) / batches:.1f} | {(calls.writes - start.writes) / batches:.1f} | "
        f"{wal / messages:,.0f} | {observer.connections} |",
        flush=True,
    )


def idle(folder: Path, url: str, seconds: float) -> None:
    """A pipeline without anything to do, with the default options."""
    queue_url = f"sql+sqlite:///{folder}/idle.db?queue=idle"
    options = reader_options(queue_url, url, visibilityTimeout="", commitTimeout="", waitTime="", maxFilesPerTrigger="")
    loop = DriverLoop(options, folder / "idle-checkpoint", folder / "idle-output")
    try:
        loop.batch()
        time.sleep(2.0)  # what follows the start is not idleness
        with counted() as calls:
            time.sleep(seconds)
    finally:
        loop.stop()
    a_minute = 60 / seconds
    found = [round(number * a_minute) for number in (calls.statements, calls.transactions, calls.writes)]
    print(f"idle: {found[0]} statements, {found[1]} transactions ({found[2]} that write) a minute")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds; 0 leaves it out")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cuesqueue-capacity-") as temporary, postgres_server() as server:
        folder = Path(temporary)
        columns = ("objects in a batch", "batches", "statements", "transactions", "of these writing")
        print("", *columns, "WAL bytes an object", "connections", "", sep=" | ")
        sizes = []
        for batch in (1000, 100, 10):
            url = new_database(server)
            run(folder, url, options.messages if batch > 10 else options.messages // 2, batch)
            observer = Observer(url)
            sizes += [(table, observer.size(table), observer.rows(table)) for table in SIZED.get(batch, ())]
        for table, size, rows in sizes:
            print(f"{table}: {size / rows:,.0f} bytes a row, with indexes ({rows:,} rows)")
        if options.idle:
            idle(folder, new_database(server), options.idle)


if __name__ == "__main__":
    main(sys.argv[1:])
