"""One query over two sources: its sink advances both pipelines at once, and no crash loses or doubles a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from engine.conftest import DriverFactory, new_driver, spark
from support.engine.queries import Query, described, run_until_settled
from support.engine.world import Row, World
from support.servers.fixtures import gcs_server

__all__ = ["gcs_server", "new_driver", "spark"]  # the fixtures

STREAM = {"processingTime": "0 seconds"}


class Pair(World):
    """Two queues and two pipelines over one store; objects of both lie in one folder."""

    @property
    def second(self) -> World:
        return World(self.root, "payments")

    def query(self, combined: str) -> Query:
        """`combined` is the name of the first pipeline too: so that failpoints tell the queries of one driver apart."""
        how: dict[str, Any] = {"maxFilesPerTrigger": 2, "minPartitions": 1}
        query = described(self, trigger=STREAM, source=combined, **how)
        query["second"] = self.second.source(**how)
        query["sink_options"]["pipeline"] = f"{combined}, payments"
        query["combined"] = combined
        return query

    def settled(self) -> bool:
        return super().settled() and self.second.depth().total == 0


def joined(orders: list[Row], payments: list[Row]) -> list[Row]:
    return [(i, f"{name} with {other}") for i, name in orders for j, other in payments if i == j]


def test_a_driver_over_two_sources_that_is_killed_around_its_publish_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, new_driver: DriverFactory
) -> None:
    """One query dies before its publish, one after it; in the last batch of the first one source is idle."""
    union, join = Pair(tmp_path / "union"), Pair(tmp_path / "join")
    rows = union.feed(0, 3) + union.second.feed(10, 5)
    orders, payments = join.feed(0, 3), join.second.feed(1, 3)
    queries = [union.query("union"), join.query("join")]
    places = {"union": "before-publish", "join": "published"}
    folder = tmp_path / "driver-1"
    fail = ";".join(f"{place}~{name}=pause:{folder}/at-{name}" for name, place in places.items())
    driver = new_driver(queries, fail=fail)
    driver.wait_paused(2)
    driver.kill()
    assert (union.published(), len(join.view("attempts"))) == ([], 2)

    run_until_settled(spark, [(union, queries[0]), (join, queries[1])])
    assert union.published() == sorted(rows)
    assert join.published() == sorted(joined(orders, payments))
    for pair in (union, join):
        assert pair.open_shards() == []
        first = min("payments", "union" if pair is union else "join")  # whatever order the query names them in
        assert {split["pipeline"] for split in pair.view("splits")} == {first}
