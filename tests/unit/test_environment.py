"""The set-up: which Java it takes, what its `java` passes on, what it reads from a lock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import environment, lock

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("    java.specification.version = 25\n", 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_of_a_java_is_read_from_what_it_says(said: str, version: int | None) -> None:
    assert environment.java_version(said) == version


@pytest.fixture
def real_java(tmp_path: Path) -> Path:
    """A home, in an awkward place, whose `java` prints its arguments, one a line."""
    home = tmp_path / "it's a java"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "bin" / "jps").touch()
    return home


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--add-modules=jdk.incubator.vector", "-version"], ["-version"]),
        (["-a", "--add-modules", "jdk.incubator.vector", "-b"], ["-a", "-b"]),
        (["--add-modules", "java.sql"], ["--add-modules", "java.sql"]),
        (["--add-modules=java.sql", "-cp", "a b:*", "", "$HOME", "--add-modules"],) * 2,
    ],
)
def test_our_java_drops_the_vector_module_and_nothing_else(
    tmp_path: Path, real_java: Path, given: list[str], passed_on: list[str]
) -> None:
    home = Path(environment.java_home_of_our_own(tmp_path / "ours", str(real_java)))
    answer = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[:-1] == passed_on


def test_our_java_home_has_all_else_that_the_real_one_has(tmp_path: Path, real_java: Path) -> None:
    home = Path(environment.java_home_of_our_own(tmp_path / "ours", str(real_java)))
    assert (home / "lib").resolve() == real_java / "lib"
    assert (home / "bin" / "jps").resolve() == real_java / "bin" / "jps"


def test_a_broken_stamp_file_means_that_nothing_is_done(tmp_path: Path) -> None:
    path = tmp_path / "setup.json"
    path.write_text('{"packages": "abc')
    assert environment.Stamps(path).done == {}


def test_stamps_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "setup.json"
    environment.Stamps(path).set("packages", "abc")
    assert environment.Stamps(path).has("packages", "abc")
    assert not environment.Stamps(path).has("packages", "abd")


LOCKS = ["spark-4.txt", *(f"spark-{spark}.txt" for spark in lock.OLDER_SPARKS)]


@pytest.mark.parametrize("name", LOCKS)
def test_every_build_tool_is_in_every_lock(name: str) -> None:
    entries = environment.locked(ROOT / "locks" / name, environment.BUILD_TOOLS)
    assert {line.split("==")[0] for line in entries.splitlines() if "==" in line} == set(environment.BUILD_TOOLS)


@pytest.mark.parametrize("path", sorted((ROOT / "locks").glob("*.txt")), ids=lambda path: path.name)
def test_a_lock_names_no_address_and_every_entry_has_hashes(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "://" not in text
    entries = [entry for entry in text.split("\n") if "==" in entry and not entry.startswith(" ")]
    assert entries
    assert all(entry.endswith("\\") for entry in entries)


@pytest.mark.parametrize("spark", lock.OLDER_SPARKS)
def test_the_lock_of_an_older_spark_differs_in_spark_alone(spark: str) -> None:
    newest = lock.pins(ROOT / "locks" / "spark-4.txt", ("pyspark", "py4j"))
    path = ROOT / "locks" / f"spark-{spark}.txt"
    assert lock.pins(path, ("pyspark", "py4j")) == newest
    assert f"\n{lock.OLDER_SPARKS[spark]} " in path.read_text("utf-8")


def test_every_spark_that_has_a_lock_has_a_newest_java() -> None:
    assert set(environment.NEWEST_JAVA) == {environment.NEWEST_SPARK, *lock.OLDER_SPARKS}
    assert {path.name for path in (ROOT / "locks").glob("spark-*.txt")} == set(LOCKS)


@pytest.mark.parametrize(
    ("line", "activity"),
    [
        ("  Downloading pyspark-4.3.0.tar.gz (434.1 MB)", "downloading pyspark-4.3.0.tar.gz (434.1 MB)"),
        ("Collecting numpy==2.4.6 (from -r locks/spark-4.txt (line 772))", "collecting numpy==2.4.6"),
        ("Installing collected packages: pytz", "installing"),
        ("Looking in links", None),
    ],
)
def test_progress_lines_say_what_pip_is_doing(line: str, activity: str | None) -> None:
    assert environment.pip_activity(line) == activity
