"""`cuesqueue queue ...`: over the simulator and a SQL queue, and what it says where a kind cannot do it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queue_source.commands.main import app
from queue_source.commands.output import WRONG_USE
from queue_source.queues import open_queue
from queue_source.queues.base import Capabilities, Depth, administered


def cuesqueue(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["queue", *arguments])


def result_of(*arguments: str) -> dict[str, Any]:
    done = cuesqueue(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


KINDS: dict[str, Callable[[Path], str]] = {
    "simulator": lambda folder: f"sim://orders?dir={folder}&pool=p&tags=a.#",
    "sql": lambda folder: f"sql+sqlite:///{folder / 'jobs.db'}?queue=files",
}


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return KINDS[request.param](tmp_path / "queues")


def test_looking_at_a_queue_that_is_not_there_says_so_and_creates_nothing(url: str, tmp_path: Path) -> None:
    assert result_of("info", url)["exists"] is False
    peeked = cuesqueue("peek", url)
    assert (peeked.exit_code, peeked.stdout) == (2, "")
    assert "the queue does not exist; create it" in peeked.stderr
    assert result_of("delete", url, "--yes")["deleted"] is False
    assert list(tmp_path.iterdir()) == []


def test_a_queue_is_created_looked_at_emptied_and_deleted(url: str, tmp_path: Path) -> None:
    (tmp_path / "queues").mkdir()
    assert result_of("create", url)["created"] is True
    with open_queue(url) as queue:
        assert administered(queue)
        queue.send(["text", b"\xff"], tag="a.b", headers={"k": "v"})
        told = result_of("info", url)
        assert (told["exists"], told["ready"], told["in_flight"], told["delayed"]) == (True, 2, 0, 0)
        (first, second) = result_of("peek", url)["messages"]
        assert (first["body"], first["tag"], first["headers"], first["receive_count"]) == ("text", "a.b", {"k": "v"}, 0)
        assert second["body_base64"] == "/w=="
        assert len(result_of("peek", url, "--max-messages", "1")["messages"]) == 1
        assert queue.depth() == Depth(2, 0)
        assert result_of("purge", url, "--yes")["messages"] == 2
        assert queue.depth().total == 0
        queue.send(["more"], tag="a")
    assert result_of("delete", url, "--yes")["deleted"] is True
    # every name in the table is a queue, and the table stays: other queues may be in it
    assert result_of("info", url).get("ready", "absent") == (0 if url.startswith("sql") else "absent")


def test_a_queue_that_was_emptied_by_its_readers_still_exists(url: str, tmp_path: Path) -> None:
    (tmp_path / "queues").mkdir()
    with open_queue(url) as queue:
        queue.send(["x"], tag="a")
        queue.acknowledge([message.receipt for message in queue.receive(10, 60, 0)])
    shown = result_of("info", url)
    assert (shown["exists"], shown["ready"]) == (True, 0)


def test_people_get_tables(url: str, tmp_path: Path) -> None:
    (tmp_path / "queues").mkdir()
    with open_queue(url) as queue:
        queue.send(["hello " * 100], tag="a.b")
    assert "max batch size" in cuesqueue("info", url).stdout
    shown = cuesqueue("peek", url).stdout
    assert "a.b" in shown
    assert "hello" in shown


HOSTILE = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202eevil\u2066\x7f\x00\r\u2028 ok\t\n"
SHOWN = (r"\x1b]0;title\x07", r"\x1b[31mred\x9b2J\u202eevil\u2066", r"\x7f", r"\u2028 ok")


def test_what_senders_write_gives_no_orders_to_the_terminal(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "queues").mkdir()
    cuesqueue("create", url)
    with open_queue(url) as queue:
        queue.send([HOSTILE], tag="a.b", headers={"k": HOSTILE.replace("\x00", "")})
    for arguments in (("peek", url), ("peek", url, "--json")):
        done = cuesqueue(*arguments)
        assert done.exit_code == 0, done.output
        assert not set(done.output) & set("\x1b\x07\x9b\x7f\x00\r\u202e\u2066\u2028")
    assert result_of("peek", url)["messages"][0]["body"] == HOSTILE
    table = "".join(cuesqueue("peek", url).output.split())
    assert all("".join(part.split()) in table for part in SHOWN), table


def test_what_is_wrong_with_a_name_is_shown_without_its_escapes() -> None:
    done = cuesqueue("info", f"bogus://{HOSTILE}")
    assert done.exit_code == WRONG_USE
    assert not set(done.output) & set("\x1b\x07\x9b\x7f\x00\r\u202e\u2066")


@pytest.mark.parametrize("command", ["purge", "delete"])
def test_what_cannot_be_undone_needs_a_yes_where_nobody_can_be_asked(url: str, tmp_path: Path, command: str) -> None:
    (tmp_path / "queues").mkdir()
    with open_queue(url) as queue:
        queue.send(["kept"], tag="a")
        done = cuesqueue(command, url)
        assert done.exit_code == WRONG_USE
        assert "add --yes" in done.output
        assert queue.depth().ready == 1


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    (tmp_path / "queues").mkdir()
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("queue_source.commands.queue.sys", terminal)
    with open_queue(url) as queue:
        queue.send(["x"], tag="a")
        done = CliRunner().invoke(app, ["queue", "purge", url], input=f"{answer}\n")
        assert "Delete all messages of" in done.output
        assert queue.depth().ready == (0 if answer == "y" else 1)
        assert done.exit_code == (0 if answer == "y" else 1)


class Plain:
    """A queue of a kind that only has the verbs."""

    name = "plain://q"
    capabilities = Capabilities(max_batch_size=10, reports_depth=False, retention=60.0)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return


def test_a_kind_that_cannot_do_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.commands.queue.open_queue", lambda url: Plain())
    told = result_of("info", "plain://q")
    assert told == {"queue": "plain://q", "ordered_groups": False, "max_batch_size": 10, "retention_seconds": 60.0}
    for command in ("create", "delete", "purge", "peek"):
        done = cuesqueue(command, "plain://q")
        assert done.exit_code == WRONG_USE
        assert f"cuesqueue cannot {command} queues of this kind" in done.output
