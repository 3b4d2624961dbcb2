"""Contract: what `/metrics` exports is what the store knows, over each database; names and labels keep the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from queue_source.serve import metrics
from queue_source.serve.metrics import METRICS, OWN, ROUTED, Export
from queue_source.serve.reads import StoreReads
from shard_store.completeness.comparing import Category, Scope, Tally
from shard_store.model import ErrorRecord, Position, Runtime, Split
from shard_store.shards.activity import Report
from shard_store.shards.recording import Receipts
from shard_store.store import ShardStore
from support.store_backends import STALE, Pipeline, StoreBackend, content


@pytest.fixture
def reads(store: ShardStore) -> Iterator[StoreReads]:
    opened = StoreReads(store, time_out=60.0)
    yield opened
    opened.close()


def scraped(reads: StoreReads) -> list[Sample]:
    reads._shared.clear()  # as if a second had gone by
    text, content_type = Export(reads).text("")
    assert content_type.startswith("text/plain")
    return [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    [found] = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    return float(found)


def test_counters_and_gauges_are_those_of_status(backend: StoreBackend, store: ShardStore, reads: StoreReads) -> None:
    us = Pipeline.start(store, "orders", "landing")
    plan = us.planned("a", "b")
    store.record_errors(
        "landing",
        "orders",
        [ErrorRecord("record", "malformed-record", "why", "a", plan.identity.delivery_hash, Position("1"))],
    )
    us.publish(plan, Split("/x", 7, 700))
    us.confirm()
    us.open("c")
    store.heartbeat(us.token, stale_after=STALE, report=Report(5, 4, 3, 2, 100, {"received": 9}, elsewhere=7))
    backend.clock.now += 12
    found = scraped(reads)
    of = {"pipeline": "orders", "source": "landing"}
    for name, wanted in {
        "cuesqueue_published_batches_total": 1,
        "cuesqueue_published_objects_total": 2,
        "cuesqueue_published_rows_total": 7,
        "cuesqueue_published_bytes_total": 700,
        "cuesqueue_received_messages_total": 9,
        "cuesqueue_pipeline_starts_total": 1,
        "cuesqueue_waiting_objects": 1,
        "cuesqueue_oldest_waiting_seconds": 12,
        "cuesqueue_heartbeat_age_seconds": 12,
        "cuesqueue_in_flight_messages": 5,
        "cuesqueue_ready_objects": 4,
        "cuesqueue_planned_objects": 3,
        "cuesqueue_held_objects": 2,
        "cuesqueue_queue_messages": 100,
        "cuesqueue_in_flight_elsewhere_messages": 7,
        "cuesqueue_pipeline_failed": 0,
        "cuesqueue_plan_attempts": 0,
        "cuesqueue_heartbeat_timestamp_seconds": backend.clock.now - 12,
    }.items():
        assert value(found, name, **of) == pytest.approx(wanted), name
    assert value(found, "cuesqueue_errors_total", cause="malformed-record", **of) == 1
    assert value(found, "cuesqueue_reader_events_total", event="received", **of) == 9
    assert value(found, "cuesqueue_pipeline_state", state="running", **of) == 1
    assert value(found, "cuesqueue_pipeline_state", state="dead", **of) == 0
    assert value(found, "cuesqueue_pipelines") == 1
    assert value(found, "cuesqueue_scrape_success") == 1


def test_a_dead_pipeline_is_exported_and_holds_nothing(
    backend: StoreBackend, store: ShardStore, reads: StoreReads
) -> None:
    Pipeline.start(store).open("a")
    backend.clock.now += 2 * STALE
    found = scraped(reads)
    assert value(found, "cuesqueue_pipeline_state", state="dead") == 1
    assert value(found, "cuesqueue_pipeline_state", state="running") == 0
    assert value(found, "cuesqueue_oldest_waiting_seconds") == pytest.approx(2 * STALE)
    assert not [s for s in found if s.name == "cuesqueue_in_flight_messages"]


def test_what_a_stopped_reader_has_left_and_what_has_ended_it_are_exported(
    backend: StoreBackend, store: ShardStore, reads: StoreReads
) -> None:
    us = Pipeline.start(store)
    store.release(us.token, [shard.key for shard in us.open("a", "b").values()])
    store.retire(us.token, Report(stopped=True, failure="why"))
    backend.clock.now += 12
    found = scraped(reads)
    assert value(found, "cuesqueue_pipeline_failed", pipeline="p") == 1
    assert value(found, "cuesqueue_oldest_waiting_seconds", pipeline="p") == pytest.approx(12)


def test_what_is_of_a_source_is_exported_once(store: ShardStore, reads: StoreReads) -> None:
    for name in ("one", "two"):
        Pipeline.start(store, name, "shared")
    tally = Tally()
    tally.add("s3://a/b", 1, None, Category.MISSING)
    store.certify(Scope("shared", "s3://a/", None, 1, "{}"), "listing", tally, "somebody")
    found = scraped(reads)
    assert value(found, "cuesqueue_certificate_verdict", source="shared", verdict="incomplete") == 1
    assert value(found, "cuesqueue_certificate_verdict", source="shared", verdict="complete") == 0


def test_receivers_are_exported_with_what_they_have_recorded(
    backend: StoreBackend, store: ShardStore, reads: StoreReads
) -> None:
    store.start_receiver("landing", "queue", "host", ["a", "b"])
    store.record("landing", {"a": [content("x"), content("y")], "b": [content("x")]}, Receipts(2, unrouted=1))
    backend.clock.now += 30
    found = scraped(reads)
    assert value(found, "cuesqueue_receiver_events_total", receiver="landing", event="recorded") == 3
    assert value(found, "cuesqueue_receiver_events_total", receiver="landing", event="unrouted") == 1
    assert value(found, "cuesqueue_receiver_silence_seconds", receiver="landing") == pytest.approx(30)
    assert value(found, "cuesqueue_recorded_objects", source="a") == 2
    assert value(found, "cuesqueue_recorded_oldest_seconds", source="b") == pytest.approx(30)


def test_every_metric_that_is_exported_is_in_the_table(store: ShardStore, reads: StoreReads) -> None:
    known = {m.name: {*m.all_labels} for m in METRICS} | {name: {*labels} for name, (_, labels) in OWN.items()}
    known |= {m.name: {*m.labels} for m in ROUTED}
    store.start_receiver("r", "queue", "host", ["s"])
    store.record("r", {"s": [content("x")]}, Receipts(1))
    us = Pipeline.start(store)
    us.deliver("a")
    runtime = Runtime("host-7", "4.2.1", "0.2.0")
    store.start("s", "q", driver="", stale_after=STALE, runtime=runtime)
    for sample in scraped(reads):
        assert known[sample.name] == set(sample.labels)


def test_names_keep_the_rules_of_prometheus() -> None:
    names = [*(m.name for m in METRICS), *(m.name for m in ROUTED), *OWN]
    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"cuesqueue_[a-z0-9]+(_[a-z0-9]+)*", name)
        assert not re.search(r"_(ms|millis|minutes|hours|kb|mb|percent|count|sum|bucket)(_|$)", name)
    for metric in METRICS:
        assert not set(metric.all_labels) & {"le", "quantile", "job", "instance"}
        assert metric.help.endswith(".")


def test_labels_are_bounded(store: ShardStore, reads: StoreReads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PIPELINES", 3)
    for number in range(5):
        Pipeline.start(store, f"p{number}", "s")
    us = Pipeline.start(store, "p0", "s")
    plan = us.planned("a")
    digest = plan.identity.delivery_hash
    records = [ErrorRecord("record", f"cause-{n}", "", "a", digest, Position(str(n))) for n in range(60)]
    store.record_errors("s", "p0", records)
    us.publish(plan, Split("/x", 1, 1))
    found = scraped(reads)
    assert {s.labels["pipeline"] for s in found if "pipeline" in s.labels} == {"p0", "p1", "p2"}
    assert value(found, "cuesqueue_pipelines") == 5
    assert 50 <= len([s for s in found if s.name == "cuesqueue_errors_total"]) <= 51
    assert metrics._label("\ud800" + "x" * 1000) == "\\ud800" + "x" * 194


def test_scrapes_do_not_write(backend: StoreBackend, store: ShardStore, reads: StoreReads) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    before = store.status()
    backend.clock.now += timedelta(hours=3).total_seconds()
    scraped(reads)
    backend.clock.now -= timedelta(hours=3).total_seconds()
    assert store.status() == before
