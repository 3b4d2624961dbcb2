"""All processes of a driver are killed between the commit of a table and the store's; then more goes wrong."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory
from shard_store.store import open_store
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import World

pytestmark = pytest.mark.engine


class Table:
    """A table with a commit of its own."""

    def __init__(self, kind: str, world: World) -> None:
        self.kind, self.folder = kind, world.root / "table"
        self.catalog = f"sqlite:///{world.root}/catalog.db"

    def sink(self, world: World) -> dict[str, str]:
        if self.kind == "delta":
            return world.sink(path=None, delta=self.folder)
        elsewhere = {"catalog.type": "sql", "catalog.uri": self.catalog}
        return {**world.sink(path=None, table="db.events", warehouse=self.folder), **elsewhere}

    def rows(self) -> Counter[tuple[int, str]]:
        read = (
            pa.table(DeltaTable(str(self.folder)).scan()) if self.kind == "delta" else self._iceberg().scan().to_arrow()
        )
        return Counter((row["id"], row["name"]) for row in read.to_pylist())

    def undo(self) -> None:
        """Put it back to before its last commit."""
        if self.kind == "delta":
            table = DeltaTable(str(self.folder))
            table.restore(table.version() - 1)
            return
        table = self._iceberg()
        with table.manage_snapshots() as manage:
            manage.rollback_to_snapshot(table.current_snapshot().parent_snapshot_id)

    def _iceberg(self) -> Any:
        return load_catalog("cuesqueue", type="sql", uri=self.catalog).load_table("db.events")


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        ("delta", "checkpoint lost"),
        ("delta", "another order"),
        ("iceberg elsewhere", "commit undone"),
        ("iceberg elsewhere", "objects overwritten"),
    ],
)
def test_a_batch_whose_driver_was_killed_between_the_two_commits_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, iceberg_threads: None, kind: str, then: str
) -> None:
    world = World(tmp_path / "world")
    table, query, worlds = Table(kind, world), described(world), [world]
    query["sink_options"] = table.sink(world)
    if then == "another order":
        worlds.append(World(tmp_path / "payments", store=world.store_url))
        query["second"], query["combined"] = worlds[1].source(pipeline="payments", source="payments"), "union"
        query["sink_options"]["pipeline"] = "files,payments"
    parts = [(world, query)]
    expected = Counter(row for each in worlds for row in each.feed(0, 1))
    run_until_settled(spark, parts)
    expected += Counter(row for each in worlds for row in each.feed(1, 2))
    driver = new_driver([{**query, "trigger": {"processingTime": "0 seconds"}}], pause_at="table-committed")
    driver.wait_paused(1)
    driver.kill()
    assert sum(table.rows().values()) > 5 * len(worlds), "the batch is in the table"
    _go_wrong(then, world, table, query)
    run_until_settled(spark, parts)
    assert table.rows() == expected
    assert {shard["state"] for shard in world.view("shards")} == {"done"}
    assert sum(attempt["rows"] or 0 for attempt in world.view("attempts")) == sum(expected.values())
    with open_store(world.store_url) as store:
        changed = {status.pipeline: status.changed for status in store.status()}
    assert changed["files"] == (2 if then == "objects overwritten" else 0), (
        "the versions that nobody has read are counted"
    )


def _go_wrong(then: str, world: World, table: Table, query: Query) -> None:
    if then == "objects overwritten":
        for number in (1, 2):
            file = world.root / "in" / f"{number}.json"
            file.write_text(json.dumps({"id": -number, "name": "another content"}) + "\n")
            world.publish([file.as_uri()])
    elif then == "commit undone":
        table.undo()
    elif then == "checkpoint lost":
        shutil.rmtree(urlsplit(query["checkpoint"]).path)
    else:
        query["sink_options"]["pipeline"] = "payments,files"
