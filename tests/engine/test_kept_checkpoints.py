"""A query goes on with a checkpoint that Spark wrote for an earlier version: nothing is read twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from queue_source.queues import open_queue
from shard_store.errors import StoreConfigurationError
from support.engine.versions import TELLS_START
from support.kept_checkpoints import ARCHIVES, UNFINISHED, Kept, migrated, unpack

pytestmark = pytest.mark.engine


def run(spark: SparkSession, kept: Kept, taken: list[list[str]]) -> None:
    """Until nothing new comes, by AvailableNow."""

    def take(batch: DataFrame, number: int) -> None:
        taken.append(sorted(bytes(row.value).decode() for row in batch.collect()))

    stream = spark.readStream.format("cuesqueue").options(**kept.source()).load()
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(kept.checkpoint))
    for _ in range(1 if TELLS_START else 2):  # Spark before 4.2 ends AvailableNow after one batch
        query.trigger(availableNow=True).start().awaitTermination()


def dump(kept: Kept) -> list[str]:
    with closing(sqlite3.connect(kept.folder / "store.db")) as store:
        return list(store.iterdump())


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_a_query_goes_on_with_a_kept_checkpoint(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    kept = migrated(archive, tmp_path)
    before = kept.offsets()
    taken: list[list[str]] = []
    run(spark, kept, taken)
    assert (taken, kept.offsets()) == ([], before), "nothing is read again, and an idle query makes no batch"
    with open_queue(kept.queue_url) as queue:
        queue.publish(["new"])
    run(spark, kept, taken)
    assert taken == [["new"]]
    offsets = kept.offsets()
    assert set(offsets[max(offsets)]) == {"pipeline", "seq", "store"}


def test_a_store_with_an_unfinished_batch_stays_with_the_version_that_can_finish_it(tmp_path: Path) -> None:
    """Its batch may be in a target already, under the hash that version gave it."""
    before = dump(unpack(UNFINISHED, tmp_path / "before"))
    with pytest.raises(StoreConfigurationError, match="pipeline 'kept' is not finished; start its query once more"):
        migrated(UNFINISHED, tmp_path / "after")
    assert dump(Kept(tmp_path / "after", [], [])) == before
