"""A query of a real Spark goes on in a PostgreSQL store with the checkpoint that it had with SQLite."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from queue_source.admin.moving import export, import_file
from shard_store.store import open_store
from support.engine.queries import described, run, run_until_settled
from support.engine.world import World
from support.servers.postgres import new_database

pytestmark = pytest.mark.engine


def test_a_query_goes_on_in_another_database_with_its_checkpoint(
    spark: SparkSession, world: World, postgres_url: str
) -> None:
    rows = world.feed(0, 3)
    before = described(world, maxFilesPerTrigger=2)
    run_until_settled(spark, [(world, before)])
    left, there = world.store_url, new_database(postgres_url)
    with open_store(left) as origin, open_store(there) as target:
        export(origin, "files", world.root / "moved", to=target)
        import_file(target, world.root / "moved")
    rows += world.feed(3, 3)
    with pytest.raises(StreamingQueryException, match="was moved from"):
        run(spark, before)
    world.store = there
    run_until_settled(spark, [(world, described(world, maxFilesPerTrigger=2))])
    assert world.published() == sorted(rows)
    assert (world.depth().total, world.open_shards()) == (0, [])
