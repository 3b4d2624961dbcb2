"""A shard that is larger than a micro-batch is taken in parts, one after another, and nothing else changes."""

from __future__ import annotations

import pytest

from queue_source.coordinator.shares import shares_of
from queue_source.coordinator.tracking import LEAST_PART, Tracker
from shard_store.model import (
    BEGINNING,
    Content,
    Position,
    Range,
    Shard,
    ShardKey,
    ShardState,
    Snapshot,
    end_at,
    is_end,
    position_at,
    shard_key,
)  # fmt: skip


def shard(name: str, size: int | None, position: Position = BEGINNING) -> Shard:
    content = Content(name, name, size, queue="q")
    return Shard(shard_key("s", name), content, position, ShardState.OPEN, None, False)


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(shares=shares_of("round-robin", ["q"]), least_part=1)


def ends(ranges: list[Range]) -> list[tuple[str, Position, Position]]:
    return [(entry.content.uri, entry.start, entry.end) for entry in ranges]


def test_a_large_shard_is_taken_in_parts_until_its_end(tracker: Tracker) -> None:
    tracker.offer(shard("large", 25), 0.0)
    tracker.offer(shard("small", 1), 0.0)
    position, seq, parts = BEGINNING, 0, []
    while not is_end(position):
        seq += 1
        (part,) = tracker.take(10, 10, lambda _: True)[:1]
        parts.append((part.start, part.end))
        tracker.plan(Snapshot(seq, (part,)))
        assert tracker.continues(seq) is not is_end(part.end)
        assert not tracker.continues(seq - 1)
        keys: list[ShardKey] = tracker.settle(seq)
        assert keys == [part.key]
        position = part.end
        if not is_end(position):
            assert tracker.offer(shard("large", 25, position), 0.0, first=True)
    assert parts == [(BEGINNING, position_at(10)), (position_at(10), position_at(20)), (position_at(20), end_at(25))]
    assert ends(tracker.take(10, 10, lambda _: True)) == [("small", BEGINNING, end_at(1))]


def test_the_rest_of_a_large_shard_counts_by_what_is_left_of_it(tracker: Tracker) -> None:
    tracker.offer(shard("large", 25, position_at(20)), 0.0)
    tracker.offer(shard("small", 5), 0.0)
    assert len(tracker.take(10, 10, lambda _: True)) == 2


@pytest.mark.parametrize(("size", "limit", "cut"), [(25, 10, False), (None, 10, True), (25, None, True)])
def test_what_may_not_be_cut_is_taken_whole(tracker: Tracker, size: int | None, limit: int | None, cut: bool) -> None:
    tracker.offer(shard("large", size), 0.0)
    assert ends(tracker.take(10, limit, lambda _: cut)) == [("large", BEGINNING, end_at(size or 0))]


def test_small_objects_are_taken_whole_however_few_bytes_are_asked_for() -> None:
    tracker = Tracker(shares=shares_of("round-robin", ["q"]))
    tracker.offer(shard("small", LEAST_PART), 0.0)
    assert ends(tracker.take(10, 1, lambda _: True)) == [("small", BEGINNING, end_at(LEAST_PART))]
