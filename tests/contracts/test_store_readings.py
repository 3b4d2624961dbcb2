"""Contract: what proves that no rows are out of an object that one reading of its plan found bad (decision 0064)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from shard_store.model import Reading, ReadMark, ShardState, Split
from shard_store.shards.changes import Audit
from shard_store.sql.schema import read_marks
from shard_store.store import ShardStore
from support.readings import KEY, Spark, opens
from support.store_backends import Pipeline, rows

Publish = Callable[[Spark, list[Reading]], None]


def by_our_sink(spark: Spark, tasks: list[Reading]) -> None:
    spark.publish(*tasks)


def by_our_sink_after_a_shuffle(spark: Spark, tasks: list[Reading]) -> None:
    spark.stages += 1
    spark.publish(Reading(spark.stages, 0, spark.tasks))


def by_another_sink(spark: Spark, tasks: list[Reading]) -> None:
    spark.us.confirm()


def by_the_users_transaction(spark: Spark, tasks: list[Reading]) -> None:
    spark.us.store.publish([spark.plan.identity], None)
    spark.us.confirm()


EVERY = [by_our_sink, by_our_sink_after_a_shuffle, by_another_sink, by_the_users_transaction]
NOT_BY_WINNERS = EVERY[1:]
every_sink = pytest.mark.parametrize("publish", EVERY)
others = pytest.mark.parametrize("publish", NOT_BY_WINNERS)


@every_sink
def test_what_the_only_reading_found_missing_is_opened_again(store: ShardStore, publish: Publish) -> None:
    spark = Spark.batch(store)
    tasks = spark.stage()
    spark.judge(tasks[1])
    publish(spark, tasks)
    assert opens(spark)


@others
@pytest.mark.parametrize("judges", [0, 1])
def test_what_one_of_two_readings_found_missing_stays(store: ShardStore, publish: Publish, judges: int) -> None:
    spark = Spark.batch(store)
    readings = [spark.stage(), spark.stage()]
    spark.judge(readings[judges][1])
    publish(spark, readings[1])
    assert not opens(spark)


def test_of_two_readings_the_one_counts_whose_tasks_are_known_to_be_published(store: ShardStore) -> None:
    spark = Spark.batch(store)
    spark.stage()
    tasks = spark.stage()
    spark.judge(tasks[1])
    spark.publish(*tasks)
    assert opens(spark)


def test_what_another_reading_found_missing_than_the_one_that_is_published_stays(store: ShardStore) -> None:
    spark = Spark.batch(store)
    sampled = spark.stage()
    spark.judge(sampled[1])
    spark.publish(*spark.stage())
    assert not opens(spark)


@others
def test_what_a_stage_found_missing_that_runs_again_for_lost_shuffle_files_stays(
    store: ShardStore, publish: Publish
) -> None:
    """Spark counts its attempts from 0 again, and other tasks may have fetched what the first run had read."""
    spark = Spark.batch(store)
    tasks = spark.stage()
    spark.stages += 1  # of the tasks that fetch
    spark.tasks += 1
    spark.judge(spark.begin(1, in_stage=tasks[0].stage))
    publish(spark, [])
    assert not opens(spark)


@others
def test_what_a_part_of_a_first_run_beside_another_query_found_missing_stays(
    store: ShardStore, publish: Publish
) -> None:
    """It cannot be told from a stage that runs again."""
    spark = Spark.batch(store)
    spark.stages += 1
    spark.begin(0)
    spark.tasks += 1  # a task of another query
    spark.judge(spark.begin(1))
    publish(spark, [])
    assert not opens(spark)


@pytest.mark.parametrize("asked", ["before the verdict", "after the verdict"])
@pytest.mark.parametrize("winner", ["first", "copy"])
def test_of_two_copies_of_a_task_the_verdict_counts_of_the_one_that_is_published(
    store: ShardStore, asked: str, winner: str
) -> None:
    spark = Spark.batch(store)
    tasks = spark.stage()
    copy = spark.begin(1, repeated=True) if asked == "before the verdict" else None
    spark.judge(tasks[1])
    copy = copy or spark.begin(1, repeated=True)  # one that asks leaves the object out
    spark.publish(tasks[0], copy if winner == "copy" else tasks[1], tasks[2])
    assert opens(spark) is ((winner == "copy") is (asked == "after the verdict"))


def test_a_copy_that_knows_of_one_verdict_and_not_of_the_next_does_not_stand_for_it(store: ShardStore) -> None:
    spark = Spark.batch(store)
    tasks = spark.stage()
    spark.judge(tasks[1], "b")
    copy = spark.begin(1, repeated=True)
    spark.judge(tasks[1], "a")
    spark.judge(copy, "c")
    spark.publish(tasks[0], copy, tasks[2])
    assert not opens(spark)


@others
def test_what_a_repeated_task_found_missing_stays_where_nobody_knows_whose_rows_are_out(
    store: ShardStore, publish: Publish
) -> None:
    spark = Spark.batch(store)
    spark.stage()
    spark.judge(spark.begin(1, repeated=True))
    publish(spark, [])
    assert not opens(spark)


@every_sink
def test_what_a_later_attempt_found_missing_is_opened_again_only_where_the_first_has_published_nothing(
    store: ShardStore, publish: Publish
) -> None:
    first = Spark.batch(store)
    first.stage()
    spark = first.again()
    tasks = spark.stage()
    spark.judge(tasks[1])
    publish(spark, tasks)
    assert opens(spark) is (publish in (by_our_sink, by_our_sink_after_a_shuffle))


@every_sink
@pytest.mark.parametrize("readings", [1, 2])
def test_what_the_first_attempt_found_missing_is_read_by_no_later_one(
    store: ShardStore, publish: Publish, readings: int
) -> None:
    first = Spark.batch(store)
    for _ in range(readings):
        tasks = first.stage()
    first.judge(tasks[1])
    spark = first.again().again()
    assert [r.content.shard_id for r in spark.plan.ranges] == ["b", "c"]
    publish(spark, spark.stage() + spark.stage())
    assert opens(spark) is (readings == 1 or publish in (by_our_sink, by_our_sink_after_a_shuffle))


@every_sink
def test_what_a_task_of_an_attempt_before_reports_late_stays(store: ShardStore, publish: Publish) -> None:
    first = Spark.batch(store)
    late = first.stage()[1]
    spark = first.again()
    tasks = spark.stage()
    assert late in tasks, "another driver's Spark gives the same numbers"
    first.judge(late)
    publish(spark, tasks)
    assert not opens(spark)


@every_sink
def test_what_a_query_finds_missing_that_reads_its_source_twice_in_one_plan_stays(
    store: ShardStore, publish: Publish
) -> None:
    spark = Spark.batch(store)
    spark.us.plan()
    tasks = spark.stage(6)
    spark.judge(tasks[1])
    publish(spark, tasks)
    assert not opens(spark)


@every_sink
@pytest.mark.parametrize("together", [False, True])
def test_what_a_query_finds_missing_that_reads_each_partition_several_times_in_one_stage_stays(
    store: ShardStore, publish: Publish, together: bool
) -> None:
    """A cartesian product: a task for each pair of partitions, or one for several pairs."""
    spark = Spark.batch(store)
    tasks = spark.stage(2)
    spark.us.store.begin_reading(spark.plan.identity, tasks[0 if together else 1], first=True, tasks=2)
    spark.judge(tasks[0])
    publish(spark, tasks)
    assert not opens(spark)


def test_what_an_operator_gave_up_was_read_by_nobody_in_the_attempt_that_knows_of_it(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.snapshot(*us.open("b", "a").values())
    us.store.quarantine([KEY], Audit("ada@host"))
    spark = Spark(us, us.plan())
    spark.stage()
    spark.judge(spark.stage()[0], "b")
    by_another_sink(spark, [])
    assert {(e["subject"], e["scope"]) for e in rows(store, "errors")} == {("a", "object"), ("b", "part")}


def test_what_an_operator_gave_up_after_an_attempt_may_have_been_taken_by_another_sink(store: ShardStore) -> None:
    first = Spark.batch(store)
    first.us.store.quarantine([KEY], Audit("ada@host"))
    spark = first.again()
    by_another_sink(spark, [])
    assert [(e["subject"], e["scope"]) for e in rows(store, "errors")] == [("a", "part")]


def test_traces_are_no_marks_of_reads_and_go_when_the_next_plan_is_read(store: ShardStore) -> None:
    spark = Spark.batch(store)
    spark.judge(spark.stage()[1])
    assert store.read_marks(spark.plan.identity) == []
    store.end_read(spark.plan.identity, ReadMark(0, 1 << 62, -1))
    assert len(_traces(store)) == 3
    by_another_sink(spark, [])
    following = spark.us.planned("next")
    assert following.replaced == spark.plan.identity.delivery_hash
    store.begin_reading(following.identity, Reading(9, 0, 9), first=True, tasks=1, replaced=following.replaced)
    assert len(_traces(store)) == 2


def test_where_a_batch_shows_that_its_readers_are_its_writers_the_next_ones_leave_no_trace(store: ShardStore) -> None:
    spark = Spark.batch(store)
    assert not spark.plan.direct
    spark.publish(*spark.stage())
    store.publish([spark.plan.identity], [Split("/state", 1, 1)], batch_id=7)  # of a query with state, without input
    before = len(_traces(store))
    for number in range(2):
        spark = spark.following(f"{number}")
        assert spark.plan.direct
        spark.publish(*spark.stage())
    assert len(_traces(store)) == before
    assert not spark.again().plan.direct


def by_a_union_with_a_table(spark: Spark) -> None:
    spark.publish(*spark.stage(), spark.begin(3))


def by_a_sink_behind_a_shuffle(spark: Spark) -> None:
    by_our_sink_after_a_shuffle(spark, spark.stage())


def by_as_many_tasks_behind_a_shuffle(spark: Spark) -> None:
    read = spark.stage()
    spark.publish(*(task._replace(stage=task.stage + 1, task=task.task + len(read)) for task in read))


def by_another_sink_than_ours(spark: Spark) -> None:
    spark.stage()
    spark.us.confirm()


def by_the_second_of_two_readings(spark: Spark) -> None:
    spark.stage()
    spark.publish(*spark.stage())


def by_the_first_of_two_readings(spark: Spark) -> None:
    read = spark.stage()
    spark.stage()
    spark.publish(*read)


def by_a_reader_that_planned_twice(spark: Spark) -> None:
    spark.us.plan()
    spark.publish(*spark.stage())


@pytest.mark.parametrize(
    "publish",
    [
        by_a_union_with_a_table,
        by_a_sink_behind_a_shuffle,
        by_as_many_tasks_behind_a_shuffle,
        by_another_sink_than_ours,
        by_the_first_of_two_readings,
        by_the_second_of_two_readings,
        by_a_reader_that_planned_twice,
    ],
)
def test_where_readers_are_not_the_writers_each_batch_leaves_its_trace(
    store: ShardStore, publish: Callable[[Spark], None]
) -> None:
    spark = Spark.batch(store)
    publish(spark)
    assert not spark.following("next").plan.direct


def shown(store: ShardStore) -> Spark:
    """A batch with the object, of a query that has shown that its readers are its writers."""
    spark = Spark.batch(store, "before")
    spark.publish(*spark.stage(1))
    spark = spark.following("b", "a", "c")
    assert spark.plan.direct
    return spark


def test_without_a_trace_the_verdict_of_a_task_counts_that_is_published(store: ShardStore) -> None:
    spark = shown(store)
    tasks = spark.stage()
    spark.judge(tasks[1])
    spark.publish(*tasks)
    assert opens(spark)


def test_without_a_trace_the_verdict_of_a_copy_counts_if_it_is_published(store: ShardStore) -> None:
    spark = shown(store)
    tasks = spark.stage()
    copy = spark.begin(1, repeated=True)
    spark.judge(copy)
    spark.publish(tasks[0], copy, tasks[2])
    assert opens(spark)


@pytest.mark.parametrize("repeated", [False, True], ids=["another reading", "a copy"])
def test_without_a_trace_the_verdict_of_a_task_that_is_not_published_quarantines_for_good(
    store: ShardStore, repeated: bool
) -> None:
    spark = shown(store)
    tasks = spark.stage()
    spark.judge(spark.begin(1, repeated=True) if repeated else spark.stage()[1])
    spark.publish(*tasks)
    assert not opens(spark)


@pytest.mark.parametrize("publish", NOT_BY_WINNERS)
def test_without_a_trace_nothing_is_opened_where_nobody_knows_whose_rows_are_out(
    store: ShardStore, publish: Publish
) -> None:
    spark = shown(store)
    tasks = spark.stage()
    spark.judge(tasks[1])
    publish(spark, tasks)
    assert not opens(spark)


def test_without_a_trace_nothing_is_opened_where_more_tasks_have_read_than_the_plan_has(store: ShardStore) -> None:
    """A table that the query multiplies with has grown a partition: each of the plan's is read twice."""
    spark = shown(store)
    tasks = spark.stage()
    spark.judge(tasks[1])
    spark.publish(*tasks, *(spark.begin(place) for place in range(3)))
    assert not opens(spark)


def test_only_a_word_of_an_operator_has_read_again_what_may_be_out(store: ShardStore) -> None:
    spark = Spark.batch(store)
    spark.stage()
    spark.judge(spark.stage()[1])
    by_another_sink(spark, [])
    assert not opens(spark)
    assert "may be published" in store.shard_story(KEY).outcome
    assert store.forget([KEY], Audit("ada@host", "its rows are nowhere")).changed == 1
    assert spark.us.open("a")["a"].state is ShardState.OPEN


def _traces(store: ShardStore) -> list[object]:
    return store.database.read(lambda t: list(t.execute(sa.select(read_marks))))
