"""A query into each kind of sink dies at each point that it comes to; another goes on, and nothing is lost or doubled.

In one process over SQLite, with objects in files. All cells, with real kills and lost connections:
`integration/test_crash_sweep.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shard_store.failpoints import FailpointReached
from support.crash_sweep import check, recover, run
from support.sweep_sinks import COLUMNS, ONLY, READ_TWICE, SWEPT, Cell, reaching

BEFORE_SINKS = {
    "snapshot-written",
    "offset-logged",
    "plan-made",
    "object-read",
    "errors-due",
    "errors-sent",
    "acknowledged",
}
"""Where it makes no difference which sink there is: here two of them are enough, the integration takes all."""
IN_FILES = [column for column, sink in COLUMNS.items() if not sink.in_bucket]
CELLS = [
    (point, column)
    for point in SWEPT
    for column in reaching(point)
    if column in IN_FILES
    if point not in BEFORE_SINKS
    or column.startswith(("path", "foreign,"))
    or (COLUMNS[column].shows_early and point in ("plan-made", "object-read"))  # there a later verdict is doubted
]


@pytest.fixture
def twice() -> bool:
    return False


@pytest.fixture
def cell(column: str, tmp_path: Path, iceberg_threads: None, twice: bool) -> Cell:
    made = Cell(column, tmp_path, f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/elsewhere.db", twice)
    made.prepare()
    return made


def test_every_point_is_reached_by_some_sink() -> None:
    assert [point for point in SWEPT if not reaching(point)] == []
    assert ONLY.keys() <= set(SWEPT)
    assert all(columns <= COLUMNS.keys() and why for columns, why in ONLY.values())


@pytest.mark.parametrize("column", IN_FILES)
def test_a_query_comes_to_all_points_of_its_sink_and_to_no_others(cell: Cell) -> None:
    """A new point fails here, unless all come to it: say in ONLY which do, and why the others do not."""
    outcome = run(cell)
    assert outcome.failed is None
    check(cell, "", failed=False)
    assert outcome.reached == {point for point in SWEPT if cell.column in reaching(point)}


@pytest.mark.parametrize(("point", "column"), CELLS)
def test_wherever_the_driver_dies_each_sink_and_each_semantics_keeps_its_promise(cell: Cell, point: str) -> None:
    failed = run(cell, f"{point}=raise", dies=True).failed
    assert isinstance(failed, FailpointReached)
    recover(cell)
    check(cell, point, failed=True)


@pytest.mark.parametrize("twice", [True])
@pytest.mark.parametrize(("point", "column"), [cell for cell in CELLS if cell[1] in READ_TWICE])
def test_wherever_a_driver_dies_that_reads_each_batch_twice_no_object_is_both_published_and_opened_again(
    cell: Cell, point: str
) -> None:
    failed = run(cell, f"{point}=raise", dies=True).failed
    assert isinstance(failed, FailpointReached)
    recover(cell)
    check(cell, point, failed=True)
