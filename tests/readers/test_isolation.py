"""What kills its reader is found and given up; what was read beside it, however often it died too, is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.read import isolation
from queue_source.read.isolation import FAN_OUT
from queue_source.read.partitions import MIN_PIECE
from queue_source.read.task import Alone, read_work
from shard_store.errors import StoreUnavailable
from shard_store.model import Semantics
from shard_store.store import ShardStore
from support.dying_readers import SCHEMA, Died, Query

NewQuery = Callable[..., Query]


@pytest.fixture
def new_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewQuery]:
    made: list[Query] = []

    def make(ids: Sequence[str], *, fan_out: int = 4, **settings: Any) -> Query:
        monkeypatch.setattr(isolation, "FAN_OUT", fan_out)  # a small one, so that few objects need several steps
        made.append(Query(tmp_path, ids, monkeypatch=monkeypatch, **settings))
        return made[-1]

    yield make
    for query in made:
        query.store.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The marks that were written."""
    marks: list[object] = []
    begin = ShardStore.begin_read

    def begin_read(store: ShardStore, identity: Any, mark: Any) -> None:
        marks.append(mark)
        begin(store, identity, mark)

    monkeypatch.setattr(ShardStore, "begin_read", begin_read)
    return marks


def names(count: int) -> list[str]:
    return [f"{number:06}" for number in range(count)]


@pytest.mark.parametrize("together", [False, True], ids=["alone in its process", "with its executor"])
def test_what_kills_its_reader_is_given_up_and_everything_beside_it_is_published(
    new_query: NewQuery, together: bool
) -> None:
    ids = names(20)
    query = new_query(ids)
    query.readers.kill_by("000007")
    assert sorted(query.run_until_published(together=together)) == [one for one in ids if one != "000007"]
    assert query.quarantined() == ["000007"]
    assert query.given_up() == {"000007": "kills-its-reader"}
    assert query.marks() == 0


def test_an_innocent_that_dies_with_its_neighbour_time_and_again_is_published(new_query: NewQuery) -> None:
    """Four executors are lost with both of them, before anything is read alone."""
    query = new_query(["H", "P"], tasks=2)
    query.readers.kill_by("P")
    assert query.attempt(together=True) is None
    assert query.attempt(together=True) is None  # the second attempt leaves marks of both
    assert query.marks() == 2
    assert query.run_until_published() == ["H"]
    assert query.quarantined() == ["P"]


def test_executors_that_are_taken_away_blame_nobody(new_query: NewQuery) -> None:
    """As preempted ones are, four times: the plan is then read in one task, and published whole."""
    query = new_query(names(8))
    query.attempt(tries=0)
    tasks = [read_work(work, SCHEMA, repeated=False) for work in query.works()]
    for task in tasks:
        next(task)
        query._kill(task)
    assert query.marks() == 4
    assert [type(work.isolation) for work in query.works()] == [Alone]
    assert sorted(query.attempt() or ()) == names(8)
    assert query.quarantined() == []
    assert query.marks() == 0


def test_a_failure_that_leaves_no_mark_never_leads_to_isolation(new_query: NewQuery) -> None:
    """The user's own function, a deploy, a stop: the readers themselves end well, or are told to end."""
    query = new_query(names(8))
    for _ in range(5):
        works = query.works()
        assert len(works) == 4
        for work in works[:2]:
            assert list(read_work(work, SCHEMA, repeated=False))
        stopped = read_work(works[2], SCHEMA, repeated=False)
        next(stopped)
        stopped.close()  # type: ignore[attr-defined]
        assert query.marks() == 0
    assert sorted(query.attempt() or ()) == names(8)


def test_the_first_attempt_writes_no_mark_and_later_ones_write_one_for_each_task(
    new_query: NewQuery, begun: list[object]
) -> None:
    query = new_query(names(1000))
    for work in query.works():
        list(read_work(work, SCHEMA, repeated=False))
    assert begun == []
    query.attempt()
    assert len(begun) == 4


def test_deaths_beside_others_do_not_count_and_those_alone_do(new_query: NewQuery) -> None:
    query = new_query(["a", "P", "b"], tasks=3)
    query.readers.kill_by("P")
    for _ in range(2):
        assert query.attempt(together=True) is None
    before = query.readers.tried["P"]
    for deaths in (1, 2, 3):
        assert query.attempt(tries=1) is None
        assert query.readers.tried["P"] == before + deaths
    assert sorted(query.attempt(tries=1) or ()) == ["a", "b"]
    assert query.readers.tried["P"] == before + 3


@pytest.mark.parametrize("error", [KeyError("a bug"), MemoryError()], ids=["a bug", "no memory"])
def test_an_unknown_failure_alone_counts_like_a_death(new_query: NewQuery, error: Exception) -> None:
    query = new_query(names(9))
    query.readers.fail_by("000004", error)
    assert len(query.run_until_published()) == 8
    assert query.quarantined() == ["000004"]


@pytest.mark.parametrize(
    "error",
    [
        ObjectStoreError("the network is down"),
        BadObject("corrupt-object", "by onCorruptObject=fail"),
        StoreUnavailable("a failover"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_known_failure_never_counts_and_leaves_earlier_deaths_as_they_are(
    new_query: NewQuery, error: Exception
) -> None:
    query = new_query(["P", "a"], tasks=2)
    query.readers.kill_by("P")
    assert query.attempt() is None
    assert query.attempt() is None
    assert query.attempt(tries=2) is None  # two deaths alone: one is missing
    query.readers.fail_by("P", error)
    for _ in range(5):
        with pytest.raises(type(error)):
            query.attempt()
    query.readers.live()
    assert query.attempt() == ["P", "a"]
    assert query.quarantined() == []


def test_one_read_that_goes_well_clears_the_deaths_before_it(new_query: NewQuery) -> None:
    query = new_query(["P", "a"], tasks=2)
    query.readers.kill_by("P")
    for tries in (4, 4, 2):
        assert query.attempt(tries=tries) is None
    query.readers.live()
    [work] = query.works()
    assert len(list(read_work(work, SCHEMA, repeated=False))) == 2
    query.readers.kill_by("P")  # and the sink has failed: the plan comes again
    assert [work.isolation for work in query.works()] != [Alone(3)]
    assert query.attempt() is None
    before = query.readers.tried["P"]
    assert query.run_until_published() == ["a"]
    assert query.readers.tried["P"] == before + 3


def test_two_that_kill_in_one_plan_are_both_found(new_query: NewQuery) -> None:
    ids = names(300)
    query = new_query(ids)
    query.readers.kill_by("000003", "000250")
    assert sorted(query.run_until_published(together=True)) == [i for i in ids if i not in ("000003", "000250")]
    assert query.quarantined() == ["000003", "000250"]


def test_what_nobody_suspected_and_kills_is_found_too(new_query: NewQuery) -> None:
    """It begins to kill while the plan is read in one task."""
    ids = names(100)
    query = new_query(ids)
    query.readers.kill_by("000003")
    for _ in range(2):
        assert query.attempt() is None
    query.readers.kill_by("000077")
    assert len(query.run_until_published()) == 99
    assert query.quarantined() == ["000077"]


def test_an_ordered_group_is_read_in_its_order_whatever_is_suspected_in_it(new_query: NewQuery) -> None:
    ids = names(120)
    groups = {one: "odd" if number % 2 else "every fourth" for number, one in enumerate(ids) if number % 4 != 2}
    query = new_query(ids, groups=groups)
    query.readers.kill_by("000041")
    read = query.run_until_published(together=True)
    assert sorted(read) == [one for one in ids if one != "000041"]
    for group in ("odd", "every fourth"):
        own = [one for one in read if groups.get(one) == group]
        assert own == sorted(own)
    assert query.quarantined() == ["000041"]


def test_all_tasks_that_read_parts_of_one_large_object_may_die_of_it(new_query: NewQuery) -> None:
    query = new_query(["large", "other"], size=5 * MIN_PIECE, tasks=5)
    query.may_be_cut = True
    query.readers.kill_by("large")
    for _ in range(2):
        assert query.attempt() is None
    assert query.run_until_published() == ["other"]
    assert query.quarantined() == ["large"]


def test_at_least_once_reports_what_kills_its_reader_and_delivers_the_rest(new_query: NewQuery) -> None:
    query = new_query(names(9), semantics=Semantics.AT_LEAST_ONCE)
    query.readers.kill_by("000004")
    assert len(query.run_until_published(together=True)) == 8
    assert query.given_up() == {"000004": "kills-its-reader"}


def test_at_most_once_reads_nothing_twice_and_so_isolates_nothing(new_query: NewQuery) -> None:
    query = new_query(names(9), semantics=Semantics.AT_MOST_ONCE)
    query.readers.kill_by("000004")
    assert query.attempt(tries=1) is None
    query.pipeline = query.pipeline.start(query.store, semantics=Semantics.AT_MOST_ONCE)
    assert query.attempt() == []


def test_among_100_000_objects_a_few_deaths_find_the_one_and_few_transactions_are_needed(
    new_query: NewQuery, begun: list[object]
) -> None:
    ids = names(100_000)
    query = new_query(ids, tasks=50, semantics=Semantics.AT_LEAST_ONCE, plans_once=True, fan_out=FAN_OUT)
    query.readers.kill_by("067890")
    assert query.attempt(together=True, tries=1) is None
    assert query.attempt(together=True, tries=1) is None
    assert len(begun) <= 50
    begun.clear()
    deaths = 0
    while (published := query.attempt(tries=1)) is None:
        deaths += 1
    assert len(published) == 99_999
    assert query.given_up() == {"067890": "kills-its-reader"}
    assert deaths <= 4 + 2  # 32 ** 4 are enough for all of them; and the last interval is the object, three times
    assert len(begun) <= (deaths + 1) * 2 * (FAN_OUT + 1)


def test_a_dead_reader_is_what_the_harness_takes_it_for(new_query: NewQuery) -> None:
    """Nothing of ours removes the mark of a process that is gone."""
    query = new_query(["P"], tasks=1)
    query.attempt(tries=0)
    query.readers.kill_by("P")
    [work] = query.works()
    with pytest.raises(Died):
        list(read_work(work, SCHEMA, repeated=False))
    assert query.marks() == 1
