"""`cuesqueue export` and `import` as commands, and what other commands say of a store that a source has left."""

from __future__ import annotations

import gzip
import json
import re
import time
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from queue_source.admin.vacuum import vacuum
from queue_source.commands.main import app
from queue_source.errors import OptionError
from queue_source.queues import Depth, open_queue
from shard_store.model import ErrorRecord, Split
from shard_store.store import open_store
from support.store_backends import Pipeline


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as opened:
        Pipeline.start(opened).deliver("a", "b")
    return url


def test_a_source_is_exported_and_imported(store: str, tmp_path: Path) -> None:
    to, file = f"sqlite:///{tmp_path}/other.db", str(tmp_path / "s.moved")
    written = run("export", file, "--source", "s", "--store", store, "--to", to, "--json")
    assert written.exit_code == 0, written.output
    told = json.loads(written.stdout)
    assert (told["source"], told["moved"], told["shards"], told["attempts"]) == ("s", True, 2, 1)
    assert "start its queries with that store" in written.stderr
    read = run("import", file, "--store", to, "--json")
    assert read.exit_code == 0, read.output
    assert json.loads(read.stdout)["already"] is False
    assert json.loads(run("import", file, "--store", to, "--json").stdout)["already"] is True
    with open_store(to) as opened:
        assert Pipeline.start(opened).seq == 1


def test_a_pipeline_that_has_left_is_not_dead_where_it_was(store: str, tmp_path: Path) -> None:
    """Whoever watches the old store would be woken for ever."""
    later = time.time() + 3600
    to, file = f"sqlite:///{tmp_path}/other.db", str(tmp_path / "s.moved")
    with open_store(store) as opened:
        Pipeline.start(opened, "x", "another")
    assert run("export", file, "--source", "s", "--store", store, "--to", to).exit_code == 0
    done = run("status", "--store", store, "--max-silence", "1h")
    assert (done.exit_code, "x: running" in done.stdout, "p: " in done.stdout) == (0, True, False)
    assert "source s was moved to the store" in " ".join(done.stderr.split())
    with open_store(store, clock=lambda: later) as opened:
        assert [one.pipeline for one in opened.status()] == ["x"]
    assert run("import", file, "--store", to).exit_code == 0
    assert "p: running" in run("status", "--store", to).stdout


def test_errors_of_a_source_that_has_left_are_not_sent_again_where_it_was(store: str, tmp_path: Path) -> None:
    """There they would stay recorded, and could be sent once more."""
    queue = f"sql+sqlite:///{tmp_path}/queue.db?queue=files"
    with open_store(store) as opened:
        message = ErrorRecord("message", "malformed-message", "", "m", queue="files", message_id="m", input=b"x")
        opened.record_errors("s", "p", [message])
    to = f"sqlite:///{tmp_path}/other.db"
    assert run("export", str(tmp_path / "f"), "--source", "s", "--store", store, "--to", to).exit_code == 0
    done = run("errors", "requeue", "--all", "--to", queue, "--store", store)
    assert (done.exit_code, "name that store" in " ".join(done.stderr.split())) == (2, True)
    with open_queue(queue) as opened_queue:
        assert opened_queue.depth() == Depth(0, 0)


def test_tables_fit_80_columns(store: str, tmp_path: Path) -> None:
    file = str(tmp_path / "s.copy")
    shown = run("export", file, "--source", "s", "--store", store, "--copy").stdout
    shown += run("import", file, "--store", f"sqlite:///{tmp_path}/other.db").stdout
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("given", [[], ["--copy", "--to", "sqlite:///x.db"]], ids=["neither", "both"])
def test_whether_it_moves_has_to_be_said(store: str, tmp_path: Path, given: list[str]) -> None:
    done = run("export", str(tmp_path / "f"), "--source", "s", "--store", store, *given)
    assert (done.exit_code, "--copy" in done.stderr) == (2, True)
    assert not (tmp_path / "f").exists()


def test_no_password_is_in_the_file_or_in_the_store(store: str, tmp_path: Path) -> None:
    file = tmp_path / "s.moved"
    to = f"sqlite:///{tmp_path}/other.db?password=hunter2&sslpassword=hunter2"
    done = run("export", str(file), "--source", "s", "--store", store, "--to", to)
    text = gzip.decompress(file.read_bytes()).decode() if file.exists() else ""
    assert "hunter2" not in done.output + text
    with open_store(store) as opened:
        assert "hunter2" not in repr(opened.moved_sources())


def test_a_damaged_file_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"nothing")
    done = run("import", str(tmp_path / "f"), "--store", f"sqlite:///{tmp_path}/new.db")
    assert (done.exit_code, "nothing of it was imported" in re.sub(r"\s+", " ", done.stderr)) == (2, True)
    assert not (tmp_path / "new.db").exists()


def test_vacuum_leaves_the_folder_of_a_source_that_went_to_another_store(store: str, tmp_path: Path) -> None:
    """The files that it has published since are not listed in the store that it has left."""
    folder = tmp_path / "data"
    folder.mkdir()
    names = [f"split-{number:012x}-{number:032x}.parquet" for number in range(2)]
    for name in names:
        (folder / name).write_bytes(b"rows")
    with open_store(store) as opened:
        us = Pipeline.start(opened)
        us.publish(us.planned("c"), Split(str(folder / names[0]), 1, 4))
        us.confirm()
        assert vacuum(opened, str(folder), older_than=timedelta(0), dry_run=True).removed == 1
    to = f"sqlite:///{tmp_path}/other.db"
    assert run("export", str(tmp_path / "f"), "--source", "s", "--store", store, "--to", to).exit_code == 0
    with (
        open_store(store) as opened,
        pytest.raises(OptionError, match=r"source 's'.*was moved to the store .*other\.db"),
    ):
        vacuum(opened, str(folder), older_than=timedelta(0))
    assert all((folder / name).exists() for name in names)
