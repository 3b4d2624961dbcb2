"""Outputs of foreachBatch in another database: what a batch delivered there is found again, whatever became of it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from queue_source.foreach_batch import delivery
from shard_store.model import shard_key
from shard_store.sql.schema import of_pipeline
from shard_store.store import open_store
from support.engine.queries import combine, described, read
from support.engine.upserts import LOG
from support.engine.world import Row, World

pytestmark = pytest.mark.engine


def test_a_repeated_batch_of_two_pipelines_has_its_own_hash_when_the_first_one_is_idle(
    spark: SparkSession, world: World
) -> None:
    """Rows are written by the batch's hash, as a user would who has an upsert and no transaction."""
    payments = World(world.root / "payments", store=world.store_url)
    query = described(world)
    written: dict[str, list[Row]] = {}
    told: list[bool] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = [(row.id, row.name) for row in frame.select("id", "name").collect()]
        with delivery(world.store_url, ("files", "payments"), batch_id) as batch:
            told.append(batch.already)
            written[batch.hash] = rows
        if len(told) == 2:
            raise ZeroDivisionError("the driver dies between the publication and Spark's commit log")

    def run() -> None:
        second = payments.source(pipeline="payments", source="payments")
        frame = combine(read(spark, query["source"], query), read(spark, second, query), "union")
        stream = frame.writeStream.foreachBatch(take).option("checkpointLocation", query["checkpoint"])
        stream.trigger(availableNow=True).start().awaitTermination()

    expected = [*world.feed(0, 1), *payments.feed(1, 1)]
    run()
    expected += payments.feed(2, 1)
    with pytest.raises(StreamingQueryException):
        run()
    run()
    assert told == [False, False, True]
    assert sorted(row for rows in written.values() for row in rows) == sorted(expected)


def test_an_output_is_not_delivered_again_when_an_object_of_its_batch_passes_to_another_pipeline(
    spark: SparkSession, world: World
) -> None:
    rows = world.feed(0, 2)
    query = described(world, commitTimeout="10min", visibilityTimeout="30min")
    warehouse = sa.create_engine(f"sqlite:///{world.root}/warehouse.db")
    LOG.create(warehouse)
    told: list[tuple[str, bool, int]] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        collected = [(row.id, row.name) for row in frame.select("id", "name").collect()]
        with delivery(world.store_url, "files", batch_id) as batch:
            with batch.output("audit", warehouse) as out:
                told.append((batch.hash, out.already, len(collected)))
                if not out.already:
                    out.connection.execute(LOG.insert(), [{"id": i, "name": n} for i, n in collected])
            if len(told) == 1:
                raise ZeroDivisionError("the driver dies between the output and the publication")

    def run() -> None:
        stream = read(spark, query["source"], query).writeStream.foreachBatch(take)
        stream.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException):
        run()
    with open_store(world.store_url) as store:
        first, _ = store.look([shard_key("files", shard["shard_id"]) for shard in world.view("shards")]).values()
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "files", "stale_at": 0}]))
        other = store.start("files", "other")
        assert store.acquire(other.token, {first.key: first.token})
    run()
    assert told[1] == (told[0][0], True, len(rows) // 2)
    with warehouse.connect() as connection:
        assert sorted(map(tuple, connection.execute(sa.select(LOG)))) == sorted(rows)
    warehouse.dispose()
