"""What a test's pipeline reads and writes: objects, one SQL queue, one store, checkpoints, and what became of them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import sqlalchemy as sa

from queue_source.queues import Depth, open_queue
from queue_source.queues.base import Payload
from shard_store.operators.views import VIEWS
from shard_store.sql.schema import pipelines
from shard_store.store import open_store

SCHEMA = "id BIGINT, name STRING"
PATIENCE = 300.0
"""Seconds that anything may take before a test fails; never waited for when things go well."""

Row = tuple[int, str]


def eventually(what: str, happens: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Ask until the answer is true, and return it; the test fails when `patience` seconds are over."""
    deadline = time.monotonic() + patience
    while not (answer := happens()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience} s")
        time.sleep(0.1)  # the step of polling, not a wait for anything
    return answer


@dataclass
class World:
    """Everything under one folder, unless `store` is a database elsewhere.

    The times are short, so that leases of killed readers end soon.
    """

    root: Path
    queue: str = "files"
    store: str = ""

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)

    @property
    def queue_url(self) -> str:
        return f"sql+sqlite:///{self.root}/queue.db?queue={self.queue}"

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.root}/store.db"

    @property
    def foreign(self) -> Path:
        return self.root / "foreign.db"

    def source(self, **options: object) -> dict[str, str]:
        """Options of the reader."""
        own: dict[str, object] = {
            "queueUrl": self.queue_url,
            "store": self.store_url,
            "fileFormat": "json",
            "allowedPrefixes": f"file://{self.root}/",
            "visibilityTimeout": "5s",
            "commitTimeout": "6s",
            "waitTime": "1s",
            "receiveThreads": 1,
            "minPartitions": 2,
        }
        return {name: str(value) for name, value in (own | options).items() if value is not None}

    def sink(self, **options: object) -> dict[str, str]:
        """Options of the cuesqueue sink."""
        own: dict[str, object] = {"store": self.store_url, "pipeline": "files", "path": self.root / "out"}
        return {name: str(value) for name, value in (own | options).items() if value is not None}

    # what goes in

    def write(self, first: int, objects: int, rows: int = 5) -> tuple[list[str], list[Row]]:
        """Objects numbered from `first`, each with rows of its own; returns their URIs and all rows."""
        folder = self.root / "in"
        folder.mkdir(exist_ok=True)
        uris, written = [], []
        for number in range(first, first + objects):
            own = [(number * 1000 + i, f"row {i} of {number}") for i in range(rows)]
            file = folder / f"{number}.json"
            file.write_text("".join(json.dumps({"id": i, "name": n}) + "\n" for i, n in own), "utf-8")
            uris.append(file.as_uri())
            written += own
        return uris, written

    def publish(self, payloads: Sequence[Payload]) -> None:
        with open_queue(self.queue_url) as queue:
            queue.publish(payloads)

    def feed(self, first: int, objects: int, rows: int = 5) -> list[Row]:
        """Write objects and announce each; returns their rows."""
        uris, written = self.write(first, objects, rows)
        self.publish(uris)
        return written

    # what came of it

    def depth(self) -> Depth:
        with open_queue(self.queue_url) as queue:
            return queue.depth()

    def view(self, name: str) -> list[dict[str, Any]]:
        names = [column.name for column in VIEWS[name]]
        with open_store(self.store_url) as store:
            return [dict(zip(names, row, strict=True)) for page in store.pages(name) for row in page]

    def published(self) -> list[Row]:
        """All published rows, sorted; twice what is there twice."""
        rows: list[Row] = []
        for split in self.view("splits"):
            path = unquote(urlsplit(split["path"]).path) if "://" in split["path"] else split["path"]
            table = pq.ParquetFile(path).read().to_pylist()
            rows += [(row["id"], row["name"]) for row in table]
        return sorted(rows)

    def taken(self) -> list[Row]:
        """All rows that the foreign sink took, sorted."""
        if not self.foreign.exists():
            return []
        with sqlite3.connect(self.foreign) as connection:
            found = connection.execute("SELECT id, name FROM rows ORDER BY id, name").fetchall()
        connection.close()
        return [(int(i), str(n)) for i, n in found]

    def result(self, sink: str) -> list[Row]:
        return self.published() if sink == "cuesqueue" else self.taken()

    def open_shards(self) -> list[str]:
        return [shard["shard_id"] for shard in self.view("shards") if shard["state"] == "open"]

    def settled(self) -> bool:
        """Nothing is left to do, to confirm or to acknowledge."""
        return self.depth().total == 0 and not self.open_shards() and not self.unconfirmed()

    def unconfirmed(self) -> int:
        """Snapshots that no batch has finished."""
        left = sa.select(sa.func.sum(pipelines.c.last_seq - pipelines.c.confirmed_seq))
        with open_store(self.store_url) as store:
            return int(store.database.read(lambda c: c.execute(left).scalar_one()) or 0)


def take_batch(database: Path, batch_id: int, rows: Iterable[Row], *, idempotent: bool = True) -> None:
    """A sink that is idempotent by batch id, in one transaction: what the promise about foreign sinks is for.

    Or one that takes every attempt anew: what at-most-once is for.
    """
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, name TEXT, batch INTEGER)")
        new = connection.execute("INSERT OR IGNORE INTO batches VALUES (?)", (batch_id,)).rowcount
        if new or not idempotent:
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", [(i, n, batch_id) for i, n in rows])
    connection.close()


def options_of(mapping: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in mapping.items()}
