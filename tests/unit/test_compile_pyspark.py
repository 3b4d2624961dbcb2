"""`cuesqueue setup pyspark`: bytecode in PySpark's archive, from which Python then imports."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.spark import load, process

SOURCES = {"pkg/__init__.py": "", "pkg/one.py": "NUMBER = 1\n", "pkg/odd.py": "WRONG = 1 is 1\n", "pkg/data.txt": "x"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    archive = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as opened:
        for name, text in SOURCES.items():
            opened.writestr(name, text)
    return tmp_path / "spark"


def lacking(home: Path) -> int:
    """How many modules lack their bytecode."""
    with zipfile.ZipFile(home / "python" / "lib" / "pyspark.zip") as opened:
        return sum(name.endswith(".py") and f"{name}c" not in opened.namelist() for name in opened.namelist())


def run(home: Path) -> dict[str, object]:
    done = CliRunner().invoke(app, ["setup", "pyspark", "--spark-home", str(home), "--json"])
    assert done.exit_code == 0, done.output
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_each_module_has_its_bytecode_and_a_second_run_changes_nothing(home: Path) -> None:
    archive = home / "python" / "lib" / "pyspark.zip"
    assert run(home) == {"archive": str(archive), "modules compiled": 3}
    after = archive.read_bytes()
    assert run(home)["modules compiled"] == 0
    assert archive.read_bytes() == after
    with zipfile.ZipFile(archive) as opened:
        assert sorted(opened.namelist()) == sorted([*SOURCES, *(f"{n}c" for n in SOURCES if n.endswith(".py"))])
        assert [opened.read(name) for name in SOURCES] == [text.encode() for text in SOURCES.values()]
    assert list(archive.parent.iterdir()) == [archive]


def test_python_imports_the_bytecode(home: Path) -> None:
    run(home)
    say = "import pkg.one; print(pkg.one.__file__, pkg.one.NUMBER)"
    path = str(home / "python" / "lib" / "pyspark.zip")
    said = subprocess.run([sys.executable, "-c", say], env={"PYTHONPATH": path}, capture_output=True, text=True).stdout
    assert said == f"{path}/pkg/one.pyc 1\n"


def test_what_cannot_be_changed_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["setup", "pyspark", "--spark-home", str(tmp_path)])
    assert done.exit_code != 0
    assert "No such file or directory; name the folder of a Spark" in f"{done.exception} {done.output}"


class Builder:
    """Stands for that of a session."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


@pytest.mark.parametrize("refused", [False, True])
def test_the_session_of_load_has_it_without_being_asked_where_that_may_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    if refused:
        monkeypatch.setattr("shutil.copy", Mock(side_effect=PermissionError(13, "Permission denied")))
    load.quiet_session("local[2]")
    assert lacking(home) == (3 if refused else 0)


@pytest.mark.parametrize("damage", ["no archive", "no python"])
def test_an_archive_that_cannot_be_compiled_keeps_no_load_from_starting(
    home: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    archive = home / "python" / "lib" / "pyspark.zip"
    if damage == "no archive":
        archive.write_bytes(b"no archive")
    else:
        with zipfile.ZipFile(archive, "a") as opened:
            opened.writestr("pkg/newer.py", "match = = 1")
    before = archive.read_bytes()
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    load.quiet_session("local[2]")
    assert archive.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "sockets", "file", "words"),
    [
        ((4, 3), "true", "/x/pyspark.zip/pyspark/__init__.pyc", []),
        ((4, 3), "false", "/x/pyspark.zip/pyspark/__init__.pyc", ["unix.domain.socket"]),
        ((4, 0), None, "/x/pyspark.zip/pyspark/__init__.py", ["setup pyspark"]),
        ((4, 3), None, "/x/pyspark.zip/pyspark/__init__.py", ["unix.domain.socket", "setup pyspark"]),
        ((4, 0), None, "/x/site-packages/pyspark/__init__.py", []),
    ],
)
def test_what_is_missing_is_advised(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], sockets: str | None, file: str, words: list[str]
) -> None:
    monkeypatch.setattr(process, "pyspark_version", version)
    monkeypatch.setattr("pyspark.__file__", file)
    if sockets is None:
        monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    else:
        monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", sockets)
    said = process.advice()
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))
