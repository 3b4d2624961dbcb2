"""`cuesqueue doctor`: each finding is about something that is really so, says what to do, and shows no secret."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queue_source.commands import doctor as checks
from queue_source.commands.doctor import (
    Finding,
    State,
    examine_machine,
    examine_prefixes,
    examine_queues,
    examine_store,
    examine_workers,
)
from queue_source.commands.main import app
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.queues import open_queue
from shard_store.sql.database import Database
from shard_store.sql.schema import applied, version
from shard_store.store import open_store

JAVA = "echo 'openjdk version \"{}.0.1\" 2024-01-16' >&2"


def run(*arguments: str, code: int = 0) -> Result:
    done: Result = CliRunner().invoke(app, ["doctor", *arguments])
    assert done.exit_code == code, done.output
    return done


def program(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def the(check: str, findings: Iterable[Finding]) -> Finding:
    [found] = [finding for finding in findings if finding.check == check]
    assert found.fix or found.state in (State.OK, State.SKIPPED)
    return found


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    """A machine on which all is well, but for what is given."""
    program(tmp_path / "jdk" / "bin" / "java", JAVA.format(17))
    worker = program(tmp_path / "worker", f"echo {sys.version_info[0]} {sys.version_info[1]}", f"echo {sys.prefix}")
    well = {"JAVA_HOME": str(tmp_path / "jdk"), "PYSPARK_PYTHON": worker, "PATH": os.environ["PATH"]}
    return {**well, **variables}


def machine_is(check: str, given: dict[str, str]) -> Finding:
    return the(check, examine_machine(given))


# --- this machine ---


def test_a_machine_on_which_all_is_well_has_no_problem(tmp_path: Path) -> None:
    found = list(examine_machine(environment(tmp_path)))
    assert [finding for finding in found if finding.state is State.PROBLEM] == []
    assert [finding.check for finding in found] == ["pyspark", "java", "python of Spark's workers"]
    assert the("java", found).text == f"17 at {tmp_path}/jdk/bin/java"


@pytest.mark.parametrize(
    ("line", "spark", "text"),
    [
        (JAVA.format(11), "4.2.0", "11 at .* is too old"),
        ("echo 'java version \"1.8.0_292\"' >&2", "4.2.0", "8 at .* is too old"),
        (JAVA.format(25), "4.0.1", "25 at .* is too new for Spark 4.0.1"),
        (JAVA.format(25), "4.2.0", ""),
        ("echo broken >&2; exit 3", "4.2.0", "-version failed: broken"),
    ],
)
def test_java_has_to_suit_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, spark: str, text: str
) -> None:
    monkeypatch.setattr(checks, "version", lambda package: spark)
    given = environment(tmp_path)
    program(tmp_path / "jdk" / "bin" / "java", line)
    found = machine_is("java", given)
    assert found.state is (State.PROBLEM if text else State.OK)
    assert not text or _matches(text, found.text)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def test_a_java_that_is_nowhere_is_a_problem(tmp_path: Path) -> None:
    nowhere = environment(tmp_path, JAVA_HOME="", PATH=str(tmp_path))
    assert "is not on the path, and JAVA_HOME is not set" in machine_is("java", nowhere).text
    missing = environment(tmp_path, JAVA_HOME=str(tmp_path / "gone"))
    assert "cannot be started" in machine_is("java", missing).text


def test_the_python_of_the_workers_has_to_be_the_drivers(tmp_path: Path) -> None:
    check = "python of Spark's workers"
    real = environment(tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=os.pathsep.join(sys.path))
    assert machine_is(check, real).state is State.OK
    for lines, text in (
        (["echo 3 9", "exit 1"], "is Python 3.9, this driver's is"),
        ([f"echo {sys.version_info[0]} {sys.version_info[1]}", "echo no pyarrow >&2", "exit 1"], "lacks .*no pyarrow"),
        (["echo gone wrong >&2", "exit 1"], "failed: gone wrong"),
    ):
        given = environment(tmp_path, PYSPARK_PYTHON=program(tmp_path / "python", *lines))
        found = machine_is(check, given)
        assert found.state is State.PROBLEM
        assert _matches(text, found.text)
        assert f"PYSPARK_PYTHON={sys.executable}" in found.fix
    other = program(tmp_path / "python", f"echo {sys.version_info[0]} {sys.version_info[1]}", "echo /elsewhere")
    assert machine_is(check, environment(tmp_path, PYSPARK_PYTHON=other)).state is State.WARNING
    unset = environment(tmp_path, PATH=str(tmp_path))
    del unset["PYSPARK_PYTHON"]
    program(tmp_path / "python3", "echo 3 9")
    assert "PYSPARK_PYTHON is not set" in machine_is(check, unset).text


def test_a_pyarrow_that_is_too_old_for_the_workers_pyspark_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text('__version__ = "9.0"')
    path = os.pathsep.join([str(tmp_path), *sys.path])
    found = machine_is(
        "python of Spark's workers", environment(tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=path)
    )
    assert found.state is State.PROBLEM
    assert _matches("lacks what is needed: .*PyArrow >= .* must be installed; however, your version is 9.0", found.text)


# --- the store ---


def test_a_store_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    found = list(examine_store(f"sqlite:///{tmp_path}/store.db"))
    assert "there is no such file yet" in the("store", found).text
    assert not list(tmp_path.glob("*.db*"))
    open_store(f"sqlite:///{tmp_path}/empty.db").close()
    assert the("store's tables", examine_store(f"sqlite:///{tmp_path}/empty.db")).state is State.OK


@pytest.mark.parametrize(
    ("revision", "state", "text"),
    [
        ("0012", State.PROBLEM, "migrate it with cuesqueue 0.3"),
        ("0013", State.PROBLEM, "stop the queries"),
        ("9999", State.WARNING, "newer"),
    ],
)
def test_the_schema_of_a_store_has_to_be_ours(tmp_path: Path, revision: str, state: State, text: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    database = Database(url)
    for table in (applied, version):
        database.write(lambda t, table=table: t.execute(table.update().values(version_num=revision)))  # type: ignore[misc]
    database.close()
    found = the("store's tables", examine_store(url))
    assert (found.state, found.fix.startswith(text) or text in found.fix) == (state, True)


def test_a_sqlite_file_is_not_for_executors_elsewhere(tmp_path: Path) -> None:
    found = the("store's place", examine_store(f"sqlite:///{tmp_path}/store.db", local=False))
    assert (found.state, "PostgreSQL" in found.fix) == (State.PROBLEM, True)


def test_a_store_that_cannot_be_reached_is_a_problem_without_its_password(impatient: None) -> None:
    found = list(examine_store("postgresql+psycopg://me:hunter2@127.0.0.1:9/db?connect_timeout=1"))
    assert the("store", found).state is State.PROBLEM
    assert "hunter2" not in str(found)


# --- queues and objects ---


def reader(tmp_path: Path, **more: str) -> Any:
    given = {
        "queueUrl": f"sql+sqlite:///{tmp_path}/queue.db?queue=files",
        "storeUrl": f"sqlite:///{tmp_path}/store.db",
        "fileFormat": "json",
        "allowedPrefixes": f"file://{tmp_path}/in/",
    }
    return parse_reader_options({**given, **more})


def test_a_queue_is_asked_and_not_made(tmp_path: Path) -> None:
    found = the("queue", examine_queues(reader(tmp_path)))
    assert (found.state, "cuesqueue queue create" in found.fix) == (State.PROBLEM, True)
    assert not list(tmp_path.glob("*.db*"))
    with open_queue(f"sql+sqlite:///{tmp_path}/queue.db?queue=files") as queue:
        queue.send(["a", "b"])
    found = the("queue", examine_queues(reader(tmp_path)))
    assert (found.state, "2 messages wait" in found.text) == (State.OK, True)
    with open_queue(f"sql+sqlite:///{tmp_path}/queue.db?queue=files") as queue:
        assert queue.depth().ready == 2


def test_a_queue_that_a_reader_would_refuse_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from queue_source.queues.base import Capabilities
    from queue_source.queues.sql import SqlQueue

    with open_queue(f"sql+sqlite:///{tmp_path}/queue.db?queue=files") as queue:
        queue.send(["a"])
    monkeypatch.setattr(SqlQueue, "capabilities", Capabilities(max_batch_size=10, loses_while_closed=True))
    found = list(examine_queues(reader(tmp_path)))
    assert (the("queue", found).state, "is a listener" in the("queue", found).text) == (State.PROBLEM, True)


def test_an_error_queue_is_asked_too(tmp_path: Path) -> None:
    options = reader(tmp_path, errorQueueUrl=f"sql+sqlite:///{tmp_path}/errors.db?queue=e")
    assert the("error queue", examine_queues(options)).state is State.PROBLEM


def test_prefixes_are_listed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    prefixes = [f"file://{tmp_path}/{name}/" for name in ("in", "gone", "empty")]
    found = list(examine_prefixes(prefixes, StorageOptions()))
    assert [finding.state for finding in found] == [State.OK, State.OK, State.PROBLEM, State.WARNING]
    assert "1 object can be listed" in found[0].text
    assert "a.json can be read" in found[1].text
    assert "no object begins with it" in found[3].text


# --- the command ---


def doctor(*arguments: str, code: int = 0) -> dict[str, Finding]:
    found = json.loads(run(*arguments, "--json", code=code).stdout)
    assert found["healthy"] is (code == 0)
    return {one["check"]: Finding(**{**one, "state": State(one["state"])}) for one in found["findings"]}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_source.commands.doctor._PATIENCE", 0.2)


@pytest.fixture(autouse=True)
def well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in environment(tmp_path).items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("CUESQUEUE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


def test_without_anything_it_looks_at_the_machine_alone() -> None:
    found = doctor()
    assert [found[name].state for name in ("store", "queue, objects", "executors")] == [State.SKIPPED] * 3
    assert found["java"].state is State.OK


def test_with_options_it_looks_at_everything_and_fails_where_there_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    given = {
        "queueUrl": f"sql+sqlite:///{tmp_path}/queue.db?queue=files",
        "storeUrl": f"sqlite:///{tmp_path}/store.db",
        "fileFormat": "json",
        "allowedPrefixes": f"file://{tmp_path}/in/",
    }
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "a.json").write_text("{}")
    file = tmp_path / "reader.json"
    file.write_text(json.dumps(given))
    assert doctor("--options", str(file), code=3)["queue"].state is State.PROBLEM
    with open_queue(given["queueUrl"]) as queue:
        queue.send(["a"])
    found = doctor("--options", str(file))
    assert {name: found[name].state for name in ("options", "queue", "prefix", "store")} == dict.fromkeys(
        ("options", "queue", "prefix", "store"), State.OK
    )
    wrong = doctor("--options", str(file), "-o", "fileFormt=json", code=3)["options"]
    assert "did you mean" in wrong.text


def test_what_is_printed_fits_80_columns_and_says_what_to_do(tmp_path: Path) -> None:
    done = run("-o", f"queueUrl=sql+sqlite:///{tmp_path}/queue.db?queue=files", code=3)
    assert max(len(line) for line in done.stdout.splitlines() if " " in line.strip()) <= 80
    assert "problem  options:" in done.stdout
    assert "         -> " in done.stdout
    assert "1 problem(s)" in done.stderr


@pytest.mark.parametrize("arguments", [("-o", "nothing"), ("--options", "list.json")])
def test_options_that_are_none_are_wrong_use(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "list.json").write_text("[1]")
    run(*arguments, code=2)


def test_passwords_are_shown_nowhere(tmp_path: Path, impatient: None) -> None:
    secrets = ("hunter2", "s3cr3t")
    store = "postgresql+psycopg://me:hunter2@127.0.0.1:9/db?connect_timeout=1"
    queue = "sql+postgresql+psycopg://me:s3cr3t@127.0.0.1:9/db?connect_timeout=1&queue=files"
    options = ["-o", f"queueUrl={queue}", "-o", "fileFormat=json", "-o", f"allowedPrefixes=file://{tmp_path}/"]
    for arguments in (options, [*options, "--json"], ["-o", f"queueUrl={queue}"]):
        shown = run("--store", store, *arguments, code=3)
        assert not [secret for secret in secrets if secret in shown.output]


def test_the_executors_are_compared_with_the_driver() -> None:
    from queue_source.spark.doctor import Worker, this_worker

    driver = this_worker()
    assert driver.error == ""
    others = [
        driver,
        driver._replace(host="b", python="3.9"),
        driver._replace(host="c", versions=("1", "2", "")),
        Worker("d", "3.11", ("", "", ""), "No module named 'pyarrow'"),
    ]
    found = list(examine_workers(others, driver))
    assert [finding.state for finding in found] == [State.OK, State.PROBLEM, State.WARNING, State.PROBLEM]
    assert "No module named 'pyarrow'" in found[3].text
    assert "cuesqueue (none)" in found[2].text


_TASK = """
import pickle, sys
sys.modules["pyarrow"] = None  # importing it fails, as where it is not installed
work = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(list(work(iter(())))))
"""


class _Spark:
    """Stands for Spark: a task runs in a Python that lacks pyarrow, which Spark itself needs for no such task."""

    defaultParallelism = 1
    version = "4.2.0"

    def __init__(self) -> None:
        self.sparkContext = self

    def __call__(self, *_: object) -> _Spark:
        return self

    master = appName = getOrCreate = parallelize = __call__

    def mapPartitions(self, work: object) -> _Spark:
        self.work = work
        return self

    def collect(self) -> list[object]:
        from pyspark import cloudpickle
        from pyspark.errors import PySparkException

        shipped: bytes = cloudpickle.dumps(self.work)  # type: ignore[no-untyped-call]
        command = [sys.executable, "-c", _TASK]
        done = subprocess.run(command, input=shipped, capture_output=True, check=False)
        if done.returncode:
            raise PySparkException(done.stderr.decode())
        return list(pickle.loads(done.stdout))

    def stop(self) -> None:
        pass


def test_an_executor_without_pyarrow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "builder", _Spark())
    found = list(checks.examine_spark("local[1]"))
    assert [finding.state for finding in found] == [State.OK, State.PROBLEM]
    assert f"on {socket.gethostname()}" in found[1].text, found[1]
    assert "pyarrow" in found[1].text
    assert "PYSPARK_PYTHON" in found[1].fix
