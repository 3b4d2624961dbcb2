"""Contract: the views show every row once, by names that do not change."""

from __future__ import annotations

import pytest

from contracts.store_backends import STALE, Pipeline, StoreBackend, rows
from shard_store import views
from shard_store.model import ErrorRecord, Split
from shard_store.store import ShardStore


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

    def found(**which: str) -> list[int]:
        return [sum(len(page) for page in store.pages(view, **which)) for view in views.VIEWS]

    assert found() == [3] * len(views.VIEWS)
    assert found(source="s") == [2] * len(views.VIEWS)
    assert found(pipeline="p") == [1] * len(views.VIEWS)
    assert found(source="t", pipeline="p") == [0] * len(views.VIEWS)


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
