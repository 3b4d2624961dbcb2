"""A wrong `allowedPrefixes` refuses everything: status says so until something is accepted; a requeue repairs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from queue_source.announcements.contents import OUTSIDE_PREFIXES, Announced
from queue_source.commands.main import app
from queue_source.coordinator.errors import PERIOD
from queue_source.coordinator.opening import WINDOW, PrefixWatch
from queue_source.messages import Receipt, Received
from shard_store.model import Content, ErrorRecord, PublishToken
from shard_store.shards.activity import Intake
from support.coordinator_world import EMPTY, World, assert_published_once, uris

WRONG, RIGHT = "s3://buckte/", "s3://bucket/"
REQUEUE = f"cuesqueue errors requeue --cause {OUTSIDE_PREFIXES}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    return world


def run_with(world: World, prefix: str) -> None:
    """A run of a query that ends when nothing is left."""
    with world.loop(allowedPrefixes=prefix) as loop:
        loop.drain()


def command(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return str(done.stdout)


def complaints(code: int) -> list[str]:
    (pipeline,) = json.loads(command("status", "--json", code=code))["pipelines"]
    found: list[str] = pipeline["complaints"]
    return found


def causes(world: World) -> list[str]:
    with world.store() as store:
        return sorted(row[3] for page in store.pages("errors") for row in page)


def test_a_pipeline_of_which_all_messages_are_refused_is_unhealthy_until_a_requeue_has_brought_them_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(*uris(3))
    with caplog.at_level(logging.ERROR, "cuesqueue"):
        run_with(world, WRONG)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert all(word in line for word in ("'s3://bucket/", WRONG, REQUEUE))
    assert (causes(world), world.depth()) == ([OUTSIDE_PREFIXES] * 3, EMPTY)
    (complaint,) = complaints(code=3)
    assert "3 message(s)" in complaint
    assert REQUEUE in complaint
    run_with(world, RIGHT)
    assert complaints(code=3) == [complaint], "nothing came to this run"
    command(*REQUEUE.split()[1:])
    run_with(world, RIGHT)
    assert complaints(code=0) == []
    assert_published_once(world, uris(3))


def test_a_stream_of_which_some_messages_are_outside_is_healthy(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.publish(*uris(3), "s3://elsewhere/1")
    with caplog.at_level(logging.ERROR, "cuesqueue"):
        run_with(world, RIGHT)
    assert (causes(world), complaints(code=0)) == ([OUTSIDE_PREFIXES], [])
    assert [record for record in caplog.records if record.levelno == logging.ERROR] == []


def test_a_pipeline_that_was_healthy_is_unhealthy_once_it_is_started_with_a_wrong_prefix(world: World) -> None:
    world.publish(*uris(3))
    run_with(world, RIGHT)
    assert complaints(code=0) == []
    world.publish(*uris(1, first=3))
    run_with(world, WRONG)
    assert "1 message(s)" in complaints(code=3)[0]


def test_a_restart_with_the_same_prefixes_does_not_forget_what_came_before(world: World) -> None:
    """A stray message that happens to be the first one after it is no sign of a wrong option."""
    world.publish(*uris(3))
    run_with(world, RIGHT)
    world.publish("s3://elsewhere/1")
    run_with(world, RIGHT)
    assert complaints(code=0) == []


def test_objects_that_are_known_or_left_out_by_their_time_are_within_the_prefixes(world: World) -> None:
    world.publish(*uris(1))
    run_with(world, RIGHT)
    world.publish(*uris(1), "s3://elsewhere/1")
    run_with(world, RIGHT)
    assert complaints(code=0) == []


def test_a_message_that_is_no_notification_or_climbs_is_malformed_and_no_matter_of_prefixes(world: World) -> None:
    world.publish("no notification", f"{RIGHT}../1")
    run_with(world, RIGHT)
    assert (causes(world), complaints(code=0)) == (["malformed-message"] * 2, [])


def test_what_an_earlier_version_recorded_as_malformed_is_requeued_by_that_cause(world: World) -> None:
    run_with(world, RIGHT)
    old = ErrorRecord(
        "message", "malformed-message", "'s3://bucket/0' starts with none of the allowed prefixes", "m",
        queue=world.queue_url, message_id="m", input=b"s3://bucket/0",
    )  # fmt: skip
    with world.store() as store:
        store.record_errors("files", "files", [old])
    command("errors", "requeue", "--cause", "malformed-message")
    run_with(world, RIGHT)
    assert_published_once(world, uris(1))


# --- what came lately ---


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def watch_of(clock: Clock, before: Intake = Intake()) -> PrefixWatch:  # noqa: B008 - it cannot change
    session: Any = SimpleNamespace(clock=clock, token=PublishToken("files", 1))
    return PrefixWatch(session, before)


def message(number: int = 0) -> Received:
    return Received("q", f"m{number}", Receipt(f"r{number}"), b"", 1, 0.0)


def outside(count: int) -> Sequence[Announced]:
    record = ErrorRecord("message", OUTSIDE_PREFIXES, "why", "m")
    return [Announced(message(number), error=record) for number in range(count)]


def accepted(count: int) -> Sequence[Announced]:
    content = Content("x", "x", 1, None, "q")
    return [Announced(message(number), (content,)) for number in range(count)]


def test_what_came_counts_for_an_hour_or_two_in_which_something_comes() -> None:
    clock = Clock()
    watch = watch_of(clock)
    watch.count(accepted(1000))
    clock.now += 10 * WINDOW  # a quiet night
    watch.count(outside(1))
    assert watch.intake == Intake(1000, 1)
    clock.now += WINDOW
    watch.count(outside(2))
    assert watch.intake == Intake(0, 3)
    watch.count(accepted(1))
    assert watch.intake.all_outside == 0


def test_what_the_reader_before_had_counts_only_until_something_comes() -> None:
    before = Intake(0, 5)
    watch = watch_of(Clock(), before)
    watch.count([Announced(message(), ignored=1)])
    assert watch.intake == before
    watch.count(accepted(1))
    assert watch.intake == Intake(1, 0)


def test_a_flood_of_refused_messages_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = watch_of(clock)
    with caplog.at_level(logging.ERROR, "cuesqueue"):
        for _ in range(10):
            watch.count(outside(100))
        assert len(caplog.records) == 1
        clock.now += PERIOD
        watch.count(outside(100))
    assert "all 1100 message(s)" in caplog.records[1].getMessage()
