"""Runs the driver script of `cuesqueue demo` in a session of its own, watches the store, and kills it like a power cut.

Everything that a driver starts (the JVM, reader processes, workers) is in its session, though not in its process
group: Spark's worker daemon makes one of its own. So the session is what is stopped and killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import queue_source
from queue_source.commands.demo.data import MONTHS, Layout
from queue_source.errors import CuesqueueError
from shard_store import ShardStore
from shard_store.errors import ShardStoreError
from shard_store.views import VIEWS

_LOOK = 0.05  # seconds between two looks at the store
_STALLED = 180.0  # seconds without anything published after which the run has failed


def start(layout: Layout) -> subprocess.Popen[bytes]:
    """Start the driver script; its output goes to the log. Nothing of this process's environment changes."""
    root = str(Path(queue_source.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,  # Spark's workers start this program: another one may lack pyarrow
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "TMPDIR": str(layout.folder),
    }
    with layout.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "queue_source.commands.demo.query", str(layout.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=layout.folder,
            env=environment,
        )


@contextmanager
def running(layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    """The driver script, killed with all it started when the block is left, however that happens."""
    process = start(layout)
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL to every process of the session at one moment; returns how many there were.

    They are all stopped first: a reader process that outlived its JVM by milliseconds would begin to tidy up.
    """
    stopped: set[int] = set()
    while fresh := _session(process.pid) - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(stopped)


def watch(
    store: ShardStore,
    process: subprocess.Popen[bytes],
    progress: Callable[[int], None],
    until: Callable[[int], bool] = lambda published: False,
) -> bool:
    """Tell how many objects are finished until `until` says so (True) or the script ends by itself (False).

    Raises CuesqueueError when the script fails, or when nothing is published for a long time.
    """
    seen, since = -1, time.monotonic()
    while True:
        ended = process.poll()
        finished = finished_objects(store)
        progress(finished)
        if ended is not None:
            if ended != 0:
                raise CuesqueueError(f"the driver script ended with exit code {ended}")
            return False
        if until(finished):
            return True
        if finished != seen:
            seen, since = finished, time.monotonic()
        if time.monotonic() - since > _STALLED:
            raise CuesqueueError(f"nothing was published for {_STALLED:.0f} s")
        time.sleep(_LOOK)


def rows_of(store: ShardStore, view: str) -> list[dict[str, object]]:
    """A view of the store, as dicts."""
    names = [column.name for column in VIEWS[view]]
    return [dict(zip(names, row, strict=True)) for page in store.pages(view) for row in page]


def finished_objects(store: ShardStore) -> int:
    """Objects that need no more work: published, or quarantined."""
    return sum(1 for shard in rows_of(store, "shards") if shard["state"] != "open")


def in_flight(store: ShardStore) -> list[str]:
    """The pipelines whose current micro-batch is planned and not published."""
    published = {attempt["delivery_hash"] for attempt in rows_of(store, "attempts")}
    found = []
    for pipeline in MONTHS:
        with contextlib.suppress(ShardStoreError):  # nothing was planned yet
            if store.current_plan(pipeline).delivery_hash not in published:
                found.append(pipeline)
    return found


def unpublished_files(layout: Layout, store: ShardStore) -> set[str]:
    """Data files that tasks have written and no transaction names."""
    written = {str(path) for path in layout.splits.rglob("*.parquet")}
    return written - {str(split["path"]) for split in rows_of(store, "splits")} if written else written


def _session(session: int) -> set[int]:
    """The processes of a session that still run."""
    found = set()
    for pid in _process_ids():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.getsid(pid) == session and not _is_dead(pid):
                found.add(pid)
    return found


def _process_ids() -> list[int]:
    if Path("/proc/self/stat").exists():
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid in listed.split()]


def _is_dead(pid: int) -> bool:
    """Whether the process has ended and only waits to be collected, by whoever adopted it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in "ZX"
    return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
