"""The commands with a real queue and a real store, both in SQLite."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shard_store
from queue_source.commands.main import app
from queue_source.queues import open_queue
from shard_store.model import Content
from shard_store.sql.schema import REVISION


@pytest.mark.parametrize("command", ["send", "publish"])
def test_what_send_and_its_earlier_name_publish_send_a_queue_delivers(tmp_path: Path, command: str) -> None:
    url = f"sql+sqlite:///{tmp_path}/jobs.db?queue=files"
    done = CliRunner().invoke(
        app,
        [command, url, "s3://bucket/a b", "--notification", "s3", "--tag", "orders.eu", "--header", "k=v", "--json"],
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["messages"] == 1
    with open_queue(url) as queue:
        [message] = queue.receive(10, 60.0, 0.0)
    assert json.loads(message.body)["Records"][0]["s3"]["object"]["key"] == "a+b"
    assert (message.tag, message.headers["k"]) == ("orders.eu", "v")


def test_a_queue_of_no_known_kind_is_wrong_use() -> None:
    done = CliRunner().invoke(app, ["send", "bogus://me:n0t-sh0wn@host", "a"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: queue 'bogus://me:***@host'")
    assert "n0t-sh0wn" not in done.output


def test_files_of_stores_and_queues_are_their_owners_alone(tmp_path: Path) -> None:
    """They hold bodies of messages. What exists keeps its mode, for those who share it on purpose."""
    before = os.umask(0o000)
    try:
        shard_store.open_store(f"sqlite:///{tmp_path}/store.db").close()
        with open_queue(f"sql+sqlite:///{tmp_path}/jobs.db?queue=files") as queue:
            queue.send(["a"])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        with open_queue(f"sim://orders?dir={tmp_path}/sim") as queue:
            queue.send(["a"])
        simulated = [path for path in (tmp_path / "sim").rglob("*") if path.is_file()]
        (tmp_path / "store.db").chmod(0o660)
        shard_store.open_store(f"sqlite:///{tmp_path}/store.db").close()
    finally:
        os.umask(before)
    assert {"store.db", "jobs.db", "jobs.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in simulated} == {0o600}
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o660


def test_another_connection_of_a_process_leaves_its_locks_on_the_file(tmp_path: Path) -> None:
    """Without them another process takes the write-ahead log away from under those who use it."""
    url = f"sqlite:///{tmp_path}/store.db"
    # SQLite's readers share these bytes, and who wants the file alone locks them all
    alone = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, (1 << 30) + 2)"
    )
    with shard_store.open_store(url) as store:
        list(store.pages("shards"))
        shard_store.open_store(url).close()
        done = subprocess.run(
            [sys.executable, "-c", alone, str(tmp_path / "store.db")], capture_output=True, check=False
        )
    assert b"BlockingIOError" in done.stderr


def test_prune_keeps_what_is_open_in_a_real_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with shard_store.open_store(url) as store:
        token = store.start("orders", "orders").token
        store.open_shards(token, "orders", [Content("s3://b/k", "s3://b/k")])
    for arguments in (("--dry-run",), ()):
        done = CliRunner().invoke(app, ["prune", "--store", url, "--older-than", "0s", "--json", *arguments])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["shards"] == 0


def test_a_store_of_no_known_kind_is_wrong_use_in_one_line() -> None:
    done = CliRunner().invoke(app, ["prune", "--store", "bogus://me:n0t-sh0wn@host/db"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "n0t-sh0wn" not in done.output


def test_prune_does_not_create_a_store_where_the_path_is_mistyped(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["prune", "--store", f"sqlite:///{tmp_path}/mistyped.db"])
    assert done.exit_code == 2
    assert "no such file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_nobody_names_is_that_of_the_reader_where_its_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUESQUEUE_STORE", raising=False)
    for command in (["errors", "list"], ["prune"], ["vacuum"], ["migrate"], ["errors", "show", "0123abcd"]):
        missing = CliRunner().invoke(app, command)
        assert missing.exit_code == 2
        assert "cuesqueue.db" in missing.stderr
        assert "--store" in missing.stderr
        assert "CUESQUEUE_STORE" in missing.stderr
    assert list(tmp_path.iterdir()) == []
    with shard_store.open_store("sqlite:///cuesqueue.db"):
        pass
    found = CliRunner().invoke(app, ["errors", "list", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == {"errors": [], "more": False}


def test_migrate_creates_a_store_and_changes_nothing_the_second_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    first, second = (CliRunner().invoke(app, ["migrate", "--store", url, "--json"]) for _ in range(2))
    assert json.loads(first.stdout) == {"from": None, "to": REVISION, "changed": True}
    assert json.loads(second.stdout) == {"from": REVISION, "to": REVISION, "changed": False}
    with shard_store.open_store(url, create=False) as store:
        assert store.start("s", "p").token.incarnation == 1
