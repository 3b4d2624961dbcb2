"""Contract: what operators see is in the store, exact after any death, and bounded."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy as sa

from queue_source.announcements.contents import OUTSIDE_PREFIXES
from queue_source.commands.status import status_lines
from shard_store.completeness.comparing import Category, Scope, Tally
from shard_store.completeness.listing import Found
from shard_store.model import (
    BEGINNING,
    LISTING,
    Content,
    ErrorRecord,
    Plan,
    Position,
    Range,
    Runtime,
    Semantics,
    Split,
    end_at,
    shard_key,
)
from shard_store.operators.limits import StatusLimits, complaints
from shard_store.operators.status import DEAD, RUNNING, STOPPED, PipelineStatus
from shard_store.shards.activity import Intake, Report
from shard_store.sql.schema import history, pipelines
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import STALE, Pipeline, StoreBackend

HOUR = 3600.0


def sent(backend: StoreBackend, shard_id: str, ago: float) -> Content:
    """An object whose message was sent so many seconds ago."""
    at = round((backend.clock.now - ago) * 1_000_000)
    return Content(shard_id, shard_id, 10, None, "queue", f"message of {shard_id}", sent_at=at)


def planned(us: Pipeline, *contents: Content) -> Plan:
    found = us.store.open_shards(us.token, us.source, contents)
    us.snapshot(*found.values())
    return us.plan()


def bad(plan: Plan, shard_id: str, cause: str, scope: str = "record", position: str = "") -> ErrorRecord:
    return ErrorRecord(scope, cause, "why", shard_id, plan.identity.delivery_hash, Position(position))


def the(store: ShardStore, pipeline: str = "p") -> PipelineStatus:
    [found] = store.status(pipeline=pipeline)
    return found


def test_what_is_published_is_counted_in_its_transaction(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    plan = planned(us, sent(backend, "a", 4.0), sent(backend, "b", 40.0))
    records = [bad(plan, one, "malformed-record", position="1") for one in "ab"]
    store.record_errors("s", "p", records)
    with store.database.begin() as connection:
        us.publish(plan, Split("/x", 7, 700), connection=connection)
        connection.rollback()
    assert the(store).total.batches == 0
    us.publish(plan, Split("/x", 7, 700), Split("/y", 1, 30), batch_id=3)
    us.publish(plan, Split("/again", 7, 700), batch_id=3)
    found = the(store)
    for amounts in (found.total, found.last_hour):
        assert (amounts.batches, amounts.rows, amounts.bytes, amounts.objects) == (1, 8, 730, 2)
        assert amounts.errors == {"malformed-record": 2}
    assert found.last_batch is not None
    batch = found.last_batch
    assert (batch.seq, batch.batch_id, batch.kind, batch.objects, batch.errors) == (1, 3, "attempt-output", 2, 2)
    assert batch.published_at == datetime.fromtimestamp(backend.clock.now, timezone.utc)
    assert found.last_hour.lag_p50 == pytest.approx(4.0, rel=0.1)
    assert found.last_hour.lag_p99 == pytest.approx(40.0, rel=0.1)


def test_a_killed_pipeline_leaves_what_it_has_published(backend: StoreBackend) -> None:
    """Nothing is written at its end: another process finds everything, and the next incarnation goes on with it."""
    first = backend.open()
    us = Pipeline.start(first)
    for name in "abc":
        us.deliver(name)
    first.close()
    other = backend.open()
    assert (the(other).total.batches, the(other).total.rows, the(other).total.objects) == (3, 3, 3)
    Pipeline.start(other).deliver("d")
    assert (the(other).total.batches, the(other).incarnation) == (4, 2)


def test_an_object_counts_when_its_end_is_published_and_not_if_it_is_bad(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    found = store.open_shards(us.token, "s", [sent(backend, "a", 5.0), sent(backend, "b", 5000.0)])
    a, b = sorted(found.values(), key=lambda shard: shard.content.shard_id)
    us.snapshot(a, b, ends=[Position(f"{4:020}"), Position("~" + f"{10:020}")])
    plan = us.plan()
    store.record_errors("s", "p", [bad(plan, "b", "corrupt-object", "object")])
    us.publish(plan, Split("/x", 1, 1))
    us.confirm()
    assert (the(store).total.objects, the(store).last_hour.lag_p99) == (0, None)
    us.snapshot(us.look("a")["a"])
    us.publish(us.plan(), Split("/y", 1, 1))
    assert the(store).total.objects == 1
    assert the(store).total.errors == {"corrupt-object": 1}
    assert the(store).last_hour.lag_p99 == pytest.approx(5.0, rel=0.1)


def test_what_another_sink_took_is_counted_when_it_is_confirmed_without_its_rows(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    planned(us, sent(backend, "a", 3.0))
    us.confirm()
    found = the(store)
    assert (found.total.batches, found.total.rows, found.total.objects) == (1, None, 1)
    assert found.rows_per_second is None
    assert found.last_hour.lag_p50 == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("semantics", list(Semantics))
def test_every_semantics_has_lags(backend: StoreBackend, semantics: Semantics) -> None:
    store = backend.open()
    us = Pipeline.start(store, semantics=semantics)
    content = sent(backend, "a", 3.0)
    if semantics.keeps_shards:
        planned(us, content)
    else:
        us.write(Range(shard_key("s", "a"), content, BEGINNING, end_at(10)))
        us.plan()
    us.confirm()
    assert the(store).last_hour.lag_p50 == pytest.approx(3.0, rel=0.1)


def test_the_time_of_a_message_outlives_its_reader(backend: StoreBackend) -> None:
    store = backend.open()
    Pipeline.start(store).store.open_shards(Pipeline.start(store).token, "s", [sent(backend, "a", 3.0)])
    started = store.start("s", "p", stale_after=STALE)
    [left] = started.unfinished
    us = Pipeline(store, started.token, "s")
    us.snapshot(left)
    us.publish(us.plan(), Split("/x", 1, 1))
    assert the(store).last_hour.lag_p50 == pytest.approx(3.0, rel=0.1)


def test_bad_messages_are_counted_once_by_cause(store: ShardStore) -> None:
    Pipeline.start(store)
    one, two = (ErrorRecord("message", "malformed-message", "why", f"m{i}", queue="q") for i in range(2))
    store.record_errors("s", "p", [one])
    store.record_errors("s", "p", [one, two])
    store.record_errors("s", "nobody", [ErrorRecord("message", "malformed-message", "why", "m9")])
    assert the(store).total.errors == {"malformed-message": 2}


def test_the_hours_of_a_pipeline_are_stored_when_they_are_over(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    begun = backend.clock.now - backend.clock.now % HOUR
    backend.clock.now = begun
    start = datetime.fromtimestamp(begun, timezone.utc)

    def batches() -> dict[float, int]:
        found = store.hours(since=start, pipeline="p")
        return {(hour.start - start).total_seconds() / HOUR: hour.published.batches for hour in found}

    def stored() -> int:
        return store.database.read(lambda t: t.execute(sa.select(sa.func.count()).select_from(history)).scalar_one())

    planned_lag = planned(us, sent(backend, "a", 100.0))
    us.publish(planned_lag, Split("/a", 5, 50))
    us.confirm()
    backend.clock.advance(1800)
    us.deliver("b")
    assert (batches(), stored()) == ({0: 2}, 0)
    backend.clock.advance(HOUR)
    us.deliver("c")
    assert (batches(), stored()) == ({0: 2, 1: 1}, 1)
    backend.clock.advance(3 * HOUR)
    store.heartbeat(us.token, STALE, Report(counters={"received": 3}))
    assert (batches(), stored()) == ({0: 2, 1: 1, 4: 0}, 2)
    first, *_, last = store.hours(since=start)
    local = start.astimezone().replace(tzinfo=None)
    assert store.hours(since=local) == store.hours(since=start)  # a time without a zone is of this machine, as ever
    assert (first.published.rows, first.published.bytes, first.published.objects) == (6, 51, 2)
    assert first.published.lag_p50 == pytest.approx(100.0, rel=0.1)
    assert last.published.messages == 3
    assert [hour.pipeline for hour in store.hours(since=start + timedelta(hours=2))] == ["p"]
    assert store.hours(since=start, source="other") == ()


def test_the_last_hour_slides(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.deliver("a")
    backend.clock.advance(50 * 60)
    us.deliver("b")
    assert the(store).last_hour.batches == 2
    backend.clock.advance(15 * 60)
    assert the(store).last_hour.batches == 1
    backend.clock.advance(HOUR)
    assert (the(store).last_hour.batches, the(store).total.batches) == (0, 2)
    assert the(store).rows_per_second == 0


def test_rates_are_of_the_last_minutes(backend: StoreBackend) -> None:
    store = backend.open()
    backend.clock.now -= backend.clock.now % 300
    us = Pipeline.start(store)
    plan = us.planned("a")
    us.publish(plan, Split("/x", 600, 6000))
    backend.clock.advance(60)
    found = the(store)
    assert found.rows_per_second == pytest.approx(600 / 360)
    assert found.bytes_per_second == pytest.approx(6000 / 360)


def test_what_is_kept_of_a_pipeline_is_bounded(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)

    def size() -> int:
        return len(store.database.read(lambda t: t.execute(sa.select(pipelines.c.activity)).scalar_one()) or "")

    sizes = []
    for number in range(30):
        plan = planned(us, *(sent(backend, f"{number}/{i}", 3.0**i) for i in range(12)))
        records = [bad(plan, f"{number}/{i}", f"cause {number} {i}", position=str(i)) for i in range(12)]
        store.record_errors("s", "p", records)
        us.publish(plan, Split(f"/{number}", 1, 1))
        us.confirm()
        backend.clock.advance(600)
        sizes.append(size())
    assert max(sizes[20:]) <= 1.2 * max(sizes[6:20])
    assert max(sizes) < 16_000
    assert sum(the(store).total.errors.values()) == 360


def test_the_history_is_pruned_after_a_quarter_of_a_year_or_the_window(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    for _ in range(2):
        us.deliver(f"at {backend.clock.now}")
        backend.clock.advance(HOUR)
    us.deliver("last")
    now = datetime.fromtimestamp(backend.clock.now, timezone.utc)
    assert store.prune(RetentionPolicy(), now + timedelta(days=80)).history == 0
    assert store.prune(RetentionPolicy(window=timedelta(days=120)), now + timedelta(days=100)).history == 0
    assert store.prune(RetentionPolicy(source="other"), now + timedelta(days=100)).history == 0
    assert store.prune(RetentionPolicy(), now + timedelta(days=100)).history == 2


def test_a_pipeline_runs_stops_or_is_dead(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    assert the(store).state == RUNNING
    assert (the(store).in_flight, the(store).queue_depth) == (None, None)  # it has not said so yet
    store.heartbeat(us.token, STALE, Report(5, 4, 3, 2, 1, {"received": 10}))
    found = the(store)
    assert (found.in_flight, found.ready, found.awaiting_commit, found.held, found.queue_depth) == (5, 4, 3, 2, 1)
    backend.clock.advance(STALE + 1)
    found = the(store)
    assert (found.state, found.in_flight, found.silence) == (DEAD, None, STALE + 1)
    again = Pipeline.start(store)
    assert (the(store).state, the(store).in_flight) == (RUNNING, None)  # that was said by the one before
    store.retire(again.token, Report(counters={"received": 12}, stopped=True))
    assert (the(store).state, the(store).counters) == (STOPPED, {"received": 12})
    backend.clock.advance(STALE + 1)
    assert the(store).state == STOPPED


def test_a_reader_that_was_replaced_reports_nothing(store: ShardStore) -> None:
    old = Pipeline.start(store)
    new = Pipeline.start(store)
    store.heartbeat(new.token, STALE, Report(counters={"received": 1}))
    store.retire(old.token, Report(counters={"received": 9}, stopped=True))
    assert (the(store).state, the(store).counters) == (RUNNING, {"received": 1})


def test_counters_go_on_after_a_restart_and_messages_are_counted_once(store: ShardStore) -> None:
    us = Pipeline.start(store)
    report = Report(counters={"received": 4, "duplicates": 1})
    store.heartbeat(us.token, STALE, report)
    store.heartbeat(us.token, STALE, report)
    assert the(store).total.messages == 4
    assert store.start("s", "p", stale_after=STALE).counters == {"received": 4, "duplicates": 1}
    assert the(store).counters == {"received": 4, "duplicates": 1}


def test_a_start_says_where_it_runs(store: ShardStore) -> None:
    store.start("s", "p", runtime=Runtime("h" * 300, "4.0.5", "0.2.0"))
    found = the(store)
    assert (found.host, found.spark_version, found.cuesqueue_version) == ("h" * 255, "4.0.5", "0.2.0")
    store.start("s", "p")  # somewhere else, where nobody knows
    assert (the(store).host, the(store).spark_version) == (None, None)


def test_the_plan_that_is_under_way_is_shown_with_its_attempts(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    assert the(store).plan is None
    us.planned("a")
    started = store.start("s", "p", stale_after=STALE)
    again = Pipeline(store, started.token, "s", started.last_seq, started.confirmed_seq)
    plan = again.plan()
    shown = the(store).plan
    assert shown is not None
    assert (shown.start_seq, shown.end_seq, shown.attempt) == (0, 1, 2)
    assert shown.delivery_hash == plan.identity.delivery_hash
    again.publish(plan, Split("/x", 1, 1))
    assert the(store).plan is None


def test_a_batch_that_takes_more_than_ten_times_its_usual_time_is_shown(backend: StoreBackend) -> None:
    """Its reader lives and sends heartbeats, so nobody takes its shards over."""
    store = backend.open()
    us = Pipeline.start(store)
    for number, seconds in enumerate((9, 12, 500)):
        plan = planned(us, sent(backend, f"{number}", 0))
        backend.clock.advance(seconds)
        us.publish(plan, Split(f"/{number}", 1, 1))
    planned(us, sent(backend, "long", 0))
    shown = []
    for seconds in (59, 60, 2):
        backend.clock.advance(seconds)
        current = the(store).plan
        assert current is not None
        text = dict(status_lines(the(store)))["plan"]
        shown.append((current.seconds, current.usual_seconds, current.is_slow, text))
    assert shown == [
        (59, None, False, "0-4 is under way, attempt 1"),
        (119, 12, False, "0-4 is under way, attempt 1"),
        (121, 12, True, "0-4 is under way, attempt 1, for 2 min, usually 12 s"),
    ]


def test_what_waits_is_as_old_as_its_message(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    assert (the(store).files_outstanding, the(store).oldest_age) == (0, None)
    store.open_shards(us.token, "s", [sent(backend, "a", 30.0)])
    backend.clock.advance(10)
    us.open("b")
    Pipeline.start(store, "other").open("c")
    assert (the(store).files_outstanding, the(store).oldest_age) == (2, 40.0)
    assert the(store, "other").oldest_age == 0.0  # its message says no time: since it was received
    store.open_shards(us.token, "s", [sent(backend, "d", 3600.0)])
    assert the(store).oldest_age == 3600.0, "a queue may hand out the newest messages first"


def test_an_object_that_a_person_opens_again_has_no_lag(backend: StoreBackend) -> None:
    from shard_store.shards.changes import Audit

    store = backend.open()
    us = Pipeline.start(store)
    plan = planned(us, sent(backend, "a", 5.0))
    store.record_errors("s", "p", [bad(plan, "a", "corrupt-object", "object")])
    us.publish(plan)
    us.confirm()
    backend.clock.advance(100_000)
    store.put_back([us.look("a")["a"].key], Audit("me", "repaired"), message_uri="message:")
    [shard] = us.look("a").values()
    us.snapshot(shard)
    us.publish(us.plan(), Split("/x", 1, 1))
    assert (the(store).last_hour.objects, the(store).last_hour.lag_p99) == (1, None)


def test_listings_and_certificates_are_those_of_the_source(backend: StoreBackend) -> None:
    from shard_store.completeness.comparing import Category, Scope, Tally

    store = backend.open()
    us = Pipeline.start(store)
    Pipeline.start(store, "elsewhere", "t")
    claim = store.claim_listing(us.token, "s", "s3://b/", 60.0)
    assert claim is not None
    now = round(backend.clock.now * 1_000_000)
    found = [Found(Content("x", "x", 1, None, LISTING), now)]
    store.compare_listed(us.token, claim, found, objects=1, cursor=None, grace=0.0, clock=lambda: now)
    for category in (Category.MISSING, Category.PUBLISHED):
        tally = Tally()
        tally.add("x", 1, None, category)
        store.certify(Scope("s", "s3://b/", None, 1, "{}"), "listing", tally, "me")
    shown = the(store)
    assert shown.backfill is not None
    assert (shown.backfill.prefix, shown.backfill.objects, shown.backfill.ended_at is None) == ("s3://b/", 1, False)
    assert shown.certificate is not None
    assert (shown.certificate.prefix, shown.certificate.verdict) == ("s3://b/", "complete")
    assert (the(store, "elsewhere").backfill, the(store, "elsewhere").certificate) == (None, None)


def test_a_listing_that_fails_and_an_incomplete_certificate_are_not_hidden_by_other_prefixes(
    backend: StoreBackend,
) -> None:
    from shard_store.completeness.comparing import Category, Scope, Tally

    def certify(prefix: str, category: Category) -> None:
        tally = Tally()
        tally.add("x", 1, None, category)
        store.certify(Scope("s", prefix, None, 1, "{}"), "listing", tally, "me")

    def shown() -> tuple[tuple[str, int], tuple[str, str]]:
        listed, certified = the(store).backfill, the(store).certificate
        assert listed is not None
        assert certified is not None
        return (listed.prefix, listed.failures), (certified.prefix, certified.verdict)

    store = backend.open()
    us = Pipeline.start(store)
    certify("s3://b/", Category.MISSING)
    certify("s3://c/", Category.PUBLISHED)
    assert store.claim_listing(us.token, "s", "s3://b/", 60.0) is not None
    store.fail_listing(us.token, "s", "s3://b/")
    backend.clock.now += 1
    assert store.claim_listing(us.token, "s", "s3://c/", 60.0) is not None
    assert shown() == (("s3://b/", 1), ("s3://b/", "incomplete"))
    backend.clock.now += 25 * 3600  # neither is looked at any more, as where a prefix has another name now
    certify("s3://c/", Category.PUBLISHED)
    certify("s3://e/", Category.BEYOND_MEMORY)
    assert store.claim_listing(us.token, "s", "s3://c/", 60.0, at_once=True) is not None
    assert shown() == (("s3://c/", 0), ("s3://e/", "unknown"))
    certify("s3://e/", Category.PUBLISHED)
    assert shown()[1] == ("s3://e/", "complete")


def test_pipelines_are_chosen_by_source_and_name(store: ShardStore) -> None:
    for name, source in (("b", "s"), ("a", "s"), ("c", "t")):
        Pipeline.start(store, name, source)
    assert [one.pipeline for one in store.status()] == ["a", "b", "c"]
    assert [one.pipeline for one in store.status(source="s")] == ["a", "b"]
    assert [one.pipeline for one in store.status(pipeline="c")] == ["c"]
    assert store.status(pipeline="nobody") == ()


def test_complaints_are_about_what_the_limits_say(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    store.open_shards(us.token, "s", [sent(backend, "a", 600.0)])
    store.record_errors("s", "p", [ErrorRecord("message", "malformed-message", "why", "m")])
    found = the(store)
    assert complaints(found, StatusLimits()) == ()
    assert complaints(found, StatusLimits(timedelta(minutes=11), timedelta(seconds=30), 1)) == ()
    assert complaints(found, StatusLimits(max_lag=timedelta(minutes=9))) == (
        "its oldest message has waited for 0:10:00",
    )
    assert complaints(found, StatusLimits(max_errors=0)) == ("1 error in the last hour",)
    backend.clock.advance(40)
    assert complaints(the(store), StatusLimits(max_silence=timedelta(seconds=30))) == (
        "its last heartbeat was 0:00:40 ago",
    )
    backend.clock.advance(STALE)
    assert complaints(the(store), StatusLimits()) == ("its heartbeats ended 0:01:40 ago, and it was not stopped",)


def test_what_a_reader_took_in_lately_outlives_it_until_the_next_one_says_otherwise(store: ShardStore) -> None:
    started = store.start("s", "p", stale_after=STALE)
    assert started.intake == Intake()
    store.heartbeat(started.token, STALE, Report(intake=Intake(0, 3)))
    assert the(store).all_outside == 3
    (complaint,) = complaints(the(store), StatusLimits())
    assert "outside of allowedPrefixes (3 message(s))" in complaint
    assert f"--cause {OUTSIDE_PREFIXES}`" in complaint
    store.retire(started.token, Report(intake=Intake(0, 4), stopped=True))
    assert the(store).all_outside == 4
    started = store.start("s", "p", stale_after=STALE)
    assert (the(store).all_outside, started.intake) == (4, Intake(0, 4))
    store.heartbeat(started.token, STALE, Report(intake=Intake(1, 4)))
    assert (the(store).all_outside, complaints(the(store), StatusLimits())) == (0, ())


def test_a_reader_that_published_after_its_last_report_is_not_one_that_reads_nothing(backend: StoreBackend) -> None:
    us = Pipeline.start(backend.open())
    us.store.heartbeat(us.token, STALE, Report(intake=Intake(0, 3)))
    plan = planned(us, sent(backend, "a", 4.0))
    assert the(us.store).all_outside == 3
    backend.clock.advance(1)
    us.publish(plan, Split("/x", 1, 1))
    assert the(us.store).all_outside == 0


def test_status_takes_a_few_statements_however_many_pipelines_there_are(store: ShardStore) -> None:
    from .test_store_statements import counting

    for number in range(20):
        Pipeline.start(store, f"p{number}").open(f"of {number}")
    with counting(store.database) as counts:
        assert len(store.status()) == 20
    assert len([text for text in counts.texts if "cuesqueue_" in text]) == 5


def test_an_object_that_is_announced_again_waits_since_its_new_message(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    plan = planned(us, sent(backend, "a", 5000.0))
    store.record_errors("s", "p", [bad(plan, "a", "missing-object", "object")])
    us.publish(plan)
    us.confirm()
    [shard] = store.open_shards(us.token, "s", [sent(backend, "a", 20.0)._replace(message_id="another")]).values()
    assert shard.reopened
    assert the(store).oldest_age == 20.0
    us.snapshot(us.look("a")["a"])
    us.publish(us.plan(), Split("/x", 1, 1))
    assert the(store).last_hour.lag_p99 == pytest.approx(20.0, rel=0.1)


def test_an_object_whose_error_a_person_requeues_has_no_lag(backend: StoreBackend) -> None:
    from shard_store.error_table import search
    from shard_store.error_table.search import Criteria

    store = backend.open()
    us = Pipeline.start(store)
    plan = planned(us, sent(backend, "a", 5000.0))
    store.record_errors("s", "p", [bad(plan, "a", "corrupt-object", "object")])
    us.publish(plan)
    us.confirm()
    [found] = [error for page in search.pages(store.database, Criteria()) for error in page]
    store.reopen([found])
    store.acquire(us.token, dict.fromkeys([shard.key for shard in us.look("a").values()]))
    us.snapshot(us.look("a")["a"])
    us.publish(us.plan(), Split("/x", 1, 1))
    assert (the(store).last_hour.objects, the(store).last_hour.lag_p99) == (1, None)


def test_a_snapshot_that_was_written_is_known_again_with_the_times_of_its_messages(backend: StoreBackend) -> None:
    """Its commit was not reported: the call is repeated with the same ranges."""
    store = backend.open()
    us = Pipeline.start(store)
    found = store.open_shards(us.token, "s", [sent(backend, "a", 9.0), sent(backend, "b", 3.0)]).values()
    ranges = us.snapshot(*found)
    store.advance(us.token, snapshot=(us.seq, ranges))
    us.publish(us.plan(), Split("/x", 1, 1))
    assert the(store).last_hour.lag_p99 == pytest.approx(9.0, rel=0.1)


def test_objects_of_messages_without_a_time_have_no_lag_and_the_others_have(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    plan = planned(
        us, sent(backend, "a", 9.0), sent(backend, "b", 9.0)._replace(sent_at=None), sent(backend, "c", -5.0)
    )
    us.publish(plan, Split("/x", 1, 1))
    found = the(store).last_hour
    assert (found.objects, found.lag_p50) == (3, 0.01)  # a clock that is ahead: no time at all
    assert found.lag_p99 == pytest.approx(9.0, rel=0.1)


def test_the_last_hour_is_read_in_slots_of_five_minutes(backend: StoreBackend) -> None:
    store = backend.open()
    first, second = Pipeline.start(store, "p"), Pipeline.start(store, "q")
    backend.clock.now += 300 - backend.clock.now % 300
    started = backend.clock.now
    first.deliver("a", "b")
    second.deliver("c")
    backend.clock.now += 301
    first.deliver("d")
    found = [(s.pipeline, s.start.timestamp() - started, s.published.objects) for s in store.recent()]
    assert found == [("p", 0, 2), ("q", 0, 1), ("p", 300, 1)]
    assert [s.pipeline for s in store.recent(pipeline="q")] == ["q"]
    assert [s.pipeline for s in store.recent(source="nobody")] == []
    backend.clock.now += 2 * HOUR
    assert store.recent() == ()


def test_the_latest_certificates_come_first_and_without_their_uris(backend: StoreBackend) -> None:
    store = backend.open()
    tally = Tally()
    tally.add("s3://a/b", 1, None, Category.MISSING)
    for number in range(3):
        store.certify(Scope(f"s{number}", "s3://a/", None, 1, "{}"), "listing", tally, "somebody")
    found = store.latest_certificates(limit=2)
    assert [one.scope.source for one in found] == ["s2", "s1"]
    assert [(one.verdict, one.objects, dict(one.unpublished)) for one in found] == [("incomplete", 1, {})] * 2
