"""What a reader notes of its plan for the sinks of the same driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_source.spark.noted_plan import NotedPlan, noted_plans

PLAN, ANOTHER = "a" * 64, "b" * 64


def test_a_sink_of_the_driver_finds_the_newest_note_of_that_reader(tmp_path: Path) -> None:
    noted = noted_plans(tmp_path / "driver")
    assert noted("store", "p", 1) is None
    reader = NotedPlan(tmp_path / "driver", "store", "p", 1)
    for text in ("", PLAN, "", PLAN, ANOTHER):
        reader.note(text)
        assert noted("store", "p", 1) == text
    for other in (("other store", "p", 1), ("store", "other pipeline", 1), ("store", "p", 2)):
        assert noted(*other) is None
    reader.close()
    assert noted("store", "p", 1) is None


def test_a_reader_of_the_same_name_begins_without_a_plan(tmp_path: Path) -> None:
    """A file stays behind when its reader is killed."""
    killed = NotedPlan(tmp_path, "store", "p", 1)
    killed.note(PLAN)
    reader = NotedPlan(tmp_path, "store", "p", 1)
    assert noted_plans(tmp_path)("store", "p", 1) == ""
    reader.close()
    killed.close()


def test_a_file_that_is_not_whole_says_nothing(tmp_path: Path) -> None:
    reader = NotedPlan(tmp_path, "store", "p", 1)
    (file,) = tmp_path.iterdir()
    file.write_text("")
    assert noted_plans(tmp_path)("store", "p", 1) is None
    reader.close()


def test_without_a_folder_nothing_is_known() -> None:
    assert noted_plans(None)("store", "p", 1) is None


def test_a_folder_that_takes_no_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "driver").write_text("a file")
    with pytest.raises(OSError, match="driver"):
        NotedPlan(tmp_path / "driver", "store", "p", 1)
