"""Runbooks: each says how it is noticed, what to look at and to do, and when it is over; its commands exist and run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shard_store import open_store
from support.coordinator_world import World
from support.snippets import ROOT, blocks
from support.store_backends import Pipeline

FOLDER = ROOT / "docs" / "runbooks"
RUNBOOKS = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
SECTIONS = ["How it is noticed", "What to look at", "What to do", "How to know that it is over"]
WANTED = {"backlog-grows", "pipeline-stuck", "many-errors", "store-slow", "queue-purged", "region-lost"}


def test_there_is_a_runbook_for_each_kind_of_trouble_and_the_index_links_to_it() -> None:
    assert {page.stem for page in RUNBOOKS} == WANTED
    index = (FOLDER / "index.md").read_text("utf-8")
    assert all(f"]({page.name})" in index for page in RUNBOOKS)


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_runbook_has_its_four_sections_in_order(page: Path) -> None:
    headings = [line.removeprefix("## ") for line in page.read_text("utf-8").splitlines() if line.startswith("## ")]
    assert headings == SECTIONS


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


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page) if block.language == "bash" for line in block.text.splitlines()]


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_every_command_of_a_runbook_is_understood(
    page: Path, run: Callable[[list[str]], subprocess.CompletedProcess[str]]
) -> None:
    """Exit code 2 is wrong use; 1 is an answer (nothing found, not complete), if it is no crash."""
    lines = commands(page)
    assert lines
    earlier = {line for other in RUNBOOKS[: RUNBOOKS.index(page)] for line in commands(other)}
    for line in lines:
        if line in earlier:
            continue
        done = run(["bash", "-c", line])
        assert done.returncode in (0, 1), f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_every_snippet_of_a_runbook_runs(
    page: Path, run: Callable[[list[str]], subprocess.CompletedProcess[str]]
) -> None:
    for block in blocks(page):
        if block.language == "python":
            done = run([sys.executable, "-c", block.text])
            assert done.returncode == 0, done.stderr
            assert done.stdout
