"""A running query prunes its own source, by its own window."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from shard_store.sql.schema import shards
from shard_store.store import ShardStore
from support.coordinator_world import World, patiently
from support.driver_loop import until
from support.store_backends import Pipeline, rows

DAY = timedelta(days=1) // timedelta(microseconds=1)


def finished(store: ShardStore, source: str, name: str, days_ago: int) -> None:
    """Deliver a shard as if so many days ago, by a pipeline that has ended since."""
    Pipeline.start(store, f"earlier, of {source}", source).deliver(name)
    this = shards.update().where(shards.c.shard_id == name)
    store.database.write(lambda t: t.execute(this.values(finished_at=t.now() - days_ago * DAY)))


def names(store: ShardStore) -> set[str]:
    return {row["shard_id"] for row in rows(store, "shards")}


def test_a_running_query_prunes_what_is_older_than_its_window_and_of_its_source(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.store() as store:
        finished(store, "ours", "beyond our window", days_ago=20)
        finished(store, "ours", "within our window", days_ago=5)
        finished(store, "another", "another's", days_ago=20)
        with world.loop(source="ours", deduplicationWindow="10 days") as loop:
            until(lambda: "beyond our window" not in names(store), patiently(loop))
            assert names(store) == {"within our window", "another's"}


def test_a_running_query_keeps_what_is_within_a_longer_window_than_the_default(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.store() as store:
        finished(store, "ours", "beyond our window", days_ago=100)
        finished(store, "ours", "within our window", days_ago=50)
        with world.loop(source="ours", deduplicationWindow="60 days") as loop:
            until(lambda: "beyond our window" not in names(store), patiently(loop))
            assert names(store) == {"within our window"}
