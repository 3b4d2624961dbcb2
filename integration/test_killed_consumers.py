"""20,000 notifications, 30 % of them said before, and a consumer that is killed ten times: nothing lost or doubled."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from integration.chaos.pipeline import Place
from integration.chaos.run import Crowd
from queue_source.queues import open_queue
from shard_store.sql.schema import shards
from shard_store.store import open_store
from support.driver_loop import published
from support.servers.debian import NotInstalled
from support.servers.kafka import SINGLE, NoKafka, tansu_broker
from support.servers.rabbitmq import rabbitmq_server
from support.servers.services import Service, sqs

MESSAGES = 20_000
REPEATED = 0.3
KILLS = 10
PIPELINE = "killed"
PATIENCE = 300.0


@contextmanager
def rabbitmq() -> Iterator[Service]:
    try:
        with rabbitmq_server() as server:
            yield Service(f"{server.url}?source=killed&pool=killed", {}, {})
    except NotInstalled as error:
        pytest.skip(str(error))


@contextmanager
def kafka() -> Iterator[Service]:
    try:
        with tansu_broker() as broker:
            settings = {f"kafka.{name}": value for name, value in SINGLE.items()}
            yield Service(broker.url(broker.new_topic(4, "killed")), settings, {"settings": SINGLE})
    except NoKafka as error:
        pytest.skip(str(error))


SERVICES: Mapping[str, Callable[[], AbstractContextManager[Service]]] = {
    "kafka": kafka,
    "rabbitmq": rabbitmq,
    "sqs": sqs,
}
OPTIONS = {
    "visibilityTimeout": "15s",
    "commitTimeout": "2s",
    "waitTime": "1s",
    "maxFilesPerTrigger": "300",
    "maxInFlightMessages": "1000",
    "receiveThreads": "4",
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with SERVICES[request.param]() as made:
        yield made


def eventually(what: str, happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.05)


def messages(chance: random.Random) -> tuple[list[str], list[str]]:
    """The URIs, and what is sent: every URI once, and some again anywhere after it."""
    uris = [f"s3://bucket/{number:06d}" for number in range(round(MESSAGES * (1 - REPEATED)))]
    sent = list(uris)
    for uri in chance.choices(uris, k=MESSAGES - len(uris)):
        sent.insert(chance.randint(int(uri.rpartition("/")[2]), len(sent)), uri)
    return uris, sent


@pytest.mark.timeout(1200)
def test_a_consumer_that_is_killed_ten_times_loses_and_doubles_nothing(service: Service, tmp_path: Path) -> None:
    uris, sent = messages(random.Random(1))
    place = Place(tmp_path, service.url, f"sqlite:///{tmp_path / 'store.db'}")
    crowd = Crowd(place, [PIPELINE], {**OPTIONS, **service.options})
    began = time.monotonic()
    killed_with: list[int] = []  # objects that were announced and not published yet, at each kill
    with open_store(place.store_url) as store, open_queue(service.url, **service.keywords) as queue:

        def count(*conditions: Any) -> int:
            query = sa.select(sa.func.count()).select_from(shards).where(*conditions)
            return int(store.database.read(lambda connection: connection.execute(query).scalar_one()))

        def enough(known: int) -> bool:
            crowd.revive()
            return count(shards.c.finished_at.is_not(None)) >= known

        try:
            queue.depth()  # whatever the queue needs is there before the first message
            for part in range(KILLS + 1):
                until = (part + 1) * MESSAGES // (KILLS + 1)
                portion = sent[part * MESSAGES // (KILLS + 1) : until]
                # no deep queue: the servers of these tests look at every message at each call
                eventually("progress", lambda: enough(0) and queue.depth().ready < 300)
                known = count(shards.c.finished_at.is_not(None)) + len(portion) // 3
                queue.publish(portion)
                if part < KILLS:  # in the middle of a portion
                    eventually("progress", lambda known=known: enough(known))  # type: ignore[misc]
                    killed_with.append(len(set(sent[:until])) - count(shards.c.finished_at.is_not(None)))
                    crowd.current[PIPELINE].kill()
                    crowd.current[PIPELINE].join()
            eventually("the end of all objects", lambda: enough(len(uris)))
            eventually("an empty queue", lambda: queue.depth().total == 0)
        finally:
            crowd.end()
        found = published(store)
        figures = {
            "messages": len(sent),
            "objects": len(uris),
            "kills": len(killed_with),
            "open when killed": killed_with,
            "lost": len(set(uris) - found.keys()),
            "doubled": sum(times > 1 for times in found.values()),
            "unfinished": count(shards.c.finished_at.is_(None)),
            "left in the queue": queue.depth().total,
            "seconds": round(time.monotonic() - began, 1),
        }
    print(json.dumps(figures))
    events = [json.loads(line) for line in place.log(PIPELINE).read_text("utf-8").splitlines()]
    assert [event for event in events if event["event"] not in ("started", "stopped", "acquired")] == []
    assert sum(event["event"] == "started" for event in events) == KILLS + 1
    assert len(killed_with) == KILLS
    assert all(killed_with), "a kill that interrupts nothing proves nothing"
    assert figures["lost"] == figures["doubled"] == figures["unfinished"] == figures["left in the queue"] == 0
    assert found.keys() == set(uris)
