"""What a reader notes of its plan for the sinks of the same driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_source.spark.writer import NotedPlan, noted_plans
from shard_store.model import Noted

PLAN, ANOTHER = "a" * 64, "b" * 64


def test_a_sink_of_the_driver_finds_the_newest_note_of_that_reader(tmp_path: Path) -> None:
    noted = noted_plans(tmp_path / "driver")
    assert noted("store", "p") is None
    reader = NotedPlan(tmp_path / "driver", "store", "p", 12)
    for text in ("", PLAN, "", PLAN, ANOTHER):
        reader.note(text)
        assert noted("store", "p") == Noted(12, text, 0)
    reader.note("", 2**63 - 1)
    assert noted("store", "p") == Noted(12, "", 2**63 - 1)
    reader.note(ANOTHER)
    assert noted("other store", "p") is noted("store", "other pipeline") is None
    reader.close()
    assert noted("store", "p") == Noted(12, ANOTHER, 0)  # as after its death: the next reader takes its place


def test_a_reader_takes_the_place_of_the_one_before_which_may_run_on(tmp_path: Path) -> None:
    before = NotedPlan(tmp_path, "store", "p", 9)
    before.note(PLAN)
    for incarnation in (10, 3):  # lower where the store is an older one by now, which is as it should be
        reader = NotedPlan(tmp_path, "store", "p", incarnation)
        assert noted_plans(tmp_path)("store", "p") == Noted(incarnation, "", 0)
        before.note(ANOTHER)
        before.close()
        assert noted_plans(tmp_path)("store", "p") == Noted(incarnation, "", 0)
        before = reader
    reader.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_not_whole_says_nothing(tmp_path: Path) -> None:
    reader = NotedPlan(tmp_path, "store", "p", 1)
    (file,) = tmp_path.iterdir()
    file.write_text("")
    assert noted_plans(tmp_path)("store", "p") is None
    reader.close()


def test_without_a_folder_nothing_is_known() -> None:
    assert noted_plans(None)("store", "p") is None


def test_a_folder_that_takes_no_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "driver").write_text("a file")
    with pytest.raises(OSError, match="driver"):
        NotedPlan(tmp_path / "driver", "store", "p", 1)


def test_a_note_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    NotedPlan(tmp_path, "store", "p", 1).close()
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="plan-"):
        NotedPlan(tmp_path, "store", "p", 2)
    assert list(tmp_path.iterdir()) == [file]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
