"""A real cluster once in every run of the tests: executors on two workers, one of which is killed in its task.

All other promises on a cluster are in `integration/test_cluster_spark.py` (`make test-cluster`).
"""

from __future__ import annotations

import pytest

from engine.conftest import DriverFactory
from support.engine.cluster import PATIENCE, Cluster, settings
from support.engine.cluster_fixtures import cluster, shared_world, started_cluster
from support.engine.code import editable
from support.engine.queries import described
from support.engine.versions import TELLS_START
from support.engine.world import World, eventually

__all__ = ["cluster", "shared_world", "started_cluster"]  # the fixtures

pytestmark = [pytest.mark.engine, pytest.mark.cluster, pytest.mark.timeout(900)]

BOTH = {"worker-0", "worker-1"}


def test_executors_on_two_workers_publish_once_and_report_to_the_drivers_store_though_one_is_killed(
    cluster: Cluster, shared_world: World, new_driver: DriverFactory
) -> None:
    world = shared_world
    rows = world.feed(0, 4)
    corrupt = world.root / "in" / "corrupt.json"
    corrupt.write_text('{"id": 1, "name": "whole"}\n{"id": 2, "na')
    world.publish([corrupt.as_uri()])
    where = {"master": cluster.url, "settings": settings(), "code": editable(), "patience": PATIENCE}
    query = described(world, mode="FAILFAST", minPartitions=2)
    driver = new_driver([query], pause_at="split-written", once=True, **where)
    (task,) = driver.wait_paused()
    eventually("a task on each worker", lambda: cluster.worked() == BOTH, PATIENCE)
    (number,) = [n for n in cluster.workers if task in {process.pid for process in cluster.processes(n)}]
    (executor,) = cluster.executors(number)
    executor.kill()
    driver.go_on()
    assert driver.wait_ended() == [None]
    files = list((world.root / "out").iterdir())
    assert len(files) > len(world.view("splits")), "the split of the killed attempt is gone"
    assert world.published() == sorted(rows)
    assert [(error["cause"], error["final"]) for error in world.view("errors")] == [("corrupt-object", True)]
    assert world.settled() or not TELLS_START
    assert not cluster.databases(), "an executor made a store"
