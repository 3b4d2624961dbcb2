"""Put each defect of `defects.py` back in a copy, run tests there, and say whether they found it.

    python3 tools/environment.py -- python -m tools.planted_defects [--only NAME]... [-- PYTEST ARGUMENTS]
    python3 tools/environment.py -- python -m tools.planted_defects --machines 10 [--only NAME]...
    python3 tools/environment.py -- python -m tools.planted_defects --check

Without arguments for pytest the tests are those of `tests/unit`, `tests/contracts`, `tests/readers` and
`tests/properties`. A run ends at its first failure, which is what counts as found; the table at the end names the test.
Ends with 1 where a defect was not found. `--machines` lets the machines of `tools.fuzz` search, without any test, for
so many minutes a defect at most; the table then names what they found first. `--check` only looks whether each defect
can still be put back.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tools.fuzz import FOUND, MACHINES, command_of, surroundings
from tools.planted_defects.defects import DEFECTS, Defect

ROOT = Path(__file__).resolve().parents[2]
USUAL = ("tests/unit", "tests/contracts", "tests/readers", "tests/properties")
_COPIED = ("src", "tests", "tools", "examples", "integration", "benchmarks", "docs", "deploy", "locks", ".ci")
_OURS = "tests/unit/test_planted_defects.py"
"""It fails in every copy that has a defect, whatever the defect is: so it finds none."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def unfit(root: Path, defects: Sequence[Defect] = DEFECTS) -> list[str]:
    """Return what is wrong with defects that cannot be put back: each text has to stand in its file exactly once."""
    problems = []
    for defect in defects:
        for name, old, _ in defect.changes:
            file = root / "src" / name
            times = file.read_text().count(old) if file.is_file() else 0
            if times != 1:
                problems.append(f"{defect.name}: its text stands {times} times in src/{name}; write it anew")
    return problems


def plant(root: Path, defect: Defect) -> None:
    """Put the defect back in the checkout at `root`."""
    for name, old, new in defect.changes:
        file = root / "src" / name
        file.write_text(file.read_text().replace(old, new))


def copies(defects: Sequence[Defect]) -> Iterator[tuple[Defect, Path]]:
    """Yield each defect with a copy of the checkout that has it, and no other."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy2(file, copy / file.name)
        for defect in defects:
            sound = {name: (copy / "src" / name).read_text() for name, _, _ in defect.changes}
            plant(copy, defect)
            yield defect, copy
            for name, text in sound.items():
                (copy / "src" / name).write_text(text)


def found_by(copy: Path, arguments: Sequence[str]) -> str | None:
    """Run the tests in the copy; return the first test that failed, or None. Raises SystemExit for wrong arguments."""
    # the installed project is that of the checkout: the copy's own source comes before it
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--ignore={_OURS}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    if done.returncode not in (1, 2):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = _FAILED.search(done.stdout)
    return failed[1] if failed else "(pytest ended without a test's name)"


def found_by_machines(copy: Path, minutes: float, seed: int = 1) -> str | None:
    """Let the machines search the copy; return the first line of what one of them has found, or None."""
    found: list[str] = []

    def read(machine: str, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith(FOUND) and not found:
                found.append(f"{machine}: {line.removeprefix(FOUND).strip()}")
            if found:
                break
        else:
            return
        for process in running.values():
            process.terminate()

    running = {
        machine: subprocess.Popen(
            command_of(machine, minutes, seed), cwd=copy, env=surroundings(copy), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        for machine in MACHINES
    }  # fmt: skip
    readers = [threading.Thread(target=read, args=(machine, process.stdout)) for machine, process in running.items()]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for process in running.values():
        with suppress(ProcessLookupError):  # its Spark, too
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return found[0] if found else None


def main() -> int:
    """Plant, run, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.planted_defects", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="this defect; may be given several times")
    parser.add_argument("--machines", type=float, metavar="MINUTES", help="only the machines of tools.fuzz search")
    parser.add_argument("--check", action="store_true", help="only look whether each defect can still be put back")
    parser.add_argument("pytest", nargs="*", metavar="PYTEST ARGUMENT", help="after --; the tests to run")
    arguments = parser.parse_args()
    names = [defect.name for defect in DEFECTS]
    if unknown := set(arguments.only or ()) - set(names):
        parser.error(f"no defect is called {sorted(unknown)[0]!r}; there are {', '.join(names)}")
    if problems := unfit(ROOT):
        print("\n".join(problems))
        return 2
    if arguments.check:
        print(f"{len(DEFECTS)} defects can be put back")
        return 0
    chosen = [defect for defect in DEFECTS if not arguments.only or defect.name in arguments.only]
    missed = 0
    for defect, copy in copies(chosen):
        began = time.monotonic()
        if arguments.machines:
            test = found_by_machines(copy, arguments.machines)
        else:
            test = found_by(copy, arguments.pytest or USUAL)
        missed += test is None
        print(f"{defect.name:34} {time.monotonic() - began:6.0f} s  {test or 'NOT FOUND'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
