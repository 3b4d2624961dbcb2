"""`python -m support.explorer --minutes 5 --seed 1`, with tests on the path: explores, shrinks what fails, and counts.

Each kind of failure is printed once, as the shortest exploration that was found; the exit code then is 1. At the end
stands how often each step, command, disaster, spelling and failpoint was reached.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from support.explorer.casts import BY_DEFAULT, KINDS
from support.explorer.counting import table
from support.explorer.explorer import Taken, explore
from support.explorer.shrinking import Failure, ends_in_time, kind_of, shrink


def say(text: str) -> None:
    """Print it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Explore for so long; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m support.explorer", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first exploration")
    parser.add_argument("--kinds", default="all", help="kinds of steps: all, default, names; -NAME leaves out")
    parser.add_argument("--shrink", type=float, default=60.0, metavar="SECONDS", help="for each kind of failure")
    parser.add_argument("--most", type=int, default=20, metavar="N", help="end after so many kinds of failures")
    parser.add_argument("--explorations", type=int, metavar="N", help="so many, instead of minutes")
    parser.add_argument("--stride", type=int, default=1, metavar="N", help="take every Nth seed")
    chosen = parser.parse_args()
    names = chosen.kinds.split(",")
    takes = frozenset(KINDS) if "all" in names else BY_DEFAULT if "default" in names else frozenset[str]()
    takes |= {name for name in names if not name.startswith("-")} - {"all", "default"}
    takes -= {name.removeprefix("-") for name in names if name.startswith("-")}
    if unknown := takes - set(KINDS):
        parser.error(f"there are no kinds {sorted(unknown)}; the kinds are all, default, {', '.join(KINDS)}")
    found: dict[str, list[int]] = {}
    began, number, seed, spent = time.monotonic(), 0, chosen.seed, time.process_time()

    def goes_on() -> bool:
        if chosen.explorations is not None:
            return bool(number < chosen.explorations)
        return bool(time.monotonic() - began < chosen.minutes * 60 and len(found) < chosen.most)

    while goes_on():
        try:
            with ends_in_time():
                explore(seed, takes=takes)
        except Exception as error:  # noqa: BLE001 - each kind of failure is a find
            kind = kind_of(error)
            is_new = kind not in found
            found.setdefault(kind, []).append(seed)
            if is_new:
                steps: list[Taken] = error.taken  # type: ignore[attr-defined]
                after = f"after {time.monotonic() - began:.0f} s, {number + 1} explorations"
                say(f"\nFOUND {kind} seed {seed} ({after})")
                failure = Failure(seed, takes, error, steps)
                say((shrink(failure, seconds=chosen.shrink) if chosen.shrink else failure).text())
        number, seed = number + 1, seed + chosen.stride
    seconds = time.monotonic() - began
    say(f"\n{number} explorations from seed {chosen.seed} in {seconds:.0f} s, {time.process_time() - spent:.0f} s of")
    say(f"processor time; kinds of steps: {', '.join(sorted(takes))}")
    for kind, seeds in sorted(found.items()):
        say(f"  {len(seeds)} times {kind}: seeds {', '.join(map(str, seeds[:12]))}")
    say(table())
    return 1 if found else 0


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:  # the order of sets decides, too
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "support.explorer", *sys.argv[1:]], environment)
    sys.exit(main())
