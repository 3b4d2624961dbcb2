"""The crash sweep: every point x every sink x every failure, each also with batches read twice; prints the matrices.

A query runs in a process of its own and fails at the point: killed, by an exception, or as the database server ends
all connections at that moment (on PostgreSQL; the others are on SQLite). A second process goes on, and looks at all.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from support.crash_sweep import check, recover, run
from support.servers.nginx import nginx
from support.servers.postgres import new_database, postgres_server
from support.sweep_sinks import COLUMNS, ONLY, READ_TWICE, SWEPT, Cell, database, reaching

WORKERS = int(os.environ.get("CUESQUEUE_SWEEP_WORKERS", "2"))
FAILURES = ("kill", "exception", "connection")
CELLS = [
    (point, column, failure, twice)
    for point in SWEPT
    for column in reaching(point)
    for failure in FAILURES
    for twice in ([False, True] if column in READ_TWICE else [False])
]
FAILED = 3
SECONDS = 120.0
"""For one process; most need two."""


def fail(cell: Cell, armed: str) -> None:
    """The first process: the query, until it is done or has failed."""
    failed = run(cell, armed).failed
    (cell.folder / "failed").write_text("" if failed is None else f"{type(failed).__name__}: {failed}")
    sys.exit(0 if failed is None else FAILED)


def go_on(cell: Cell, point: str, failed: bool) -> None:
    """The second process."""
    try:
        recover(cell)
        check(cell, point, failed=failed)
    except BaseException:
        (cell.folder / "wrong").write_text(traceback.format_exc())
        raise


@dataclass(frozen=True)
class Result:
    """`wrong` is empty where all is as promised; `survived`: the query noticed nothing that it did not get over."""

    wrong: str = ""
    survived: bool = False


class Sweep:
    def __init__(self, folder: Path, server: str) -> None:
        self._folder = folder
        self._server = server
        self._context = multiprocessing.get_context("forkserver")
        self._lock = threading.Lock()

    def run(self, point: str, column: str, failure: str, twice: bool) -> Result:
        name = f"{point}-{column}-{failure}{'-twice' if twice else ''}"
        folder = self._folder / name.replace(" ", "-").replace(",", "")
        folder.mkdir()
        urls = [f"sqlite:///{folder}/{name}.db" for name in ("store", "elsewhere")]
        if failure == "connection":
            urls = [new_database(self._server) for _ in range(2)]
        store, elsewhere = urls
        cell = Cell(column, folder, store, elsewhere, twice)
        try:
            cell.prepare()
            result = self._sweep(cell, point, failure)
            if not result.wrong:
                shutil.rmtree(folder)
            return result
        finally:
            if failure == "connection":
                self._drop(urls)

    def _sweep(self, cell: Cell, point: str, failure: str) -> Result:
        marker = cell.folder / "there"
        action = {"kill": "exit", "exception": "raise", "connection": f"pause:{marker}"}[failure]
        first = self._started(fail, cell, f"{point}={action}")
        if failure == "connection":
            self._wait(first, marker.exists)
            if not marker.exists():
                return Result("never came to the point")
            self._end_connections(cell)
            marker.unlink()
        code = self._wait(first)
        if code is None:
            first.kill()
            return Result("the first process hangs")
        expected = {"kill": {-9}, "exception": {FAILED}, "connection": {0, FAILED}}[failure]
        if code not in expected:
            return Result(f"the first process ended with {code}")
        said = cell.folder / "failed"
        if failure == "exception" and "FailpointReached" not in said.read_text():
            return Result(f"failed otherwise: {said.read_text()}")
        second = self._started(go_on, cell, point, code != 0)
        second_code = self._wait(second)
        if second_code == 0:
            return Result(survived=code == 0)
        second.kill()
        wrong = cell.folder / "wrong"
        return Result(wrong.read_text() if wrong.exists() else f"the second process ended with {second_code}")

    def _started(self, target: object, *arguments: object) -> BaseProcess:
        process = self._context.Process(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        with self._lock:  # it also asks for the ends of all others, and two threads that read one's end at once get 255
            process.start()
        return process

    def _wait(self, process: BaseProcess, until: Callable[[], bool] = lambda: False) -> int | None:
        """Its exit code; None if it is not over when `until` holds, or in time."""
        deadline = time.monotonic() + SECONDS
        while True:
            with self._lock:
                code = process.exitcode
            if code is not None or until() or time.monotonic() > deadline:
                return code
            time.sleep(0.01)

    def _end_connections(self, cell: Cell) -> None:
        names = [make_url(url).database for url in (cell.store, cell.elsewhere)]
        backends = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IN (:one, :two)")
        with database(self._server) as engine, engine.connect() as connection:
            ended = connection.execute(backends, {"one": names[0], "two": names[1]}).scalars().all()
        assert ended, "there was no connection to end"

    def _drop(self, urls: list[str]) -> None:
        engine = sa.create_engine(self._server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for url in urls:
                connection.execute(sa.text(f"DROP DATABASE {make_url(url).database} WITH (FORCE)"))
        engine.dispose()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """PostgreSQL, buckets of S3, and processes that begin with everything imported."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # preloading takes no other notice of ours
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # that of another test has other modules
    multiprocessing.get_context("forkserver").set_forkserver_preload(["integration.test_crash_sweep"])
    with postgres_server() as url, nginx(tmp_path) as port:
        for name, value in {
            "ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
            "ACCESS_KEY_ID": "k",
            "REGION": "eu-west-1",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        yield url


@pytest.mark.timeout(7200)
def test_every_point_in_every_sink_with_every_failure(tmp_path: Path, server: str) -> None:
    sweep = Sweep(tmp_path, server)
    began = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        results = dict(zip(CELLS, pool.map(lambda cell: sweep.run(*cell), CELLS), strict=True))
    for twice in (False, True):
        print("each batch is read twice:" if twice else "each batch is read once:")
        print(matrix({cell[:3]: result for cell, result in results.items() if cell[3] is twice}))
    wrong = {cell: result.wrong for cell, result in results.items() if result.wrong}
    count = Counter(failure for (_, _, failure, _), result in results.items() if not result.wrong)
    ended = [cell[:2] for cell, result in results.items() if cell[2] == "connection" and not result.survived]
    absent = len(SWEPT) * (len(COLUMNS) + len(READ_TWICE)) * len(FAILURES) - len(CELLS)
    seconds = round(time.monotonic() - began)
    print(f"{len(CELLS)} cells, {sum(count.values())} ok {dict(count)}, {absent} not reached, {seconds} s")
    print(f"queries that failed when their connections were lost, and had to be started again: {ended}")
    assert not wrong, "\n".join(f"{' / '.join(map(str, cell))}: {what}" for cell, what in wrong.items())


def matrix(results: dict[tuple[str, str, str], Result]) -> str:
    """A letter for each failure: k killed, e exception, c connection lost; `!` where something is wrong."""
    lines = [f"{number:2}  {column}" for number, column in enumerate(COLUMNS, 1)]
    lines.append(f"{'':20}" + "".join(f"{number:>5}" for number in range(1, len(COLUMNS) + 1)))
    for point in SWEPT:
        cells = []
        for column in COLUMNS:
            found = [results.get((point, column, failure)) for failure in FAILURES]
            marks = ["-" if f is None else "!" if f.wrong else name[0] for f, name in zip(found, FAILURES, strict=True)]
            cells.append("".join(marks) if any(mark != "-" for mark in marks) else "-")
        why = f"   - : {ONLY[point][1]}" if point in ONLY else ""
        lines.append(f"{point:20}" + "".join(f"{cell:>5}" for cell in cells) + why)
    return "\n".join(lines)
