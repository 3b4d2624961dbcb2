"""What is promised holds on a cluster: two workers, each with its own folder, and the package installed or shipped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.conftest import DriverFactory, new_driver
from queue_source.queues import open_queue
from shard_store.sql.schema import identity
from shard_store.store import open_store
from support.engine.cluster import PATIENCE, Cluster, settings
from support.engine.cluster_fixtures import cluster, installed_code, shared_world, shipped_code, started_cluster
from support.engine.code import Code
from support.engine.harness import Driver
from support.engine.queries import Query, described
from support.engine.world import World, eventually
from support.iceberg_tables import Lake
from support.servers.fixtures import iceberg_threads, postgres_url
from support.servers.postgres import new_database

__all__ = [  # the fixtures
    "cluster",
    "iceberg_threads",
    "installed_code",
    "new_driver",
    "postgres_url",
    "shared_world",
    "shipped_code",
    "started_cluster",
]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STREAM = {"processingTime": "0 seconds"}


@pytest.fixture
def place(cluster: Cluster, installed_code: Code) -> dict[str, Any]:
    """Where most of these drivers run."""
    return {"master": cluster.url, "settings": settings(), "code": installed_code, "patience": PATIENCE}


def wait_settled(driver: Driver, worlds: Sequence[World]) -> None:
    """Wait until the streams of a driver have emptied their queues, and no shard is open."""

    def done() -> bool:
        ended = driver.folder / "ended.json"
        assert not ended.exists(), ended.read_text("utf-8")[:3000]
        return (driver.folder / "progress").exists() and all(world.settled() for world in worlds)

    eventually("empty queues and no open shard", done, PATIENCE)
    driver.close()


def streaming(*queries: Query) -> list[Query]:
    return [{**query, "trigger": STREAM} for query in queries]


def add_bad(world: World) -> str:
    """Announce an object that is corrupt."""
    (world.root / "in").mkdir(exist_ok=True)
    corrupt = world.root / "in" / "corrupt.json"
    corrupt.write_text('{"id": 1, "name": "whole"}\n{"id": 2, "na')
    world.publish([corrupt.as_uri()])
    return corrupt.as_uri()


def test_the_package_in_an_archive_publishes_each_row_once_and_reports_what_is_bad(
    shared_world: World, new_driver: DriverFactory, place: dict[str, Any], shipped_code: Code
) -> None:
    """Neither the driver's Python nor the executors' has it installed."""
    world = shared_world
    rows = world.feed(0, 4)
    corrupt = add_bad(world)
    driver = new_driver([described(world, mode="FAILFAST", minPartitions=4)], **{**place, "code": shipped_code})
    assert driver.wait_ended() == [None]
    assert world.published() == sorted(rows)
    assert [(error["cause"], error["subject"]) for error in world.view("errors")] == [("corrupt-object", corrupt)]


def test_every_sink_gets_each_row_once_and_what_is_bad_is_reported_and_sent(
    tmp_path: Path,
    postgres_url: str,
    cluster: Cluster,
    new_driver: DriverFactory,
    place: dict[str, Any],
    iceberg_threads: None,
) -> None:
    """Four queries of one driver. The store of the last is a relative path, on the machine of driver and executors."""
    names = ("files", "table", "queue", "sqlite")
    worlds = {name: World(tmp_path / name, store=new_database(postgres_url)) for name in names[:3]}
    worlds["sqlite"] = World(tmp_path / "sqlite", store=f"sqlite:///{tmp_path}/relative.db")
    rows = {name: world.feed(0, 4) for name, world in worlds.items()}
    queries = {name: described(world, mode="FAILFAST") for name, world in worlds.items()}
    for name in ("files", "sqlite"):
        add_bad(worlds[name])
    worlds["files"].publish([f"file://{worlds['files'].root}/in/gone.json", "no notification"])
    errors_url = f"sql+{worlds['files'].store_url}?queue=errors"
    target = f"sql+{worlds['queue'].store_url}?queue=out"
    queries["files"]["source"] |= {"errorQueueUrl": errors_url}
    queries["table"]["sink_options"] = worlds["table"].sink(path=None, table="db.events", warehouse=tmp_path / "lake")
    queries["queue"]["source"] |= {"fileFormat": "text", "mode": "PERMISSIVE"}
    queries["queue"]["schema"] = "value STRING"
    queries["queue"]["sink_options"] = worlds["queue"].sink(path=None, queueUrl=target)
    for options in (queries["sqlite"]["source"], queries["sqlite"]["sink_options"]):
        options["store"] = "sqlite:///relative.db"
    wait_settled(new_driver(streaming(*queries.values()), cwd=tmp_path, **place), list(worlds.values()))

    assert worlds["files"].published() == sorted(rows["files"])
    assert worlds["sqlite"].published() == sorted(rows["sqlite"])
    with open_store(worlds["table"].store_url) as store:
        found = Lake(store, {}, {"type": "sql", "uri": worlds["table"].store_url}).read()
    assert sorted((row["id"], row["name"]) for row in found) == sorted(rows["table"])
    with open_queue(target) as queue:
        bodies = [json.loads(message.body) for message in queue.receive(1000, 60.0, 0.0)]
    assert sorted((body["id"], body["name"]) for body in bodies) == sorted(rows["queue"])

    causes = Counter(error["cause"] for error in worlds["files"].view("errors") if error["final"])
    assert causes == {"corrupt-object": 1, "missing-object": 1, "malformed-message": 1}
    assert {error["state"] for error in worlds["files"].view("errors")} == {"delivered"}
    with open_queue(errors_url) as queue:
        sent = [json.loads(message.body)["cause"] for message in queue.receive(100, 60.0, 0.0)]
    assert Counter(sent) == causes
    assert [error["cause"] for error in worlds["sqlite"].view("errors")] == ["corrupt-object"]

    assert cluster.worked() == {"worker-0", "worker-1"}
    assert not cluster.databases(), "an executor made a store"


@pytest.mark.parametrize(("victim", "point"), [("executor", "object-read"), ("machine", "split-written")])
def test_an_executor_or_a_machine_that_dies_in_its_task_loses_and_doubles_nothing(
    cluster: Cluster, shared_world: World, new_driver: DriverFactory, place: dict[str, Any], victim: str, point: str
) -> None:
    world = shared_world
    rows = world.feed(0, 6)
    driver = new_driver([described(world)], pause_at=point, once=True, **place)
    (task,) = driver.wait_paused()
    number = next(n for n in cluster.workers if task in {p.pid for p in cluster.processes(n)})
    if victim == "machine":
        cluster.kill_worker(number)
    else:
        (executor,) = cluster.executors(number)
        executor.kill()
    driver.go_on()
    assert driver.wait_ended() == [None]
    assert world.published() == sorted(rows)
    assert world.settled()


@pytest.mark.parametrize("point", ["split-written", "published"])
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
    wait_settled(new_driver(streaming(query), **place), [world])
    assert world.published() == sorted(rows)


def test_what_kills_its_reader_is_quarantined_and_its_neighbours_are_published(
    shared_world: World, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    """Spark tries a task four times: two runs of the query fail, and the third finds the culprit by itself."""
    world = shared_world
    rows = world.feed(0, 8)
    world.publish(world.write(99, 1)[0])
    query = streaming(described(world))
    wait_settled(new_driver(query, fail="object-read~99.json=exit", restarts=True, **place), [world])
    assert world.published() == sorted(rows)
    (error,) = world.view("errors")
    assert (error["cause"], error["subject"][-7:]) == ("kills-its-reader", "99.json")
    assert [s["shard_id"][-7:] for s in world.view("shards") if s["state"] == "quarantined"] == ["99.json"]


def test_executors_that_see_another_store_end_the_query_and_nothing_is_lost(
    tmp_path: Path, shared_world: World, new_driver: DriverFactory, place: dict[str, Any]
) -> None:
    """The stores are exchanged while the plans are on their way: as on another machine, where one path and one name
    lead elsewhere."""
    for name in ("own", "another"):
        (tmp_path / name).mkdir()
    way = tmp_path / "way"
    way.symlink_to(tmp_path / "own")
    server, file = shared_world, World(tmp_path / "file", store=f"sqlite:///{way}/store.db")
    rows = {world.root: world.feed(0, 2) for world in (server, file)}
    add_bad(server)
    # noop: a sink of ours would ask the store for the plan before the tasks run
    queries = [described(world, "noop", mode="FAILFAST", commitTimeout="20s") for world in (server, file)]
    driver = new_driver(queries, pause_at="plan-made", **place)
    driver.wait_paused(2)
    with open_store(server.store_url) as store:
        own = store.store_id()
        store.database.write(lambda t: t.execute(identity.update().values(store_id="another")))
    (tmp_path / "another" / "store.db").touch()
    way.unlink()
    way.symlink_to(tmp_path / "another")
    driver.go_on()
    on_server, on_file = driver.wait_ended()
    assert "is another store for a task" in (on_server or "")
    assert "where that path is another file" in (on_file or "")
    for error in (on_server, on_file):
        assert "option 'storeUrl'" in (error or "")
    assert server.view("errors") == []
    driver.close()
    way.unlink()
    way.symlink_to(tmp_path / "own")
    with open_store(server.store_url) as store:
        store.database.write(lambda t: t.execute(identity.update().values(store_id=own)))
    queries = [described(world, checkpoint="after", mode="FAILFAST") for world in (server, file)]
    wait_settled(new_driver(streaming(*queries), **place), [server, file])
    for world in (server, file):
        assert world.published() == sorted(rows[world.root])
    assert [error["cause"] for error in server.view("errors")] == ["corrupt-object"]
