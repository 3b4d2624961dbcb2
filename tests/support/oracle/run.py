"""Draw cases, try the relations on them, shrink what breaks one, and print it as a test to paste.

    python -m support.oracle --minutes 5 --seed 1 [--relation NAME]

The same seed and number of examples give the same cases. A round looks for one kind of failure: while Hypothesis
shrinks a case, other kinds are left for the next round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
from hypothesis import seed as with_seed
from hypothesis.errors import Flaky, FlakyFailure

from support.oracle import (
    beside,
    counting,
    days,
    folders,
    found,
    harm,
    headers,
    inference,
    inferred,
    loading,
    options,
    packing,
    parts,
    rescue,
    spark,
    stores,
    ways,
    written,
)
from support.oracle.results import Result, pasted
from support.oracle.rows import Broken
from support.oracle.typed import NotWritten

RELATIONS: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        spark,
        inferred,
        ways,
        written,
        folders,
        parts,
        beside,
        packing,
        rescue,
        harm,
        headers,
        inference,
        stores,
        options,
        loading,
        days,
        found,
    )
}
"""A relation is a module with `NAME`, `strategy()` of its cases, and `check(case)`, which raises `Broken`."""
A_ROUND = 200
"""Examples of a round, at most."""
_GROUPS = 15
"""Groups of objects that Spark reads, in a round that ends with its time: the first of each is the simplest one."""
_SECONDS = 15.0
"""Of a round of which nothing is found, and of looking for a smaller case."""


def check(relation: str, case: Any) -> None:
    """Try a relation on a case. Raises Broken."""
    RELATIONS[relation].check(case)


def run(
    seed: int,
    *,
    seconds: float | None = None,
    examples: int | None = None,
    relations: Sequence[str] = (),
    report: Callable[[Broken], None] = lambda broken: None,
) -> Result:
    """Try relations by turns until the time is over, or each has had so many examples."""
    result, started = Result(), time.monotonic()
    names = list(relations or RELATIONS)
    for number in _numbers(None if examples is None else -(-examples // A_ROUND)):
        for name in names:
            if seconds is not None and time.monotonic() - started > seconds:
                result.seconds = time.monotonic() - started
                return result
            count = A_ROUND if examples is None else min(A_ROUND, examples - number * A_ROUND)
            until = None if seconds is None else min(started + seconds, time.monotonic() + _SECONDS)
            module, number_of_round = RELATIONS[name], seed * 10_000 + number
            if module in (spark, inferred):
                groups = -(-count // spark.AT_ONCE) if seconds is None else _GROUPS
                found = module.one_round(number_of_round, groups, result, until)
            else:
                found = one_round(module, number_of_round, count, result, until)
            for broken in found:
                report(broken)
    result.seconds = time.monotonic() - started
    return result


def _numbers(most: int | None) -> Iterator[int]:
    number = 0
    while most is None or number < most:
        yield number
        number += 1


def one_round(module: ModuleType, seed: int, count: int, result: Result, until: float | None = None) -> list[Broken]:
    """Try so many examples; the first new kind of failure is shrunk, kept and returned."""
    name: str = module.NAME
    chased: list[tuple[str, str]] = []
    smallest: list[Broken] = []
    found_at = 0.0

    @with_seed(seed)
    @settings(
        max_examples=count, deadline=None, database=None, derandomize=False, report_multiple_bugs=False,
        print_blob=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet,
    )  # fmt: skip
    @given(module.strategy())
    def tried(case: Any) -> None:
        nonlocal found_at
        late = until if not chased else found_at + 2 * _SECONDS
        if late is not None and time.monotonic() > late:
            return
        if not chased:
            result.tried[name] += 1
            case.count()
        try:
            module.check(case)
        except NotWritten:
            reject()
        except Broken as broken:
            key = (broken.relation, broken.kind)
            if not chased:
                result.seen[key] += 1
            if key in result.broken or (chased and chased != [key]):
                return
            found_at = found_at or time.monotonic()
            chased[:] = [key]
            smallest[:] = [broken]
            raise

    with suppress(Broken, Flaky, FlakyFailure):
        tried()
    if smallest:
        result.broken[chased[0]] = smallest[0]
    return smallest


def _print(broken: Broken) -> None:
    """`tools/planted_defects` and `tools/fuzz.py` read the first line."""
    print(f"FOUND {broken.relation}: {broken.kind}\n{pasted(broken)}", flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m support.oracle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, help="of each relation, instead of minutes")
    parser.add_argument("--relation", action="append", choices=sorted(RELATIONS), default=[])
    given_ = parser.parse_args(arguments)
    seconds = None if given_.examples else given_.minutes * 60
    result = run(given_.seed, seconds=seconds, examples=given_.examples, relations=given_.relation, report=_print)
    print(counting.report())  # noqa: T201
    print(f"\nseed {given_.seed}: {len(result.broken)} kinds of failures in {result.seconds:.0f} s\n{result}")  # noqa: T201
    return 1 if result.broken else 0
