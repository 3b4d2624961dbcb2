"""Runbooks: each alert names one that is there; each says how it is noticed and what to look at; its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.test_pages import anchor
from queue_source.commands.setup import MONITORING
from shard_store import open_store
from support.coordinator_world import World
from support.snippets import ROOT, blocks
from support.store_backends import Pipeline

PAGE = ROOT / "docs" / "troubleshooting.md"
ALERTS = MONITORING / "prometheus-alerts.yml"
RUNBOOK_PART = PAGE.read_text("utf-8").partition("\n## Errors by their text")[0]
_, *SECTIONS = re.split(r"^## ", RUNBOOK_PART, flags=re.MULTILINE)
RUNBOOKS = {anchor(section.partition("\n")[0]): section for section in SECTIONS}
BLOCKS = blocks(PAGE)


def test_there_is_a_runbook_for_each_alert() -> None:
    text = ALERTS.read_text("utf-8")
    named = set(re.findall(r"see the runbook ([\w-]+)", text))
    assert named == {"a-pipeline-is-stuck", "the-backlog-grows", "many-errors", "the-store-is-slow"}
    assert named <= RUNBOOKS.keys()
    alerts = set(re.findall(r"^ +- alert: (\w+)", text, re.MULTILINE))
    assert set(re.findall(r"`(Cuesqueue\w+)`", PAGE.read_text("utf-8"))) <= alerts


@pytest.mark.parametrize("name", RUNBOOKS)
def test_a_runbook_says_how_its_trouble_is_noticed_and_what_to_look_at(name: str) -> None:
    assert re.search(r"\*\*Noticed by\*\*|notices it", RUNBOOKS[name])
    assert "```bash\n" in RUNBOOKS[name]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[list[str]], subprocess.CompletedProcess[str]]:
    """Runs a script as somebody on call would, with a store and a queue that have something in them."""
    world = World(tmp_path)
    world.publish("file:///landing/orders/1.json")
    folder = tmp_path / "landing"
    folder.mkdir()
    (folder / "1.json").write_text("{}\n", "utf-8")
    with open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        us = Pipeline.start(store, "orders", "orders")
        us.deliver("s3://landing/orders/0.json")
        us.open("s3://landing/orders/1.json")
    programs = tmp_path / "programs"
    programs.mkdir()
    command = programs / "cuesqueue"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m queue_source.commands.main "$@"\n', "utf-8")
    command.chmod(0o755)
    surroundings = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "CUESQUEUE_STORE": f"sqlite:///{tmp_path}/cuesqueue.db",
        "QUEUE": world.queue_url,
        "PREFIX": folder.as_uri() + "/",
    }

    def execute(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False, timeout=120
        )

    return execute


def test_every_command_of_the_runbooks_is_understood(
    run: Callable[[list[str]], subprocess.CompletedProcess[str]],
) -> None:
    """Exit code 2 is wrong use; 1 is an answer (nothing found, not complete), if it is no crash."""
    lines = [line for block in BLOCKS if block.language == "bash" for line in block.text.splitlines()]
    assert len(lines) > 20
    for line in dict.fromkeys(lines):
        done = run(["bash", "-c", line])
        assert done.returncode in (0, 1), f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
