"""Java is looked for before Spark needs it: what is wrong with it is one sentence, with the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import cuesqueue
from queue_source.commands.main import app
from queue_source.errors import CuesqueueError
from unit.test_doctor import JAVA, program

QUEUE = "sql+sqlite:///jobs.db?queue=orders"
FIX = "; install a Java 17 or 21 (JDK or JRE), and let JAVA_HOME name its folder"
WRONG = {
    "there is none": "java is not on the path, and JAVA_HOME is not set",
    "JAVA_HOME points to nothing": "java: {home}/bin/java cannot be started (No such file or directory)",
    "it is old": "java: 11 at {home}/bin/java is too old",
}
COMMANDS = {
    "load": ["load", QUEUE, "--prefix", "/in/", "--format", "json", "--path", "./out"],
    "load into a table": ["load", QUEUE, "--prefix", "/in/", "--format", "json", "--delta", "./out"],
    "prove": ["prove", "job.py", "--sample", "one.json"],
    "demo": ["demo"],
}


@pytest.fixture(params=WRONG)
def wrong(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine without a Java for Spark; returns what is said of it."""
    home = tmp_path / "jdk"
    if request.param == "it is old":
        program(home / "bin" / "java", JAVA.format(11))
    monkeypatch.setenv("JAVA_HOME", "" if request.param == "there is none" else str(home))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    class Builder:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("Spark was started")

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with cuesqueue.open_queue(QUEUE) as queue:
        queue.send(["/in/1.json"])
    for name in ("job.py", "one.json"):
        (tmp_path / name).touch()
    return WRONG[request.param].format(home=home) + FIX


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_that_starts_spark_is_refused_in_one_sentence(command: str, wrong: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, COMMANDS[command])
    assert (done.exit_code, done.stdout) == (1, "")
    assert " ".join(done.stderr.split()) == f"error: {wrong}"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "jdk") == ["job.py", "jobs.db", "one.json"]


@pytest.mark.parametrize("command", ["prove", "demo", "load"])
def test_the_help_of_a_command_needs_no_java(command: str, wrong: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_a_program_that_loads_without_a_session_of_its_own_is_told_the_same(wrong: str) -> None:
    with pytest.raises(CuesqueueError) as refused:
        cuesqueue.load(QUEUE, "/out", format="json", prefixes="/in/", schema="id INT")
    assert str(refused.value) == wrong
