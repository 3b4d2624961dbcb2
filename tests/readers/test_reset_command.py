"""A full refresh: a new checkpoint reads nothing again and says so, and `cuesqueue reset` makes a source begin anew."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queue_source.commands.main import app
from support.coordinator_world import World, uris
from support.driver_loop import published, taken_by_foreign_sink

LIST: dict[str, Any] = {"backfillPrefixes": "s3://bucket/", "backfillGrace": "0s", "source": "files"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("CUESQUEUE_STORE", world.store_url)
    monkeypatch.setenv("COLUMNS", "200")
    world.bucket.put(*uris(3), age=60.0)
    world.publish(*uris(3))
    return world


def run(*arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, ["reset", "files", "--reason", "full refresh", *arguments])
    assert done.exit_code == code, done.output
    return done


def drain(world: World, **options: Any) -> None:
    with world.loop(**{**LIST, **options}) as loop:
        loop.drain()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "checkpoint" in r.getMessage()]
    caplog.clear()
    return lines


@pytest.mark.parametrize("tells_start", [True, False], ids=["Spark 4.2 and newer", "Spark before 4.2"])
def test_a_full_refresh_warns_with_the_command_after_which_all_is_read_once_more(
    world: World, caplog: pytest.LogCaptureFixture, tells_start: bool
) -> None:
    table: dict[str, Any] = {"publishes": False, "idempotent": False, "tells_start": tells_start}
    drain(world, **table, checkpoint="0")
    drain(world, **table, checkpoint="0")
    assert warnings(caplog) == [], "neither a first start nor a restart is a refresh"
    assert taken_by_foreign_sink(world.folder / "output") == Counter(uris(3))
    drain(world, **table, checkpoint="1")
    (line,) = warnings(caplog)
    assert "run 'cuesqueue reset files' with this store" in line
    assert taken_by_foreign_sink(world.folder / "output") == Counter(uris(3)), "nothing was read again"
    run("--yes")
    drain(world, **table, checkpoint="1")
    assert taken_by_foreign_sink(world.folder / "output") == Counter(2 * uris(3))
    run("--yes")
    drain(world, **table, checkpoint="2")
    assert warnings(caplog) == [], "what is forgotten is read: there is nothing to warn of"
    assert taken_by_foreign_sink(world.folder / "output") == Counter(3 * uris(3))


def test_the_rows_of_our_own_sink_are_there_once_after_it(world: World) -> None:
    drain(world)
    would = json.loads(run("--dry-run", "--json").stdout)
    assert would == {
        "pipelines": ["files"], "objects": 3, "messages": 0, "begun": 0, "adopted": 0, "cleaned": 0, "files": 1,
        "dry_run": True,
    }  # fmt: skip
    with world.store() as store:
        assert published(store) == Counter(uris(3))
    said = run("--yes").output
    assert "now announce the objects once more" in said
    with world.store() as store:
        assert published(store) == {}
    drain(world, checkpoint="1")
    with world.store() as store:
        assert published(store) == Counter(uris(3))


def test_it_is_refused_without_yes_and_while_the_query_runs(world: World) -> None:
    assert "--yes" in run(code=2).output
    with world.loop(**LIST) as loop:
        loop.drain()
        assert "pipeline 'files' runs" in run("--yes", code=2).output
    with world.store() as store:
        assert published(store) == Counter(uris(3))
