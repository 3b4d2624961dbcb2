"""`cuesqueue route`: a process of its own that records what one queue announces; and what `status` says of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queue_source.announcements.contents import s3_record
from queue_source.commands.main import app
from support.coordinator_world import EMPTY, World
from support.driver_loop import until
from support.store_backends import rows

TWO = [{"prefix": "s3://bucket/a/", "source": "a"}, {"prefix": "s3://bucket/", "tag": "#", "source": "all"}]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "routes.json").write_text(json.dumps(TWO))
    return world


def run(*arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done


def route(world: World, *arguments: str, code: int = 0) -> Result:
    file = str(world.folder / "routes.json")
    return run("route", world.queue_url, "--routes", file, "--until-empty", *arguments, code=code)


def test_it_records_until_the_queue_is_empty_and_says_what_it_did(world: World) -> None:
    world.publish("s3://bucket/a/1", "s3://bucket/b/1", "s3://elsewhere/1")
    result = json.loads(route(world, "--on-unrouted", "count", "--json").stdout)
    numbers = {name: result[name] for name in ("messages", "recorded", "duplicates", "unrouted", "malformed")}
    assert numbers == {"messages": 3, "recorded": 3, "duplicates": 0, "unrouted": 1, "malformed": 0}
    assert result["receiver"] == "files"
    assert world.depth() == EMPTY


def test_status_shows_the_receiver_and_what_waits_for_each_source(world: World) -> None:
    world.publish("s3://bucket/a/1", "s3://bucket/b/1")
    route(world, "--name", "landing")
    status: dict[str, Any] = json.loads(run("status", "--json").stdout)
    (receiver,) = status["receivers"]
    assert (receiver["receiver"], receiver["messages"], receiver["recorded"]) == ("landing", 2, 3)
    assert receiver["worked_at"] >= receiver["started_at"]
    assert 0 <= receiver["silence"] < 60
    waiting = [(waits["source"], waits["objects"]) for waits in status["waiting"]]
    assert waiting == [("a", 1), ("all", 2)]
    text = run("status").stdout
    assert "landing: receiver of sql+sqlite" in text
    assert re.search(r"worked +\d+(\.\d)? s ago", text)
    assert "messages 2, recorded 3, duplicates 0, changed 0, ignored 0, unrouted 0, malformed 0" in " ".join(
        text.split()
    )
    with world.loop(queueUrl="store", source="a") as loop:
        loop.drain()
    assert "waiting" not in json.loads(run("status", "--source", "a", "--json").stdout)


def test_errors_of_a_receiver_are_sent_once_more_after_a_route_was_added(world: World) -> None:
    world.publish("s3://elsewhere/1")
    route(world)
    assert world.depth() == EMPTY
    run("errors", "requeue", "--cause", "no-route")
    (world.folder / "routes.json").write_text(json.dumps([{"prefix": "s3://elsewhere/", "source": "a"}]))
    assert json.loads(route(world, "--json").stdout)["recorded"] == 1


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ("no file", "cannot be read"),
        ("{", "it is not JSON"),
        ("{}", "holds no list of routes"),
        ([], "holds no list of routes"),
        (["s3://a/"], "route 1: .* is no route"),
        ([{"prefix": "s3://a/"}], "route 1: .* says not enough"),
        ([{"source": "a"}], "route 1: .* says not enough"),
        ([{"prefix": "s3://a/", "source": 1}], "route 1: .* is no route"),
        ([{"prefix": "s3://a/", "suffix": "csv", "source": "a"}], "route 1: 'suffix' is not known"),
        ([{"prefix": "s3://a/", "source": "a"}, {"prefix": "s3a://a", "source": "a"}], "routes 1 and 2 are the same"),
        (
            [{"prefix": "s3://a/b/", "source": "a"}, {"prefix": "s3://a/", "source": "a"}],
            "route 1, 's3://a/b/' to 'a', takes nothing that route 2",
        ),
        ([{"prefix": "landing/", "source": "a"}], "route 1: no URI begins with 'landing/'"),
        ([{"prefix": "s3://a/../b/", "source": "a"}], "route 1: .*segment"),
        ([{"prefix": "s3://a/,s3://b/", "source": "a"}], "route 1: .* has a comma"),
        ([{"prefix": "s3://a/\nb/", "source": "a"}], "route 1: .* control character"),
        ([{"tag": "", "source": "a"}], "route 1: the tag filter '' matches no message"),
        ([{"prefix": "s3://a/", "source": "a/b"}], "route 1: 'a/b' contains '/'"),
    ],
)
def test_a_file_of_routes_that_is_wrong_is_refused_by_the_entry(world: World, routes: Any, words: str) -> None:
    file = world.folder / "routes.json"
    if routes == "no file":
        file.unlink()
    else:
        file.write_text(routes if isinstance(routes, str) else json.dumps(routes))
    world.publish("s3://a/1")
    text = " ".join(route(world, code=2).output.split())
    assert "option 'routes'" in text

    assert re.search(words, text), text
    assert world.depth().ready == 1


def test_one_object_may_go_to_several_sources_and_one_source_have_several_routes(world: World) -> None:
    more = [*TWO, {"prefix": "s3://bucket/b/", "source": "a"}, {"prefix": "s3://bucket/b/", "source": "b"}]
    (world.folder / "routes.json").write_text(json.dumps(more))
    world.publish("s3://bucket/a/1", "s3://bucket/b/1")
    assert json.loads(route(world, "--json").stdout)["recorded"] == 5


def test_an_option_of_a_reader_that_a_receiver_does_not_have_is_refused(world: World) -> None:
    assert "belongs to readStream" in " ".join(route(world, "--option", "fileFormat=csv", code=2).output.split())
    assert "write it as NAME=VALUE" in " ".join(route(world, "--option", "x", code=2).output.split())
    world.publish("s3://mounted/a/2")
    rewritten = ("--option", 'pathRewrites={"s3://mounted/": "s3://bucket/"}')
    assert json.loads(route(world, *rewritten, "--json").stdout)["recorded"] == 2
    world.publish(json.dumps({"Records": [s3_record("bucket", "a/3", "2026-01-01T00:00:00Z", size=0, eTag="odd")]}))
    assert json.loads(route(world, "--option", "trustNotification=none", "--json").stdout)["recorded"] == 2
    with world.store() as store:
        assert {(row["size"], row["etag"]) for row in rows(store, "shards")} == {(None, None)}
    world.publish(json.dumps({"files": {"uri": "s3://bucket/a/1"}}))
    by_path = ("--option", "notificationFormat=json", "--option", "uriPath=files.uri")
    assert json.loads(route(world, *by_path, "--json").stdout)["recorded"] == 2


def test_it_ends_in_order_when_it_is_terminated(world: World) -> None:
    command = [sys.executable, "-m", "queue_source.commands.main", "route", world.queue_url, "--json"]
    process = subprocess.Popen(
        [*command, "--routes", str(world.folder / "routes.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        world.publish("s3://bucket/a/1")

        def is_recorded() -> bool:
            return Path(world.store_url.removeprefix("sqlite:///")).exists() and world.depth() == EMPTY

        until(is_recorded, lambda: time.sleep(0.1), tries=300)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert json.loads(output)["recorded"] == 2
    assert "Traceback" not in errors
