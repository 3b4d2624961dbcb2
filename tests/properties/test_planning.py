"""Packing: every object once, no partition empty, and the tasks as even as whole objects allow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from queue_source.read.isolation import interval_of, split_suspects
from queue_source.read.partitions import MIN_PIECE, Piece, cut, pack_by_size, partition, spread, whole_pieces
from shard_store.model import (
    ALONE,
    BEGINNING,
    Content,
    Plan,
    PlanIdentity,
    PublishToken,
    Range,
    ReadMark,
    end_at,
    offset_of,
    shard_key,
)


@given(
    sizes=st.lists(st.integers(0, 10**9), max_size=200),
    minimum=st.integers(1, 16),
    maximum=st.integers(1, 10**9),
)
def test_packing_keeps_every_item_once_and_is_even(sizes: list[int], minimum: int, maximum: int) -> None:
    packed = pack_by_size(list(enumerate(sizes)), minimum, maximum)
    assert sorted(item for part in packed for item in part) == list(range(len(sizes)))
    assert all(packed)
    wanted = max(minimum, -(-sum(sizes) // maximum))
    assert len(packed) == min(wanted, len(sizes))
    if packed:
        loads = [sum(sizes[item] for item in part) for part in packed]
        assert max(loads) <= sum(sizes) / len(packed) + max(sizes) + len(sizes)


def whole(name: str, size: int | None) -> Range:
    return Range(shard_key("s", name), Content(name, name, size), BEGINNING, end_at(size or 0))


@given(
    sizes=st.lists(st.none() | st.integers(0, 40 * MIN_PIECE), max_size=20),
    minimum=st.integers(1, 16),
    maximum=st.integers(MIN_PIECE, 10 * MIN_PIECE),
)
def test_pieces_tile_their_objects_and_are_small_enough(sizes: list[int | None], minimum: int, maximum: int) -> None:
    ranges = [whole(f"{'cut' if i % 3 else 'whole'}-{i}", size) for i, size in enumerate(sizes)]
    pieces = cut(whole_pieces(ranges), minimum, maximum, lambda entry: entry.content.uri.startswith("cut"))
    for entry in ranges:
        own = [piece for piece in pieces if piece.planned == entry]
        assert (own[0].start, own[-1].end) == (entry.start, entry.end)
        assert all(a.end == b.start for a, b in itertools.pairwise(own))
        if entry.content.uri.startswith("cut") and entry.content.size is not None:
            assert all(offset_of(piece.end) - offset_of(piece.start) <= maximum for piece in own)
        else:
            assert own == [Piece(entry, entry.start, entry.end, ranges.index(entry))]
    tasks = spread(pieces, minimum, maximum)
    assert [piece for task in tasks for piece in task] == pieces
    assert all(tasks)
    total = sum(size or 0 for size in sizes)
    if ranges and all(entry.content.uri.startswith("cut") for entry in ranges) and total > minimum * MIN_PIECE:
        assert len(tasks) >= minimum


@given(announced=st.integers(0, 40 * MIN_PIECE), newer=st.integers(0, 40 * MIN_PIECE), minimum=st.integers(1, 16))
def test_a_newer_version_is_cut_by_its_own_size(announced: int, newer: int, minimum: int) -> None:
    """Its range ends where the version before did, since the plan stays the same. S3 reads nothing behind an end."""
    entry = whole("cut", announced)
    entry = entry._replace(content=entry.content._replace(size=newer))
    pieces = cut(whole_pieces([entry]), minimum, 10 * MIN_PIECE, lambda _: True)
    assert pieces == [
        piece._replace(planned=entry)
        for piece in cut(whole_pieces([whole("cut", newer)]), minimum, 10 * MIN_PIECE, lambda _: True)
    ]


GROUPS = st.lists(st.none() | st.sampled_from("gh"), min_size=1, max_size=60)


def planned(groups: list[str | None], size: int = 1) -> tuple[Range, ...]:
    return tuple(
        entry._replace(content=entry.content._replace(group=group))
        for entry, group in ((whole(str(number), size), group) for number, group in enumerate(groups))
    )


def plan(ranges: Sequence[Range], left: Sequence[Range], attempt: int = 2, *, suspected: bool = False) -> Plan:
    identity = PlanIdentity("s", PublishToken("p", 1), 0, 1, "f" * 64)
    return Plan(identity, tuple(left), attempt=attempt, whole=tuple(ranges), suspected=suspected)


@given(groups=GROUPS, minimum=st.integers(1, 16), maximum=st.integers(1, 100), gone=st.sets(st.integers(0, 59)))
def test_each_task_is_an_interval_of_one_order_that_stays_the_same_when_something_is_found_bad(
    groups: list[str | None], minimum: int, maximum: int, gone: set[int]
) -> None:
    ranges = planned(groups)
    left = [entry for number, entry in enumerate(ranges) if number not in gone]
    everything = {piece.planned.key: piece.place for piece in whole_pieces(ranges)}
    tasks = partition(plan(ranges, left), minimum, maximum, lambda _: False)
    pieces = [piece for task in tasks for piece in task]
    assert {piece.planned.key for piece in pieces} == {entry.key for entry in left}
    assert [piece.place for piece in pieces] == sorted(everything[piece.planned.key] for piece in pieces)
    assert partition(plan(ranges, left, suspected=True), minimum, maximum, lambda _: False) == [pieces]
    for group in "gh":
        assert len({number for number, task in enumerate(tasks) for piece in task if piece.content.group == group}) < 2
        own = [piece.content.shard_id for piece in pieces if piece.content.group == group]
        assert own == sorted(own, key=int)


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=100), minimum=st.integers(1, 16))
def test_tasks_are_as_even_as_whole_objects_allow_and_none_is_empty(sizes: list[int], minimum: int) -> None:
    pieces = whole_pieces([whole(str(number), size) for number, size in enumerate(sizes)])
    tasks = spread(pieces, minimum, 1 << 40)
    assert len(tasks) == min(minimum, len(sizes))
    assert all(tasks)
    loads = [sum(piece.size for piece in task) for task in tasks]
    assert max(loads) <= sum(sizes) / min(minimum, len(sizes)) + max(sizes) + len(sizes)


@given(
    small=st.lists(st.integers(1, 9), min_size=8, max_size=60),
    large=st.lists(st.integers(0, 60), min_size=1, max_size=3, unique=True),
)
def test_a_few_large_objects_leave_all_other_tasks_to_the_small_ones(small: list[int], large: list[int]) -> None:
    sizes = list(small)
    for at in large:
        sizes.insert(at, 1_000_000)
    tasks = spread(whole_pieces([whole(str(number), size) for number, size in enumerate(sizes)]), 8, 1 << 40)
    loads = [sum(piece.size for piece in task if piece.size < 1_000_000) for task in tasks]
    assert len(tasks) == 8
    assert max(sum(piece.size == 1_000_000 for piece in task) for task in tasks) == 1
    assert max(loads) <= (sum(small) + len(small)) / (8 - len(large)) + 10


INTERVALS = st.tuples(st.integers(0, 59), st.integers(1, 30)).map(lambda pair: (pair[0], sum(pair)))


@given(groups=GROUPS, gone=st.sets(st.integers(0, 59)), died=st.sets(INTERVALS), suspected=st.sets(INTERVALS))
def test_suspects_and_others_are_each_piece_once_with_every_suspect_among_them_and_groups_in_order(
    groups: list[str | None], gone: set[int], died: set[tuple[int, int]], suspected: set[tuple[int, int]]
) -> None:
    ranges = planned(groups)
    left = [entry for number, entry in enumerate(ranges) if number not in gone]
    pieces = whole_pieces(ranges, left)
    marks = [ReadMark(*one, ALONE, 1) for one in died] + [ReadMark(*one, task, 1) for task, one in enumerate(suspected)]
    parts, others = split_suspects(pieces, marks)
    assert all(parts)
    read = [*(piece for part in parts for piece in part), *others]
    assert sorted(piece.place for piece in read) == [piece.place for piece in pieces]
    for group in "gh":
        own = [piece.content.shard_id for piece in read if piece.content.group == group]
        assert own == sorted(own, key=int)
    inside = {place for first, end in died for place in range(first, end)}
    if not inside:
        assert not {piece.place for piece in others} & {p for first, end in suspected for p in range(first, end)}
    smallest = [one for one in died if not any(one != b and one[0] <= b[0] and b[1] <= one[1] for b in died)]
    for first, end in smallest:
        within = [piece.place for piece in pieces if first <= piece.place < end]
        known = [interval_of(part) for part in parts]
        if len(within) > 1:  # what has died is read in smaller parts
            assert (first, end) not in known
        assert not set(within) & {piece.place for piece in others}
