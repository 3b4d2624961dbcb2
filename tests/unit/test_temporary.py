"""Where the temporary files of a test run are: in memory that has room, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from support.temporary import ENOUGH, TemporaryFolder


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a shell that says nothing of temporary files; the test run's own folder comes back afterwards."""
    for name in ("TMPDIR", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", tempfile.gettempdir())
        free(patch, ENOUGH)
        yield


def free(patch: pytest.MonkeyPatch, disk: int, memory: int = ENOUGH) -> None:
    patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=disk))
    patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory))


def test_what_is_written_in_a_run_is_in_the_folder_and_goes_with_it(tmp_path: Path) -> None:
    folder = TemporaryFolder(tmp_path)
    folder.use()
    with tempfile.NamedTemporaryFile(delete=False) as file:
        assert Path(file.name).is_relative_to(tmp_path)
    assert os.environ["SPARK_LOCAL_DIRS"] == os.environ["TMPDIR"]
    folder.pytest_unconfigure()
    assert list(tmp_path.iterdir()) == []
    assert "TMPDIR" not in os.environ


@pytest.mark.parametrize(("disk", "memory"), [(ENOUGH - 1, ENOUGH), (ENOUGH, ENOUGH - 1)])
def test_without_room_the_files_stay_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: int, memory: int
) -> None:
    free(monkeypatch, disk, memory)
    TemporaryFolder(tmp_path).use()
    assert (list(tmp_path.iterdir()), "TMPDIR" in os.environ) == ([], False)


def test_a_folder_of_ones_own_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    TemporaryFolder(tmp_path).use()
    assert (list(tmp_path.iterdir()), os.environ["TMPDIR"]) == ([], "/elsewhere")


def test_what_a_killed_run_has_left_goes_with_the_next_one_and_what_runs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuesqueue-tests-1", "cuesqueue-tests-2", "cuesqueue-tests-x", "somebody's"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(psutil, "pid_exists", lambda number: number == 1)
    folder = TemporaryFolder(tmp_path)
    folder.use()
    folder.pytest_unconfigure()
    assert {path.name for path in tmp_path.iterdir()} == {"cuesqueue-tests-1", "cuesqueue-tests-x", "somebody's"}
