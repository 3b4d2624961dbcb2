"""A standalone Spark cluster of one's own, from the installed PySpark: a master and two workers on loopback.

Each worker has a folder of its own, in which its executors run. `close` ends all of it, executors included.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from support.engine import harness
from support.engine.class_archive import VARIABLE
from support.engine.harness import HOME
from support.engine.world import eventually
from support.servers.programs import free_port

HOST = "127.0.0.1"
SHORT_LIVES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # compile less


PATIENCE = 300.0
"""Seconds: a driver starts, then its executors, and then the leases of what was killed have to end."""


def settings() -> dict[str, str]:
    """Of a driver: one executor on each of two workers."""
    return {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.executor.extraJavaOptions": _java_options(),
    }


def environment() -> dict[str, str]:
    """What Spark's programs are started with: nothing of the tests, so that nothing is found by chance."""
    of_tests = harness.environment()
    kept = {name: value for name, value in os.environ.items() if name not in of_tests}
    return {
        **kept,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _java_options(),
    }


def _java_options() -> str:
    """With the archive of Spark's classes, where there is one."""
    return f"{SHORT_LIVES} {os.environ.get(VARIABLE, '')}".strip()


class Cluster:
    """`url` is the master's; `workers` are their programs, by number."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.port, self._page = free_port(), free_port()
        self.url = f"spark://{HOST}:{self.port}"
        folder.mkdir(parents=True)
        ports = ["--port", str(self.port), "--webui-port", str(self._page)]
        self._programs = [self._start("master", "master.Master", ["--host", HOST, *ports])]
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self._earlier: set[Path] = set()
        try:
            self._wait_said("master", "I have been elected leader")
            for number in range(workers):
                self.start_worker(number)
            for number in range(workers):
                self._wait_said(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, program: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        own = self.folder / name
        own.mkdir(exist_ok=True)
        with (own / "log").open("ab") as log:
            return subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments],
                cwd=own,
                env={**environment(), "SPARK_LOCAL_DIRS": str(own / "local")},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_said(self, program: str, what: str) -> None:
        """Wait for words in its log: to ask the master's page again and again costs more than the start itself."""
        log = self.folder / program / "log"
        eventually(f"{what!r} in the log of {program}", lambda: what in log.read_text("utf-8", "replace"))

    def start_worker(self, number: int) -> None:
        name = f"worker-{number}"
        work = ["--work-dir", str(self.folder / name), "--cores", "1", "--memory", "600m"]
        worker = self._start(name, "worker.Worker", ["--host", HOST, "--webui-port", "0", *work, self.url])
        self._programs.append(worker)
        self.workers[number] = worker

    def state(self) -> dict[str, Any] | None:
        """What the master's page says; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=10) as page:
                found: dict[str, Any] = json.load(page)
                return found
        except OSError:
            return None

    def wait_workers(self, workers: int) -> None:
        """Wait until so many are alive, with nothing to do."""

        def ready() -> bool:
            state = self.state() or {}
            free = [w for w in state.get("workers", []) if w["state"] == "ALIVE" and w["coresused"] == 0]
            return len(free) == workers

        eventually(f"{workers} workers without work", ready)

    def heal(self) -> None:
        """Start what was killed again, wait until nothing runs that an earlier driver has left, and forget that."""
        for number, worker in self.workers.items():
            if worker.poll() is not None:
                self.start_worker(number)
        self.wait_workers(len(self.workers))
        self._earlier = set(self._logs())

    def processes(self, number: int) -> list[psutil.Process]:
        """A worker's: its own, its executors', and their Python processes'."""
        return _of_session(self.workers[number].pid)

    def executors(self, number: int) -> list[psutil.Process]:
        """The JVMs that run tasks on a worker."""
        found = []
        for process in self.processes(number):
            with suppress(psutil.Error):
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill_worker(self, number: int) -> None:
        """The machine is gone: the worker, its executors and their Python processes."""
        _kill_session(self.workers[number])

    def worked(self) -> set[str]:
        """The folders' names of the workers whose executors were given tasks, since `heal`."""
        logs = set(self._logs()) - self._earlier
        return {log.parents[2].name for log in logs if b" Got assigned task " in log.read_bytes()}

    def databases(self) -> list[Path]:
        """What looks like a SQLite database in the folders in which executors run."""
        return [file for log in self._logs() for file in log.parent.rglob("*.db")]

    def _logs(self) -> list[Path]:
        """The logs of all executors that ever ran."""
        return sorted(self.folder.glob("worker-*/app-*/*/stderr"))

    def close(self) -> None:
        for program in self._programs:
            _kill_session(program)
        for log in sorted(self.folder.glob("*/log")) + self._logs():
            sys.stderr.write(f"== {log}\n{log.read_text('utf-8', 'replace')[-1500:]}\n")


def _of_session(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _kill_session(program: subprocess.Popen[bytes]) -> None:
    def gone() -> bool:
        left = _of_session(program.pid)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return not left

    eventually("the end of a program's processes", gone, 20)
    program.wait(10)
