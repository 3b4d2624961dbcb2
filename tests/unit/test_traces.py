"""What a task tells the store of its reading, and when; what that proves: `tests/contracts/test_store_readings.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from queue_source.options import parse_reader_options
from queue_source.read.partitions import whole_pieces
from queue_source.read.task import Trace, Work, read_work
from shard_store.errors import StoreConfigurationError
from shard_store.model import Plan, Reading, ShardState, Split
from shard_store.sql.schema import read_marks
from shard_store.store import ShardStore, open_store
from support.reading import plan_store
from support.sessions import LEAST
from support.store_backends import Pipeline, content

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
FIRST, COPY = Reading(0, 0, 7), Reading(0, 0, 8, repeated=True)


class Task:
    """The only task of a plan that reads one object, which is not there."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "late.csv"
        url = f"sqlite:///{folder}/store.db"
        options = parse_reader_options({**LEAST, "fileFormat": "csv", "store": url})
        place = plan_store(options)
        self.store = open_store(url)
        self.us = Pipeline.start(self.store)
        late = content(str(self.file))._replace(uri=str(self.file), size=None)
        shards = self.store.open_shards(self.us.token, "s", [late]).values()
        self.us.snapshot(*shards)
        self.plan: Plan = self.us.plan()
        pieces = whole_pieces(self.plan.ranges)
        self.work = Work(self.plan.identity, pieces, options.content, place, trace=Trace(first=True, tasks=1))

    def appears(self) -> None:
        self.file.write_text("1,x\n")

    def begin(self, reading: Reading, **changed: object) -> Iterator[pa.RecordBatch]:
        return read_work(replace(self.work, **changed), SCHEMA, repeated=reading.repeated, reading=reading)  # type: ignore[arg-type]

    def rows(self, reading: Reading) -> int:
        return sum(batch.num_rows for batch in self.begin(reading))

    def opens_when_published(self, winner: Reading) -> bool:
        self.us.publish(self.plan, Split("/split", 1, 1), winners=[winner.task])
        self.us.confirm()
        shard_id = self.plan.ranges[0].content.shard_id
        again = content(shard_id)._replace(message_id="another message")
        (shard,) = self.store.open_shards(self.us.token, "s", [again]).values()
        return shard.state is ShardState.OPEN


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    made = Task(tmp_path)
    yield made
    made.store.close()


def traces(store: ShardStore) -> int:
    return store.database.read(
        lambda t: int(t.execute(sa.select(sa.func.count()).select_from(read_marks)).scalar_one())
    )


def test_the_first_task_of_a_plan_is_known_before_any_of_its_rows_goes_out(task: Task) -> None:
    task.appears()
    assert next(task.begin(FIRST)).num_rows == 1
    assert traces(task.store) == 2


@pytest.mark.parametrize("trace", [Trace(first=False, tasks=1), None], ids=["not the first", "nobody asks"])
def test_other_tasks_tell_nothing_as_long_as_nothing_is_bad(task: Task, trace: Trace | None) -> None:
    task.appears()
    list(task.begin(FIRST, trace=trace))
    assert traces(task.store) == 0


def test_no_row_goes_out_where_the_store_cannot_be_told(task: Task) -> None:
    task.appears()
    elsewhere = replace(task.work.store, store_id="of another store")
    with pytest.raises(StoreConfigurationError, match="another store"):
        next(task.begin(FIRST, store=elsewhere))


def test_a_copy_leaves_out_what_the_first_found_missing_and_either_is_known_to_have_published_none_of_it(
    task: Task,
) -> None:
    assert task.rows(FIRST) == 0
    task.appears()
    assert task.rows(COPY) == 0
    assert task.opens_when_published(COPY)


def test_what_the_first_has_read_and_its_copy_found_missing_is_not_opened(task: Task) -> None:
    task.appears()
    assert task.rows(FIRST) == 1
    task.file.unlink()
    assert task.rows(COPY) == 0
    assert not task.opens_when_published(FIRST)


def test_what_the_copy_has_read_before_the_first_found_it_missing_is_not_opened(task: Task) -> None:
    task.appears()
    copy = task.begin(COPY)
    assert next(copy).num_rows == 1
    task.file.unlink()
    assert task.rows(FIRST) == 0
    assert not task.opens_when_published(COPY)
