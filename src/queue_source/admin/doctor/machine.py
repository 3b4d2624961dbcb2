"""Checks this machine as a driver would use it: Java, the Python of Spark's workers, libraries, bytecode."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from queue_source.admin.doctor.findings import Finding, ok, problem, skipped, warning

OLDEST_PYTHON = (3, 10)
OLDEST_JAVA = 17
NEWEST_JAVA: dict[tuple[int, ...], int] = {(4, 0): 23, (4, 1): 23}
"""Of the versions of Spark that a newer Java does not start; 24 took away what Hadoop's login needs there."""

_ASK = "import sys; print(*sys.version_info[:2]); import pyarrow, queue_source.spark.source; print(sys.prefix)"
_TIME_OUT = 60.0  # seconds for another program


def examine_machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Run each check of this machine. `environment`: the variables that the driver has."""
    yield _python()
    spark = _version("pyspark")
    if spark is None:
        yield problem("pyspark", "is not installed in this Python", "pip install 'pyspark>=4.0'")
    else:
        yield _spark(spark)
    yield _java(environment, spark)
    yield _workers(environment)
    yield _bytecode(environment)


def _python() -> Finding:
    running = f"{sys.version_info.major}.{sys.version_info.minor} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return problem("python", running, "use Python 3.10 or newer")
    return ok("python", running)


def _spark(spark_version: str) -> Finding:
    if _numbers(spark_version) < (4, 0):
        return problem("pyspark", f"{spark_version} is too old", "pip install 'pyspark>=4.0'")
    if _numbers(spark_version) < (4, 2):
        text = f"{spark_version}: Trigger.AvailableNow reads one batch only"
        return warning(
            "pyspark", text, "use PySpark 4.2 or newer where you need it, or start the query until it is idle"
        )
    return ok("pyspark", spark_version)


def _java(environment: Mapping[str, str], spark: str | None) -> Finding:
    home = environment.get("JAVA_HOME", "")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    fix = "install a Java 17 or 21 (JDK or JRE), and let JAVA_HOME name its folder"
    if program is None:
        return problem("java", "is not on the path, and JAVA_HOME is not set", fix)
    try:
        done = _run([program, "-version"], environment)
    except OSError as error:
        return problem("java", f"{program} cannot be started ({error.strerror})", fix)
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or version is None:
        return problem("java", f"{program} -version failed: {_first_line(done.stderr or done.stdout)}", fix)
    number = int(version[1])
    text = f"{number} at {program}"
    if number < OLDEST_JAVA:
        return problem("java", f"{text} is too old", fix)
    newest = None if spark is None else NEWEST_JAVA.get(_numbers(spark)[:2])
    if newest is not None and number > newest:
        return problem(
            "java", f"{text} is too new for Spark {spark}", f"use Java 17 to {newest}, or Spark 4.2 or newer"
        )
    return ok("java", text)


def _workers(environment: Mapping[str, str]) -> Finding:
    """Check the Python that Spark starts for readers and tasks on this machine."""
    name = "python of Spark's workers"
    configured = environment.get("PYSPARK_PYTHON", "")
    program = configured or "python3"
    fix = f"export PYSPARK_PYTHON={sys.executable} before the driver starts, and the same on every executor"
    try:
        done = _run([program, "-c", _ASK], environment)
    except OSError as error:
        return problem(name, f"{program} cannot be started ({error.strerror})", fix)
    lines = done.stdout.splitlines()
    how = f"{program} ({'PYSPARK_PYTHON' if configured else 'PYSPARK_PYTHON is not set'})"
    if not lines:
        return problem(name, f"{how} failed: {_first_line(done.stderr)}", fix)
    theirs = tuple(int(number) for number in lines[0].split())
    if theirs != sys.version_info[:2]:
        ours = ".".join(map(str, sys.version_info[:2]))
        return problem(name, f"{how} is Python {'.'.join(map(str, theirs))}, this driver's is {ours}", fix)
    if done.returncode:
        return problem(name, f"{how} lacks what is needed: {_last_line(done.stderr)}", fix)
    if Path(lines[1]).resolve() != Path(sys.prefix).resolve():
        return warning(name, f"{how} is another environment than this one: {lines[1]}", fix)
    return ok(name, how)


def _bytecode(environment: Mapping[str, str]) -> Finding:
    name = "bytecode"
    if environment.get("PYTHONDONTWRITEBYTECODE"):
        text = "PYTHONDONTWRITEBYTECODE is set: each Python process that Spark starts compiles all modules again"
        return warning(name, text, "unset PYTHONDONTWRITEBYTECODE")
    spec = find_spec("pyspark")
    home = environment.get("SPARK_HOME") or (
        None if spec is None or spec.origin is None else str(Path(spec.origin).parent)
    )
    archive = None if home is None else Path(home) / "python" / "lib" / "pyspark.zip"
    if archive is None or not archive.is_file():
        return skipped(name, "there is no python/lib/pyspark.zip to look into")
    with zipfile.ZipFile(archive) as opened:
        compiled = any(entry.endswith(".pyc") for entry in opened.namelist())
    if not compiled:
        text = f"{archive} has sources only: the start of each Python process takes up to 1 s of CPU longer"
        return warning(name, text, "compile it once where PySpark is installed: cuesqueue setup pyspark")
    return ok(name, "PySpark's modules are compiled")


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_TIME_OUT, env=dict(environment), cwd="/"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """Return the major and minor version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "it said nothing")


def _last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "it said nothing")
