"""A failing exploration becomes the shortest one that fails in the same way: steps are dropped, and it is run again."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from support.explorer.explorer import Taken, explore
from support.explorer.promises import Broken

_LONGEST = 30.0
"""Seconds of processor time for one exploration; usually it is one."""


@contextmanager
def ends_in_time() -> Iterator[None]:
    """End an exploration that does not end: by the time of the processor, since this machine may be busy."""

    def hangs(number: int, frame: FrameType | None) -> None:
        del number
        where = "" if frame is None else f" in {frame.f_code.co_name}"
        raise Broken(f"it hangs: {_LONGEST:.0f} s of processor time ('{where}')")

    signal.signal(signal.SIGVTALRM, hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def kind_of(error: BaseException) -> str:
    """Return what is alike in all failures of one kind: the words of its text that are the same each time."""
    text = re.sub(r"^seed \d+: ", "", str(error))
    text = re.sub(r"\[.*\]|\{.*\}|\([^)]*\)|'[^']*'", "", text)
    words = re.sub(r"\S*[\d/@'\"{}\[\]()]\S*", "", text).split()
    return f"{type(error).__name__}: {' '.join(words)[:160]}"


@dataclass
class Failure:
    """A failing exploration: its seed, kinds of steps, and steps; `shrunk` once it is the shortest that was found."""

    seed: int
    takes: Collection[str]
    error: BaseException
    steps: list[Taken]
    runs: int = 0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return kind_of(self.error)

    def fails(self, steps: Sequence[Taken]) -> bool:
        """Tell whether these steps alone fail in the same way; then they are its steps."""
        self.runs += 1
        log: list[str] = []
        try:
            with ends_in_time():
                explore(self.seed, takes=self.takes, steps=steps, log=log.append)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            if kind_of(error) != self.kind:
                return False
            self.error, self.steps, self.log = error, list(steps), log
            return True
        return False

    def text(self) -> str:
        """Return it for people: what broke, how to repeat it, and what happened."""
        steps = ", ".join(f'({number}, "{name}")' for number, name in self.steps)
        takes = "{" + ", ".join(f'"{kind}"' for kind in sorted(self.takes)) + "}"
        lines = [
            f"{type(self.error).__name__}: {self.error}",
            f"  explore({self.seed}, takes={takes}, steps=[{steps}], log=print)",
            f"  {len(self.steps)} steps, after {self.runs} runs in {self.seconds:.0f} s; with PYTHONHASHSEED=0",
            *(f"    {line}" for line in self.log),
        ]
        return "\n".join(lines)


def shrink(failure: Failure, *, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> Failure:
    """Drop steps as long as it fails in the same way: halves, quarters ..., single ones (delta debugging)."""
    began = clock()
    if not failure.fails(failure.steps):
        failure.log = ["it did not fail once more: something beside the seed decides (see `points.py`)"]
        failure.seconds = clock() - began
        return failure
    size = max(1, len(failure.steps) // 2)
    while clock() - began < seconds:
        steps, dropped = failure.steps, False
        for first in range(0, len(steps), size):
            if clock() - began >= seconds:
                break
            gone = set(steps[first : first + size])
            rest = [step for step in failure.steps if step not in gone]
            dropped |= len(rest) < len(failure.steps) and failure.fails(rest)
        if size == 1 and not dropped:
            break
        size = size if dropped and size == 1 else max(1, size // 2)
    failure.seconds = clock() - began
    return failure
