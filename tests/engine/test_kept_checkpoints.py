"""A query goes on with a checkpoint that Spark wrote for an earlier version: what was in flight is read, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from queue_source.queues import open_queue
from support.engine.versions import TELLS_START
from support.kept_checkpoints import ARCHIVES, Kept, unpack

pytestmark = pytest.mark.engine


def run(spark: SparkSession, kept: Kept, taken: list[list[str]]) -> None:
    """Until nothing new comes, by AvailableNow."""

    def take(batch: DataFrame, number: int) -> None:
        taken.append(sorted(bytes(row.value).decode() for row in batch.collect()))

    stream = spark.readStream.format("cuesqueue").options(**kept.source()).load()
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(kept.checkpoint))
    for _ in range(1 if TELLS_START else 2):  # Spark before 4.2 ends AvailableNow after one batch
        query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_a_query_goes_on_with_a_kept_checkpoint(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    with open_queue(kept.queue_url) as queue:
        queue.publish(["new"])
    taken: list[list[str]] = []
    run(spark, kept, taken)
    assert taken == [kept.in_flight, ["new"]]
    offsets = kept.offsets()
    assert set(offsets[max(offsets)]) == {"pipeline", "seq", "store"}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_an_idle_query_makes_no_batch_of_an_older_form_of_its_offset(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    kept = unpack(archive, tmp_path)
    taken: list[list[str]] = []
    run(spark, kept, taken)
    before = kept.offsets()
    run(spark, kept, taken)
    assert kept.offsets() == before
    assert taken == [kept.in_flight]
