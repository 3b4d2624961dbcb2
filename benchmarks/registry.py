"""What a benchmark is: a name, and a function that yields measurements. A new one is a function with `@benchmark`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
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


class Role(str, Enum):
    """Whose time it is."""

    OURS = "ours"
    PEER = "peer"
    """What others would use instead, for the same work."""
    FLOOR = "floor"
    """The least that the work can take: what is below us, alone."""
    BASELINE = "baseline"
    """Ours too, in another setting."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts that follow each other: the median of its seconds, their 99th percentile, how often it was."""

    name: str
    seconds: float
    slow: float
    count: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of something goes, in its order. `whole`: its median, where more belongs to it than the parts."""

    of: str
    parts: Sequence[Part]
    whole: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the table: the seconds of each run, what they did, and what they are compared with.

    `amount` in `unit`s is what one run worked through; 0 where only time is of interest. The runs of `reference` were
    made in turn with ours, so that a machine that gets slower gets slower for both. The roles say whose times these
    are: plots are coloured by them.
    """

    case: str
    seconds: Sequence[float]
    amount: int = 0
    unit: str = ""
    against: str = ""
    reference: Sequence[float] = ()
    role: Role = Role.OURS
    reference_role: Role = Role.PEER
    breakdowns: Sequence[Breakdown] = ()

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

    @property
    def compared(self) -> bool:
        """Whether the reference is something else: the first of a series is compared with itself."""
        return bool(self.reference) and tuple(self.reference) != tuple(self.seconds)

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
            "breakdowns": [asdict(breakdown) for breakdown in self.breakdowns],
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
