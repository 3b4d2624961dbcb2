"""The proof: an undisturbed run, one that is killed at every step in turn, and the step after which they differ."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cuesqueue import OptionError
from cuesqueue_prove.folder import Settings
from cuesqueue_prove.results import Difference, Made, Rule, compare, read_result, reasons
from cuesqueue_prove.runs import COMMIT_LOG, EFFECT, RANDOM, STEPS, Ended, Kill, Run

_FAST = (EFFECT, "before-publish", "published", COMMIT_LOG, "acknowledged")
_TELLING = (COMMIT_LOG, EFFECT, "before-publish", "published")
"""Steps at which most mistakes show: where a run differs, these are tried first."""
_MOST_EFFECTS = 3
_MOST_ROWS = 5
_IN_TURN = "all steps in turn"

Report = Callable[[str, int, int], None]
"""What is done now, how many runs are done, and how many there are as far as is known."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row that differs: `times` it is there more or less often than it should be, and its object where it tells."""

    row: str
    times: int
    object: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict. `step` is empty where rows are exactly once, or where nothing was killed.

    Attributes:
        steps: The steps at which the job was killed, and went on.
        unreached: Those that it never came to.
        rows: How many rows the sink holds after the undisturbed run.
        objects: How many objects were made; 0 where messages are the data.
        step: The step of the kill after which rows differ.
        doubled, lost: Some of these rows.
        doubled_rows, lost_rows: How many there are.
        reasons: Why, as sentences.
        folder: What the last run has left behind; "" where it was removed.
    """

    exactly_once: bool
    steps: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    rows: int = 0
    objects: int = 0
    seconds: float = 0.0
    step: str = ""
    doubled_rows: int = 0
    lost_rows: int = 0
    doubled: tuple[Row, ...] = ()
    lost: tuple[Row, ...] = ()
    reasons: tuple[str, ...] = ()
    folder: str = ""

    def __bool__(self) -> bool:
        return self.exactly_once

    def __str__(self) -> str:
        if not self.exactly_once and not self.steps and not self.step and self.rows:
            return f"not proved: {'; '.join(self.reasons)}"
        if self.exactly_once:
            never = f"; it never came to {', '.join(self.unreached)}" if self.unreached else ""
            return f"exactly once: {self.rows} rows, killed at {', '.join(self.steps)}{never}"
        where = f"killed at {self.step}" if self.step else "without any kill"
        lines = [f"not exactly once: {where}, {self.doubled_rows} rows too many and {self.lost_rows} too few"]
        for word, rows in (("too many", self.doubled), ("too few", self.lost)):
            lines += [f"  {word}, {row.times} times: {row.row} {row.object}".rstrip() for row in rows]
        return "\n".join([*lines, *(f"  {reason}" for reason in self.reasons)])

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as what JSON can hold."""
        return asdict(self)


@dataclass
class Prover:
    """Runs one proof; `run` may be called once.

    Attributes:
        arguments: Arguments of the job's script.
        random_kills: How many kills at random moments there are beside those at the steps.
        steps: The steps to kill at; empty for all that the job comes to.
        seconds: How long one start of the job may take.
    """

    settings: Settings
    arguments: Sequence[str] = ()
    rule: Rule = field(default_factory=Rule)
    random_kills: int = 2
    steps: Sequence[str] = ()
    fast: bool = False
    seconds: float = 300.0
    report: Report = lambda text, done, total: None
    seed: int | None = None
    _done: int = field(default=0, init=False)
    _total: int = field(default=2, init=False)
    _running: Run | None = field(default=None, init=False)

    def run(self, *, keep: bool = False) -> Proof:
        """Prove, and return the verdict; the folders of the runs are removed, unless `keep`. Raises OptionError."""
        root = Path(self.settings.folder)
        try:
            if unknown := [step for step in self.steps if step not in STEPS]:
                raise OptionError("--step", f"{unknown[0]!r} is no step; steps are {', '.join(STEPS)}")
            return self._prove(root, keep)
        finally:
            if self._running is not None:
                self._running.stop()
            if not keep:
                shutil.rmtree(root, ignore_errors=True)

    def _prove(self, root: Path, keep: bool) -> Proof:
        began = time.monotonic()

        def verdict(**parts: Any) -> Proof:
            kept = str(root) if keep else ""
            return Proof(seconds=round(time.monotonic() - began, 1), folder=kept, **parts)

        undisturbed, ended = self._driven(root / "undisturbed", (), "without a kill")
        if ended.failed and not ended.problem:  # what it holds now is no measure; a machine may be slow once
            undisturbed, ended = self._driven(root / "undisturbed-again", (), "without a kill, once more")
        made = Made.of(undisturbed)
        if problem := _problem(undisturbed, ended, made):
            why = reasons(undisturbed, Difference(Counter(), Counter()), made)
            return verdict(exactly_once=False, objects=len(made.uris), reasons=(*why, problem))
        expected = read_result(undisturbed, self.rule)
        if not expected:
            raise OptionError("--result", "has no rows after a run without a kill; name what the job writes to")
        seconds = time.monotonic() - began
        kills = self._kills(undisturbed, seconds)
        about: dict[str, Any] = {"rows": expected.total(), "objects": len(made.uris)}
        passed: list[Kill] = []
        number = 0
        while kills:
            number += 1
            self._total = 1 + len(passed) + len(kills) + 1
            run, ended = self._driven(root / f"in-turn-{number}", kills, _IN_TURN)
            difference = self._compared(run, ended, expected)
            if difference or ended.problem:
                finding = self._isolated(root, ended, expected) or _finding(run, ended, _named(ended), difference)
                return verdict(exactly_once=False, steps=tuple(dict.fromkeys(map(str, passed))), **about, **finding)
            passed += ended.kills
            kills = list(ended.unreached) if ended.kills else []
        unreached = tuple(str(kill) for kill in ended.unreached)
        if not passed:
            return verdict(exactly_once=False, unreached=unreached, reasons=(_never_killed(unreached),), **about)
        return verdict(exactly_once=True, steps=tuple(map(str, passed)), unreached=unreached, **about)

    def _driven(self, folder: Path, kills: Sequence[Kill], text: str) -> tuple[Run, Ended]:
        settings = Settings(**{**asdict(self.settings), "folder": str(folder)})
        self.report(text, self._done, self._total)
        run = self._running = Run(settings, self.arguments, self.seconds, self._killed)
        ended = run.drive(kills)
        self._done += 1
        return run, ended

    def _killed(self, kill: Kill) -> None:
        self._done += 1
        self.report(f"killed at {kill}", self._done, self._total)

    def _kills(self, undisturbed: Run, seconds: float) -> list[Kill]:
        reached = undisturbed.steps()
        chosen = self.steps or [step for step in reached if not self.fast or step in _FAST]
        kills = [Kill(step) for step in chosen if step not in (EFFECT, RANDOM)]
        if EFFECT in chosen:
            kills += [Kill(EFFECT, nth + 1) for nth in range(min(reached.get(EFFECT, 1), _MOST_EFFECTS))]
        chance = random.Random(self.seed)
        count = 1 if self.fast else self.random_kills
        if not self.steps or RANDOM in self.steps:
            kills += [Kill(RANDOM, seconds=round(chance.uniform(0.5, max(1.0, seconds / 2)), 1)) for _ in range(count)]
        return kills

    def _compared(self, run: Run, ended: Ended, expected: Counter[str]) -> Difference:
        if ended.problem:
            return Difference(Counter(), Counter())
        return compare(expected, read_result(run, self.rule))

    def _isolated(self, root: Path, ended: Ended, expected: Counter[str]) -> dict[str, Any] | None:
        """Kill at one step alone, in fresh runs, until one differs; return what is found, or None."""
        if len(ended.kills) < 2:
            return None
        kills = sorted(ended.kills, key=lambda kill: _order(kill.step))
        self._total = self._done + 2 * len(kills)
        for number, kill in enumerate(kills, 1):
            run, alone = self._driven(root / f"alone-{number}", [kill], f"{kill} alone")
            difference = self._compared(run, alone, expected)
            if difference or alone.problem:
                return _finding(run, alone, str(kill), difference)
        return None


def _never_killed(unreached: Sequence[str]) -> str:
    never = f", as it never came to {', '.join(unreached)}" if unreached else ""
    return f"the job was never killed{never}; choose other steps, or leave --step out"


def _named(ended: Ended) -> str:
    return str(ended.kills[0]) if len(ended.kills) == 1 else _IN_TURN


def _order(step: str) -> tuple[int, int]:
    return (_TELLING.index(step) if step in _TELLING else len(_TELLING), list(STEPS).index(step))


def _problem(run: Run, ended: Ended, made: Made) -> str:
    """Return what is wrong with the undisturbed run: it has to read every object that was made."""
    if ended.problem:
        return f"the job {ended.problem}"
    if ended.failed:
        return f"the job failed by itself, without any kill, and in each of two runs: {ended.failed}"
    if not list(run.journal.entries("reader")):
        return "the job has started no reader of format('cuesqueue')"
    states = run.states()
    unread = [uri for uri in made.uris if states.get(uri) != "done"]
    kinds = Counter(states.get(uri, "never opened") for uri in unread)
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    keeps_states = all(entry["semantics"] != "at-least-once" for entry in run.journal.entries("reader"))
    return (
        f"of {len(made.uris)} objects not all are published without any kill: {said}" if unread and keeps_states else ""
    )


def _finding(run: Run, ended: Ended, step: str, difference: Difference) -> dict[str, Any]:
    made = Made.of(run)
    why = reasons(run, difference, made)
    if ended.problem:
        why.append(f"the job {ended.problem}")
    return {
        "step": step,
        "doubled_rows": difference.doubled.total(),
        "lost_rows": difference.lost.total(),
        "doubled": _rows(difference.doubled, made),
        "lost": _rows(difference.lost, made),
        "reasons": tuple(why),
    }


def _rows(rows: Counter[str], made: Made) -> tuple[Row, ...]:
    return tuple(Row(row, times, made.object_of(row)) for row, times in rows.most_common(_MOST_ROWS))


def prover(
    job: str | Path,
    sample: str | Path | Sequence[str | Path],
    *,
    folder: str | Path | None = None,
    objects: int = 12,
    batch: int = 2,
    key: str = "",
    tag: str = "",
    allowed: Sequence[str] = (),
    **options: Any,
) -> Prover:
    """Build a prover of a job's script; `options` are fields of `Prover`. Raises OptionError for absent files."""
    samples = [sample] if isinstance(sample, (str, Path)) else list(sample)
    if not samples:
        raise OptionError("--sample", "is required: name a file as the job reads them")
    for name, file in (("job", job), *(("--sample", file) for file in samples)):
        if not Path(file).is_file():
            raise OptionError(name, f"{str(file)!r} is no file")
    root = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="cuesqueue-prove-"))
    if root.exists() and any(root.iterdir()):
        raise OptionError("folder", f"{str(root)!r} is not empty, and would be removed; name another")
    settings = Settings(
        str(root.resolve()),
        str(Path(job).resolve()),
        tuple(str(Path(file).resolve()) for file in samples),
        objects,
        batch,
        key,
        tag,
        tuple(allowed),
    )
    return Prover(settings, **options)
