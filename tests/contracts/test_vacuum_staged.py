"""Contract: vacuum removes messages that were staged and that no batch will show, and none that a batch still may."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.commands.vacuum import StagedResult, vacuum_staged
from queue_source.errors import QueueError
from queue_source.messages import Outgoing
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import messages, parse_address
from queue_source.queues.sql.staging import Staging, remove, staged
from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, pipelines
from shard_store.store import ShardStore, open_store
from support.store_backends import SERVERS, Pipeline, StoreBackend

DAY = timedelta(days=1)


class World:
    """A store with a queue in its database; what is staged there is as old as a test says."""

    def __init__(self, url: str, store: ShardStore) -> None:
        self.store = store
        self.url = f"sql+{url}{'&' if '?' in url else '?'}queue=target"
        self.queue = SqlQueue(self.url)
        self.queue.create()
        self.stagings: list[Staging] = []
        self.staging("any").prepare()
        with store.database.engine.begin() as connection:
            for table in (messages, staged):
                connection.execute(table.delete())

    def close(self) -> None:
        self.queue.close()
        for staging in self.stagings:
            staging.close()

    def staging(self, owner: str = "p") -> Staging:
        self.stagings.append(Staging(parse_address(self.url), owner))
        return self.stagings[-1]

    def stage(self, *bodies: str, days: float = 0, owner: str = "p") -> str:
        """What a task has staged so many days ago; returns the attempt's name."""
        staging = self.staging(owner)
        name = staging.begin()
        staging.add(name, 0, [Outgoing(body.encode()) for body in bodies])
        self._back(staged.update().where(staged.c.name == name), staged.c.staged_at, days)
        return name

    def silent(self, pipeline: str, days: float) -> None:
        """Its last sign of life is so many days old."""
        self._back(pipelines.update().where(pipelines.c.pipeline == pipeline), pipelines.c.heartbeat_at, days)

    def _back(self, update: sa.Update, column: sa.Column[int], days: float) -> None:
        ago = int(days * 86400e6)
        self.store.database.write(lambda t: t.execute(update.values({column.name: t.now() - ago})))

    def show(self, *names: str, owner: str = "p") -> None:
        staging = self.staging(owner)
        staging.clean(self.store.database.write(lambda connection: staging.show(connection, names)))

    def vacuum(self, *, dry_run: bool = False) -> StagedResult:
        return vacuum_staged(self.store, older_than=DAY, dry_run=dry_run)

    def bodies(self) -> str:
        return "".join(sorted(message.body.decode() for message in self.queue.peek(10_000)))

    def hidden(self) -> list[str]:
        query = sa.select(messages.c.body).where(messages.c.queue.like(" %"))
        return sorted(body.decode() for body in self.store.database.read(lambda c: c.execute(query).scalars().all()))


@pytest.fixture
def world(backend: StoreBackend) -> Iterator[World]:
    made = World(backend.url, backend.open(clock=None))  # the queue's clock is the database's too
    yield made
    made.close()


def test_what_a_pipeline_staged_that_was_given_up_is_removed(world: World) -> None:
    Pipeline.start(world.store, "p")
    world.silent("p", 3)
    many = [str(number) for number in range(1500)]
    world.stage(*many, days=2)
    world.stage("unknown", days=2, owner="a pipeline that the store does not know")
    world.queue.publish(["sent by others"])
    expected = StagedResult(found=1501, removed=1501)
    assert world.vacuum(dry_run=True) == expected
    assert len(world.hidden()) == 1501
    assert world.vacuum() == expected
    assert (world.hidden(), world.bodies(), world.vacuum()) == ([], "sent by others", StagedResult())


def test_what_is_young_stays(world: World) -> None:
    Pipeline.start(world.store, "p")
    world.silent("p", 3)
    name = world.stage("x", days=0.9)
    assert world.vacuum() == StagedResult(found=1, removed=0)
    world.show(name)
    assert world.bodies() == "x"


def test_what_a_running_batch_may_still_show_stays_however_long_it_takes(world: World) -> None:
    pipeline = Pipeline.start(world.store, "p")
    pipeline.deliver("a")
    failed, winner = world.stage("f", days=5), world.stage("w", days=5)
    world._back(attempts.update(), attempts.c.published_at, 6)
    assert world.vacuum() == StagedResult(found=2, removed=0)
    world.show(winner)
    assert (world.bodies(), world.hidden()) == ("w", [])
    with pytest.raises(QueueError, match="another attempt"):
        world.staging().add(failed, 1, [Outgoing(b"late")])


def test_what_a_pipeline_staged_that_has_published_elsewhere_since_is_removed(world: World) -> None:
    """Its query writes to another place now, so that no publish of its own finds them."""
    pipeline = Pipeline.start(world.store, "p")
    world.stage("x", days=2)
    world.stage("y", days=0.5)
    pipeline.deliver("a")
    assert world.vacuum() == StagedResult(found=2, removed=1)
    assert world.hidden() == ["y"]


def test_what_a_crash_left_abandoned_is_removed(world: World) -> None:
    Pipeline.start(world.store, "p")
    world.stage("x", days=2)
    world.store.database.write(world.staging().abandon)
    assert world.vacuum() == StagedResult(found=1, removed=1)
    assert world.hidden() == []


def test_a_driver_that_wakes_up_after_it_finds_its_batch_gone_and_runs_it_again(world: World) -> None:
    Pipeline.start(world.store, "p")
    name = world.stage("x", "y", days=3)
    world.silent("p", 3)
    world.vacuum()
    with pytest.raises(QueueError, match=r"of 1 tasks that staged messages 0 are known .* run again"):
        world.show(name)
    with pytest.raises(QueueError, match="another attempt"):
        world.staging().add(name, 2, [Outgoing(b"z")])
    world.show(world.stage("x", "y", "z"))
    assert (world.bodies(), world.hidden()) == ("xyz", [])


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
@pytest.mark.parametrize("knows", ["vacuum", "remove"])
def test_what_is_shown_at_the_same_moment_is_not_removed(world: World, knows: str) -> None:
    """It looks before the transaction that shows them is committed, and acts after it."""
    name, removed = world.stage("x", "y", days=3), []

    def act() -> None:
        removed.append(world.vacuum().removed if knows == "vacuum" else remove(world.store.database, [name]))

    other = threading.Thread(target=act)

    def show(t: Transaction) -> None:
        assert world.staging().show(t, [name]) == []
        other.start()
        other.join(0.5)
        assert other.is_alive(), "it did not wait for the transaction"

    world.store.database.write(show)
    other.join(30)
    assert not other.is_alive()
    assert (world.bodies(), world.hidden()) == ("xy", [])
    assert removed == [0] or knows == "remove"
    assert world.store.database.read(lambda c: c.execute(sa.select(staged.c.name)).all()) == []


# --- the command: one kind of database will do ---


def test_a_store_without_a_queue_has_nothing_staged(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        assert vacuum_staged(store, older_than=DAY) == StagedResult()


def test_the_command_needs_no_folder(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        world = World(url, store)
        world.stage("x", "y", days=3)
        world.stage("z", days=1)
        for arguments in (["--dry-run"], []):
            done = CliRunner().invoke(app, ["vacuum", "--store", url, "--json", *arguments])
            assert done.exit_code == 0, done.output
            counts = {"staged_messages": 3, "staged_removed": 2, "dry_run": bool(arguments)}
            assert json.loads(done.stdout) == counts
            assert len(world.hidden()) == (3 if arguments else 1)
        world.close()
