"""Contract: the views show every row once, by names that do not change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from shard_store.errors import StoreConfigurationError
from shard_store.model import ErrorRecord, Split, shard_key
from shard_store.operators import views
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import STALE, Pipeline, StoreBackend, rows


def test_a_shard_is_shown_with_its_token_and_its_owners_last_heartbeat(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    us.open("a")
    opened = round(backend.clock.now * 1_000_000)
    backend.clock.advance(5)
    store.heartbeat(us.token, STALE)
    assert rows(store, "shards") == [
        {
            "source": "s",
            "shard_id": "a",
            "state": "open",
            "position": "",
            "size": 10,
            "etag": None,
            "queue": "queue",
            "message_id": "message of a",
            "receive_count": 1,
            "pipeline": "p",
            "publish_token": "p/1",
            "end_seq": None,
            "opened_at": opened,
            "finished_at": None,
            "last_heartbeat": opened + 5_000_000,
            "pending": None,
            "shard_key": shard_key("s", "a"),
        }
    ]


def test_a_released_shard_is_shown_without_a_token(store: ShardStore) -> None:
    us = Pipeline.start(store)
    store.release(us.token, [us.open("a")["a"].key])
    [row] = rows(store, "shards")
    assert (row["pipeline"], row["publish_token"], row["last_heartbeat"]) == (None, None, None)


def test_views_can_be_asked_for_one_source_or_pipeline(store: ShardStore) -> None:
    for name, source in (("p", "s"), ("q", "s"), ("r", "t")):
        us = Pipeline.start(store, name, source)
        us.deliver(f"of {name}")
        store.record_errors(source, name, [ErrorRecord("message", "c", "", f"m {name}", input=b"\0")])

    def found(source: str | None = None, pipeline: str | None = None) -> list[int]:
        return [sum(len(page) for page in store.pages(v, source=source, pipeline=pipeline)) for v in of_pipelines]

    of_pipelines = [view for view in views.VIEWS if view not in ("completeness", "cleanings")]  # of sources
    assert found() == [3] * len(of_pipelines)
    assert found(source="s") == [2] * len(of_pipelines)
    assert found(pipeline="p") == [1] * len(of_pipelines)
    assert found(source="t", pipeline="p") == [0] * len(of_pipelines)


@pytest.mark.parametrize("count", [0, 4, 5, 11])
def test_pages_hold_every_row_once(store: ShardStore, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(views, "PAGE", 5)
    us = Pipeline.start(store)
    us.deliver(*(f"k{i}" for i in range(count)))
    for i in range(count):
        us.publish(us.plan(), Split(f"/x{i}", 1, 1), batch_id=i)
    shown = [row[1] for page in store.pages("shards") for row in page]
    assert sorted(shown) == sorted(f"k{i}" for i in range(count))
    assert all(len(page) <= 5 for view in views.VIEWS for page in store.pages(view))
    assert sum(len(page) for page in store.pages("splits")) == 1 + count


# --- what was published when ---


def splits_as_of(store: ShardStore, time: datetime | None = None, attempt: str | None = None) -> list[str]:
    return [row[0] for page in store.pages("splits", as_of=views.AsOf(time, attempt)) for row in page]


def test_splits_are_shown_as_of_a_time_or_an_attempt(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other")
    hashes, times = [], []
    for number in range(3):
        times.append(datetime.fromtimestamp(backend.clock.now, timezone.utc))
        hashes.append(us.deliver(f"k{number}").identity.delivery_hash)
        other.deliver(f"o{number}")  # at the same microsecond
        backend.clock.advance(60)
    assert [splits_as_of(store, time) for time in times] == [
        [f"/split-{n}" for n in (1, 1, 2, 2, 3, 3)][: 2 * i] for i in (1, 2, 3)
    ]
    assert splits_as_of(store, times[0] - timedelta(microseconds=1)) == []
    assert [len(splits_as_of(store, attempt=digest)) for digest in hashes] == [1, 3, 5]
    with pytest.raises(StoreConfigurationError, match="asOfAttempt"):
        splits_as_of(store, attempt="ab" * 32)


def test_an_attempt_without_rows_shows_what_was_there_before_it(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    first = us.planned("nothing")
    us.publish(first)
    us.confirm()
    backend.clock.advance(1)
    us.deliver("a")
    backend.clock.advance(1)
    second = us.planned("nothing either")
    us.publish(second)
    found = [splits_as_of(store, attempt=plan.identity.delivery_hash) for plan in (first, second)]
    assert found == [[], ["/split-2"]]


def test_what_is_published_can_be_seen_as_of_an_attempt_that_is_pruned(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    digest = us.deliver("a").identity.delivery_hash
    us.deliver("b")
    backend.clock.advance(1)
    us.deliver("c")  # the last attempt is kept
    backend.clock.advance(100 * 86400)
    assert store.prune(RetentionPolicy(timedelta(days=30))).attempts == 2
    assert splits_as_of(store, attempt=digest) == ["/split-1"]


# --- the state of files ---


def test_files_state_tells_of_each_file_when_it_was_found_planned_and_published(backend: StoreBackend) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    (found, planned, published), step = (round(backend.clock.now * 1_000_000) + n * 1_000_000 for n in range(3)), 1
    shards = us.open("a", "b")
    backend.clock.advance(step)
    us.snapshot(shards["a"])
    backend.clock.advance(step)
    plan = us.plan()
    us.publish(plan, Split("/x", 7, 1), batch_id=4)
    done, still = sorted(rows(store, "files_state"), key=lambda row: str(row["path"]))
    assert done == {
        "path": "a",
        "size": 10,
        "state": "done",
        "source": "s",
        "pipeline": "p",
        "discovery_time": found,
        "processed_time": planned,
        "commit_time": published,
        "rows": 7,
        "queue": "queue",
        "message_id": "message of a",
        "receive_count": 1,
        "shard_id": "a",
        "delivery_hash": plan.identity.delivery_hash,
        "attempt": "attempt-output",
        "batch_id": 4,
        "batch_files": 1,
        "batch_rows": 7,
        "batch_splits": 1,
        "split": "/x",
    }
    unknown = {name for name, value in still.items() if value is None}
    assert (still["path"], still["state"], still["discovery_time"]) == ("b", "open", found)
    assert unknown == {
        *("processed_time", "commit_time", "rows", "delivery_hash", "attempt", "batch_id"),
        *("batch_files", "batch_rows", "batch_splits", "split"),
    }


def test_files_state_has_one_row_a_file_and_says_nothing_of_a_file_that_only_its_batch_knows(
    store: ShardStore,
) -> None:
    orders, payments = Pipeline.start(store, "orders", "s1"), Pipeline.start(store, "payments", "s2")
    plans = [orders.planned("a", "b").identity, payments.planned("c").identity]
    splits = [Split("/x", 7, 1), Split("/y", 8, 1)]
    store.publish(plans, splits, batch_id=0)
    store.publish(plans, [Split("/z", 1, 1)], batch_id=1)  # a batch without input: the same offsets
    told = {
        str(row["path"]): (row["rows"], row["batch_rows"], row["batch_splits"], row["split"])
        for row in rows(store, "files_state")
    }
    assert told == {"a": (None, 15, 2, None), "b": (None, 15, 2, None), "c": (None, None, 2, None)}
    assert len(rows(store, "files_state")) == 3


# --- files that no transaction published ---


def test_a_split_is_found_by_its_name_whatever_its_folder_is_called(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.publish(us.planned("a"), *(Split(f"s3://bucket/folder/split-{n}.parquet", 1, 1) for n in range(1500)))
    asked = [f"s3a://bucket/folder/split-{n}.parquet" for n in range(1400, 1600)]
    assert store.published_names(asked) == set(asked[:100])
    assert store.published_names([]) == set()
