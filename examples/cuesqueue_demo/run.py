"""Runs the driver script of `cuesqueue demo` in a session of its own, watches the store, and kills it like a power cut.

Everything that a driver starts (the JVM, reader processes, workers) is in its session, though not in its process group:
Spark's worker daemon makes one of its own. So the session is stopped and killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import queue_source
from cuesqueue_demo.data import MONTHS, Layout
from cuesqueue_demo.report import Moment
from queue_source.errors import CuesqueueError
from queue_source.queues import open_queue
from shard_store import ShardStore
from shard_store.errors import ShardStoreError
from shard_store.operators.views import VIEWS

_PAUSE = 0.05  # seconds between two readings of the store
_STALLED = 180.0  # seconds without a publication after which the run has failed


def start(layout: Layout, *options: str) -> subprocess.Popen[bytes]:
    """Start the driver script; its output goes to the log. This process's environment stays unchanged."""
    roots = dict.fromkeys((str(Path(queue_source.__file__).parents[1]), str(Path(__file__).parents[1])))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (*roots, os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,  # Spark's workers start this program: another one may lack pyarrow
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "TMPDIR": str(layout.folder),
    }
    with layout.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "cuesqueue_demo.query", str(layout.folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=layout.folder,
            env=environment,
        )


@contextmanager
def running(layout: Layout, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the driver script, and kill all that it started when the block is left, in whatever way."""
    process = start(layout, *options)
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: subprocess.Popen[bytes], is_the_moment: Callable[[], bool] = lambda: True) -> int:
    """Send SIGKILL to every process of the session at one moment; return how many there were.

    They are all stopped first: a reader process that outlived its JVM by milliseconds would begin to clean up. If the
    moment has passed when all are stopped, they continue, and the answer is 0.
    """
    stopped: set[int] = set()
    while fresh := _session(process.pid) - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    if not is_the_moment():
        for pid in stopped:
            _signal(pid, signal.SIGCONT)
        return 0
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
    until: Callable[[int], bool] = lambda finished: False,
) -> bool:
    """Report how many objects are finished, until `until` accepts their number or the script ends by itself.

    Returns whether `until` did. Raises CuesqueueError when the script fails, or when nothing is published for a long
    time.
    """
    seen, since = -1, time.monotonic()
    while True:
        ended = process.poll()
        finished = _finished(store)
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
        time.sleep(_PAUSE)


def _rows(store: ShardStore, view: str) -> list[dict[str, Any]]:
    """Return the rows of a view of the store, as dicts."""
    names = [column.name for column in VIEWS[view]]
    return [dict(zip(names, row, strict=True)) for page in store.pages(view) for row in page]


def moment(layout: Layout, store: ShardStore) -> Moment:
    """Return the present content of the store and the queues."""
    shards, splits = _rows(store, "shards"), _rows(store, "splits")
    done = [shard for shard in shards if shard["state"] == "done"]
    content = Moment(
        published=Counter(shard["pipeline"] for shard in done),
        names=frozenset(shard["shard_id"] for shard in done),
        shards=Counter(shard["pipeline"] for shard in shards),
        attempts=Counter(attempt["pipeline"] for attempt in _rows(store, "attempts")),
        errors=tuple((e["pipeline"], e["cause"], e["detail"]) for e in _rows(store, "errors") if e["final"]),
        files=tuple(split["path"] for split in splits),
    )
    for split in splits:
        content.rows[split["pipeline"]] += split["rows"]
    for pipeline in MONTHS:
        with open_queue(layout.queue(pipeline)) as queue:
            depth = queue.depth()
        content.leased[pipeline], content.left[pipeline] = depth.in_flight, depth.total
    return content


def _finished(store: ShardStore) -> int:
    """Count the objects that need no more work: published, or quarantined."""
    return sum(1 for shard in _rows(store, "shards") if shard["state"] != "open")


def all_have_published(store: ShardStore) -> bool:
    return {attempt["pipeline"] for attempt in _rows(store, "attempts")} == set(MONTHS)


def interrupted(store: ShardStore) -> list[str]:
    """Return the pipelines whose current micro-batch is planned and not published."""
    published = {attempt["delivery_hash"] for attempt in _rows(store, "attempts")}
    pipelines = []
    for pipeline in MONTHS:
        with contextlib.suppress(ShardStoreError):  # nothing was planned yet
            if store.current_plan(pipeline).delivery_hash not in published:
                pipelines.append(pipeline)
    return pipelines


def unpublished_files(layout: Layout, store: ShardStore) -> int:
    """Count the data files of tasks that no transaction names."""
    written = {str(path) for path in layout.splits.rglob("*.parquet")}
    return len(written - {split["path"] for split in _rows(store, "splits")}) if written else 0


def _session(session: int) -> set[int]:
    """Return the running processes of a session, without those that have ended and wait to be collected."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    pids = set()
    for pid, state in (line.split(None, 1) for line in listed.splitlines()):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if state[0] not in "ZX" and os.getsid(int(pid)) == session:
                pids.add(int(pid))
    return pids


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
