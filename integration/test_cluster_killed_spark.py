"""Executors on two workers, one of which is killed in its task."""

from __future__ import annotations

import pytest

from engine.conftest import DriverFactory, new_driver
from support.engine.cluster import PATIENCE, Cluster, settings
from support.engine.cluster_fixtures import cluster, codes, shared_world, started_cluster
from support.engine.code import Code
from support.engine.queries import described
from support.engine.world import World
from support.servers.fixtures import postgres_url

__all__ = ["cluster", "codes", "new_driver", "postgres_url", "shared_world", "started_cluster"]  # the fixtures

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_executors_on_two_workers_publish_once_and_report_to_the_drivers_store_though_one_is_killed(
    cluster: Cluster, codes: dict[str, Code], shared_world: World, new_driver: DriverFactory
) -> None:
    world = shared_world
    rows = world.feed(0, 6)
    corrupt = world.root / "in" / "corrupt.json"
    corrupt.write_text('{"id": 1, "name": "whole"}\n{"id": 2, "na')
    world.publish([corrupt.as_uri()])
    how = {"master": cluster.url, "settings": settings(), "code": codes["installed"], "patience": PATIENCE}
    query = described(world, mode="FAILFAST", minPartitions=4)
    driver = new_driver([query], pause_at="split-written", once=True, **how)
    (task,) = driver.wait_paused()
    (number,) = [n for n in cluster.workers if task in {process.pid for process in cluster.processes(n)}]
    (executor,) = cluster.executors(number)
    executor.kill()
    driver.go_on()
    assert driver.wait_ended() == [None]
    assert world.published() == sorted(rows)
    assert [(error["cause"], error["final"]) for error in world.view("errors")] == [("corrupt-object", True)]
    assert world.settled()
    assert {folder.parents[1].name for folder in cluster.folders()} == {"worker-0", "worker-1"}
    assert not [file for folder in cluster.folders() for file in folder.rglob("*.db")], "an executor made a store"
