"""Packing: every object once, no partition empty, and the tasks as even as whole objects allow."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from queue_source.read.partitions import LEAST_PIECE, cut, pack, pack_by_size
from shard_store.model import BEGINNING, Content, Range, end_at, offset_of, shard_key


@given(
    sizes=st.lists(st.integers(0, 10**9), max_size=200),
    least=st.integers(1, 16),
    most=st.integers(1, 10**9),
)
def test_packing_keeps_every_item_once_and_is_even(sizes: list[int], least: int, most: int) -> None:
    packed = pack_by_size(list(enumerate(sizes)), least, most)
    assert sorted(item for part in packed for item in part) == list(range(len(sizes)))
    assert all(packed)
    wanted = max(least, -(-sum(sizes) // most))
    assert len(packed) == min(wanted, len(sizes))
    if packed:
        loads = [sum(sizes[item] for item in part) for part in packed]
        assert max(loads) <= sum(sizes) / len(packed) + max(sizes) + len(sizes)


def whole(name: str, size: int | None) -> Range:
    return Range(shard_key("s", name), Content(name, name, size), BEGINNING, end_at(size or 0))


@given(
    sizes=st.lists(st.none() | st.integers(0, 40 * LEAST_PIECE), max_size=20),
    least=st.integers(1, 16),
    most=st.integers(LEAST_PIECE, 10 * LEAST_PIECE),
)
def test_pieces_tile_their_objects_and_are_small_enough(sizes: list[int | None], least: int, most: int) -> None:
    ranges = [whole(f"{'cut' if i % 3 else 'whole'}-{i}", size) for i, size in enumerate(sizes)]
    pieces, piece_of = cut(ranges, least, most, lambda entry: entry.content.uri.startswith("cut"))
    for entry in ranges:
        own = [piece for piece in pieces if piece.key == entry.key]
        assert (own[0].start, own[-1].end) == (entry.start, entry.end)
        assert all(a.end == b.start for a, b in itertools.pairwise(own))
        assert all(piece_of.get((piece.key, piece.start), piece.start) == entry.start for piece in own)
        if entry.content.uri.startswith("cut") and entry.content.size is not None:
            assert all(offset_of(piece.end) - offset_of(piece.start) <= most for piece in own)
        else:
            assert own == [entry]
    packed = pack(pieces, least, most)
    assert sorted(piece for part in packed for piece in map(repr, part)) == sorted(map(repr, pieces))
    total = sum(size or 0 for size in sizes)
    if ranges and all(entry.content.uri.startswith("cut") for entry in ranges) and total > least * LEAST_PIECE:
        assert len(packed) >= least
