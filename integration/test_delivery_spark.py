"""`foreachBatch` with `delivery`: two databases, killed between the two writes, each row counted once."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from support.engine.queries import Query, described, run_until_settled
from support.engine.upserts import TOTALS, totals_of
from support.engine.world import Row, World
from support.servers.fixtures import gcs_server, postgres_url
from support.servers.postgres import new_database

__all__ = ["gcs_server", "new_driver", "postgres_url", "spark"]  # the fixtures


class Warehouse(World):
    """A world whose store is in PostgreSQL, where the user has a table too."""

    def query(self) -> Query:
        name = self.root.name
        how = {"store": self.store, "source": name, "pipeline": name, "maxFilesPerTrigger": 1, "minPartitions": 1}
        return described(self, "upsert", trigger={"processingTime": "0 seconds"}, **how)

    def totals(self) -> dict[str, int]:
        engine = sa.create_engine(self.store)
        with engine.connect() as connection:
            found = {row.name: row.rows for row in connection.execute(sa.select(TOTALS))}
        engine.dispose()
        return found


def test_a_driver_killed_between_two_writes_of_a_batch_delivers_each_once(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory, postgres_url: str
) -> None:
    """One query dies after its first output, one inside the transaction of its second; each in its second batch."""
    store = new_database(postgres_url)
    engine = sa.create_engine(store)
    TOTALS.create(engine)
    engine.dispose()
    worlds = {name: Warehouse(tmp_path / name, store=store) for name in ("between", "within")}
    rows: dict[str, list[Row]] = {
        name: world.feed(number * 10, 3) for number, (name, world) in enumerate(worlds.items())
    }
    folder = tmp_path / "driver-1"
    places = {"between": "output-delivered", "within": "before-publish"}
    fail = ";".join(f"{place}@2~{name}=pause:{folder}/at-{name}" for name, place in places.items())
    driver = new_driver([world.query() for world in worlds.values()], fail=fail)
    driver.wait_paused(2)
    driver.kill()
    assert {name: len(world.taken()) for name, world in worlds.items()} == {"between": 10, "within": 10}
    assert sum(worlds["within"].totals().values()) == 10  # of the first batch of each

    run_until_settled(spark, [(world, world.query()) for world in worlds.values()])
    assert {name: world.taken() for name, world in worlds.items()} == rows
    assert worlds["within"].totals() == totals_of(rows["between"] + rows["within"])
    attempts = worlds["within"].view("attempts")
    assert {(a["kind"], a["shards"]) for a in attempts if a["shards"]} == {("attempt-output", 1)}
