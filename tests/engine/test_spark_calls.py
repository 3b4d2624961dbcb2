"""What Spark does with a Python source and sink, as far as our code rests on it: a new version that differs is noticed.

Told by a source and a sink that write down every call (`recording.py`); design and coordinator follow from these.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from queue_source.spark.source import CuesqueueSource
from support.engine.recording import Call, calls
from support.engine.versions import REPLANS_FIRST, TELLS_START
from support.engine.world import World, eventually

pytestmark = pytest.mark.engine

READER = ("initialOffset", "latestOffset", "partitions", "commit", "prepareForTriggerAvailableNow", "stop")
STREAM = {"processingTime": "0 seconds"}
ONCE = {"availableNow": True}


class Recorded:
    """Runs recording queries over one checkpoint, each with a log of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.runs = spark, folder, 0
        self.top, self.fail = folder / "top", folder / "fail"
        self.upto(1)

    def upto(self, top: int) -> None:
        """Rows that there are to be read; can be raised while a query runs."""
        draft = self.folder / "top.new"
        draft.write_text(str(top))
        draft.replace(self.top)

    def start(self, trigger: dict[str, Any] | None = None, **options: object) -> tuple[StreamingQuery, Path]:
        self.runs += 1
        log = self.folder / f"calls-{self.runs}"
        reader = self.spark.readStream.format("recording").options(log=str(log), top=str(self.top))
        frame = reader.options(**{k: str(v) for k, v in options.items()}).load()
        writer = frame.writeStream.format("recording").options(log=str(log), fail=str(self.fail))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint")).queryName(f"recorded{self.runs}")
        return writer.trigger(**(trigger or ONCE)).start(), log

    def run(self, **options: object) -> list[Call]:
        query, log = self.start(**options)  # type: ignore[arg-type]
        query.awaitTermination()
        return stopped(log)

    def run_until(self, enough: Callable[[list[Call]], bool], **options: object) -> list[Call]:
        query, log = self.start(STREAM, **options)
        try:
            eventually("the expected calls", lambda: query.exception() or enough(calls(log)))
        finally:
            query.stop()
        return stopped(log)


def stopped(log: Path) -> list[Call]:
    """The calls of a run, its reader's end included, which may come after the query's."""
    eventually("the end of the reader", lambda: named(calls(log), "SIGTERM", "exit"))
    return calls(log)


def named(found: list[Call], *names: str) -> list[Call]:
    return [call for call in found if call["call"] in names]


def order(found: list[Call], *names: str) -> list[str]:
    return [call["call"] for call in named(found, *names)]


def pids(found: list[Call], *names: str) -> set[int]:
    return {call["pid"] for call in named(found, *names)}


def times(found: list[Call], name: str) -> int:
    return len(named(found, name))


@pytest.fixture
def recorded(spark: SparkSession, tmp_path: Path) -> Recorded:
    return Recorded(spark, tmp_path)


def test_a_batch_is_offset_then_commit_of_the_one_before_then_plan_then_writer_then_tasks_then_commit(
    recorded: Recorded,
) -> None:
    recorded.upto(2)
    found = recorded.run_until(lambda c: times(c, "writer.commit") == 2 and times(c, "latestOffset") > 4)
    # a second copy of the reader is built at the first planning, and a writer in the commit process too
    shown = order(found, "latestOffset", "commit", "partitions", "writer.__getstate__", "read", "writer.commit")
    squeezed = [name for place, name in enumerate(shown) if place == 0 or shown[place - 1] != name]
    assert squeezed == [
        *("latestOffset", "partitions", "writer.__getstate__", "read", "writer.commit"),
        *("latestOffset", "commit", "partitions", "writer.__getstate__", "read", "writer.commit"),
        "latestOffset",
    ]


def test_the_last_batch_of_an_idle_or_ended_query_never_gets_its_commit(recorded: Recorded) -> None:
    found = recorded.run_until(lambda c: times(c, "writer.commit") == 1 and times(c, "latestOffset") > 3)
    assert times(found, "partitions") == 1
    assert times(found, "commit") == 0
    recorded.upto(2)
    # AvailableNow: the commit of the run before comes with its first batch, its own last one has none
    assert [call["end"] for call in named(recorded.run(), "commit")] == [1]


def test_latest_offset_is_called_once_a_trigger_and_never_while_a_batch_runs(recorded: Recorded) -> None:
    recorded.upto(3)
    found = recorded.run_until(lambda c: times(c, "writer.commit") == 3 and times(c, "latestOffset") > 5)
    shown = order(found, "latestOffset", "partitions", "writer.commit")
    assert shown[:9] == ["latestOffset", "partitions", "writer.commit"] * 3
    assert set(shown[9:]) == {"latestOffset"}


def test_latest_offset_is_told_what_is_done_or_nothing_at_all(recorded: Recorded) -> None:
    recorded.upto(2)
    found = recorded.run_until(lambda c: times(c, "writer.commit") == 2 and times(c, "latestOffset") > 3)
    starts = [call["start"] for call in named(found, "latestOffset")][:4]
    assert starts == ([{"n": 0}, {"n": 1}, {"n": 2}, {"n": 2}] if TELLS_START else [None] * 4)


def test_initial_offset_comes_before_or_after_the_first_latest_offset_by_version(recorded: Recorded) -> None:
    shown = order(recorded.run(), "initialOffset", "latestOffset")
    first = ["initialOffset", "latestOffset"] if TELLS_START else ["latestOffset", "initialOffset"]
    assert shown[:2] == first


def test_a_failed_batch_comes_again_with_the_same_offsets_and_no_latest_offset_before_it(recorded: Recorded) -> None:
    recorded.run()
    recorded.upto(2)
    recorded.fail.touch()
    with pytest.raises(StreamingQueryException, match="told to fail"):
        recorded.run()
    recorded.fail.unlink()
    recorded.upto(3)
    found = recorded.run()
    shown = [(c["call"], c.get("start"), c.get("end")) for c in named(found, "latestOffset", "partitions")]
    if REPLANS_FIRST:  # x is the end of the last logged batch, although that batch is not done
        assert shown.pop(0) == ("partitions", 2, 2)
    assert shown[0] == ("partitions", 1, 2)


def test_after_a_finished_batch_a_restart_begins_with_its_end(recorded: Recorded) -> None:
    """On 4.0 and 4.1 `partitions(x, x)` that is followed by latestOffset is the only word that batch x is done."""
    recorded.run()
    recorded.upto(2)
    shown = [(c["call"], c.get("start"), c.get("end")) for c in named(recorded.run(), "latestOffset", "partitions")]
    if REPLANS_FIRST:
        assert shown[:3] == [("partitions", 1, 1), ("latestOffset", None, None), ("partitions", 1, 2)]
    else:
        assert shown[:2] == [("latestOffset", {"n": 1}, None), ("partitions", 1, 2)]


def test_the_first_batch_comes_again_after_another_question_for_the_initial_offset(recorded: Recorded) -> None:
    """Spark does not log where the first batch began: the answer has to be the same for ever."""
    recorded.fail.touch()
    with pytest.raises(StreamingQueryException, match="told to fail"):
        recorded.run()
    recorded.fail.unlink()
    shown = order(recorded.run(), "initialOffset", "latestOffset", "partitions")
    again = ["initialOffset", "partitions"]
    assert shown[: 3 if REPLANS_FIRST else 2] == (["partitions", *again] if REPLANS_FIRST else again)


def test_the_default_read_limit_is_asked_for_in_the_reader_process_before_any_batch(recorded: Recorded) -> None:
    """From 4.2 on. A restart may begin with a batch without new data, which asks the reader for nothing else."""
    for _ in range(2):
        for found in (recorded.run(), recorded.run_until(lambda c: times(c, "latestOffset") > 1)):
            asked = named(found, "getDefaultReadLimit")
            if TELLS_START:
                assert asked
                assert pids(found, "getDefaultReadLimit") == pids(found, "latestOffset")
                before = found.index(asked[0])
                assert not named(found[:before], "initialOffset", "latestOffset", "partitions")
            else:
                assert not asked


def test_latest_offset_is_given_the_default_limit_and_with_trigger_once_that_there_is_none(recorded: Recorded) -> None:
    streamed = recorded.run_until(lambda c: times(c, "latestOffset") > 1)
    query, log = recorded.start({"once": True})
    query.awaitTermination()
    limits = [
        {call["limit"] for call in named(found, "latestOffset")} for found in (streamed, recorded.run(), stopped(log))
    ]
    default = {"ReadMaxFiles(max_files=7)"}
    assert limits == ([default, default, {"ReadAllAvailable()"}] if TELLS_START else [{None}] * 3)


def test_the_first_batch_of_a_checkpoint_runs_also_without_data_and_a_restart_s_does_not(recorded: Recorded) -> None:
    recorded.upto(0)
    found = recorded.run()
    assert [(c["start"], c["end"]) for c in named(found, "partitions")] == [(0, 0)]
    assert not named(recorded.run(), "read")


def test_available_now_is_announced_and_runs_until_nothing_is_left_or_is_one_batch(recorded: Recorded) -> None:
    recorded.upto(3)
    found = recorded.run()
    if TELLS_START:
        assert order(found, *READER)[0] == "prepareForTriggerAvailableNow"
        assert times(found, "writer.commit") == 3
        assert order(found, "latestOffset", "writer.commit")[-1] == "latestOffset"
    else:
        assert times(found, "prepareForTriggerAvailableNow") == 0
        assert times(found, "writer.commit") == 1
        assert order(found, "latestOffset", "writer.commit")[-1] == "writer.commit"


def test_reader_planning_tasks_and_sink_commit_are_different_processes_of_one_driver(recorded: Recorded) -> None:
    recorded.upto(2)
    found = recorded.run_until(lambda c: times(c, "writer.commit") == 2)
    (reader,) = pids(found, "initialOffset", "latestOffset", "partitions", "commit", "stop")
    (planning,) = pids(found, "writer.__getstate__")
    (commit,) = pids(found, "writer.commit")
    tasks = pids(found, "read", "write")
    assert len({reader, planning, commit}) == 3
    assert not tasks & {reader, planning, commit}
    # what `write` runs was built at planning, what `commit` runs was not
    assert {call["built_in"] for call in named(found, "write")} == {planning}
    assert {call["built_in"] for call in named(found, "writer.commit")} == {commit}


def test_a_driver_gives_all_its_python_processes_one_identity(recorded: Recorded) -> None:
    """It is how a sink knows that the plan it finds was made by its own driver; other drivers differ: test_takeover."""
    found = recorded.run()
    identities = {call["driver"] for call in named(found, "latestOffset", "partitions", "writer.__getstate__")}
    assert len(identities) == 1
    assert identities != {""}


def test_stopping_sends_sigterm_and_calls_stop_when_the_handler_exits(recorded: Recorded) -> None:
    found = recorded.run_until(lambda c: times(c, "writer.commit") == 1, graceful="true")
    shown = order(found, "SIGTERM", "stop")
    assert shown.count("SIGTERM") in (1, 2), "Spark sends it twice; the second may come after the end"
    eventually("stop", lambda: named(calls(recorded.folder / "calls-1"), "stop"))


def test_two_streams_of_one_frame_are_two_readers(recorded: Recorded, spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    frame = spark.readStream.format("recording").options(log=str(log), top=str(recorded.top)).load()
    queries = [
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name)).trigger(**ONCE).start()
        for name in ("one", "two")
    ]
    for query in queries:
        query.awaitTermination()
    assert len(pids(calls(log), "partitions")) == 2


def test_option_names_arrive_in_lower_case_and_spark_adds_its_own_to_the_sink(recorded: Recorded) -> None:
    found = recorded.run(camelCase="x")
    (reader,) = {tuple(sorted(call["options"])) for call in named(found, "reader.__init__")}
    assert reader == ("camelcase", "log", "top")
    (writer,) = {tuple(sorted(call["options"])) for call in named(found, "writer.__init__")}
    assert writer == ("checkpointlocation", "fail", "log", "queryname")


def test_a_batch_of_another_schema_is_refused(recorded: Recorded) -> None:
    with pytest.raises(StreamingQueryException, match=r"(?i)schema"):
        recorded.run(wrong="true")


def test_what_report_latest_offset_returns_is_shown_in_the_progress(recorded: Recorded) -> None:
    query, log = recorded.start()
    query.awaitTermination()
    stopped(log)
    progress = query.lastProgress
    assert progress is not None
    if TELLS_START:
        assert "seen" in str(progress["sources"][0]["latestOffset"])


def test_readers_are_built_where_they_never_run_so_building_one_does_no_work(
    recorded: Recorded, spark: SparkSession, world: World
) -> None:
    found = recorded.run()
    running = pids(found, "latestOffset")
    assert pids(found, "reader.__init__") > running, "only the running reader was built"
    source = CuesqueueSource(world.source())
    reader = source.streamReader(StructType.fromDDL("id BIGINT"))  # type: ignore[arg-type]
    writer = CuesqueueSource(world.sink()).streamWriter(StructType.fromDDL("id BIGINT"), False)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(reader)) is not None
    assert writer is not None
    assert list(world.root.iterdir()) == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("cuesqueue")] == []


def test_spark_can_wait_for_executors_before_the_first_batch(spark: SparkSession) -> None:
    """The settings of docs/how-to/clusters.md."""
    settings = getattr(getattr(spark._jvm.org.apache.spark.internal.config, "package$"), "MODULE$")  # type: ignore[union-attr]
    names = ("SCHEDULER_MIN_REGISTERED_RESOURCES_RATIO", "SCHEDULER_MAX_REGISTERED_RESOURCE_WAITING_TIME")
    assert [getattr(settings, name)().key() for name in names] == [
        "spark.scheduler.minRegisteredResourcesRatio",
        "spark.scheduler.maxRegisteredResourcesWaitingTime",
    ]


def test_the_format_is_found_without_being_registered(spark: SparkSession, world: World) -> None:
    frame = spark.readStream.format("cuesqueue").schema("id BIGINT").options(**world.source()).load()
    assert frame.isStreaming
