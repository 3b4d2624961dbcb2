"""`cuesqueue route` over queues on servers: killed at each step of its way, and every source reads each object once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from queue_source.queues import open_queue
from shard_store.failpoints import ROUTING_POINTS, VARIABLE
from support.coordinator_world import World
from support.queues.azurequeue import new_queue as new_azure_queue
from support.servers.azure_queue import azure_queue_server
from support.servers.debian import NotInstalled
from support.servers.kafka import mock_cluster
from support.servers.pubsub import pubsub_server
from support.servers.rabbitmq import rabbitmq_server
from support.servers.services import Service, sqs
from support.store_backends import rows

ROUTES = {"a": "s3://bucket/a/", "b": "s3://bucket/b/", "all": "s3://bucket/"}
OBJECTS = [f"s3://bucket/{name}/{number:03}" for name in "ab" for number in range(60)]
EXPECTED = {name: Counter(uri for uri in OBJECTS if uri.startswith(prefix)) for name, prefix in ROUTES.items()}
LEASE = 8.0
"""Seconds after which the messages of a receiver that was killed come again."""
PATIENCE = 180.0


@contextmanager
def azure() -> Iterator[Service]:
    with azure_queue_server() as server:
        options = {"azureQueue.endpointUrl": server.url, "azureQueue.accessKey": server.access["access_key"]}
        yield Service(new_azure_queue(server.access), options, server.access)


@contextmanager
def pubsub() -> Iterator[Service]:
    with pubsub_server() as server:
        url = server.create_subscription("p", "landing", server.create_topic("p", "landing"))
        endpoint = f"http://{server.host}"
        yield Service(url, {"gcp.endpoint": endpoint}, {"endpoint": endpoint})


@contextmanager
def kafka() -> Iterator[Service]:
    with mock_cluster() as cluster:
        Producer({"bootstrap.servers": cluster.hosts, "log_level": 0}).list_topics("landing", timeout=10)  # makes it
        # the group learns that a member was killed when its session ends, which a member of the newer protocol sets not
        settings = {"fetch.wait.max.ms": "50", "session.timeout.ms": "6000"}
        options = {f"kafka.{name}": value for name, value in settings.items()}
        yield Service(cluster.url("landing"), options, {"settings": settings})


@contextmanager
def rabbitmq() -> Iterator[Service]:
    try:
        with rabbitmq_server() as server:
            yield Service(f"{server.url}?source=landing&pool=landing", {}, {})
    except NotInstalled as error:
        pytest.skip(str(error))


SERVICES: Mapping[str, Callable[[], AbstractContextManager[Service]]] = {
    "azure": azure,
    "kafka": kafka,
    "pubsub": pubsub,
    "rabbitmq": rabbitmq,
    "sqs": sqs,
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with SERVICES[request.param]() as made:
        yield made


def route(service: Service, world: World, dies: str = "") -> dict[str, int]:
    """Run a receiver until the queue is empty, or until it kills itself at a point; return what it counted."""
    options = {"visibilityTimeout": f"{LEASE:.0f}s", **service.options}
    named = [word for name, value in options.items() for word in ("--option", f"{name}={value}")]
    command = [sys.executable, "-m", "queue_source.commands.main", "route", service.url, "--json", "--until-empty"]
    done = subprocess.run(
        [*command, "--routes", str(world.folder / "routes.json"), "--store", world.store_url, *named],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
        env={**os.environ, **({VARIABLE: f"{dies}=exit"} if dies else {})},
    )  # fmt: skip
    if dies:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return {}
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def recorded(world: World) -> int:
    with world.store() as store:
        return sum(waits.objects for waits in store.waiting())


@pytest.mark.timeout(900)
def test_receivers_that_are_killed_at_each_step_record_every_object_once_for_each_source(
    service: Service, tmp_path: Path
) -> None:
    world = World(tmp_path)
    entries = [{"prefix": prefix, "source": name} for name, prefix in ROUTES.items()]
    (tmp_path / "routes.json").write_text(json.dumps(entries))
    with open_queue(service.url, **service.keywords) as queue:
        queue.send(OBJECTS[: len(OBJECTS) // 2])
        # routed and not recorded; recorded and not acknowledged; and the last of some sets is acknowledged
        for dies in ROUTING_POINTS[:3]:
            queue.send([*OBJECTS[len(OBJECTS) // 2 :], OBJECTS[0]])
            route(service, world, dies)
            time.sleep(LEASE + 1)
    deadline = time.monotonic() + PATIENCE
    while (counts := route(service, world))["messages"] or recorded(world) < 2 * len(OBJECTS):
        assert time.monotonic() < deadline, counts
        time.sleep(1)
    assert recorded(world) == 2 * len(OBJECTS)
    for name, prefix in ROUTES.items():
        with world.loop(checkpoint=name, queueUrl="store", source=name, allowedPrefixes=prefix) as loop:
            loop.drain()
    found: dict[str, Counter[str]] = {}
    with world.store() as store:
        for split in rows(store, "splits"):
            found.setdefault(split["source"], Counter()).update(json.loads(Path(split["path"]).read_text()))
    assert found == EXPECTED
