"""The store after a year of one busy pipeline, beside an empty one: start, heartbeat, batch, prune, and the rest.

The year is written by the database itself (`support/store_year.py` says of what); the steps are those of its test,
which counts rows and instructions. What is measured here is the time of the same steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.registry import Measurement, Role, Settings, alternate, benchmark
from benchmarks.store import databases
from shard_store.store import ShardStore, open_store
from support.store_year import PIPELINE, SOURCE, Life, fill, start

_WARM_UP = 3


@benchmark("store-year")
def store_year(settings: Settings) -> Iterator[Measurement]:
    """Steps of a pipeline with a year's rows in the store (a million remembered shards), against an empty store"""
    folders = [settings.folder / name for name in ("empty", "year")]
    for folder in folders:
        folder.mkdir()
    for (name, empty_url), (_, year_url) in zip(*map(databases, folders), strict=True):
        with empty_url as first, year_url as second, open_store(first) as empty, open_store(second) as year:
            start(empty)
            settings.say(f"{name}: a year's rows are written")
            fill(year, 0.02 if settings.quick else 1.0)
            lives = [Life(empty), Life(year)]
            for step, both in _steps(lives, settings.repetitions).items():
                yield _against_empty(f"{name}, {step}", both)
            opening = alternate([partial(_open_and_start, s) for s in (empty, year)], settings.repetitions)
            yield _against_empty(f"{name}, open and start", opening)


def _against_empty(case: str, both: list[list[float]]) -> Measurement:
    empty, year = both
    return Measurement(case, year, against="empty store", reference=empty, reference_role=Role.BASELINE)


def _steps(lives: list[Life], repetitions: int) -> dict[str, list[list[float]]]:
    """Seconds of each step: of the empty store, and of the one after a year, in turn."""
    found: dict[str, list[list[float]]] = {}
    for number in range(_WARM_UP + 4 * repetitions):
        for (step, first), (_, second) in zip(*(life.steps() for life in lives), strict=True):
            for place, work in enumerate((first, second)):
                began = time.perf_counter()
                work()
                if number >= _WARM_UP:
                    found.setdefault(step, [[], []])[place].append(time.perf_counter() - began)
    return found


def _open_and_start(store: ShardStore) -> float:
    """As a reader's process does it: a new connection, and what the incarnation before left."""
    url = store.database.url.render_as_string(hide_password=False)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        with open_store(url) as opened:
            opened.start(SOURCE, PIPELINE)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
