"""`cuesqueue shards` on a real store, beside a running reader: a stream gets past one object, and back to it."""

from __future__ import annotations

import getpass
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import cuesqueue
from queue_source.commands.main import app
from support.coordinator_world import EMPTY, World, assert_published_once, patiently, uris
from support.driver_loop import DriverLoop, published, states, until

BAD, GOOD = uris(2)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    monkeypatch.setenv("COLUMNS", "200")
    return world


def run(*arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, ["shards", *arguments])
    assert done.exit_code == code, done.output
    return done


def shards(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).stdout)
    return found


class BadObject(Exception):
    """A task failed, and the query with it (`onCorruptObject` = `fail`)."""


def fails_on_bad(loop: DriverLoop) -> None:
    """Each attempt at a plan with the bad object fails."""
    plan = loop.coordinator.plan

    def read(start: int, end: int) -> Any:
        made = plan(start, end)
        if any(r.content.shard_id == BAD for r in made.ranges):
            raise BadObject
        return made

    loop.coordinator.plan = read  # type: ignore[method-assign]


def test_a_stream_that_fails_again_and_again_gets_past_one_object(world: World) -> None:
    world.publish(BAD, GOOD)
    for _ in range(2):
        with world.loop() as loop:
            fails_on_bad(loop)
            with pytest.raises(BadObject):
                until(lambda: False, patiently(loop), tries=100)
    assert "made 2 time(s) and is not published" in shards("show", BAD)["outcome"]
    told = shards("quarantine", BAD, "--reason", "half of it is missing")
    assert told == {"shards": 1, "unchanged": 0, "refused": {}, "dry_run": False}
    with world.loop() as loop:
        fails_on_bad(loop)
        until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store:
        assert published(store) == {GOOD: 1}
        assert states(store) == {"done": 1, "quarantined": 1}
    story = shards("show", BAD)
    assert story["outcome"].startswith("quarantined, nothing of it was published")
    assert [(e["cause"], e["state"]) for e in story["errors"]] == [("quarantined-by-hand", "recorded")]
    (change,) = story["changes"]
    assert change["actor"] == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (change["action"], change["reason"]) == ("quarantine", "half of it is missing")


def test_a_running_reader_reads_what_is_opened_again_without_a_message(world: World) -> None:
    world.publish(BAD, GOOD)
    with world.loop() as loop:
        loop.bad = {BAD: "corrupt-object"}
        until(lambda: world.depth() == EMPTY, patiently(loop))
        loop.bad = {}
        assert shards("reopen", "--state", "quarantined", "--reason", "repaired")["shards"] == 1
        until(lambda: states(loop.coordinator.session.store) == {"done": 2}, patiently(loop))
    assert_published_once(world, [BAD, GOOD])
    assert [error["state"] for error in shards("show", BAD)["errors"]] == ["reopened"]


def test_what_is_forgotten_is_published_again_when_it_is_announced_again(world: World) -> None:
    def feed() -> None:
        world.publish(GOOD)
        with world.loop() as loop:
            until(lambda: world.depth() == EMPTY, patiently(loop))

    feed()
    done = run("forget", GOOD, "--reason", "its rows were deleted", code=2)
    assert "--yes" in done.output
    assert shards("forget", GOOD, "--reason", "its rows were deleted", "--dry-run")["shards"] == 1
    feed()
    assert shards("forget", GOOD, "--reason", "its rows were deleted", "--yes")["shards"] == 1
    assert shards("show", GOOD)["outcome"] == "the store does not know it: it was forgotten"
    feed()
    with world.store() as store:
        assert published(store) == {GOOD: 2}


def test_refusals_are_named_and_end_with_exit_code_1(world: World) -> None:
    world.publish(GOOD)
    with world.loop() as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
    assert shards("quarantine", GOOD, "--reason", "x", code=1)["refused"] == {GOOD: "it is published already"}
    assert "was refused: it is published:" in run("reopen", GOOD, code=1).output


@pytest.mark.parametrize("command", ["quarantine", "reopen", "forget"])
def test_nothing_is_changed_where_nothing_was_chosen(world: World, command: str) -> None:
    world.store().__enter__().close()
    assert "--all" in run(command, "--reason", "x", *(["--yes"] if command == "forget" else []), code=2).output


def test_shards_are_listed_for_people_and_for_programs(world: World) -> None:
    world.publish(BAD, GOOD)
    with world.loop() as loop:
        loop.bad = {BAD: "corrupt-object"}
        until(lambda: world.depth() == EMPTY, patiently(loop))
    (shown,) = shards("list", "--match", "*/0", "--state", "quarantined")["shards"]
    assert (shown["shard_id"], shown["state"], shown["pipeline"]) == (BAD, "quarantined", "files")
    assert shown["finished_at"].endswith("Z") or "+" in shown["finished_at"]
    assert shards("list", "--limit", "1")["more"] is True
    assert shards("show", shown["key"][:10])["shard"]["shard_id"] == BAD
    table = run("list").stdout
    assert "quarantined" in table
    assert "done" in table
    assert "corrupt-object" in run("show", BAD).stdout
    assert "knows nothing of" in run("show", "s3://nowhere", code=2).output


def test_programs_have_the_same_functions(world: World) -> None:
    world.publish(BAD, GOOD)
    with world.loop() as loop:
        until(lambda: loop.in_flight.counts().ready == 2, lambda: time.sleep(0.01))
    with cuesqueue.open_store(world.store_url) as store:
        one = cuesqueue.ShardCriteria(ids=[BAD])
        assert [shard.state for shard in cuesqueue.find_shards(store, one)] == ["open"]
        assert cuesqueue.quarantine_shards(store, one, reason="x").changed == 1
        (story,) = cuesqueue.shard_stories(store, one)
        assert story.outcome.endswith("an operator wants it given up")
        assert cuesqueue.reopen_shards(store, one, reason="x") == cuesqueue.ShardsChanged(changed=1)
        assert list(cuesqueue.forget_shards(store, one, reason="x").refused) == [BAD]
