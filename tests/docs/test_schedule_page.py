"""The page of jobs: each of its commands has the options that it is given, and those for pruning run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queue_source.commands.main import app, whole_program
from shard_store import open_store
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "schedule.md")
WALKTHROUGH = blocks(ROOT / "docs" / "how-to" / "walkthrough.md")
_IN_A_LINE = re.compile(r"(?:bin/|\*  +)(cuesqueue .*?)(?: >|$)", re.MULTILINE)


def commands() -> list[list[str]]:
    """The words of each command on the page."""
    by_language = {block.language: block.text for block in PAGE}
    (walkthrough,) = [block.text for block in WALKTHROUGH if block.language == "text"]
    lines = [*_IN_A_LINE.findall(by_language["text"]), *_IN_A_LINE.findall(walkthrough)]
    return [*map(shlex.split, lines)]


def test_each_command_of_a_job_has_the_options_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUESQUEUE_STORE", "sqlite:///store.db")
    program = whole_program()
    names = []
    for _, name, *arguments in commands():
        command = program.commands[name]
        command.make_context(name, arguments).close()  # raises what the command itself would
        names.append(name)
    assert sorted(names) == ["compact", "load", "prune", "reconcile", "status", "status"]


def test_the_probe_is_the_same_on_each_page() -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs" / "how-to").glob("*.md")]
    probes = [probe for page in pages for probe in re.findall(r"cuesqueue (status --source .*?)(?: >|\n)", page)]
    assert len(probes) == 2
    assert {re.sub("sqs://[a-z-]+", "QUEUE", probe) for probe in probes} == {
        "status --source orders --queue QUEUE --max-lag 30m --max-errors 100"
    }


def test_the_commands_that_prune_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUESQUEUE_STORE", f"sqlite:///{tmp_path / 'store.db'}")
    open_store(f"sqlite:///{tmp_path / 'store.db'}").close()
    for _, *arguments in commands():
        if arguments[0] == "prune":
            done = CliRunner().invoke(app, arguments)
            assert json.loads(done.stdout)["dry_run"] is False
