"""What `cuesqueue doctor --spark-master` asks: the Python of executors, by a job.

Without pyarrow, and without our modules that import it: an executor that lacks it runs the job, and says so.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queue_source.errors import CuesqueueError

_PACKAGES = ("pyarrow", "sqlalchemy", "cuesqueue")


class Worker(NamedTuple):
    """A Python of an executor: versions by package; "" where one is absent."""

    host: str
    python: str
    versions: tuple[str, ...]
    error: str  # of importing our reader

    def as_text(self) -> str:
        packages = ", ".join(
            f"{name} {version or '(none)'}" for name, version in zip(_PACKAGES, self.versions, strict=True)
        )
        return f"Python {self.python}, {packages} on {self.host}"


def this_worker() -> Worker:
    """Describe the Python of this executor. Imports what every task imports."""

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    error = ""
    try:
        import pyarrow  # noqa: F401

        import queue_source.spark.source  # noqa: F401
    except ImportError as missing:
        error = str(missing)
    python = ".".join(map(str, sys.version_info[:2]))
    return Worker(socket.gethostname(), python, tuple(version_of(package) for package in _PACKAGES), error)


@contextmanager
def session_on(master: str) -> Iterator[SparkSession]:
    """Start a session on this master, which ends with the block. Raises CuesqueueError."""
    try:
        session = SparkSession.builder.master(master).appName("cuesqueue doctor").getOrCreate()
    except (PySparkException, Py4JError) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise CuesqueueError(f"no session on {master}: {text[0]}") from error
    try:
        yield session
    finally:
        session.stop()


def workers_of(session: SparkSession) -> list[Worker]:
    """Ask the executors, by a job of some tasks for each core; return each kind of worker. Raises CuesqueueError."""
    cores = max(2, session.sparkContext.defaultParallelism)
    tasks = session.sparkContext.parallelize(range(4 * cores), 4 * cores)
    try:
        return sorted(set(tasks.mapPartitions(lambda _: [this_worker()]).collect()))
    except (PySparkException, Py4JError) as error:  # also of tasks that cannot import this module
        lines = [line for line in str(error).splitlines() if "Error" in line] or [type(error).__name__]
        raise CuesqueueError(f"a task failed: {lines[-1].strip()}") from error
