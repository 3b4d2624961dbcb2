"""Whatever happens in whatever order: each object is in one place, messages end after that, and losses are noticed.

`integration/test_explorer.py` goes on for half an hour, from a seed of its own.
"""

from __future__ import annotations

import pytest

from support.explorer.casts import CASTS
from support.explorer.explorer import explore

_EXPLORATIONS = 108
_IN_A_TEST = 12


@pytest.mark.usefixtures("iceberg_threads")
@pytest.mark.parametrize("first", range(0, _EXPLORATIONS, _IN_A_TEST))
def test_promises_hold_wherever_readers_die_stores_go_back_and_batches_are_read_twice(first: int) -> None:
    endings = [explore(seed) for seed in range(first, first + _IN_A_TEST)]
    assert "whole" in endings


@pytest.mark.usefixtures("iceberg_threads")
def test_an_exploration_is_repeated_by_its_seed() -> None:
    first, second = list[str](), list[str]()
    explore(len(CASTS), log=first.append)
    explore(len(CASTS), log=second.append)
    steps = [[line for line in run if line[:1].isdigit()] for run in (first, second)]
    assert steps[0] == steps[1]
    assert len({line.partition(" ")[2] for line in steps[0]}) > 5
