"""Everything that was bad in a stream, and rows that its own function rejects, end in the error queue, each once."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import DataFrame, SparkSession

from queue_source.foreach_batch import reject_rows
from queue_source.queues import open_queue
from support.engine.queries import settled
from support.engine.world import World

pytestmark = pytest.mark.engine
SCHEMA = "id BIGINT, name STRING, _metadata STRUCT<shard_id: STRING, message_id: STRING, queue: STRING>"


def test_bad_messages_objects_records_and_rejected_rows_end_in_the_error_queue_once(
    spark: SparkSession, world: World
) -> None:
    uris, written = world.write(0, 2)
    (world.root / "in" / "records.json").write_text('{"id": 7, "name": "good"}\n{"id": bad}\n')
    gone = f"file://{world.root}/in/gone.json"
    world.publish(["no notification", gone, (world.root / "in" / "records.json").as_uri(), *uris])
    error_url = f"sql+{world.store_url}?queue=errors"
    taken: dict[int, list[int]] = {}
    failures = [RuntimeError("the batch fails once, after its rows were rejected")]

    def each_batch(rows: DataFrame, batch_id: int) -> None:
        low = rows.where("id < 2").selectExpr("*", "concat('too low: ', id) AS why")
        count = reject_rows(
            low, store=world.store_url, pipeline="files", batch_id=batch_id, reason_column="why", cause="too-low"
        )
        if count and failures:
            raise failures.pop()
        taken[batch_id] = [row["id"] for row in rows.where("id >= 2").select("id").collect()]

    source = world.source(mode="DROPMALFORMED", errorQueueUrl=error_url, commitTimeout="1s")
    stream = spark.readStream.format("cuesqueue").options(**source).schema(SCHEMA).load()
    writer = stream.writeStream.foreachBatch(each_batch).option("checkpointLocation", str(world.root / "checkpoint"))
    running = writer.start()
    with pytest.raises(Exception, match="fails once"):
        running.awaitTermination()
    with open_queue(error_url) as queue:
        assert queue.depth().ready == 1, "the message's; those of the batch wait until it is done"
    running = writer.trigger(processingTime="100 milliseconds").start()
    try:
        settled(world, running)
    finally:
        running.stop()
    assert sorted(number for ids in taken.values() for number in ids) == [
        number for number, _ in sorted([(7, ""), *written]) if number >= 2
    ]
    with open_queue(error_url) as queue:
        errors = [json.loads(message.body) for message in queue.receive(100, 60.0, 0.0)]
    told = sorted((error["scope"], error["cause"], error.get("input", "")) for error in errors)
    assert told == [
        ("message", "malformed-message", "no notification"),
        ("object", "missing-object", ""),
        ("record", "bad-record", '{"id": bad}'),
        ("row", "too-low", '{"id":0,"name":"row 0 of 0"}'),
        ("row", "too-low", '{"id":1,"name":"row 1 of 0"}'),
    ]
    rejected = [error for error in errors if error["scope"] == "row"]
    assert {error["detail"] for error in rejected} == {"too low: 0", "too low: 1"}
    assert {(error["shard_id"], error["queue"]) for error in rejected} == {(uris[0], world.queue_url)}
    assert {error["plan"]["end_seq"] - error["plan"]["start_seq"] for error in rejected} == {1}
    assert {error["state"] for error in world.view("errors")} == {"delivered"}
