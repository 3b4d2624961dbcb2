"""Contract: the files of the view `data` are divided by the database and listed by its tasks, never all in one list."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone
from typing import Any

import pytest

from shard_store.model import Split
from shard_store.operators import views
from shard_store.operators.views import OPENING, AsOf, DataFiles
from shard_store.store import ShardStore
from support.store_backends import Pipeline, StoreBackend

MEGABYTE = 1 << 20


def listed(store: ShardStore, parts: list[DataFiles]) -> list[list[str]]:
    return [list(store.paths(part)) for part in parts]


@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_every_file_is_in_one_part_and_parts_have_about_one_size(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(views, "PAGE", 3)
    us = Pipeline.start(store)
    us.publish(us.planned("a"), *(Split(f"/{n}", 1, (n % 5) * 10 * MEGABYTE) for n in range(count)))
    found = listed(store, store.data_files(64 * MEGABYTE))
    assert [path for part in found for path in part] == [f"/{n}" for n in range(count)]
    costs = [sum((int(path[1:]) % 5) * 10 * MEGABYTE + OPENING for path in part) for part in found]
    assert all(cost <= 64 * MEGABYTE + 40 * MEGABYTE + OPENING for cost in costs)
    assert len(found) <= 1 + sum(costs) // (64 * MEGABYTE)


def test_what_is_planned_is_a_few_numbers_for_each_task(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.publish(us.planned("a"), *(Split(f"/{n}", 1, 1) for n in range(5000)))
    parts = store.data_files(128 * MEGABYTE)
    assert len(parts) == -(-5000 * (OPENING + 1) // (128 * MEGABYTE))
    assert max(len(pickle.dumps(part)) for part in parts) < 300
    assert sum(len(part) for part in listed(store, parts)) == 5000


def test_files_are_chosen_by_pipeline_source_time_and_attempt(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    first = us.deliver("a").identity.delivery_hash
    at = datetime.fromtimestamp(backend.clock.now, timezone.utc)
    backend.clock.advance(1)
    other.deliver("b")
    us.deliver("c")

    def found(**chosen: Any) -> int:
        return sum(len(part) for part in listed(store, store.data_files(MEGABYTE, **chosen)))

    assert found() == 3
    assert (found(pipeline="p"), found(source="t"), found(pipeline="p", source="t")) == (2, 1, 0)
    assert (found(as_of=AsOf(time=at)), found(as_of=AsOf(attempt=first))) == (1, 1)


def test_what_is_published_after_the_planning_is_in_no_part(store: ShardStore) -> None:
    us = Pipeline.start(store)
    us.deliver("a")
    parts = store.data_files(MEGABYTE)
    us.deliver("b")
    assert listed(store, parts) == [["/split-1"]]
