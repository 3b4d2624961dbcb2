"""The time sweep: what is slow, away, full or wrong for as long as users know it; prints the matrix.

A query runs in a process of its own, with the default leases and heartbeats. What is wrong around it is real: its
server is stopped or frozen, the lock is held, the disk is full. Most of the time nobody does anything, so many cases
run at once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest

from support.servers.debian import NotInstalled
from support.sweep_sinks import Cell
from support.time_faults import FAULTS, REAL, Case, NoDisk, Setting, setting
from support.time_sweep import OBJECTS, Outcome, Query, options_of, prepare, wrong

WORKERS = int(os.environ.get("CUESQUEUE_SWEEP_WORKERS", "12"))
ONLY = os.environ.get("CUESQUEUE_SWEEP_ONLY", "")
"""Only cases with one of these in their names, separated by commas."""
SECONDS = 900.0
"""For one case."""
PLACES = (("sqlite", "sql"), ("postgresql", "sql"), ("postgresql", "sqs"), ("postgresql", "rabbitmq"))
SINKS = ("path", "Iceberg", "foreign")


def _cases() -> Iterator[Case]:
    for fault in FAULTS:
        for store, queue in PLACES:
            if fault.startswith("database") and store == "sqlite":
                continue  # it has no server
            if fault.startswith("disk full") and store == "postgresql":
                continue  # its disk is the server's
            if queue == "rabbitmq" and fault not in ("queue errors", "slow batch", "database down"):
                continue  # a broker for each case: here it differs from SQS
            if fault == "queue errors" and (store, queue) == ("sqlite", "sql"):
                continue  # as "lock held"
            for sink in SINKS:
                if queue != "rabbitmq" or sink == "path":
                    yield Case(fault, sink, store, queue)
            if (store, queue) in (("sqlite", "sql"), ("postgresql", "sqs")) and fault != "backlog":  # of messages
                yield Case(fault, "path, loading", store, queue)
                yield Case(fault, "Delta, loading", store, queue)


CASES = [case for case in _cases() if any(part in case.name for part in ONLY.split(","))]


def query(case: Case, cell: Cell, options: dict[str, str], messages: int) -> None:
    """The process of the query; what it meets is told in files."""
    outcome = Outcome(failed="ended without a word")
    try:
        running, over = (cell.folder / name for name in ("running", "over"))
        outcome = Query(case, cell, options, REAL, running.touch, over.exists).run(messages)
    except BaseException:
        outcome = Outcome(failed=traceback.format_exc())
        raise
    finally:
        (cell.folder / "outcome").write_text(json.dumps(vars(outcome)))


@dataclass(frozen=True)
class Result:
    wrong: list[str]
    outcome: Outcome
    skipped: str = ""


def sweep(case: Case, folder: Path) -> Result:
    folder.mkdir()
    try:
        with setting(case, folder) as there:
            return _sweep(case, there)
    except (NoDisk, NotInstalled) as reason:
        return Result([], Outcome(), str(reason))
    except Exception:  # noqa: BLE001 - of the sweep itself: the other cases go on
        return Result([traceback.format_exc()], Outcome())


def _sweep(case: Case, there: Setting) -> Result:
    expected = prepare(case, there, REAL)
    folder = there.cell.folder
    messages = expected.total() if case.fault == "backlog" else OBJECTS
    arguments = (case, there.cell, options_of(case, there, REAL), messages)
    process = multiprocessing.get_context("forkserver").Process(target=query, args=arguments, daemon=True)
    process.start()
    try:
        until = time.monotonic() + SECONDS
        while process.is_alive() and not (folder / "running").exists() and time.monotonic() < until:
            time.sleep(0.1)
        with FAULTS[case.fault](there, REAL) as seconds:
            process.join(seconds)
        (folder / "over").touch()
        process.join(SECONDS)
    finally:
        process.kill()
        process.join()
    outcome = Outcome(failed="hangs")
    if (folder / "outcome").exists():
        told = json.loads((folder / "outcome").read_text())
        outcome = Outcome(**{**told, "counts": Counter(told["counts"])})
    return Result(wrong(case, there, expected, outcome), outcome)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin with everything imported."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # preloading takes no other notice of ours
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # that of another test has other modules
    multiprocessing.get_context("forkserver").set_forkserver_preload(["integration.test_time_sweep"])


@pytest.mark.timeout(3600)
def test_a_query_lives_through_everything_that_takes_time(tmp_path: Path, processes: None) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        folders = [tmp_path / str(number) for number in range(len(CASES))]
        results = dict(zip(CASES, pool.map(sweep, CASES, folders), strict=True))
    print(matrix(results))
    bad = {case: result for case, result in results.items() if result.wrong}
    skipped = Counter(result.skipped for result in results.values() if result.skipped)
    good = len(results) - len(bad) - skipped.total()
    print(f"{len(results)} cases, {good} ok, {round(time.monotonic() - began)} s; skipped: {dict(skipped)}")
    for case, result in results.items():
        counts = {name: count for name, count in result.outcome.counts.items() if count}
        print(f"{case.name}: {result.outcome.seconds:.0f} s, {result.outcome.starts} start(s), {counts}")
    assert not bad, "\n".join(f"{case.name}: {'; '.join(result.wrong)}" for case, result in bad.items())


def matrix(results: dict[Case, Result]) -> str:
    """A letter for each sink (p path, i Iceberg, f foreign); `!` where something is wrong, `s` where it was skipped."""
    lines = [f"{'':18}" + "".join(f"{f'{store}, {queue}':>22}" for store, queue in PLACES)]
    for fault in FAULTS:
        cells = []
        for store, queue in PLACES:
            marks = ""
            for sink in SINKS:
                result = results.get(Case(fault, sink, store, queue))
                marks += "-" if result is None else "!" if result.wrong else "s" if result.skipped else sink[0].lower()
            cells.append(f"{marks:>22}")
        lines.append(f"{fault:18}" + "".join(cells))
    return "\n".join(lines)
