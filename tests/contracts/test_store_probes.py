"""Contract: what a probe sees of a pipeline that reads no more, whatever was left in the store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contracts.test_store_operations import sent, the
from queue_source.commands.status import status_lines
from shard_store.model import BEGINNING, SINK, Range, Semantics, Split, end_at, shard_key
from shard_store.operators.limits import StatusLimits, complaints
from shard_store.shards.activity import Report
from shard_store.sql.schema import pipelines
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, content


def test_what_no_pipeline_owns_waits_for_each_pipeline_of_its_source(backend: StoreBackend) -> None:
    """A reader that ends releases what is in no batch: it waits as long as before, whoever runs or does not."""
    store = backend.open()
    us = Pipeline.start(store)
    Pipeline.start(store, "other", "t")
    shards = store.open_shards(us.token, "s", [sent(backend, name, ago) for name, ago in (("a", 30.0), ("b", 5.0))])
    store.release(us.token, list(shards))
    store.retire(us.token, Report(stopped=True))
    backend.clock.advance(10)
    found = the(store)
    assert (found.files_outstanding, found.unowned, found.oldest_age) == (0, 2, 40.0)
    assert (the(store, "other").unowned, the(store, "other").oldest_age) == (0, None)
    assert complaints(found, StatusLimits(max_lag=timedelta(seconds=30))) == (
        "its oldest message has waited for 0:00:40",
    )


def test_a_limit_of_lag_is_one_of_silence_for_a_pipeline_that_does_not_run(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    within, beyond = (StatusLimits(max_lag=timedelta(seconds=seconds)) for seconds in (40, 20))
    backend.clock.advance(30)
    assert complaints(the(store), beyond) == ()  # its heartbeats are not that frequent
    store.retire(us.token, Report(stopped=True))
    assert complaints(the(store), within) == ()
    assert complaints(the(store), beyond) == ("nothing runs its source: the last heartbeat was 0:00:30 ago",)
    assert complaints(the(store), StatusLimits(timedelta(seconds=20), timedelta(hours=1))) == ()
    Pipeline.start(store, "its heir")  # whatever the source has is read
    assert complaints(the(store), beyond) == ()
    assert complaints(the(store), StatusLimits(max_silence=timedelta(seconds=20))) != ()


@pytest.mark.parametrize("semantics", list(Semantics))
def test_a_limit_of_lag_is_one_of_the_batch_that_is_under_way(backend: StoreBackend, semantics: Semantics) -> None:
    """Some semantics have nothing open while a batch runs."""
    store = backend.open()
    us = Pipeline.start(store, semantics=semantics)
    if semantics.keeps_shards:
        us.open("a")
    us.write(Range(shard_key("s", "a"), content("a"), BEGINNING, end_at(10)))
    us.plan()
    backend.clock.advance(30)
    within, beyond = (StatusLimits(max_lag=timedelta(seconds=seconds)) for seconds in (40, 20))
    assert complaints(the(store), within) == ()
    assert "its micro-batch has been under way for 0:00:30" in complaints(the(store), beyond)


@pytest.mark.parametrize("semantics", [Semantics.EXACTLY_ONCE, Semantics.AT_LEAST_ONCE])
def test_a_batch_that_a_stopped_reader_has_left_is_wrong_until_a_start(
    backend: StoreBackend, semantics: Semantics
) -> None:
    """As where its Python process was killed: Java then stops the reader in good order."""
    store = backend.open()
    us = Pipeline.start(store, semantics=semantics)
    if semantics.keeps_shards:
        us.open("a")
    us.write(Range(shard_key("s", "a"), content("a"), BEGINNING, end_at(10)))
    us.plan()
    store.take_plan("p", None, SINK)
    store.retire(us.token, Report(stopped=True))
    assert dict(status_lines(the(store)))["plan"] == "0-1 is not known to be finished, attempt 1"
    backend.clock.advance(STALE - 1)
    assert complaints(the(store), StatusLimits()) == ()
    backend.clock.advance(2)
    assert the(store).state == "stopped"
    assert complaints(the(store), StatusLimits()) == (
        "its batch 0-1 is not finished, and nothing goes on with it since its reader stopped 0:01:01 ago; "
        "start its query again",
    )
    started = store.start("s", "p", stale_after=STALE, semantics=semantics)
    assert complaints(the(store), StatusLimits()) == ()
    again = Pipeline(store, started.token, "s", started.last_seq, started.confirmed_seq)
    again.publish(again.plan(), Split("/x", 1, 1))
    store.retire(again.token, Report(stopped=True))
    backend.clock.advance(STALE + 1)
    assert complaints(the(store), StatusLimits()) == ()


def test_a_batch_that_another_sink_may_have_taken_or_another_pipeline_goes_on_with_is_not_wrong(
    backend: StoreBackend,
) -> None:
    """Before Spark 4.2 the last batch of another sink is confirmed by the next start."""
    store = backend.open()
    others, left = Pipeline.start(store, "others"), Pipeline.start(store, "left")
    others.planned("a")
    left.planned("b")
    store.take_plan("left", None, SINK)
    for pipeline in (others, left):
        store.retire(pipeline.token, Report(stopped=True))
    backend.clock.advance(STALE + 1)
    assert complaints(the(store, "others"), StatusLimits()) == ()
    assert len(complaints(the(store, "left"), StatusLimits())) == 1
    heir = Pipeline.start(store, "heir")
    heir.open("b")
    seen = store.look([shard_key("s", "b")])
    store.acquire(heir.token, {key: shard.token for key, shard in seen.items()})
    assert complaints(the(store, "left"), StatusLimits()) == ()


@pytest.mark.parametrize(("spark", "is_wrong"), [("4.0.1", False), ("4.1.0", False), ("4.2.0", True), ("5.0.0", True)])
def test_a_batch_that_is_left_before_its_sink_was_made_is_wrong_where_spark_says_what_is_done(
    backend: StoreBackend, spark: str, is_wrong: bool
) -> None:
    """Spark 4.2 and later say so at the end of a query with any sink: see `tests/engine`."""
    store = backend.open()
    us = Pipeline.start(store)
    us.planned("a")
    store.retire(us.token, Report(stopped=True))
    with store.database.begin() as connection:
        connection.execute(pipelines.update().values(spark_version=spark))
        connection.commit()
    backend.clock.advance(STALE + 1)
    assert bool(complaints(the(store), StatusLimits())) is is_wrong


def test_a_reader_says_what_has_ended_it_until_the_next_start(store: ShardStore) -> None:
    us = Pipeline.start(store)
    store.retire(us.token, Report(stopped=True, failure="queue 'orders': access denied"))
    assert the(store).failure == "queue 'orders': access denied"
    assert complaints(the(store), StatusLimits()) == ("its reader has failed: queue 'orders': access denied",)
    Pipeline.start(store)
    assert the(store).failure is None


def test_messages_in_flight_of_other_readers_are_shown(store: ShardStore) -> None:
    us = Pipeline.start(store)
    store.heartbeat(us.token, STALE, Report(depth=0, elsewhere=37))
    assert the(store).in_flight_elsewhere == 37
    assert dict(status_lines(the(store)))["holds"].endswith("queue depth 0, and 37 in flight elsewhere")
