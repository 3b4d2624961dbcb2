"""The checks of `cuesqueue doctor --spark-master`: the Python of executors, by a job."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queue_source.admin.doctor import Finding, ok, problem, warning

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

        import queue_source.spark.reader  # noqa: F401
    except ImportError as missing:
        error = str(missing)
    python = ".".join(map(str, sys.version_info[:2]))
    return Worker(socket.gethostname(), python, tuple(version_of(package) for package in _PACKAGES), error)


def examine_spark(master: str) -> Iterator[Finding]:
    """Start a session on this master, and a job with a task for each core. Ends the session."""
    try:
        session = SparkSession.builder.master(master).appName("cuesqueue doctor").getOrCreate()
    except (PySparkException, Py4JError) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        yield problem("spark", f"no session on {master}: {text[0]}", "see the lines before it; docs/troubleshooting.md")
        return
    try:
        yield ok("spark", f"{session.version} on {master}")
        cores = max(2, session.sparkContext.defaultParallelism)
        tasks = session.sparkContext.parallelize(range(4 * cores), 4 * cores)
        try:
            workers = sorted(set(tasks.mapPartitions(_describe_worker).collect()))
        except (PySparkException, Py4JError) as error:  # also of tasks that cannot import this module
            lines = [line for line in str(error).splitlines() if "Error" in line] or [type(error).__name__]
            fix = "install cuesqueue and its extras in the Python of every executor: docs/how-to/clusters.md"
            yield problem("executors", f"a task failed: {lines[-1].strip()}", fix)
            return
        yield from examine_workers(workers, this_worker())
    finally:
        session.stop()


def _describe_worker(_: Iterable[int]) -> Iterator[Worker]:
    yield this_worker()


def examine_workers(workers: Iterable[Worker], driver: Worker) -> Iterator[Finding]:
    """Compare each kind of worker with the driver."""
    fix = "install the same versions for driver and executors, and let PYSPARK_PYTHON name that Python: "
    for worker in workers:
        page = f"{fix}docs/how-to/clusters.md"
        if worker.error:
            yield problem("executors", f"{worker.as_text()}: {worker.error}", page)
        elif worker.python != driver.python:
            yield problem("executors", f"{worker.as_text()}, and the driver has Python {driver.python}", page)
        elif worker.versions != driver.versions:
            yield warning("executors", f"{worker.as_text()}, and the driver has {driver.as_text()}", page)
        else:
            yield ok("executors", worker.as_text())
