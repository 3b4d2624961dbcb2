"""queue -> Spark -> queue -> Spark -> queue, over SQL queues in the store's database, with processes killed at random.

What went in has to come out of the last queue: every message once, and nothing else.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import sqlalchemy as sa

from queue_source.messages import Received
from queue_source.queues import open_queue
from queue_source.queues.sql import SqlQueue
from queue_source.sinks.queue import HASH_HEADER, INDEX_HEADER
from shard_store.sql.schema import attempts
from shard_store.store import open_store
from support.engine.harness import Driver
from support.engine.queries import Query, described
from support.engine.world import World, eventually
from support.queue_chain import Hop
from support.servers.postgres import PostgresServer, new_database, postgres

KILLS = int(os.environ.get("CUESQUEUE_CHAIN_KILLS", "50"))
QUEUES = ("first", "second", "third")
STREAM = {"processingTime": "0 seconds"}
PARTS = (*["reader"] * 4, *["worker"] * 4, "jvm", "script", "all")
SEED = int(os.environ.get("CUESQUEUE_CHAIN_SEED", "1"))


class ChainWorld(World):
    """Store and queues in one PostgreSQL database."""

    def __init__(self, root: Path, database: str) -> None:
        super().__init__(root)
        self.database = database
        with open_store(database):
            pass  # the tables are there
        self.engine = sa.create_engine(database)

    @property
    def queue_url(self) -> str:
        return self.url_of(QUEUES[0])

    @property
    def store_url(self) -> str:
        return self.database

    def url_of(self, queue: str) -> str:
        return f"sql+{self.database}?queue={queue}"

    def batches(self) -> Counter[str]:
        """How many were delivered by each pipeline."""
        query = sa.select(attempts.c.pipeline, sa.func.count()).group_by(attempts.c.pipeline)
        with self.engine.connect() as connection:
            return Counter({row[0]: row[1] for row in connection.execute(query)})

    def depth_of(self, queue: str) -> int:
        with open_queue(self.url_of(queue)) as opened:
            return opened.depth().total


class Chain:
    """One driver with a query from each queue to the next; queries that fail are started again, and so is it."""

    def __init__(self, world: ChainWorld) -> None:
        self._world = world
        self.hops = [f"{source}-{target}" for source, target in itertools.pairwise(QUEUES)]
        self._queries = [self._query(*pair) for pair in itertools.pairwise(QUEUES)]
        self._delivered = world.batches()  # when something was killed last
        self.started = 0
        self.driver = self._start()

    def _query(self, source: str, target: str) -> Query:
        world, name = self._world, f"{source}-{target}"
        query = described(
            world,
            checkpoint=f"{name}-checkpoint",
            trigger=STREAM,
            queueUrl=world.url_of(source),
            source=name,
            pipeline=name,
            content="message",
            fileFormat=None,
            allowedPrefixes=None,
            maxFilesPerTrigger=20,
            commitTimeout="3s",
        )
        query["schema"] = ""
        query["sink_options"] = {"store": world.store_url, "pipeline": name, "queueUrl": world.url_of(target)}
        return query

    def _start(self) -> Driver:
        self.started += 1
        return Driver(self._world.root / f"driver-{self.started}", self._queries, restarts=True)

    def kill(self, part: str, chance: random.Random) -> bool:
        """All processes at once, or one of them; tells whether there was one."""
        pids = self.driver.pids("script" if part == "all" else part)
        if not pids:
            return False
        self._delivered = self._world.batches()
        if part == "all":
            self.driver.kill()
        else:
            self.driver.kill_process(chance.choice(pids))
        return True

    def works(self) -> bool:
        """Whether both queries have delivered a batch since the last kill; a driver that is dead is replaced."""
        if not self.driver.pids("script"):
            self.driver.close()
            self.driver = self._start()
        now = self._world.batches()
        return all(now[hop] > self._delivered[hop] for hop in self.hops)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres() as running:
        yield running


@pytest.mark.engine
@pytest.mark.timeout(3000)
def test_fifty_random_kills_of_parts_of_spark_lose_and_double_no_message_between_two_queries(
    tmp_path: Path, server: PostgresServer
) -> None:
    chance = random.Random(SEED)
    world = ChainWorld(tmp_path, new_database(server.url))
    kills: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    began = time.monotonic()
    chain = Chain(world)
    try:
        with open_queue(world.queue_url) as queue:

            def feed() -> None:
                if queue.depth().total > 100:
                    return  # enough for the batches that are to be disturbed
                bodies = [f"message {sum(sent.values()) + n}" for n in range(chance.randint(3, 25))]
                bodies += bodies[:2]  # equal ones are two messages all the same
                queue.publish([*bodies], tag="chain.test", headers={"trace": "1"})
                sent.update(bodies)

            def all_work() -> bool:
                feed()
                return chain.works()

            while sum(kills.values()) < KILLS:
                feed()
                if chance.random() < 0.7:  # else also while a driver or a query starts
                    eventually("a batch of each query", all_work, 600)
                time.sleep(chance.uniform(0, 2))  # anywhere in a batch, or between two
                part = chance.choice(PARTS)
                kills[part] += chain.kill(part, chance)
                chain.works()

        def through() -> bool:
            chain.works()
            return not world.depth_of("first") and not world.depth_of("second") and not world.open_shards()

        eventually("everything in the last queue", through, 600)
    finally:
        chain.driver.close()
        world.engine.dispose()
    numbers = {
        "seed": SEED,
        "kills": dict(kills),
        "drivers": chain.started,
        "batches": dict(Counter(attempt["pipeline"] for attempt in world.view("attempts"))),
        "seconds": round(time.monotonic() - began),
    }
    arrived = compared(world, sent, numbers)
    hashes = {message.headers[HASH_HEADER] for message in arrived}
    assert hashes <= {attempt["delivery_hash"] for attempt in world.view("attempts")}


def run_hop(folder: Path, database: str, source: str, target: str) -> None:
    """A process: one query until it is killed; what disturbs it that is ours ends it, and it is started again."""
    begin, end = (f"sql+{database}?queue={queue}" for queue in (source, target))
    work = partial(time.sleep, 0.03)
    hop = Hop(folder, f"{source}-{target}", database, begin, end, work)
    while True:
        hop.batch()


@pytest.mark.timeout(3000)
def test_two_hundred_random_kills_lose_and_double_no_message_between_two_queries_without_spark(
    tmp_path: Path, server: PostgresServer
) -> None:
    """Spark's loop as the tests play it, where a start takes a second: more kills, in more places."""
    chance = random.Random(SEED)
    world = ChainWorld(tmp_path, new_database(server.url))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["integration.test_chain"])
    running: dict[tuple[str, str], BaseProcess] = {}
    sent: Counter[str] = Counter()
    kills = starts = 0
    began = time.monotonic()

    def revive() -> None:
        nonlocal starts
        for pair in itertools.pairwise(QUEUES):
            if pair not in running or not running[pair].is_alive():
                running[pair] = context.Process(target=run_hop, args=(tmp_path, world.database, *pair), daemon=True)
                running[pair].start()
                starts += 1

    try:
        with open_queue(world.queue_url) as queue:
            while kills < 4 * KILLS:
                if queue.depth().total < 100:
                    bodies = [f"message {sum(sent.values()) + n}" for n in range(chance.randint(3, 40))]
                    bodies += bodies[:2]
                    queue.publish([*bodies], tag="chain.test", headers={"trace": "1"})
                    sent.update(bodies)
                pair = chance.choice(list(itertools.pairwise(QUEUES)))
                before = world.batches()["-".join(pair)]

                def delivers(hop: str = "-".join(pair), before: int = before) -> bool:
                    revive()
                    return world.batches()[hop] > before or not world.depth_of(hop.partition("-")[0])

                if chance.random() < 0.7:
                    eventually("a batch", delivers, 300)
                time.sleep(chance.uniform(0, 0.5))
                revive()
                running[pair].kill()
                running[pair].join()
                kills += 1

        def through() -> bool:
            revive()
            return not world.depth_of("first") and not world.depth_of("second") and not world.open_shards()

        eventually("everything in the last queue", through, 300)
    finally:
        for process in running.values():
            process.kill()
            process.join()
        world.engine.dispose()
    batches = dict(Counter(attempt["pipeline"] for attempt in world.view("attempts")))
    numbers = {"kills": kills, "starts": starts, "batches": batches, "seconds": round(time.monotonic() - began)}
    compared(world, sent, numbers)


def compared(world: ChainWorld, sent: Counter[str], about: Mapping[str, object]) -> list[Received]:
    """What is in the last queue, once it is found to be what was sent; prints the numbers of the run."""
    with SqlQueue(world.url_of("third")) as last:
        arrived = last.peek(10_000_000)
    came = Counter(message.body.decode() for message in arrived)
    numbers = {
        **about,
        "messages": sum(sent.values()),
        "arrived": sum(came.values()),
        "lost": sum((sent - came).values()),
        "doubled": sum((came - sent).values()),
    }
    print(json.dumps(numbers))
    assert came == sent, numbers
    assert all(message.tag == "chain.test" and message.headers["trace"] == "1" for message in arrived)
    assert len({(message.headers[HASH_HEADER], message.headers[INDEX_HEADER]) for message in arrived}) == len(arrived)
    return arrived
