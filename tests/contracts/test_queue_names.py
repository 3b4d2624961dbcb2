"""A queue that a reader's next start names in another way is the same queue: its messages are published once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queue_source.errors import OptionError
from queue_source.messages import MESSAGE_URI
from queue_source.queues import adapter_name, open_queue
from queue_source.queues.base import identity_of
from queue_source.queues.urls import canonical
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import published, until
from support.queues import BACKENDS
from support.queues.backend import Backend
from support.store_backends import rows

_PREFIXES = {"azurequeue": "azureQueue.", "kafka": "kafka.", "pubsub": "gcp.", "sqs": "sqs."}
MESSAGES: dict[str, Any] = {
    "content": "message", "fileFormat": "", "allowedPrefixes": "", "source": "s", "visibilityTimeout": "5m"
}  # fmt: skip
"""None comes again unless a test gives it back."""


KINDS = [name for name in BACKENDS if name not in ("sqlite-two-views", "sqs-fifo") and not name.startswith("pubsub-")]
"""One of each kind whose names differ; the contract has the others."""


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with BACKENDS[request.param](request, tmp_path) as made:
        yield made
        made.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def reading(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The reader's options for a queue that `open_queue` opens with these keywords."""
    prefix = _PREFIXES.get(adapter_name(url), "")
    options = options.get("settings", options)
    named = {re.sub("_(.)", lambda letter: letter[1].upper(), name): value for name, value in options.items()}
    return {**MESSAGES, "queueUrl": url, **{prefix + n: v for n, v in named.items() if n != "shortestWait"}}


def begin(world: World, backend: Backend, **more: Any) -> None:
    """A batch with a message is planned, its driver dies, and the message comes again."""
    with open_queue(backend.url, **backend.options) as queue:
        queue.send([b"hello"])
    with world.loop(**reading(backend.url, backend.options), **more) as loop:
        assert len(loop.coordinator.plan(0, loop.latest(0)).ranges) == 1
        loop.die_without_leases()


def finish(world: World, url: str, options: Mapping[str, Any]) -> None:
    with world.loop(**reading(url, options)) as loop:
        until(lambda: loop.metrics["acknowledged"] > 0, patiently(loop))


def send_as(message_id: str, file: Path, url: str) -> None:
    with open_queue(url) as queue:
        queue.send([b"hello"])
    database = sa.create_engine(f"sqlite:///{file}")
    with database.begin() as connection:
        named = sa.text("UPDATE cuesqueue_messages SET message_id = :id WHERE body = :body")
        connection.execute(named, {"id": message_id, "body": b"hello"})
    database.dispose()


def times(world: World) -> list[int]:
    """How often each message was published."""
    with world.store() as store:
        return list(published(store).values())


def test_a_message_is_published_once_though_its_queue_is_named_otherwise_after_a_crash(
    world: World, backend: Backend
) -> None:
    url, options = backend.spellings[0]
    begin(world, backend)
    finish(world, url, options)
    assert times(world) == [1]


def test_a_bad_message_is_one_error_though_its_queue_is_named_otherwise_when_it_comes_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for url in (world.queue_url, world.queue_url.replace(str(tmp_path), f"{tmp_path}/link")):
        send_as("1", tmp_path / "queue.db", world.queue_url)  # the second time, since its acknowledgement was lost
        with world.loop(queueUrl=url, source="s") as loop:
            until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        assert [row["cause"] for row in rows(store, "errors")] == ["malformed-message"]


def test_one_queue_by_two_names_is_refused_in_one_reader(world: World, backend: Backend) -> None:
    url, options = backend.spellings[0]
    if set(options) - set(backend.options):
        pytest.skip("both names are reached with the same options")
    both = reading(f"{backend.url},{url}", {})
    with (
        pytest.raises(OptionError, match="'queueUrl': names one queue twice"),
        world.loop(**{**both, **_keys(backend)}),
    ):
        pass


def _keys(backend: Backend) -> dict[str, Any]:
    return {name: value for name, value in reading(backend.url, backend.options).items() if "." in name}


@pytest.mark.parametrize(
    ("urls", "text"),
    [
        (["amqp://u:p@Host:5672/%2F?source=s&pool=jobs&tags=a.%23", "amqp://host?source=other&pool=jobs",
          "amqps://host:5671/?source=s&pool=jobs&heartbeat=5", "amqp://host//?source=s&pool=jobs"], "amqp://host/%2F?pool=jobs"),
        (["amqp://h:5673/v?source=s&pool=jobs"], "amqp://h:5673/v?pool=jobs"),
        (["amqp://h/v?source=s&listener=true&tags=a"], "amqp://h/v?source=s&listener=true&tags=a"),
        (["sqs://jobs.fifo", "https://sqs.eu-central-1.amazonaws.com/123456789012/jobs.fifo"], "sqs:jobs.fifo"),
        (["sql+postgresql://u:p@Host/db?queue=q", "sql+postgresql+psycopg://host:5432/db?queue=q&sslmode=require"],
         "sql:postgresql:host/db?queue=q"),
        (["sql+mysql+pymysql://u@h/db?queue=q", "sql+mariadb://h:3306/db?queue=q"], "sql:mysql:h/db?queue=q"),
        (["sql+sqlite:////tmp/../srv/jobs.db?queue=q", "sql+sqlite+pysqlite:////srv/jobs.db?queue=q"],
         "sql:sqlite:/srv/jobs.db?queue=q"),
        (["sim://s?dir=/srv&tags=a", "sim://s?pool=s&dir=/tmp/../srv"], "sim://s?dir=/srv&pool=s"),
        (["azurequeue://account/files", "AzureQueue://Account/files/"], "azurequeue://account/files"),
        (["pubsub://project/orders"], "pubsub://project/orders"),
        (["shop://user:pass@host/q"], "shop://user:***@host/q"),
    ],
)  # fmt: skip
def test_names_that_a_text_shows_to_be_of_one_queue_have_one_text(urls: list[str], text: str) -> None:
    assert {canonical(url) for url in urls} == {text}


def test_two_databases_of_one_name_are_two_queues(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a relative path in two folders: the message with the same id in the other one is another message."""
    identities = set()
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        url = "sql+sqlite:///jobs.db?queue=q"
        send_as("1", folder / "jobs.db", url)
        with open_queue(url) as queue:
            identities.add(identity_of(queue))
        finish(world, url, {})
    assert len(identities) == 2
    assert times(world) == [1, 1]


def test_ids_of_messages_stay_as_0_3_has_made_them(world: World, tmp_path: Path) -> None:
    with world.loop(**{**MESSAGES, "queueUrl": world.queue_url}) as loop:
        world.publish("hello")
        until(lambda: loop.metrics["acknowledged"] > 0, patiently(loop))
    with world.store() as store:
        [(shard_id, queue, uri)] = store.database.read(
            lambda t: t.execute(sa.text("SELECT shard_id, queue, uri FROM cuesqueue_shards")).all()
        )
    assert uri == MESSAGE_URI
    assert re.fullmatch(re.escape(queue) + "#[0-9a-f]{32}", shard_id)
    assert queue == world.queue_url
