"""The defects of `tools/planted_defects` are those of the code as it is: each can be put back, and Python reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.planted_defects.__main__ import ROOT, found_by, plant, unfit
from tools.planted_defects.defects import DEFECTS, Defect


def test_every_defect_can_be_put_back() -> None:
    assert unfit(ROOT) == []
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_is_a_change_that_python_reads(defect: Defect, tmp_path: Path) -> None:
    sound = {name: (ROOT / "src" / name).read_text() for name, _, _ in defect.changes}
    for name, text in sound.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    plant(tmp_path, defect)
    for name, text in sound.items():
        planted = (tmp_path / "src" / name).read_text()
        assert planted != text
        compile(planted, name, "exec")


def test_a_defect_whose_text_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "room.py").write_text("a = 1\na = 1\n")
    twice = Defect("twice", "", "room.py", "a = 1", "a = 2")
    absent = Defect("absent", "", "other.py", "b", "c")
    assert unfit(tmp_path, [twice, absent]) == [
        "twice: its text stands 2 times in src/room.py; write it anew",
        "absent: its text stands 0 times in src/other.py; write it anew",
    ]


def test_that_a_defect_is_in_a_copy_is_not_taken_for_a_test_that_finds_it(tmp_path: Path) -> None:
    """This file looks for the sound text, so it fails wherever a defect is."""
    ours = tmp_path / "tests" / "unit" / Path(__file__).name
    ours.parent.mkdir(parents=True)
    ours.write_text("def test_ours() -> None:\n    raise AssertionError\n")
    other = ours.with_name("test_other.py")
    other.write_text("def test_other() -> None:\n    pass\n")
    assert found_by(tmp_path, ["tests"]) is None
    other.write_text("def test_other() -> None:\n    raise AssertionError\n")
    assert found_by(tmp_path, ["tests"]) == "tests/unit/test_other.py::test_other"
