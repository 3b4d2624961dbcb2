"""A store is restored from a backup; queue, bucket, sink and checkpoint are of now: what `docs/how-to/backup.md` says.

The backup is a copy of the SQLite file, or a dump of PostgreSQL's own. After it a batch was published and acknowledged,
and one message is still in the queue.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from typer.testing import CliRunner

from queue_source.commands.main import app
from shard_store import failpoints
from shard_store.errors import LostProgress, ShardStoreError
from shard_store.failpoints import FailpointReached
from support.coordinator_world import EMPTY, MovingWorld, patiently
from support.driver_loop import DriverLoop, published, states, taken_by_foreign_sink, until
from support.servers import postgres
from support.servers.postgres import new_database

BEFORE, SINCE, WAITING = range(3), range(3, 6), range(6, 7)
"""Objects that were published before the backup and since, and one that is announced and not read yet."""


def pg(program: str, url: str, *arguments: str) -> None:
    """A program of the server's own, as a person would run it."""
    found = next((place / program for place in postgres._places() if (place / program).exists()), None)
    if found is None:
        pytest.skip(f"there is no {program} on this machine")
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    subprocess.run([found, "--dbname", plain, *arguments], check=True, capture_output=True, env=dict(os.environ))


class Backup:
    """One way to have a backup: `take` it, and `restore` it as the store of the world."""

    def __init__(self, kind: str, world: MovingWorld, new: Callable[[], str]) -> None:
        self.kind, self.world, self._new = kind, world, new
        self._file = world.folder / "backup"
        if kind == "pg_dump":
            world.at = new()

    def take(self) -> None:
        if self.kind == "pg_dump":
            pg("pg_dump", self.world.store_url, "--format=custom", "--file", str(self._file))
        else:
            with closing(sqlite3.connect(self.world.folder / "store.db")) as origin:
                with closing(sqlite3.connect(self._file)) as copy:
                    origin.backup(copy)

    def restore(self) -> None:
        """After it, as after any restore: nothing of the store of now is left."""
        if self.kind == "pg_dump":
            self.world.at = self._new()
            pg("pg_restore", self.world.at, "--exit-on-error", str(self._file))
            return
        for file in self.world.folder.glob("store.db*"):
            file.unlink()
        (self.world.folder / "store.db").write_bytes(self._file.read_bytes())


@pytest.fixture(params=["sqlite-file", "pg_dump"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> Backup:
    def new() -> str:
        return new_database(request.getfixturevalue("postgres_url"))

    return Backup(request.param, MovingWorld(tmp_path), new)


class Drill:
    """A query with our sink or another one, and its objects."""

    def __init__(self, world: MovingWorld, publishes: bool = True, **options: Any) -> None:
        self.world, self.publishes, self.options = world, publishes, options
        self.folder = world.folder / "landing"
        self.folder.mkdir()

    def put(self, numbers: range) -> list[str]:
        """Objects of ten bytes, an hour old."""
        for number in numbers:
            file = self.folder / f"{number}.json"
            file.write_text('{"id": 12}', "utf-8")
            os.utime(file, (time.time() - 3600,) * 2)
        return self.uris(numbers)

    def uris(self, *numbers: range) -> list[str]:
        return [(self.folder / f"{number}.json").as_uri() for these in numbers for number in these]

    def run(self, work: Callable[[DriverLoop], object] = DriverLoop.drain, **options: Any) -> None:
        with self.world.loop(publishes=self.publishes, **self.options, **options) as loop:
            work(loop)

    def until_empty(self, loop: DriverLoop) -> None:
        until(lambda: self.world.depth() == EMPTY, patiently(loop))

    def reconcile(self, *arguments: str) -> tuple[int, str]:
        prefix = self.folder.as_uri() + "/"
        given = ["reconcile", prefix, "--store", self.world.store_url, "--grace", "0s", *arguments]
        done = CliRunner().invoke(app, given)
        return done.exit_code, done.output

    def visible(self) -> dict[str, int]:
        """How often each object is in the sink."""
        if not self.publishes:
            return dict(taken_by_foreign_sink(self.world.folder / "output"))
        with self.world.store() as store:
            return dict(published(store))


def restored(backup: Backup, publishes: bool = True, **options: Any) -> Drill:
    """What is there when the backup was restored."""
    drill = Drill(backup.world, publishes, **options)
    drill.world.publish(*drill.put(BEFORE))
    drill.run()
    backup.take()
    drill.world.publish(*drill.put(SINCE))
    drill.run()
    assert drill.world.depth() == EMPTY
    drill.world.publish(*drill.put(WAITING))
    backup.restore()
    return drill


@pytest.mark.parametrize("tells_start", [True, False], ids=["spark-4.2", "spark-4.0"])
def test_the_query_stops_at_once_and_nothing_is_acknowledged(backup: Backup, tells_start: bool) -> None:
    drill = restored(backup, tells_start=tells_start)
    for _ in range(2):
        with pytest.raises(
            LostProgress, match=r"checkpoint is at offset 2, but the store .* knows offsets only up to 1"
        ):
            drill.run()
    assert drill.world.depth().total == len(WAITING)
    with drill.world.store() as store:
        assert states(store)["done"] == len(BEFORE)


def test_what_was_published_since_the_backup_is_missing_from_our_sink_until_it_is_announced_again(
    backup: Backup,
) -> None:
    drill = restored(backup)
    drill.run(drill.until_empty, failOnDataLoss="false")
    assert drill.visible() == dict.fromkeys(drill.uris(BEFORE, WAITING), 1)
    code, said = drill.reconcile()
    assert (code, f"{len(SINCE)} missing" in said) == (1, True), said
    assert drill.reconcile("--send", drill.world.queue_url)[0] == 1
    drill.run(drill.until_empty)  # without failOnDataLoss
    assert drill.visible() == dict.fromkeys(drill.uris(BEFORE, SINCE, WAITING), 1)
    assert drill.reconcile()[0] == 0


def test_with_another_sink_announcing_again_doubles_what_was_published_since(backup: Backup) -> None:
    drill = restored(backup, publishes=False)
    drill.run(drill.until_empty, failOnDataLoss="false")
    drill.reconcile("--send", drill.world.queue_url)
    drill.run(drill.until_empty)
    assert drill.visible() == {
        **dict.fromkeys(drill.uris(BEFORE, WAITING), 1),
        **dict.fromkeys(drill.uris(SINCE), 2),
    }


def test_with_another_sink_adopting_what_it_has_keeps_every_row_once(backup: Backup) -> None:
    drill = restored(backup, publishes=False)
    listed = drill.world.folder / "published.txt"
    listed.write_text("\n".join(drill.uris(SINCE)), "utf-8")
    given = ["adopt", "--source", "files", "--list", str(listed), "--store", drill.world.store_url]
    assert CliRunner().invoke(app, given).exit_code == 0
    drill.run(drill.until_empty, failOnDataLoss="false")
    assert drill.reconcile("--send", drill.world.queue_url)[0] == 0
    drill.run(drill.until_empty)
    assert drill.visible() == dict.fromkeys(drill.uris(BEFORE, SINCE, WAITING), 1)


def test_with_a_new_checkpoint_nobody_notices_and_the_same_is_missing(backup: Backup) -> None:
    drill = restored(backup)
    drill.run(drill.until_empty, checkpoint="new")
    assert drill.visible() == dict.fromkeys(drill.uris(BEFORE, WAITING), 1)
    assert drill.reconcile()[0] == 1


@pytest.mark.parametrize("publishes", [True, False], ids=["our-sink", "another-sink"])
def test_of_a_backup_in_the_middle_of_a_batch_that_batch_comes_again(
    backup: Backup, publishes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a batch after it. Into our sink it comes once; another one has it from before, and gets it twice."""
    drill = Drill(backup.world, publishes)
    drill.world.publish(*drill.put(BEFORE))
    drill.run()
    drill.world.publish(*drill.put(SINCE))
    in_the_middle(drill, backup, monkeypatch)
    drill.run(drill.until_empty)
    drill.world.publish(*drill.put(WAITING))
    drill.run(drill.until_empty)
    backup.restore()
    with pytest.raises(LostProgress):
        drill.run()
    drill.run(failOnDataLoss="false")
    drill.reconcile("--send", drill.world.queue_url)
    drill.run(drill.until_empty)
    twice = 1 if publishes else 2
    assert drill.visible() == {
        **dict.fromkeys(drill.uris(BEFORE), 1),
        **dict.fromkeys(drill.uris(SINCE, WAITING), twice),
    }


def in_the_middle(drill: Drill, backup: Backup, monkeypatch: pytest.MonkeyPatch, point: str = "plan-made") -> None:
    """The backup is taken when a plan is made, and nothing of it published."""
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_armed", {point: (1, "", "raise")})
        patch.setattr(failpoints, "_reached", {})
        with pytest.raises(FailpointReached):
            drill.run()
    backup.take()


def middle_of_the_last_batch(backup: Backup, monkeypatch: pytest.MonkeyPatch, publishes: bool) -> Drill:
    """The checkpoint is at an offset that the store knows: only that our sink has published nothing for it is wrong."""
    drill = Drill(backup.world, publishes)
    drill.world.publish(*drill.put(BEFORE))
    drill.run()
    drill.world.publish(*drill.put(SINCE))
    in_the_middle(drill, backup, monkeypatch)
    drill.run(drill.until_empty)
    backup.restore()
    drill.world.publish(*drill.put(WAITING))
    return drill


def test_a_backup_in_the_middle_of_the_last_batch_is_noticed_by_what_our_sink_has_not_published(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = middle_of_the_last_batch(backup, monkeypatch, publishes=True)
    for _ in range(2):
        with pytest.raises(
            LostProgress, match=r"offset 2 is done, but the store .* has nothing that the cuesqueue sink"
        ):
            drill.run()
    with drill.world.store() as store:
        assert states(store)["done"] == len(BEFORE)
    drill.run(drill.until_empty, failOnDataLoss="false")
    assert drill.visible() == dict.fromkeys(drill.uris(BEFORE, SINCE, WAITING), 1)
    assert drill.reconcile()[0] == 0


def test_after_a_backup_from_before_the_plan_of_the_last_batch_another_sink_gets_that_batch_again(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the store tells that it was read."""
    drill = Drill(backup.world, publishes=False)
    drill.world.publish(*drill.put(BEFORE))
    drill.run()
    drill.world.publish(*drill.put(SINCE))
    in_the_middle(drill, backup, monkeypatch, "snapshot-written")
    drill.run(drill.until_empty)
    backup.restore()
    drill.world.publish(*drill.put(WAITING))
    with pytest.raises(ShardStoreError, match="'failOnDataLoss' to false"):
        drill.run()
    drill.run(failOnDataLoss="false")
    drill.run(drill.until_empty)
    assert drill.visible() == {
        **dict.fromkeys(drill.uris(BEFORE, WAITING), 1),
        **dict.fromkeys(drill.uris(SINCE), 2),
    }


def test_a_backup_in_the_middle_of_the_last_batch_costs_another_sink_nothing(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = middle_of_the_last_batch(backup, monkeypatch, publishes=False)
    drill.run(drill.until_empty)
    assert drill.visible() == dict.fromkeys(drill.uris(BEFORE, SINCE, WAITING), 1)
