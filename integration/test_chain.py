"""queue -> Spark -> queue -> Spark -> queue, over SQL queues in the store's database, with drivers killed at random.

Two drivers, a query each. What went in has to come out of the last queue: every message once, and nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engine.harness import Driver
from engine.queries import Query, described
from engine.world import World, eventually
from queue_source.queues import open_queue
from queue_source.queues.sql import SqlQueue
from queue_source.sinks.queue_rows import HASH_HEADER, INDEX_HEADER
from servers.postgres import PostgresServer, new_database, postgres

KILLS = 50
QUEUES = ("first", "second", "third")
STREAM = {"processingTime": "0 seconds"}
PARTS = ("reader", "reader", "worker", "worker", "jvm", "script", "all")
SEED = int(os.environ.get("CUESQUEUE_CHAIN_SEED", "1"))


class ChainWorld(World):
    """Store and queues in one PostgreSQL database."""

    database = ""

    @property
    def queue_url(self) -> str:
        return self.url_of(QUEUES[0])

    @property
    def store_url(self) -> str:
        return self.database

    def url_of(self, queue: str) -> str:
        return f"sql+{self.database}?queue={queue}"

    def batches(self, pipeline: str) -> int:
        return sum(attempt["pipeline"] == pipeline for attempt in self.view("attempts"))

    def depth_of(self, queue: str) -> int:
        with open_queue(self.url_of(queue)) as opened:
            return opened.depth().total


class Hop:
    """The query from one queue to the next, run by a driver of its own that is started again when it has died."""

    def __init__(self, world: ChainWorld, source: str, target: str) -> None:
        self.name = f"{source}-{target}"
        self._world = world
        self.started = 0
        self.batches = 0  # when it was killed last
        self._query: Query = described(
            world,
            checkpoint=f"{self.name}-checkpoint",
            trigger=STREAM,
            queueUrl=world.url_of(source),
            source=self.name,
            pipeline=self.name,
            content="message",
            fileFormat=None,
            allowedPrefixes=None,
            maxFilesPerTrigger=20,
            commitTimeout="3s",
        )
        self._query["schema"] = ""
        self._query["sink_options"] = {
            "store": world.store_url,
            "pipeline": self.name,
            "queueUrl": world.url_of(target),
        }
        self.driver = self._start()

    def _start(self) -> Driver:
        self.started += 1
        return Driver(self._world.root / f"{self.name}-{self.started}", [self._query], restarts=True)

    def kill(self, part: str) -> None:
        """The power fails, or one part of the driver dies: its script starts a query that fails again."""
        self.batches = self._world.batches(self.name)
        if part == "all":
            self.driver.close()
            self.driver = self._start()
        else:
            self.driver.kill_part(part)

    def works(self) -> bool:
        """Whether it has delivered a batch since it was killed; one that is dead is replaced."""
        if not self.driver.pids("script"):
            self.driver.close()
            self.driver = self._start()
        return self._world.batches(self.name) > self.batches


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres() as running:
        yield running


@pytest.mark.engine
@pytest.mark.timeout(3000)
def test_fifty_random_kills_lose_and_double_no_message_between_two_queries(
    tmp_path: Path, server: PostgresServer
) -> None:
    chance = random.Random(SEED)
    world = ChainWorld(tmp_path)
    world.database = new_database(server.url)
    kills: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    hops: list[Hop] = []
    began = time.monotonic()
    try:
        hops += [Hop(world, *pair) for pair in itertools.pairwise(QUEUES)]
        with open_queue(world.queue_url) as queue:

            def feed() -> None:
                if world.depth_of("first") > 100:
                    return  # enough for the batches that are to be disturbed
                bodies = [f"message {sum(sent.values()) + n}" for n in range(chance.randint(3, 25))]
                bodies += bodies[:2]  # equal ones are two messages all the same
                queue.publish([*bodies], tag="chain.test", headers={"trace": "1"})
                sent.update(bodies)

            def all_work() -> bool:
                feed()
                working = [hop.works() for hop in hops]  # each is looked after
                return all(working)

            while sum(kills.values()) < KILLS:
                feed()
                if chance.random() < 0.7:  # else also while a driver or a query starts
                    eventually("a batch of each query", all_work, 300)
                time.sleep(chance.uniform(0, 2))  # anywhere in a batch, or between two
                part = chance.choice(PARTS)
                chance.choice(hops).kill(part)
                kills[part] += 1

        def through() -> bool:
            for hop in hops:
                hop.works()
            return not world.depth_of("first") and not world.depth_of("second") and not world.open_shards()

        eventually("everything in the last queue", through, 600)
    finally:
        for hop in hops:
            with suppress(psutil.NoSuchProcess):
                hop.driver.close()
    with SqlQueue(world.url_of("third")) as last:
        arrived = last.peek(10_000_000)
    came = Counter(message.body.decode() for message in arrived)
    numbers = {
        "seed": SEED,
        "kills": dict(kills),
        "starts": {hop.name: hop.started for hop in hops},
        "messages": sum(sent.values()),
        "arrived": sum(came.values()),
        "lost": sum((sent - came).values()),
        "doubled": sum((came - sent).values()),
        "batches": {hop.name: world.batches(hop.name) for hop in hops},
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(numbers))
    assert came == sent, numbers
    assert all(message.tag == "chain.test" and message.headers["trace"] == "1" for message in arrived)
    stamps = {(message.headers[HASH_HEADER], message.headers[INDEX_HEADER]) for message in arrived}
    assert len(stamps) == len(arrived)
    assert {hash for hash, _ in stamps} <= {attempt["delivery_hash"] for attempt in world.view("attempts")}
