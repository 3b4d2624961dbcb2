"""Tests that pause a process at a named place, and let it go on, stop nobody else by that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shard_store import failpoints
from support.engine.harness import environment
from support.engine.pauses import armed, go_on, paused
from support.engine.world import eventually


def come(folder: Path, *, once: bool) -> subprocess.Popen[bytes]:
    """A process that comes to a place at which processes pause, and says so when it has left it."""
    code = "from shard_store.failpoints import reach; reach('split-written'); print('left')"
    variables = {**os.environ, **environment(), failpoints.VARIABLE: armed("split-written", folder, once=once)}
    return subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE)


@pytest.mark.parametrize("once", [True, False])
def test_who_pauses_goes_on_when_it_may(tmp_path: Path, once: bool) -> None:
    process = come(tmp_path, once=once)
    assert eventually("the pause", lambda: paused(tmp_path)) == [process.pid]
    assert process.poll() is None
    go_on(tmp_path)
    assert process.communicate()[0] == b"left\n"
    assert paused(tmp_path) == []


@pytest.mark.timeout(60)
def test_nobody_pauses_who_comes_after_the_only_one_that_was_to_pause(tmp_path: Path) -> None:
    """Nobody would let him go on: a task that came a moment too late would hang for ever."""
    first = come(tmp_path, once=True)
    eventually("the pause", lambda: paused(tmp_path))
    during = come(tmp_path, once=True)
    assert during.communicate()[0] == b"left\n"
    go_on(tmp_path)
    after = come(tmp_path, once=True)
    try:
        assert after.communicate(timeout=30)[0] == b"left\n"
    finally:
        after.kill()
        after.communicate()
    assert first.communicate()[0] == b"left\n"
