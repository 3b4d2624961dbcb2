"""Hostile csv, json and text: each object is read to its end or refused, in the memory of one worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.hostile.text import objects

MEMORY = 600
"""MB of a worker."""


def test_hostile_text_is_read_or_refused_in_bounded_memory(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "support.hostile.reading_text", str(tmp_path)]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": tests}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {one["name"]: one["cause"] for one in found} == {one["name"]: one["expected"] for one in found}
    assert [one["name"] for one in found] == [one.name for one in objects(tmp_path)]
    assert max(one["peak"] for one in found) < MEMORY
