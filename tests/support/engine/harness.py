"""Drivers that a test may kill: each runs in a session of its own, so that all its processes can be found and ended.

| role | process |
|---|---|
| script | the user's Python script |
| jvm | Spark itself |
| reader | one a query: the coordinator lives there |
| worker | what executes tasks, plans reads and commits sinks |
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType

import psutil
import pyspark

from shard_store.failpoints import VARIABLE
from support.engine import pauses
from support.engine.code import Code
from support.engine.queries import SETTINGS, Query
from support.engine.world import PATIENCE, eventually

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
HOME = Path(pyspark.__file__).parent


def environment() -> dict[str, str]:
    """What Spark's processes need to find this project and the tests' own modules, whoever starts pytest."""
    path = os.pathsep.join([str(ROOT / "src"), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }


def _environment(code: Code) -> dict[str, str]:
    """Only the tests' own modules are found by the path; the package is where `code` has put it."""
    python = str(code.python)
    return {
        **environment(),
        "PYTHONPATH": os.pathsep.join(filter(None, [code.path, str(TESTS)])),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_HOME": str(HOME),
    }


def _submit(code: Code, master: str, script: Sequence[str]) -> list[str]:
    """As a user starts a program on a cluster, in client mode. The JVM runs before the script can say how."""
    options = ["--driver-java-options", SETTINGS["spark.driver.extraJavaOptions"]]
    return [str(HOME / "bin" / "spark-submit"), "--master", master, *options, *code.submit, *script]


class Driver:
    """One run of `driver.py`. `close` kills whatever is left of it."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[Query],
        *,
        pause_at: str = "",
        once: bool = False,
        fail: str = "",
        master: str = "local[2]",
        restarts: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
        code: Code | None = None,
        cwd: Path | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """`pause_at`: the named place at which every process stands still, or (`once`) only the first to come.

        `fail`: failpoints as they are written, instead. `restarts`: queries that fail are started again.
        `settings` of Spark. `code`: how the package is found, where it is not by the tests' own path.
        `cwd`: the folder that the user starts the script in. `patience`: the seconds that a wait may take.
        """
        self.folder, self._patience = folder, patience
        folder.mkdir(parents=True)
        armed = fail or (pause_at and pauses.armed(pause_at, folder, once=once))
        described = {
            "master": master,
            "queries": list(queries),
            "restarts": restarts,
            "settings": {**settings, f"spark.executorEnv.{VARIABLE}": armed} if armed else dict(settings),
        }
        (folder / "queries.json").write_text(json.dumps(described), "utf-8")
        script = [str(Path(__file__).with_name("driver.py")), str(folder)]
        command = [sys.executable, *script] if code is None else _submit(code, master, script)
        with (folder / "output").open("wb") as output:
            self._script = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment() if code is None else _environment(code)), VARIABLE: armed},
                start_new_session=True,
            )
        self._session = self._script.pid

    def close(self) -> None:
        """Kill what is left, and show what was said: pytest shows it only when the test has failed."""
        self.kill()
        assert self._script.stdin is not None
        with suppress(BrokenPipeError):
            self._script.stdin.close()
        self._script.wait(10)
        sys.stderr.write((self.folder / "output").read_text("utf-8", "replace")[-6000:])

    # what it does

    def paused(self) -> list[int]:
        """The processes that stand still at the place."""
        return pauses.paused(self.folder)

    def wait_paused(self, processes: int = 1) -> list[int]:
        """Wait until so many processes stand still at the place; returns their ids."""
        self._wait_until(lambda: len(self.paused()) >= processes, f"{processes} process(es) at the place")
        return self.paused()

    def go_on(self) -> None:
        """Let those that stand still go on, once they are thawed."""
        pauses.go_on(self.folder)

    def wait_batch(self) -> None:
        """Wait until each query has done a batch."""
        self._wait_until((self.folder / "progress").exists, "the first batch")

    def wait_ended(self) -> list[str | None]:
        """Wait until all queries have ended; returns the error of each."""
        self._wait_until((self.folder / "ended.json").exists, "the end of all queries")
        errors: list[str | None] = json.loads((self.folder / "ended.json").read_text("utf-8"))
        return errors

    def say(self, word: str) -> None:
        assert self._script.stdin is not None
        self._script.stdin.write(f"{word}\n".encode())
        self._script.stdin.flush()

    def _wait_until(self, happens: Callable[[], bool], what: str) -> None:
        def there() -> bool:
            if happens():
                return True
            if self._script.poll() is not None and not happens():
                ended = self.folder / "ended.json"
                said = ended.read_text("utf-8")[:2000] if ended.exists() else "nothing"
                raise AssertionError(f"the driver ended with {self._script.returncode} before {what}, and said {said}")
            return False

        eventually(what, there, self._patience)

    # its processes

    def processes(self) -> list[psutil.Process]:
        """All living processes of the driver's session (workers make process groups of their own)."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == self._session and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def pids(self, role: str) -> list[int]:
        return [p.pid for p in self.processes() if _role(p, self._script.pid) == role]

    def kill(self) -> None:
        """The power fails: all processes stop where they are, and are gone."""
        self.freeze()
        for process in self.processes():
            _send(process.pid, signal.SIGKILL)
        self._script.wait(10)
        eventually("the end of the driver's processes", lambda: not self.processes(), 20)

    def kill_part(self, role: str) -> None:
        for pid in self.pids(role):
            _send(pid, signal.SIGKILL)

    def kill_process(self, pid: int) -> None:
        _send(pid, signal.SIGKILL)

    def freeze_between_writes(self, *databases: Path) -> None:
        """Freeze at a moment when none of these SQLite files is locked: a frozen writer would lock out everybody.

        That is how SQLite works, not what a take-over is about; the chaos run freezes anywhere, on PostgreSQL.
        """

        def unlocked() -> bool:
            self.freeze()
            if all(_writable(database) for database in databases):
                return True
            self.thaw()
            return False

        eventually("a moment without a write", unlocked)

    def freeze(self) -> None:
        """Stop every process, also those that others start meanwhile."""
        frozen: set[int] = set()
        while new := {p.pid for p in self.processes()} - frozen:
            for pid in new:
                _send(pid, signal.SIGSTOP)
            frozen |= new

    def thaw(self) -> None:
        for process in self.processes():
            _send(process.pid, signal.SIGCONT)

    def wait_gone(self) -> None:
        """Wait until no process of the driver is left, of itself."""
        eventually("the end of what the driver left", lambda: not self.processes(), PATIENCE)


def _writable(database: Path) -> bool:
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


def _send(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def _role(process: psutil.Process, script: int) -> str:
    if process.pid == script:
        return "script"
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
    if "java" in command.split(" ", 1)[0]:
        return "jvm"
    if "python_streaming_source_runner" in command:
        return "reader"
    return "worker" if "pyspark" in command else "other"
