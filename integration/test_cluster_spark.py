"""What is promised holds on a cluster: two workers, each with its own folder, and the package installed or shipped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from engine.conftest import DriverFactory, new_driver
from queue_source.queues import open_queue
from shard_store.sql.schema import identity
from shard_store.store import open_store
from support.engine.cluster import SETTINGS, Cluster
from support.engine.cluster_fixtures import cluster, codes, shared_world, started_cluster
from support.engine.code import Code
from support.engine.harness import Driver
from support.engine.queries import Query, described
from support.engine.world import World, eventually
from support.iceberg_tables import Lake

__all__ = ["cluster", "codes", "new_driver", "shared_world", "started_cluster"]  # the fixtures

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STREAM = {"processingTime": "0 seconds"}
ROUNDS = 5
"""Runs of a query until everything is done: leases of what was killed have to end in between."""


@pytest.fixture(params=["installed", "shipped"])
def code(request: pytest.FixtureRequest, codes: dict[str, Code]) -> Code:
    return codes[request.param]


@pytest.fixture
def place(cluster: Cluster, codes: dict[str, Code]) -> dict[str, Any]:
    """Where most of these drivers run."""
    return {"master": cluster.url, "settings": SETTINGS, "code": codes["installed"]}


def run_until_settled(new_driver: DriverFactory, world: World, query: Query, place: Mapping[str, Any]) -> None:
    """Run the stream, in a driver of its own, until its queue is empty and no shard is open."""
    driver: Driver = new_driver([{**query, "trigger": STREAM}], **place)

    def done() -> bool:
        ended = driver.folder / "ended.json"
        assert not ended.exists(), ended.read_text("utf-8")[:3000]
        return (driver.folder / "progress").exists() and world.settled()

    eventually("an empty queue and no open shard", done, 180)
    driver.close()


def test_rows_once_bad_objects_and_messages_reported_and_sent_to_the_error_queue(
    cluster: Cluster, shared_world: World, new_driver: DriverFactory, code: Code
) -> None:
    world = shared_world
    rows = world.feed(0, 12)
    (world.root / "in" / "corrupt.json").write_text('{"id": 1, "name": "whole"}\n{"id": 2, "na')
    gone = f"file://{world.root}/in/gone.json"
    world.publish([(world.root / "in" / "corrupt.json").as_uri(), gone, "no notification"])
    errors_url = f"sql+{world.store_url}?queue=errors"
    query = described(world, mode="FAILFAST", errorQueueUrl=errors_url, minPartitions=6, maxFilesPerTrigger=7)
    run_until_settled(new_driver, world, query, {"master": cluster.url, "settings": SETTINGS, "code": code})
    assert world.published() == sorted(rows)
    causes = Counter(error["cause"] for error in world.view("errors") if error["final"])
    assert causes == {"corrupt-object": 1, "missing-object": 1, "malformed-message": 1}
    assert {error["state"] for error in world.view("errors")} == {"delivered"}
    with open_queue(errors_url) as queue:
        sent = [json.loads(message.body)["cause"] for message in queue.receive(100, 60.0, 0.0)]
    assert Counter(sent) == causes
    assert {folder.parents[1].name for folder in cluster.folders()} == {"worker-0", "worker-1"}
    assert not [file for folder in cluster.folders() for file in folder.rglob("*.db")], "an executor made a store"


@pytest.mark.parametrize("point", ["object-read", "split-written"])
@pytest.mark.parametrize("victim", ["executor", "machine"])
def test_an_executor_or_a_machine_that_dies_in_its_task_loses_and_doubles_nothing(
    cluster: Cluster, shared_world: World, new_driver: DriverFactory, place: dict[str, Any], point: str, victim: str
) -> None:
    world = shared_world
    rows = world.feed(0, 6)
    driver = new_driver([described(world)], pause_at=point, once=True, **place)
    (task,) = driver.wait_paused()
    number = next(n for n in cluster.workers if task in {p.pid for p in cluster.processes(n)})
    if victim == "machine":
        cluster.kill_worker(number)
    else:
        for executor in cluster.executors(number):
            executor.kill()
    driver.go_on()
    assert driver.wait_ended() == [None]
    driver.close()
    if victim == "machine":
        cluster.start_worker(number)
    assert world.published() == sorted(rows)
    assert world.settled()


@pytest.mark.parametrize("point", ["offset-logged", "split-written", "before-publish", "published"])
def test_a_driver_that_is_killed_and_started_again_loses_and_doubles_nothing(
    shared_world: World, new_driver: DriverFactory, place: dict[str, Any], point: str
) -> None:
    world = shared_world
    rows = world.feed(0, 5)
    query = described(world, maxFilesPerTrigger=2)
    driver = new_driver([query], pause_at=point, once=True, **place)
    driver.wait_paused()
    driver.kill()
    driver.go_on()
    rows += world.feed(5, 1)
    run_until_settled(new_driver, world, query, place)
    assert world.published() == sorted(rows)


def test_what_kills_its_reader_is_quarantined_and_its_neighbours_are_published(
    shared_world: World, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    world = shared_world
    rows = world.feed(0, 8)
    world.publish(world.write(99, 1)[0])
    for attempt in (1, 2, 3):
        driver = new_driver([described(world)], fail="object-read~99.json=exit", **place)
        assert [error is None for error in driver.wait_ended()] == [attempt == 3], attempt
        driver.close()
    assert world.published() == sorted(rows)
    (error,) = world.view("errors")
    assert (error["cause"], error["subject"][-7:]) == ("kills-its-reader", "99.json")
    assert [s["shard_id"][-7:] for s in world.view("shards") if s["state"] == "quarantined"] == ["99.json"]


def test_an_iceberg_table_gets_each_row_once_through_the_death_of_an_executor(
    cluster: Cluster, shared_world: World, new_driver: DriverFactory, place: dict[str, Any], iceberg_threads: None
) -> None:
    world = shared_world
    rows = world.feed(0, 6)
    query = described(world)
    query["sink_options"] = world.sink(path=None, table="db.events", warehouse=world.root / "lake")
    driver = new_driver([query], pause_at="table-files-written", once=True, **place)
    (task,) = driver.wait_paused()
    driver.kill_process(task)
    driver.go_on()
    assert driver.wait_ended() == [None]
    driver.close()
    with open_store(world.store_url) as store:
        found = Lake(store, {}, {"type": "sql", "uri": world.store_url}).read()
    assert sorted((row["id"], row["name"]) for row in found) == sorted(rows)


def test_rows_become_messages_of_a_queue_in_the_store_once(
    shared_world: World, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    world = shared_world
    rows = world.feed(0, 4)
    target = f"sql+{world.store_url}?queue=out"
    query = described(world)
    query["schema"] = "value STRING"
    query["source"] |= {"fileFormat": "text"}
    query["sink_options"] = world.sink(path=None, queueUrl=target)
    driver = new_driver([query], pause_at="rows-staged", once=True, **place)
    (task,) = driver.wait_paused()
    driver.kill_process(task)
    driver.go_on()
    assert driver.wait_ended() == [None]
    with open_queue(target) as queue:
        bodies = [json.loads(message.body) for message in queue.receive(1000, 60.0, 0.0)]
    assert sorted((body["id"], body["name"]) for body in bodies) == sorted(rows)


def test_a_relative_sqlite_store_is_the_drivers_file_for_the_executors_of_its_machine(
    tmp_path: Path, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    """Two workers on the driver's own machine are the driver's machine: SQLite's locks hold between them."""
    world = World(tmp_path / "world")
    rows = world.feed(0, 4)
    (world.root / "in" / "corrupt.json").write_text("{")
    world.publish([(world.root / "in" / "corrupt.json").as_uri()])
    query = described(world, mode="FAILFAST")
    query["source"]["store"] = query["sink_options"]["store"] = "sqlite:///relative.db"
    driver = new_driver([query], cwd=world.root, **place)
    assert driver.wait_ended() == [None]
    made = World(world.root, store=f"sqlite:///{world.root}/relative.db")
    assert made.published() == sorted(rows)
    assert [error["cause"] for error in made.view("errors")] == ["corrupt-object"]


def test_executors_that_see_another_sqlite_file_end_the_query_and_name_the_option(
    tmp_path: Path, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    """As on another machine whose disk has the same path: the file is exchanged while the plan is on its way."""
    world = World(tmp_path / "world")
    rows = world.feed(0, 2)
    query = described(world, commitTimeout="60s")
    driver = new_driver([query], pause_at="plan-made", once=True, **place)
    driver.wait_paused()
    store = world.root / "store.db"
    store.rename(world.root / "kept.db")
    store.touch()
    driver.go_on()
    (error,) = driver.wait_ended()
    assert error is not None
    assert "option 'storeUrl'" in error
    assert "where that path is another file" in error
    driver.close()
    store.unlink()
    (world.root / "kept.db").rename(store)
    run_until_settled(new_driver, world, query, place)
    assert world.published() == sorted(rows)


def test_executors_that_reach_another_store_end_the_query_and_write_nothing_there(
    shared_world: World, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    world = shared_world
    rows = world.feed(0, 2)
    (world.root / "in" / "corrupt.json").write_text("{")
    world.publish([(world.root / "in" / "corrupt.json").as_uri()])
    query = described(world, mode="FAILFAST")
    driver = new_driver([query], pause_at="plan-made", once=True, **place)
    driver.wait_paused()
    with open_store(world.store_url) as store:
        first = store.store_id()
        store.database.write(lambda t: t.execute(identity.update().values(store_id="another")))
    driver.go_on()
    (error,) = driver.wait_ended()
    assert error is not None
    assert "option 'storeUrl'" in error
    assert "is another store for a task" in error
    assert world.view("errors") == []
    driver.close()
    with open_store(world.store_url) as store:
        store.database.write(lambda t: t.execute(sa.update(identity).values(store_id=first)))
    run_until_settled(new_driver, world, query, place)
    assert world.published() == sorted(rows)
    assert [error["cause"] for error in world.view("errors")] == ["corrupt-object"]
