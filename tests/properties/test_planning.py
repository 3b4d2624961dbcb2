"""Packing: every object once, no partition empty, and the tasks as even as whole objects allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queue_source.planning import pack_by_size


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
