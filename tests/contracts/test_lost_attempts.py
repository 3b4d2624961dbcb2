"""The store is restored from a backup of the middle of a batch that is done: whoever published it knows, and says so.

With real readers, writers and sinks, without Spark. The backup is a copy of a SQLite file.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from shard_store import failpoints
from shard_store.errors import LostProgress
from shard_store.failpoints import FailpointReached
from support.crash_sweep import SweepLoop, recover, run
from support.sweep_sinks import OBJECTS, Cell

OURS = {
    "path": "the cuesqueue sink",
    "queue": "the cuesqueue sink",
    "path, by reference": "the cuesqueue sink",
    "path, at least once": "the cuesqueue sink",
    "path, at most once": "the cuesqueue sink",
    "foreachBatch": "'delivery'",
}


def killed(cell: Cell, armed: str, files: int) -> None:
    with patch.multiple(failpoints, _armed=failpoints._parse(armed), _reached={}):
        loop = SweepLoop(cell, maxFilesPerTrigger=str(files))
        with pytest.raises(FailpointReached):
            loop.drain()
        loop.die()


def copied(origin: Path, copy: Path) -> None:
    """Over what is there, as a restore."""
    for file in copy.parent.glob(f"{copy.name}*"):
        file.unlink()
    with closing(sqlite3.connect(origin)) as opened, closing(sqlite3.connect(copy)) as written:
        opened.backup(written)


def restored(column: str, folder: Path, batch: str) -> Cell:
    """A query that has done all, in one batch or in two; its store is from before the last one was published."""
    cell = Cell(column, folder, f"sqlite:///{folder}/store.db", f"sqlite:///{folder}/elsewhere.db")
    cell.prepare()
    if batch == "first":
        killed(cell, "before-publish=raise", len(OBJECTS))
    else:
        killed(cell, "plan-made@2=raise", 4)
    copied(folder / "store.db", folder / "backup.db")
    recover(cell)
    copied(folder / "backup.db", folder / "store.db")
    return cell


@pytest.mark.parametrize("batch", ["first", "second"])
@pytest.mark.parametrize("column", OURS)
def test_what_our_sinks_have_published_is_missed(tmp_path: Path, column: str, batch: str) -> None:
    cell = restored(column, tmp_path, batch)
    failed = run(cell).failed
    assert isinstance(failed, LostProgress), failed
    assert f"has nothing that {OURS[column]} published for it" in str(failed)


@pytest.mark.parametrize("batch", ["first", "second"])
def test_what_another_sink_has_taken_costs_nothing(tmp_path: Path, batch: str) -> None:
    cell = restored("foreign", tmp_path, batch)
    assert run(cell).failed is None
    assert cell.sink.found(cell) == cell.sink.expected


@pytest.mark.parametrize(("before", "after"), [("path", "foreign"), ("foreachBatch", "foreign"), ("foreign", "path")])
def test_a_query_may_get_another_sink(tmp_path: Path, before: str, after: str) -> None:
    """Which it is told from its first whole batch on."""
    cell = Cell(before, tmp_path, f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/elsewhere.db")
    cell.prepare()
    killed(cell, "plan-made@2=raise", 3)
    changed = Cell(after, tmp_path, cell.store, cell.elsewhere)
    assert run(changed).failed is None
    assert cell.sink.found(cell) + changed.sink.found(changed) == cell.sink.expected
    assert run(changed).failed is None


def test_a_function_of_foreach_batch_may_leave_a_batch_without_delivery(tmp_path: Path) -> None:
    cell = Cell("foreachBatch", tmp_path, f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/elsewhere.db")
    cell.prepare()
    loop = SweepLoop(cell, maxFilesPerTrigger="3")
    try:
        assert loop.batch()
        with patch.object(type(cell.sink), "deliver", lambda *_: None):
            assert loop.batch()
        loop.drain()
    finally:
        loop.stop()
