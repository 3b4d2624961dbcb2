"""What a run measured, kept for the docs: one JSON file for each benchmark, of its last saved run.

A file holds what cannot be computed from anything else: the seconds of every run, and when, on what, under which load
and of which commit they were taken. Medians and ratios are computed when figures are drawn.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.registry import Benchmark, Breakdown, Measurement, Part, Role

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
_DIGITS = 5
"""Of a number of seconds."""
_MEASURED = ("src", "benchmarks", "tests/support", "locks")
"""A change in these that is not committed is noted with the figures."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A benchmark's measurements of one run. `load`: of the last minute, before the benchmark and at its end."""

    benchmark: str
    about: str
    command: str
    date: str
    commit: str
    changed: bool
    machine: Mapping[str, Any]
    load: tuple[float, float]
    measurements: tuple[Measurement, ...]


class NotACheckout(Exception):
    """Figures name their commit, so they are saved in a checkout with git only."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The commit that is measured, and whether something of what is measured differs from it."""

    commit: str
    changed: bool


def checkout() -> Checkout:
    """Of this repository, now."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD").strip()
        return Checkout(head, bool(_git("status", "--porcelain", "--", *_MEASURED).strip()))
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotACheckout(f"figures are saved with their commit, and git names none here: {error}") from error


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def machine() -> dict[str, Any]:
    """What the figures were measured with; no name of a machine."""
    packages = {name: version(name) for name in ("pyspark", "pyarrow", "sqlalchemy")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **packages,
    }


def _processor() -> str:
    """Linux has its name in a file only."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text("utf-8").splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def save(folder: Path, known: Benchmark, measured: list[Measurement], code: Checkout, load_before: float) -> Path:
    """Write the file of this benchmark anew, and return its path."""
    found = Saved(
        benchmark=known.name,
        about=known.about,
        command=f'make bench ARGS="--only {known.name}"',
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=code.commit,
        changed=code.changed,
        machine=machine(),
        load=(round(load_before, 1), round(os.getloadavg()[0], 1)),
        measurements=tuple(measured),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{known.name}.json"
    path.write_text(as_text(found), "utf-8")
    return path


def as_text(saved: Saved) -> str:
    """The content of a benchmark's file."""
    return json.dumps(_rounded(asdict(saved)), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    """Seconds to some digits: more are noise, and make files large."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def load(path: Path) -> Saved:
    """What a file of this module holds."""
    found = json.loads(path.read_text("utf-8"))
    measurements = tuple(map(_measurement, found.pop("measurements")))
    return Saved(**{**found, "load": tuple(found["load"])}, measurements=measurements)


def _measurement(found: dict[str, Any]) -> Measurement:
    role, reference_role = Role(found.pop("role")), Role(found.pop("reference_role"))
    breakdowns = tuple(
        Breakdown(entry["of"], tuple(Part(**part) for part in entry["parts"]), entry["whole"])
        for entry in found.pop("breakdowns")
    )
    return Measurement(**found, role=role, reference_role=reference_role, breakdowns=breakdowns)


def load_all(folder: Path) -> Iterator[Saved]:
    """Every benchmark that has figures, by name."""
    for path in sorted(folder.glob("*.json")):
        yield load(path)
