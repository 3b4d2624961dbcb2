"""The one way to find the few that are unusual among many: read all at once, or else pieces, and pieces of those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")


def read_in_pieces(
    whole: T, read: Callable[[T], R | None], cut: Callable[[T], Sequence[T]], alone: Callable[[T], Iterable[S]]
) -> Iterator[R | S]:
    """What `read` makes of the whole, or of its pieces in their order; what `cut` leaves whole goes to `alone`.

    `read` returns None for what it cannot read, and `cut` fewer than two pieces of what is not to be cut.
    """
    found = read(whole)
    if found is not None:
        yield found
        return
    pieces = cut(whole)
    if len(pieces) < 2:
        yield from alone(whole)
        return
    for piece in pieces:
        yield from read_in_pieces(piece, read, cut, alone)


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """The two halves of a sequence; one that has a single item stays whole."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else [items]
