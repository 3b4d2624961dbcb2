"""A query goes on in another store with the same checkpoint, wherever it and the move were killed: each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queue_source.admin.moving import export, import_file
from queue_source.commands.main import app
from shard_store import failpoints
from shard_store.errors import PipelineTakenOver, StoreConfigurationError
from shard_store.failpoints import MOVING_POINTS, FailpointReached
from shard_store.store import open_store
from support.coordinator_world import EMPTY, MovingWorld, patiently, uris
from support.driver_loop import published, states, taken_by_foreign_sink, until
from support.servers.postgres import new_database
from support.store_backends import MYSQL_URL, PROCESS_BACKENDS

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(params=PROCESS_BACKENDS)
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/elsewhere.db"
    return new_database(request.getfixturevalue("postgres_url") if request.param == "postgresql" else MYSQL_URL)


@pytest.fixture
def world(tmp_path: Path) -> MovingWorld:
    return MovingWorld(tmp_path)


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, str, str]]:
    points: dict[str, tuple[int, str, str]] = {}
    monkeypatch.setattr(failpoints, "_armed", points)
    monkeypatch.setattr(failpoints, "_reached", {})
    return points


def move(world: MovingWorld, to: str) -> None:
    file = world.folder / f"{len(list(world.folder.glob('*.moved')))}.moved"
    with open_store(world.store_url) as origin, open_store(to) as target:
        export(origin, "files", file, to=target)
        import_file(target, file)
    world.at = to


def command(world: MovingWorld, *arguments: str, point: str = "") -> int:
    """The exit code of `cuesqueue`; with a point, in a process of its own that is killed there."""
    if not point:
        return CliRunner().invoke(app, [*arguments, "--json"]).exit_code
    surroundings = {**os.environ, "PYTHONPATH": str(SRC), failpoints.VARIABLE: f"{point}=exit"}
    done = subprocess.run(
        [sys.executable, "-m", "queue_source.commands.main", *arguments, "--json"],
        env=surroundings, cwd=world.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 2, -signal.SIGKILL), done.stderr
    return done.returncode


def test_a_query_goes_on_in_the_other_store_and_back_with_the_same_checkpoint(
    world: MovingWorld, elsewhere: str
) -> None:
    home = world.store_url
    for number, to in enumerate((elsewhere, home, elsewhere)):
        world.publish(*uris(5, first=5 * number))
        with world.loop(maxFilesPerTrigger="2") as loop:
            loop.drain()
            assert loop.coordinator.report()["seq"] == 3 * (number + 1)
        assert world.depth() == EMPTY
        move(world, to)
    world.publish(*uris(20))  # announced again: all but the last ones are known
    with world.loop() as loop:
        loop.drain()
    with world.store() as store:
        assert published(store) == dict.fromkeys(uris(20), 1)
        assert states(store) == {"done": 20}


@pytest.mark.parametrize("publishes", [True, False], ids=["our-sink", "another-sink"])
@pytest.mark.parametrize("point", ["snapshot-written", "offset-logged", "plan-made", "before-publish", "published"])
def test_what_is_in_flight_when_the_source_moves_is_neither_lost_nor_doubled(
    world: MovingWorld, elsewhere: str, armed: dict[str, tuple[int, str, str]], point: str, publishes: bool
) -> None:
    world.publish(*uris(3))
    with world.loop(publishes=publishes) as loop:
        loop.drain()
    world.publish(*uris(3, first=3))
    with world.loop(publishes=publishes) as loop:
        armed[point] = (1, "", "raise")
        with pytest.raises(FailpointReached):
            until(lambda: False, patiently(loop))
        loop.die()
    armed.clear()
    move(world, elsewhere)
    world.publish(*uris(3, first=6))
    with world.loop(publishes=publishes) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        found = published(store) if publishes else taken_by_foreign_sink(world.folder / "output")
        assert found == dict.fromkeys(uris(9), 1)
        assert states(store) == {"done": 9}


def test_a_query_that_is_left_running_on_the_old_store_stops_and_has_published_nothing_since(
    world: MovingWorld, elsewhere: str
) -> None:
    world.publish(*uris(3))
    home = world.store_url
    with world.loop() as zombie:
        zombie.work = lambda: move(world, elsewhere)  # between its plan and its publication
        with pytest.raises(PipelineTakenOver, match="was moved to the store"):
            zombie.batch()
        with pytest.raises(PipelineTakenOver, match="start it with that store as 'storeUrl'"):
            until(lambda: False, patiently(zombie))
    with open_store(home) as old:
        assert published(old) == {}
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        assert published(store) == dict.fromkeys(uris(3), 1)
    world.at = home
    with pytest.raises(StoreConfigurationError, match="was moved from"):
        with world.loop():
            pass


@pytest.mark.parametrize("point", MOVING_POINTS)
def test_a_move_that_is_killed_anywhere_is_continued_by_running_it_again(
    world: MovingWorld, elsewhere: str, point: str
) -> None:
    world.publish(*uris(3))
    with world.loop() as loop:
        loop.drain()
    world.publish(*uris(3, first=3))
    file = world.folder / "source.moved"
    leaving = ["export", str(file), "--source", "files", "--store", world.store_url, "--to", elsewhere]
    arriving = ["import", str(file), "--store", elsewhere]
    killed = [command(world, *leaving, point=point)]
    if killed[0]:
        assert file.exists() == (point == "file-written")
        if not file.exists():
            assert command(world, *leaving) == 0
    killed.append(command(world, *arriving, point=point))
    with open_store(elsewhere) as store:
        there = states(store)
        assert there == ({} if point == "rows-imported" else {"done": 3}), "all of it, or nothing"
    assert command(world, *arriving) == 0
    assert -signal.SIGKILL in killed
    world.at = elsewhere
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        assert published(store) == dict.fromkeys(uris(6), 1)
        assert states(store) == {"done": 6}
