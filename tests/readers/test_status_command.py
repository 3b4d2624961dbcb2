"""`cuesqueue status` beside a running reader, a stopped and a dead one: for people in 80 columns, and for probes."""

from __future__ import annotations

import json
import re
import signal
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import cuesqueue
from queue_source.commands.main import app
from queue_source.commands.output import Stopped
from queue_source.queues import open_queue
from shard_store.model import ErrorRecord, Runtime
from shard_store.shards.activity import Report
from support.coordinator_world import World, patiently, uris
from support.driver_loop import until
from support.store_backends import Pipeline


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    monkeypatch.setenv("COLUMNS", "80")
    return world


def run(*arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, ["status", *arguments])
    assert done.exit_code == code, done.output
    assert max((len(line) for line in done.stdout.splitlines() if not line.startswith("{")), default=0) <= 80
    return done


def status(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).stdout)
    return found


def ended(world: World, name: str, ago: float) -> None:
    """A pipeline that was killed so many seconds ago."""
    with cuesqueue.open_store(world.store_url, clock=lambda: time.time() - ago) as store:
        Pipeline.start(store, name).open(f"of {name}")


def test_a_running_reader_says_what_it_holds_and_what_it_has_published(world: World) -> None:
    world.publish(*uris(3))
    with world.loop() as loop:
        until(lambda: _the("files")["total"]["objects"] == 3, patiently(loop))
        until(lambda: _the("files")["in_flight"] is not None and _the("files")["counters"]["received"] == 3, _rest)
        found = _the("files")
        assert (found["state"], found["source"], found["incarnation"]) == ("running", "files", 1)
        assert (found["files_outstanding"], found["oldest_age"], found["total"]["errors"]) == (0, None, {})
        assert 0 < found["last_hour"]["lag_p50"] <= found["last_hour"]["lag_p99"] < 60
        assert found["rows_per_second"] > 0
        text = run().stdout
    assert text.startswith("files: running\n")
    for part in ("  source      files, exactly-once", "  holds ", "  lag ", "in all      1 batch, 3 objects, 3 rows"):
        assert part in text
    found = _the("files")
    assert (found["state"], found["total"]["messages"], found["last_hour"]["messages"]) == ("stopped", 3, 3)
    with world.loop():
        assert _the("files")["incarnation"] == 2
        assert _the("files")["counters"]["received"] == 3  # they outlive the restart


def _the(pipeline: str) -> dict[str, Any]:
    found: dict[str, Any] = status("--pipeline", pipeline)["pipelines"][0]
    return found


def _rest() -> None:
    time.sleep(0.05)


def test_messages_that_a_reader_before_holds_are_said(world: World) -> None:
    world.publish(*uris(3))
    with open_queue(world.queue_url) as queue:
        queue.receive(3, lease=60.0, wait=1.0)
    with world.loop():
        until(lambda: _the("files")["in_flight_elsewhere"] == 3, _rest)
        assert "queue depth 0, and 3 in flight elsewhere" in " ".join(run().stdout.split())
    assert _the("files")["in_flight_elsewhere"] is None
    asked = f"{world.queue_url}: queue\n  messages    0 ready, 3 in flight, 0 delayed"
    assert asked in CliRunner().invoke(app, ["status", "--queue", world.queue_url]).stdout  # a URL is never broken
    [said] = status("--queue", world.queue_url)["queues"]
    assert said == {"queue": world.queue_url, "ready": 0, "in_flight": 3, "delayed": 0}


def test_a_queue_that_cannot_be_asked_makes_a_probe_fail_and_is_not_made(world: World) -> None:
    world.store().__enter__().close()
    for url, problem in (
        (f"sql+sqlite:///{world.folder}/absent.db?queue=files", "it does not exist; create it, or correct its URL"),
        ("sql+postgresql+psycopg://me:hunter2@127.0.0.1:1/cues?queue=files", "refused"),
    ):
        [said] = status("--queue", url, code=3)["queues"]
        assert problem in said["problem"]
        text = CliRunner().invoke(app, ["status", "--queue", url]).stdout
        assert "  unhealthy   " in text
        assert "hunter2" not in text
    assert not (world.folder / "absent.db").exists()


def test_a_dead_pipeline_is_unhealthy_and_a_stopped_one_is_not(world: World) -> None:
    ended(world, "dead", ago=3600.0)
    with world.store() as store:
        us = Pipeline.start(store, "stopped")
        store.retire(us.token, Report(stopped=True))
    assert status("--pipeline", "stopped")["healthy"]
    found = status(code=3)
    assert not found["healthy"]
    complaints = {one["pipeline"]: one["complaints"] for one in found["pipelines"]}
    assert complaints["stopped"] == []
    assert re.fullmatch(r"its heartbeats ended 1:0\d:\d\d ago, and it was not stopped", complaints["dead"][0])
    assert "  unhealthy   its heartbeats ended 1:0" in run("--pipeline", "dead", code=3).stdout


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ((), 0),
        (("--max-lag", "1h", "--max-silence", "1h", "--max-errors", "1"), 0),
        (("--max-lag", "30s"), 3),
        (("--max-silence", "30s"), 3),
        (("--max-errors", "0"), 3),
    ],
)
def test_limits_make_a_probe_fail(world: World, limits: tuple[str, ...], code: int) -> None:
    ended(world, "p", ago=45.0)  # not stale yet, by the 60 s of these tests
    with world.store() as store:
        store.record_errors("s", "p", [ErrorRecord("message", "malformed-message", "why", "m")])
    run(*limits, code=code)


def test_a_pipeline_that_never_started_is_unhealthy_and_an_empty_store_is_not(world: World) -> None:
    world.store().__enter__().close()
    assert "no pipeline has started yet" in run().stderr
    assert "no such pipeline" in run("--pipeline", "nobody", code=3).stderr
    assert status("--pipeline", "nobody", code=3) == {"healthy": False, "pipelines": []}


def test_a_store_that_is_not_there_is_wrong_use_and_not_unhealthy(world: World) -> None:
    assert "there is no such file" in run(code=2).stderr
    assert "has no unit" in run("--max-lag", "5", code=2).stderr


def test_many_pipelines_have_a_line_each(world: World) -> None:
    names = [f"a pipeline with a long name that does not fit {number}" for number in range(5)]
    with world.store() as store:
        for name in names:
            Pipeline.start(store, name).open(f"of {name}")
    text = run().stdout
    assert "5 pipelines" in text
    assert text.count("running") == 5
    assert [name for name in names if f"  {name}\n" not in text] == [], "in 80 columns"
    assert len(status("--source", "s")["pipelines"]) == 5
    assert status("--source", "t", code=3) == {"healthy": False, "pipelines": []}


def test_names_from_elsewhere_give_no_orders_to_the_terminal(world: World) -> None:
    with world.store() as store:
        store.start("s", "p", runtime=Runtime("host\x1b[2J", "4\n0", None))
    text = run().stdout
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_watching_shows_it_again_until_it_is_interrupted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.store() as store:
        Pipeline.start(store)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Stopped(signal.SIGINT)

    monkeypatch.setattr("queue_source.commands.status.sleep", sleep)
    assert run("--watch", "--interval", "2s").stdout.count("p: running") == 3
    assert pauses == [2.0] * 3
    del pauses[:]
    lines = run("--watch", "--json").stdout.splitlines()
    assert [json.loads(line)["healthy"] for line in lines] == [True] * 3


def test_programs_get_the_same_as_frozen_values(world: World) -> None:
    with world.store() as store:
        Pipeline.start(store, "p").deliver("a")
        [one] = cuesqueue.status(store, pipeline="p")
        assert isinstance(one, cuesqueue.PipelineStatus)
        assert (one.total.objects, cuesqueue.complaints(one, cuesqueue.StatusLimits(timedelta(hours=1)))) == (1, ())
        with pytest.raises(AttributeError, match="cannot assign"):
            one.state = "dead"  # type: ignore[misc]
        [hour] = cuesqueue.history(store, since=datetime.now(timezone.utc) - timedelta(hours=1))
        assert (hour.pipeline, hour.published.objects) == ("p", 1)


def test_what_a_reader_has_published_is_counted_when_it_was_killed(world: World) -> None:
    world.publish(*uris(4))
    with world.loop() as loop:
        until(lambda: _the("files")["total"]["objects"] == 4, patiently(loop))
        loop.die()
    found = _the("files")
    assert (found["state"], found["total"]["objects"]) == ("running", 4)  # until others may take over
    until(lambda: json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)["healthy"] is False, _rest)
    assert status(code=3)["pipelines"][0]["state"] == "dead"
