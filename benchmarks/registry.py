"""What a benchmark is: a name, and a function that yields measurements. A new one is a function with `@benchmark`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for. `folder` is empty, and is removed afterwards."""

    folder: Path
    quick: bool = False
    say: Callable[[str], None] = lambda text: None

    @property
    def repetitions(self) -> int:
        return 2 if self.quick else 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the table: the seconds of each run, what they did, and what they are compared with.

    `amount` in `unit`s is what one run worked through; 0 where only time is of interest. The runs of `reference` were
    made in turn with ours, so that a machine that gets slower gets slower for both.
    """

    case: str
    seconds: Sequence[float]
    amount: int = 0
    unit: str = ""
    against: str = ""
    reference: Sequence[float] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float | None:
        return self.amount / self.median if self.amount else None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the reference: the median over the pairs of runs."""
        if not self.reference:
            return None
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, self.reference, strict=True))

    def as_json(self) -> dict[str, object]:
        return {
            "case": self.case,
            "seconds": list(self.seconds),
            "median_seconds": self.median,
            "amount": self.amount,
            "unit": self.unit,
            "against": self.against,
            "reference_seconds": list(self.reference),
            "ratio": self.ratio,
        }


Function = Callable[[Settings], Iterator[Measurement]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`about` is the first line of the function's docstring."""

    name: str
    about: str
    run: Function


REGISTRY: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Function], Function]:
    """Make a function known to `python -m benchmarks` under this name."""

    def register(function: Function) -> Function:
        if name in REGISTRY:
            raise ValueError(f"there are two benchmarks named {name!r}")
        about = (function.__doc__ or "").strip().splitlines()
        if not about:
            raise ValueError(f"benchmark {name!r} needs a docstring that says what it measures")
        REGISTRY[name] = Benchmark(name, about[0], function)
        return function

    return register


def alternate(runs: Sequence[Callable[[], float]], repetitions: int, warm_up: int = 1) -> list[list[float]]:
    """Call all in turn, A B A B ..., and return the seconds of each; the warm-up rounds are not counted."""
    seconds: list[list[float]] = [[] for _ in runs]
    for round_number in range(warm_up + repetitions):
        for place, run in enumerate(runs):
            taken = run()
            if round_number >= warm_up:
                seconds[place].append(taken)
    return seconds
