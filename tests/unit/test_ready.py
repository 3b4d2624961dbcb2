"""What is ready is taken in one order, by arrival; what is larger than a micro-batch comes in parts."""

from __future__ import annotations

import pytest

from queue_source.coordinator import ready as module
from queue_source.coordinator.ready import LEAST_PART, Ready, ReadyQueue, shares_of
from shard_store.model import BEGINNING, Content, Position, Range, end_at, is_end, position_at, shard_key

GROUP = ("q", "g")


def entry(name: str, size: int | None, position: Position = BEGINNING, *, arrival: int, group: str = "") -> Ready:
    content = Content(name, name, size, queue="q", group=group or None)
    return Ready(shard_key("s", name), content, position, arrival)


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> ReadyQueue:
    monkeypatch.setattr(module, "LEAST_PART", 1)
    return ReadyQueue(shares_of("round-robin", ["q"]))


def take(ready: ReadyQueue, files: int = 10, limit: int | None = None, *, cut: bool = True) -> list[Range]:
    return [part for _, part in ready.take(files, limit, lambda _: cut)]


def ends(ranges: list[Range]) -> list[tuple[str, Position, Position]]:
    return [(part.content.uri, part.start, part.end) for part in ranges]


def names(ranges: list[Range]) -> list[str]:
    return [part.content.uri for part in ranges]


def test_a_large_shard_is_taken_in_parts_until_its_end_before_what_came_later(ready: ReadyQueue) -> None:
    ready.put(entry("large", 25, arrival=1))
    ready.put(entry("small", 1, arrival=2))
    position, parts = BEGINNING, []
    while not is_end(position):
        (part,) = take(ready, limit=10)[:1]
        parts.append((part.start, part.end))
        position = part.end
        if not is_end(position):
            ready.put(entry("large", 25, position, arrival=1))
    assert parts == [(BEGINNING, position_at(10)), (position_at(10), position_at(20)), (position_at(20), end_at(25))]


def test_the_rest_of_a_large_shard_counts_by_what_is_left_of_it(ready: ReadyQueue) -> None:
    ready.put(entry("large", 25, position_at(20), arrival=1))
    ready.put(entry("small", 5, arrival=2))
    assert len(take(ready, limit=10)) == 2


@pytest.mark.parametrize(("size", "limit", "cut"), [(25, 10, False), (None, 10, True), (25, None, True)])
def test_what_may_not_be_cut_is_taken_whole(ready: ReadyQueue, size: int | None, limit: int | None, cut: bool) -> None:
    ready.put(entry("large", size, arrival=1))
    assert ends(take(ready, limit=limit, cut=cut)) == [("large", BEGINNING, end_at(size or 0))]


def test_small_objects_are_taken_whole_however_few_bytes_are_asked_for() -> None:
    ready = ReadyQueue(shares_of("round-robin", ["q"]))
    ready.put(entry("small", LEAST_PART, arrival=1))
    assert ends(take(ready, limit=1)) == [("small", BEGINNING, end_at(LEAST_PART))]


def test_what_comes_back_is_taken_where_it_was(ready: ReadyQueue) -> None:
    for arrival in range(6):
        ready.put(entry(str(arrival), 1, arrival=arrival))
    first = ready.take(3, None, lambda _: False)
    assert [part.content.uri for _, part in first] == ["0", "1", "2"]
    for back, _ in reversed(first):
        ready.put(back)
    assert names(take(ready, 4)) == ["0", "1", "2", "3"]
    assert names(take(ready)) == ["4", "5"]
    assert (len(ready), ready.bytes) == (0, 0)


def test_what_is_removed_and_put_again_is_taken_once(ready: ReadyQueue) -> None:
    ready.put(entry("a", 1, arrival=1))
    ready.put(entry("b", 1, arrival=2))
    assert ready.remove(shard_key("s", "a"))
    assert not ready.remove(shard_key("s", "a"))
    ready.put(entry("a", 1, arrival=1))
    assert names(take(ready)) == ["a", "b"]


def test_a_group_waits_for_an_earlier_shard_that_another_pipeline_has_and_for_no_later_one(ready: ReadyQueue) -> None:
    for arrival in (1, 3, 5):
        ready.put(entry(str(arrival), 1, arrival=arrival, group="g"))
    ready.put(entry("free", 1, arrival=6))
    other = shard_key("s", "other")
    ready.block(GROUP, other, 2)
    assert names(take(ready)) == ["1", "free"]
    assert names(take(ready)) == []
    assert len(ready) == 2
    ready.unblock(GROUP, other)
    assert names(take(ready)) == ["3", "5"]


def test_an_object_of_unknown_size_counts_as_one_of_the_usual_size_and_is_not_cut(ready: ReadyQueue) -> None:
    for arrival in range(4):
        ready.put(entry(str(arrival), None, arrival=arrival)._replace(usual=4))
    assert ready.bytes == 16
    assert ends(take(ready, limit=10)) == [("0", BEGINNING, end_at(0)), ("1", BEGINNING, end_at(0))]
    assert ready.bytes == 8
    assert ends(take(ready, limit=3)) == [("2", BEGINNING, end_at(0))]
    ready.remove(shard_key("s", "3"))
    assert ready.bytes == 0
