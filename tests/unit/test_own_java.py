"""The Java process that `cuesqueue load` starts while it imports and checks, and what it starts it with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import cuesqueue
from queue_source.spark import own_java
from unit.test_doctor import JAVA, program

QUEUE = "sql+sqlite:///jobs.db?queue=orders"
LOAD = [sys.executable, "-m", "cuesqueue", "load", QUEUE, "--format", "json", "--path", "./out", "--schema", "id INT"]
SIGNALS = (signal.SIGTERM, signal.SIGINT)
PATIENCE = 60.0  # seconds on a busy machine


def spark(home: Path) -> Path:
    """A folder of a Spark whose Java never gets ready."""
    (home / "jars").mkdir(parents=True)
    program(home / "bin" / "spark-submit", 'touch "$SPARK_HOME/begun"', "exec sleep 600")
    program(home / "jdk" / "bin" / "java", JAVA.format(17))
    return home


def begun(home: Path, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    names = ("PYSPARK_", "SPARK_", "JAVA_", "_JAVA", "JDK_")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(names)}
    (folder / "temporary").mkdir(exist_ok=True)
    environment |= {"SPARK_HOME": str(home), "JAVA_HOME": str(home / "jdk"), "TMPDIR": str(folder / "temporary")}

    def heard() -> None:  # tests that run in the background ignore Ctrl-C
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(arguments, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard)


def wait(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.02)


def started_by(home: Path) -> list[str]:
    """Return the numbers of the processes that run with this Spark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"SPARK_HOME={home}\0".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_load_that_is_refused_leaves_no_java_behind(tmp_path: Path) -> None:
    home = spark(tmp_path / "spark")
    with begun(home, tmp_path, [*LOAD, "--prefix", "/in/", "--option", "frobnicate=1"]) as refused:
        _, errors = refused.communicate(timeout=PATIENCE)
    assert (refused.returncode, errors.count("\n")) == (2, 1), errors
    assert started_by(home) == []
    assert sorted(path.name for path in (tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_load_that_is_stopped_before_java_is_ready_leaves_none_behind(tmp_path: Path, number: signal.Signals) -> None:
    home = spark(tmp_path / "spark")
    (tmp_path / "in").mkdir()
    with cuesqueue.open_queue(QUEUE.replace("jobs.db", f"{tmp_path}/jobs.db")) as queue:
        queue.send([f"{tmp_path}/in/1.json"])
    with begun(home, tmp_path, [*LOAD, "--prefix", f"{tmp_path}/in/"]) as running:
        try:
            wait((home / "begun").exists)
            running.send_signal(number)
            _, errors = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert (running.returncode, errors) == (128 + number, f"error: stopped by {number.name}\n")
    assert started_by(home) == []
    assert sorted(path.name for path in (tmp_path / "temporary").iterdir()) == []


def test_a_dry_run_and_arguments_that_are_missing_start_no_java(tmp_path: Path) -> None:
    home = spark(tmp_path / "spark")
    for arguments in ([*LOAD, "--prefix", "/in/", "--dry-run"], LOAD):
        with begun(home, tmp_path, arguments) as ended:
            ended.communicate(timeout=PATIENCE)
    assert not (home / "begun").exists()


def test_java_is_made_for_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clear(monkeypatch)
    assert own_java._java_options(tmp_path) == {
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spark-defaults.conf", "spark.driver.extraJavaOptions -XX:+UseG1GC\n"),
        ("spark-defaults.conf", "spark.driver.defaultJavaOptions=-Dx=y\n"),
        ("PYSPARK_SUBMIT_ARGS", "--driver-java-options '-XX:+UseZGC' pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "--properties-file mine.conf pyspark-shell"),
        ("JAVA_TOOL_OPTIONS", "-XX:+UseParallelGC"),
        ("SPARK_SUBMIT_OPTS", "-XX:+UseParallelGC"),
    ],
)
def test_options_of_java_that_the_user_gives_are_the_only_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """Two collectors of garbage would keep Java from starting."""
    clear(monkeypatch)
    if name.endswith(".conf"):
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / name).write_text(text)
    else:
        monkeypatch.setenv(name, text)
    assert own_java._java_options(tmp_path) == {}


def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", *own_java._VARIABLES_OF_JAVA):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("{home}/python/lib/pyspark.zip:{home}/python/lib/py4j-src.zip:{home}/jars/spark-core.jar", ""),
        (
            "{home}/python/lib/pyspark.zip:{home}/jars/spark-core.jar:/own:{home}/python/lib/b",
            "/own:{home}/python/lib/b",
        ),
        ("/own:{home}/jars/spark-core.jar", "/own:{home}/jars/spark-core.jar"),
        ("", ""),
    ],
)
def test_the_python_of_workers_has_the_users_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, left: str
) -> None:
    home, folder = tmp_path / "it's * [here]" / "pyspark", tmp_path / "folder"
    folder.mkdir()
    (home / "__pycache__").mkdir(parents=True)
    (home / "__init__.py").touch()
    assert own_java._python(folder, home) == sys.executable, "no Python finds it"
    monkeypatch.setattr(sys, "path", ["", str(home.parent), *sys.path])
    assert own_java._python(folder, home) == sys.executable, "each process would compile it"
    Path(cache_from_source(str(home / "__init__.py"))).touch()
    python = own_java._python(folder, home)
    say = "import os; print(os.environ.get('PYTHONPATH', ''))"
    environment = {"PYTHONPATH": given.format(home=home)} if given else {}
    done = subprocess.run([python, "-c", say], env=environment, capture_output=True, text=True, check=True)
    assert (python != sys.executable, done.stdout) == (True, left.format(home=home) + "\n")
