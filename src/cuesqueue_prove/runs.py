"""Runs of a job in processes of its own, which are killed where the proof says.

Spark starts them by a script in the run's folder, as `python -m cuesqueue_prove.runs MODULE ARGUMENT...` in place
of `python -m MODULE ARGUMENT...`. Processes that they fork have the walls, too.
"""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cuesqueue import open_queue, open_store
from cuesqueue_prove.folder import FOLDER, SETTINGS, Journal, Settings, Walls, without_credentials


def write_python(root: Path, python: str) -> str:
    """Write the script that Spark is to take for Python, and return its path; `python` where the disk runs no scripts.

    A setting of Spark for its daemon is not enough: those of data sources are started without it.
    """
    script = root / "prove" / "python"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(
            f'#!/bin/sh\nif [ "$1" = -m ]; then shift; set -- -m {__name__} "$@"; fi\n'
            f'exec {shlex.quote(python)} "$@"\n',
            "utf-8",
        )
        script.chmod(0o755)
    return str(script) if os.access(script, os.X_OK) else python


def main() -> None:
    """Raise the walls, then run the module as Python would."""
    sys.addaudithook(Walls(Settings.read(os.environ[SETTINGS])).check)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()


EFFECT, COMMIT_LOG, RANDOM = "effect-made", "commit-log", "random"
STEPS = {
    "snapshot-written": "the next batch is recorded in the store, and Spark does not know it",
    "offset-logged": "Spark has logged the batch, and nothing is planned",
    "plan-made": "the batch is planned, and no task runs",
    "object-read": "a task is about to read an object",
    "split-written": "a task has written its file, and the driver does not know it",
    "table-files-written": "a task has written its files of a table, and the driver does not know it",
    EFFECT: "the function of foreachBatch has written something, and has not ended",
    "output-delivered": "a named output is committed, and the batch is not",
    "before-publish": "everything of the batch is written, and nothing is published",
    "table-committed": "the batch is in the table, and not in the store",
    "published": "the batch is published, and Spark does not know it",
    COMMIT_LOG: "the sink has taken the batch, and Spark has not logged it",
    "confirmed": "the batch is final, and its messages are not acknowledged",
    "acknowledged": "the messages are acknowledged",
    RANDOM: "at a random moment",
}
"""Name of a step -> where the job is, in the order of one micro-batch."""
_OWN = (EFFECT, COMMIT_LOG, RANDOM)
_STOPS = "CUESQUEUE_FAILPOINTS"
"""Environment variable that makes a process of cuesqueue stand still at a step, or note that it comes there."""
_POLL = 0.02
_JAVA = "SPARK_SUBMIT_OPTS"
_FAILURES = 3
"""How often a job may fail by itself in one run before it is given up."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Where the job is killed: at a step, the nth time; `seconds` after the start of a query for `random`."""

    step: str
    nth: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.step == RANDOM:
            return f"{RANDOM}, {self.seconds:.1f} s after the start of the query"
        return self.step if self.nth == 1 else f"{self.step}, for the {self.nth}. time"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. `problem` is empty where the job has ended by itself, and everything is read.

    `kills` are those that took place, `unreached` those whose step the job never came to. `failed`: what it said last
    where a start of it failed without being killed.
    """

    kills: tuple[Kill, ...]
    unreached: tuple[Kill, ...]
    problem: str = ""
    failed: str = ""


class Run:
    """One folder. `drive` blocks; `stop` may be called by another thread."""

    def __init__(
        self,
        settings: Settings,
        arguments: Sequence[str],
        seconds: float,
        killed: Callable[[Kill], None] = lambda kill: None,
    ) -> None:
        """`seconds`: how long one start of the job may take. `killed` is called after each kill."""
        self.settings = settings
        self.journal = Journal(settings.root)
        self._arguments = list(arguments)
        self._seconds = seconds
        self._killed = killed
        self._process: subprocess.Popen[bytes] | None = None
        self._queries_before = 0
        self._is_late = False  # the last start took too long, so that it was ended, and not killed at a step

    def drive(self, kills: Sequence[Kill] = ()) -> Ended:
        """Run the job until it has read everything; it is killed once at each of the steps, in this order."""
        waiting, failures, failed = list(kills), 0, ""
        done: list[Kill] = []
        unreached: list[Kill] = []
        while True:
            kill = waiting.pop(0) if waiting else None
            code = self._once(kill)
            if code is None and kill is not None and not self._is_late:
                done.append(kill)
                self._killed(kill)
                continue
            unreached += [] if kill is None else [kill]
            if code is None:
                return Ended((*done,), (*unreached, *waiting), f"did not end within {self._seconds:.0f} s")
            if code != 0:
                failures, failed = failures + 1, self.said()
            if failures >= _FAILURES:
                return Ended((*done,), (*unreached, *waiting), f"failed {failures} times; the last time: {self.said()}")
            if code == 0 and not (remains := self.unfinished()):
                return Ended((*done,), (*unreached, *waiting), failed=failed)
            if code == 0 and not waiting:
                failures += 1
                if failures >= _FAILURES:
                    return Ended((*done,), (*unreached,), f"ends by itself and leaves {remains}")

    def _once(self, kill: Kill | None) -> int | None:
        """Start the job, and return its exit code; None where it was killed, or took too long."""
        self._start(kill)
        try:
            return self._follow(kill)
        finally:
            self.stop()
            self._remove_placeholders()
            self._let_time_pass()

    def _start(self, kill: Kill | None) -> None:
        settings, armed = self.settings, ""
        settings.root.mkdir(parents=True, exist_ok=True)
        settings.marker.unlink(missing_ok=True)
        self._queries_before = sum(1 for _ in self.journal.entries("started"))
        if kill is None:
            notes = settings.root / "prove" / "steps"
            armed = ";".join(f"{name}=note:{notes}" for name in STEPS if name not in _OWN)
        elif kill.step == EFFECT:
            settings = replace(settings, pause_at_effect=kill.nth)
        elif kill.step != RANDOM:
            name = "plan-made" if kill.step == COMMIT_LOG else kill.step
            armed = f"{name}@{kill.nth}=pause:{settings.marker}"
        environment = {
            **(os.environ if settings.allowed else without_credentials(os.environ, settings.root)),
            FOLDER: str(settings.root),
            SETTINGS: str(settings.write()),
            _STOPS: armed,
            "PYTHONWARNINGS": "ignore",
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "SPARK_LOCAL_IP": "127.0.0.1",
            _JAVA: os.environ.get(_JAVA, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),  # it compiles for a short life
        }
        with (settings.root / "prove" / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cuesqueue_prove.inside", settings.job, *self._arguments],
                cwd=settings.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _follow(self, kill: Kill | None) -> int | None:
        assert self._process is not None
        deadline, due = time.monotonic() + self._seconds, float("inf")
        while (code := self._process.poll()) is None:
            if self.settings.marker.exists():
                assert kill is not None
                if kill.step != COMMIT_LOG:
                    self.journal.note("killed", step=kill.step, nth=kill.nth, batches=self.batches())
                    return None
                self._fail_at_the_commit_log(kill)
                return None
            if kill is not None and kill.step == RANDOM:
                if due == float("inf") and self._has_started():
                    due = time.monotonic() + kill.seconds
                if time.monotonic() > due:
                    self.journal.note("killed", step=kill.step, nth=kill.nth, batches=self.batches())
                    return None
            if time.monotonic() > deadline:
                self._is_late = True
                return None
            time.sleep(_POLL)
        return code

    def _has_started(self) -> bool:
        return sum(1 for _ in self.journal.entries("started")) > self._queries_before

    def _fail_at_the_commit_log(self, kill: Kill) -> None:
        """Let Spark fail when it logs that the sink has taken the batch: the entry exists already, and is empty.

        No step of ours lies between the two; the state that is left is that of a kill there.
        """
        assert self._process is not None
        self.journal.note("killed", step=kill.step, nth=kill.nth, batches=self.batches())
        for checkpoint, batch in self.batches().items():
            entry = Path(checkpoint) / "commits" / str(batch)
            if not entry.exists():
                entry.parent.mkdir(parents=True, exist_ok=True)
                entry.touch()
        self.settings.marker.unlink()
        with suppress(subprocess.TimeoutExpired):  # a job that waits for more than its query
            self._process.wait(min(self._seconds, 60.0))

    def _remove_placeholders(self) -> None:
        for checkpoint in self.checkpoints():
            for entry in (Path(checkpoint) / "commits").glob("[0-9]*"):
                if entry.stat().st_size == 0:
                    entry.unlink()

    def _let_time_pass(self) -> None:
        """Let the leases of killed readers end at once."""
        file = self.settings.root / "queue.db"
        if file.exists():
            with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
                connection.execute("UPDATE cuesqueue_messages SET visible_at = 0 WHERE receipt IS NOT NULL")

    def stop(self) -> None:
        """Kill every process of the job as one: Spark's workers make groups of their own, but no sessions."""
        if self._process is None:
            return
        stopped: set[int] = set()
        while new := set(processes_of_session(self._process.pid)) - stopped:  # also those that others start meanwhile
            for pid in new:
                _send(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            _send(pid, signal.SIGKILL)
        self._process.wait(30)
        self._process = None
        deadline = time.monotonic() + 10
        while any(map(_is_alive, stopped)) and time.monotonic() < deadline:
            time.sleep(_POLL)

    # what a run has left behind

    def checkpoints(self) -> list[str]:
        """Return the folders of the checkpoints that were used."""
        return sorted({entry["checkpoint"] for entry in self.journal.entries("started") if entry["checkpoint"]})

    def batches(self) -> dict[str, int]:
        """Return checkpoint -> number of the last batch that Spark has logged there."""
        last = {}
        for checkpoint in self.checkpoints():
            names = [int(entry.name) for entry in (Path(checkpoint) / "offsets").glob("[0-9]*")]
            if names:
                last[checkpoint] = max(names)
        return last

    def unfinished(self) -> str:
        """Return what is not read or not acknowledged, as words; empty where nothing is left."""
        messages = 0
        for url in sorted({url for entry in self.journal.entries("reader") for url in entry["queues"]}):
            with open_queue(url) as queue:
                messages += queue.depth().total
        unread = sum(1 for entry in self.states().values() if entry == "open")
        texts = [f"{messages} messages" if messages else "", f"{unread} objects" if unread else ""]
        return " and ".join(filter(None, texts))

    def states(self) -> dict[str, str]:
        """Return id -> state of everything that the stores of the job's readers know."""
        states: dict[str, str] = {}
        for url in sorted({entry["store"] for entry in self.journal.entries("reader")}):
            with open_store(self.whole(url), create=False) as store:
                for page in store.pages("shards", columns=("shard_id", "state")):
                    states |= {str(name): str(state) for name, state in page}
        return states

    def messages_in_queue(self) -> set[str]:
        """Return the bodies of the messages that are still in the queues, as text."""
        bodies: set[str] = set()
        for url in {url for entry in self.journal.entries("reader") for url in entry["queues"]}:
            with open_queue(url) as queue:
                bodies |= {message.body.decode("utf-8", "replace") for message in queue.peek(10**6)}  # type: ignore[attr-defined]
        return bodies

    def whole(self, url: str) -> str:
        """Return a URL of SQLite with the whole path, which counts from the run's folder."""
        scheme, _, path = url.partition(":///")
        return f"{scheme}:///{self.settings.root / path}" if scheme.startswith("sqlite") and path else url

    def steps(self) -> dict[str, int]:
        """Return step -> how often the job came to it in starts without a kill, in the order of a batch."""
        notes = self.settings.root / "prove" / "steps"
        names = [line.split(" ")[1] for line in notes.read_text("utf-8").splitlines()] if notes.exists() else []
        counts = {name: names.count(name) for name in STEPS if name in names}
        counts[EFFECT] = max(self._effects_of_batches(), default=0)
        counts[COMMIT_LOG] = counts.get("plan-made", 0)
        return {name: counts[name] for name in STEPS if counts.get(name)}

    def _effects_of_batches(self) -> list[int]:
        batches = [(entry["query"], entry["batch"]) for entry in self.journal.entries("effect")]
        return [batches.count(batch) for batch in set(batches)]

    def said(self) -> str:
        """Return the last line that the job has printed."""
        output = self.settings.root / "prove" / "output"
        lines = output.read_text("utf-8", "replace").splitlines() if output.exists() else []
        telling = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
        ours = [line for line in telling if "Error" in line or "Exception" in line]
        return next(iter([*ours[-1:], *telling[-1:]]), "nothing")[:500]


def processes_of_session(leader: int) -> Iterator[int]:
    """Yield the living processes of a session."""
    for pid in _processes():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader and _is_alive(pid):
                yield pid


def end_with_parent() -> None:
    """End this process's session when the process that started it is gone, so that nothing stands still for ever.

    `stop` does it as long as that process can: not where it is killed itself.
    """
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        for pid in processes_of_session(os.getpid()):
            if pid != os.getpid():
                _send(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def _processes() -> list[int]:
    if Path("/proc/self").exists():
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(line) for line in listed.stdout.split()]


def _is_alive(pid: int) -> bool:
    """Tell whether the process exists, and is no zombie."""
    try:
        os.kill(pid, 0)
        if Path("/proc/self").exists():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
    return True


def _send(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)
