"""The versions table: what is counted in a run, and that a new run takes the place of the one before."""

from __future__ import annotations

import json
from pathlib import Path

from tools import versions

REPORT = """<testsuites><testsuite tests="5">
<testcase classname="a" name="one"/><testcase classname="a" name="two"><system-out>x</system-out></testcase>
<testcase classname="a" name="three"><failure message="no">text</failure></testcase>
<testcase classname="b" name="four"><error message="set-up">text</error></testcase>
<testcase classname="b" name="five"><skipped message="one batch only">text</skipped></testcase>
</testsuite></testsuites>"""


def test_what_passed_failed_and_was_skipped_is_counted_with_names_and_reasons(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert versions.counted(tmp_path / "report.xml") == {
        "passed": 2,
        "failed": 2,
        "skipped": 1,
        "failures": ["a.three", "b.four"],
        "skips": {"one batch only": 1},
    }


def test_a_run_takes_the_place_of_the_one_before_with_the_same_versions(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    for spark, python, tests, passed in [
        ("4.3.0", "3.11.7", "engine", 1),
        ("4.0.5", "3.11.7", "engine", 2),
        ("4.3.0", "3.9.1", "engine", 3),
        ("4.3.0", "3.11.7", "unit", 4),
        ("4.3.0", "3.11.7", "engine", 5),
    ]:
        versions.note({"spark": spark, "python": python, "tests": tests, "passed": passed}, path)
    assert [one["passed"] for one in json.loads(path.read_text())] == [2, 3, 5, 4]


def test_every_file_of_a_set_is_there() -> None:
    assert [path for paths in versions.SETS.values() for path in paths if not (versions.ROOT / path).exists()] == []
