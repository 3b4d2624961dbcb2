"""The tests of tests/ that `.ci/run` has no time for, as tests/support/tiers.py says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(7200)
def test_the_long_tests_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--numprocesses", "4", "--dist", "loadfile", "-m", "long", "tests"],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
