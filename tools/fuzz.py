"""Let the machines search for some minutes: the oracle for reading, the explorer of the store, and races, side by side.

    python3 tools/environment.py -- python -m tools.fuzz [--minutes 60] [--seed N] [--only oracle|explorer|races]

Each is a process of its own, and goes on behind what it has found. It prints the seed when it begins, each finding with
its smallest case, and at the end how often each edge, option, command and failpoint was reached. Ends with 1 where
anything was found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ("oracle", "explorer", "races")
"""Packages of `tests/support` that run as a program, with the options `--minutes` and `--seed`."""

FOUND = "FOUND "
"""What the line of a finding begins with."""


def command_of(machine: str, minutes: float, seed: int) -> list[str]:
    return [sys.executable, "-u", "-m", f"support.{machine}", "--minutes", f"{minutes:g}", "--seed", str(seed)]


def surroundings(root: Path) -> Mapping[str, str]:
    """With the source and the tests of that checkout before the installed project's."""
    path = os.pathsep.join(str(root / folder) for folder in ("src", "examples", "tests", "."))
    return {**os.environ, "PYTHONPATH": path}


def _say(machine: str, lines: IO[str]) -> None:
    for line in lines:
        print(f"{machine}: {line}", end="", flush=True)


def search(machines: Sequence[str], minutes: float, seed: int) -> int:
    """Run the machines until they end; return the exit code."""
    running = {
        machine: subprocess.Popen(
            command_of(machine, minutes, seed), cwd=ROOT, env=surroundings(ROOT), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for machine in machines
    }  # fmt: skip
    talking = []
    for machine, process in running.items():
        assert process.stdout is not None
        talking.append(threading.Thread(target=_say, args=(machine, process.stdout)))
        talking[-1].start()
    try:
        for thread in talking:
            thread.join()
    except KeyboardInterrupt:  # the machines have it too, and print what they have found
        for thread in talking:
            thread.join()
    ended = {machine: process.wait() for machine, process in running.items()}
    print(f"seed {seed}: " + ", ".join(f"{machine} {'found' if code else 'clean'}" for machine, code in ended.items()))
    return int(any(ended.values()))


def main() -> int:
    """Search, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="of each machine (default: 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeats a run (default: another each time)")
    parser.add_argument("--only", choices=MACHINES, help="one machine")
    arguments = parser.parse_args()
    machines = [arguments.only] if arguments.only else MACHINES
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes", flush=True)
    return search(machines, arguments.minutes, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
