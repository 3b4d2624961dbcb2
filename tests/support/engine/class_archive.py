"""An archive of the classes that Spark loads, with which a JVM starts in a third of the time.

Loading and verifying some 20,000 classes is most of what a short Spark does. The first engine test of an environment
lets a Spark write its classes to a file beside it (`-XX:ArchiveClassesAtExit`, Java 13 and later); each later JVM maps
the file. A JVM that the file does not suit starts without it. All compile for a short life, also those of examples in
the documentation, which say nothing of it.

    python -m support.engine.class_archive FILE      write the archive
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark gives its text to each JVM that a Python program starts."""

_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # compile less
_SILENT = "-Xlog:disable"  # a JVM that the archive does not suit says so on standard output


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("engine"):
        use()


def use() -> None:
    """Let each JVM that starts from now on compile less, and map the archive where there is one."""
    if os.environ.get(VARIABLE) in (None, _SHORT_LIFE):  # else it is complete, or somebody's own
        archive = archived()
        mapped = f" -XX:SharedArchiveFile={archive} {_SILENT}" if archive else ""
        os.environ[VARIABLE] = _SHORT_LIFE + mapped


def archived() -> Path | None:
    """The archive of this environment's Spark and Java, written now if it is missing; None while another writes it."""
    java = os.path.realpath(os.environ.get("JAVA_HOME", ""))
    key = hashlib.sha256(f"{java} {version('pyspark')}".encode()).hexdigest()[:12]
    archive = Path(sys.prefix) / f"spark-classes-{key}.jsa"
    if archive.exists():
        return archive
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not archive.exists():
            _write_in_another_process(archive)
    return archive


def _write_in_another_process(archive: Path) -> None:
    draft = archive.with_suffix(".new")
    draft.unlink(missing_ok=True)
    command = [sys.executable, "-m", "support.engine.class_archive"]
    environment = {**os.environ, VARIABLE: f"{_SHORT_LIFE} -XX:ArchiveClassesAtExit={draft} {_SILENT}"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    if draft.exists():  # some Javas come without the archive of their own classes, which this one is based on
        draft.replace(archive)
    else:
        archive.touch()


def main() -> None:
    """Run what engine tests have in common: a stream from the source into the sink, a batch, a plain query."""
    from support.engine.harness import environment
    from support.engine.queries import build_session, described, run
    from support.engine.world import World

    os.environ.update(environment())
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.feed(1, 2)
        spark = build_session()
        run(spark, described(world))
        spark.read.parquet(f"{folder}/out").groupBy("name").count().collect()
        spark.stop()


if __name__ == "__main__":
    main()
