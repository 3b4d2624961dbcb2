"""The chaos run once more with real Spark: two drivers on one PostgreSQL, killed and frozen at random."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.engine.harness import Driver
from support.engine.queries import Query, described
from support.engine.world import World, eventually
from support.servers.postgres import PostgresServer, new_database, postgres

SECONDS = 120.0
STREAM = {"processingTime": "0 seconds"}


@dataclass
class SharedWorld(World):
    """Queue and store in one PostgreSQL database."""

    database: str = ""

    @property
    def queue_url(self) -> str:
        return f"sql+{self.database}?queue=files"

    @property
    def store_url(self) -> str:
        return self.database


class Pipeline:
    """One pipeline, run by one driver at a time, or by two while the older one is frozen."""

    def __init__(self, world: SharedWorld, name: str) -> None:
        self.name = name
        self._world = world
        self._started = 0
        self._frozen: list[Driver] = []
        self._query: Query = described(
            world,
            checkpoint=f"{name}-checkpoint",
            trigger=STREAM,
            source="files",
            pipeline=name,
            maxFilesPerTrigger=5,
            commitTimeout="3s",
        )
        self._query["sink_options"] = world.sink(pipeline=name)
        self.driver = self._start()

    def _start(self) -> Driver:
        self._started += 1
        return Driver(self._world.root / f"{self.name}-{self._started}", [self._query], master="local[1]")

    def kill(self) -> None:
        self.driver.close()
        self.driver = self._start()

    def replace_frozen(self) -> None:
        """Freeze the driver and start another: the frozen one wakes up as a zombie."""
        self.driver.freeze()
        self._frozen.append(self.driver)
        self.driver = self._start()

    def thaw(self) -> None:
        for driver in self._frozen:
            driver.thaw()

    def revive(self) -> None:
        """A driver may end by itself, when a zombie's checkpoint and its own meet."""
        if not self.driver.processes():
            self.kill()

    def close(self) -> None:
        for driver in (*self._frozen, self.driver):
            driver.close()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres() as running:
        yield running


@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_two_spark_drivers_that_are_killed_and_frozen_at_random_publish_every_row_once(
    tmp_path: Path, server: PostgresServer
) -> None:
    chance = random.Random(7)
    world = SharedWorld(tmp_path, database=new_database(server.url))
    pipelines = [Pipeline(world, name) for name in ("one", "two")]
    counts = {"kills": 0, "freezes": 0, "restarts of the database": 0}
    rows: list[tuple[int, str]] = []
    objects = 0
    restart_by, end = time.monotonic() + SECONDS / 2, time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            uris, written = world.write(objects, 10)
            objects += 10
            rows += written
            world.publish([*uris, *chance.sample(uris, 4)])
            time.sleep(chance.uniform(3, 9))  # a driver needs seconds to come to its first batch
            victim = chance.choice(pipelines)
            dice = chance.random()
            if dice < 0.5:
                victim.kill()
                counts["kills"] += 1
            elif dice < 0.7:
                victim.replace_frozen()
                counts["freezes"] += 1
            late = not counts["restarts of the database"] and time.monotonic() > restart_by
            if 0.7 <= dice < 0.8 or late:
                server.restart(signal.SIGQUIT)
                counts["restarts of the database"] += 1
            for pipeline in pipelines:
                pipeline.revive()
        for pipeline in pipelines:
            pipeline.thaw()

        def settled() -> bool:
            for pipeline in pipelines:
                pipeline.revive()
            return world.settled()

        eventually("an empty queue and no open shard", settled, 480)
    finally:
        print(counts, f"{objects} objects; left: {world.depth()}, {len(world.open_shards())} open shards")
        for pipeline in pipelines:
            with suppress(psutil.NoSuchProcess):
                pipeline.close()
    assert counts["kills"] >= 3
    assert counts["restarts of the database"] >= 1
    assert world.published() == sorted(rows)
