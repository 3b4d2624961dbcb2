"""Whatever happens in whatever order: each object is in one place, messages end after that, and losses are noticed.

`integration/test_explorer.py` goes on for half an hour, from a seed of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.explorer.casts import CASTS
from support.explorer.explorer import explore


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("first", "times"), [(0, 1), pytest.param(1015, 5, marks=pytest.mark.thorough)], ids=["each cast", "five times"]
)
def test_promises_hold_wherever_readers_die_stores_go_back_and_batches_are_read_twice(first: int, times: int) -> None:
    """In a process of its own, whose sets have an order that the seed decides."""
    command = [sys.executable, "-m", "support.explorer", "--kinds", "all", "--seed", str(first), "--shrink", "0"]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
    done = subprocess.run(
        [*command, "--explorations", f"{times * len(CASTS)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.usefixtures("iceberg_threads")
def test_an_exploration_is_repeated_by_its_seed() -> None:
    first, second = list[str](), list[str]()
    explore(len(CASTS), log=first.append)
    explore(len(CASTS), log=second.append)
    steps = [[line for line in run if line[:1].isdigit()] for run in (first, second)]
    assert steps[0] == steps[1]
    assert len({line.partition(" ")[2] for line in steps[0]}) > 5
