"""Commands as processes: what a signal, or an output that nobody reads, ends has its exit code, and shows no trace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_source.commands.output import ENDED_BY_SIGNAL, READER_GONE, UNHEALTHY, WRONG_USE
from shard_store.store import open_store

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def cuesqueue(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cuesqueue", *arguments]


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Tests that are run by `nohup` or in the background ignore some, and so would what they start."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


@pytest.mark.parametrize("sent", SIGNALS, ids=lambda sent: sent.name)
@pytest.mark.parametrize(
    "arguments",
    [
        ["prune", "--older-than", "1 day"],
        ["compact"],
        ["reconcile", "file:///nowhere/", "--source", "s"],
        ["vacuum", "--path", "out"],
        ["status"],
        ["route", "sim://q", "--routes", "routes.json", "--until-empty"],
        ["load", "sim://q", "--prefix", "file:///nowhere/", "--format", "json", "--path", "out"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_a_signal_ends_says_so_with_its_code_and_without_a_trace(
    arguments: list[str], sent: signal.Signals, silent: socket.socket, tmp_path: Path
) -> None:
    (tmp_path / "routes.json").write_text('[{"prefix": "file:///", "source": "s"}]')
    (tmp_path / "out").mkdir()
    store = f"postgresql+psycopg://me:pw@127.0.0.1:{silent.getsockname()[1]}/db"
    command = cuesqueue(*arguments, "--store", store)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        connection, _ = silent.accept()  # the command waits for its store
        with connection:
            running.send_signal(sent)
            out, said = running.communicate(timeout=60)
    assert (running.returncode, out) == (ENDED_BY_SIGNAL + sent, "")
    assert said.splitlines() == [f"error: stopped by {sent.name}"]


@pytest.mark.parametrize("sent", SIGNALS, ids=lambda sent: sent.name)
def test_serve_ends_with_0_at_each_signal(sent: signal.Signals, tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/store.db").close()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = cuesqueue("serve", "--store", f"sqlite:///{tmp_path}/store.db", "--port", str(port))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        while running.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 0.1).close()
            except OSError:
                continue
            break
        running.send_signal(sent)
        said += running.stderr.read()
        assert running.wait(60) == 0
    assert "Traceback" not in said


CHANGES_NOTHING = [
    ["prune", "--older-than", "1 day", "--dry-run"],
    ["status", "--json"],
    ["vacuum", "--path", "out", "--dry-run"],
    ["route", "sql+sqlite:///queue.db?queue=q", "--routes", "routes.json", "--until-empty"],
    ["version"],
]


@pytest.mark.parametrize("end", ["gone", "closed"])
@pytest.mark.parametrize("arguments", CHANGES_NOTHING, ids=lambda arguments: arguments[0])
def test_an_output_without_a_reader_ends_a_command_silently_and_a_closed_one_takes_all(
    arguments: list[str], end: str, tmp_path: Path
) -> None:
    """`| head` that has ended, and `>&-`, which is as `> /dev/null`: no file of the command gets its number."""
    (tmp_path / "routes.json").write_text('[{"prefix": "file:///", "source": "s"}]')
    (tmp_path / "out").mkdir()
    open_store(f"sqlite:///{tmp_path}/store.db").close()
    (tmp_path / "queue.db").touch()
    at = [] if arguments == ["version"] else ["--store", "sqlite:///store.db"]
    reading, writing = os.pipe()
    os.close(reading)
    command = cuesqueue(*arguments, *at)
    if end == "closed":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert done.returncode == (READER_GONE if end == "gone" else 0), done.stderr


@pytest.mark.parametrize("takes_nothing", ["closed pipe", "full disk"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["route", "sql+sqlite:///queue.db?queue=q", "--routes", "routes.json", "--until-empty"], 0),
        (["status"], 0),
        (["status", "--source", "other"], UNHEALTHY),
        (["route", "sim://q", "--routes", "nowhere.json"], WRONG_USE),
    ],
    ids=["route", "well", "unhealthy", "wrong use"],
)
def test_a_standard_error_that_takes_nothing_changes_no_exit_code(
    arguments: list[str], code: int, takes_nothing: str, tmp_path: Path
) -> None:
    """As where the program that collected the log has ended: what is done is done, and a probe says what it saw."""
    (tmp_path / "routes.json").write_text('[{"prefix": "file:///", "source": "s"}]')
    open_store(f"sqlite:///{tmp_path}/store.db").close()
    (tmp_path / "queue.db").touch()
    if takes_nothing == "full disk":
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    command = cuesqueue(*arguments, "--store", "sqlite:///store.db")
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == code
