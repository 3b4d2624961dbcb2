"""The random explorer of `tests/sweeps/test_explorer.py` for half an hour, each time from another seed.

`CUESQUEUE_EXPLORE_MINUTES=2 CUESQUEUE_EXPLORE_SEED=1700000000 make integration ARGS="-k explorer"` repeats a part, and
`CUESQUEUE_EXPLORE_KINDS=tables,versions` takes only these kinds of steps beside the usual ones.
"""

from __future__ import annotations

import itertools
import os
import time

import pytest

from support.explorer.explorer import explore

_MINUTES = float(os.environ.get("CUESQUEUE_EXPLORE_MINUTES", "30"))
_FIRST_SEED = int(os.environ.get("CUESQUEUE_EXPLORE_SEED", str(int(time.time()))))


@pytest.mark.timeout(int(_MINUTES * 60) + 300)
def test_promises_hold_for_half_an_hour_of_random_steps() -> None:
    end = time.monotonic() + _MINUTES * 60
    endings = dict.fromkeys(("whole", "noticed"), 0)
    for seed in itertools.count(_FIRST_SEED):
        if time.monotonic() > end:
            break
        endings[explore(seed)] += 1
    print(f"explorations from seed {_FIRST_SEED}: {endings}")
    assert all(endings.values())
