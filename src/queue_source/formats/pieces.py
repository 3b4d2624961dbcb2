"""Reads many items at once, and isolates the few unusual ones among them.

All are read at once, or else in pieces, and in pieces of those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")


def read_in_pieces(
    whole: T, read: Callable[[T], R | None], cut: Callable[[T], Sequence[T]], alone: Callable[[T], Iterable[S]]
) -> Iterator[R | S]:
    """Yield the result of `read` for the whole, or for its pieces in their order; single items go to `alone`.

    `read` returns None for what it cannot read, and `cut` fewer than two pieces where there is nothing to cut.
    """
    result = read(whole)
    if result is not None:
        yield result
        return
    pieces = cut(whole)
    if len(pieces) < 2:
        yield from alone(whole)
        return
    for piece in pieces:
        yield from read_in_pieces(piece, read, cut, alone)


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the two halves of a sequence; one that has a single item stays whole."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else [items]


def neighbours(items: Iterable[tuple[T, int]], max_size: int, max_count: int = sys.maxsize) -> Iterator[Sequence[T]]:
    """Yield items of known sizes in their order, in as few lists as the limits allow; a larger item is alone."""
    some: list[T] = []
    total = 0
    for item, size in items:
        if some and (total + size > max_size or len(some) >= max_count):
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some
