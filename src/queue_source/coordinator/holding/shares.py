"""How several queues of one reader share its batches and its room (option `queueShares`). Pure.

`greedy` empties the queues in their order, `round-robin` takes one of each in turn, `percentage:70,30` takes by weight.
An empty queue leaves its part to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from shard_store.model import LISTING

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shares:
    """`weights`: the part of each queue by name, all together 1; `greedy`: the first queue goes first."""

    weights: Mapping[str, float] = field(default_factory=dict)
    greedy: bool = False

    def room(self, queue: str, limit: int) -> int:
        """Return how many of `limit` messages one queue may hold, so that it cannot keep the others out."""
        weight = self.weights.get(queue, 1.0)
        return max(1, int(limit * weight + 0.5))

    def interleave(self, queued: Mapping[str, Iterable[T]]) -> Iterator[T]:
        """Yield the waiting items of all queues, in the order in which they are to be taken."""
        if self.greedy or len(queued) == 1:
            for name in dict.fromkeys((*self.weights, *queued)):
                yield from queued.get(name, ())
        else:
            yield from self._by_weight(queued)

    def _by_weight(self, queued: Mapping[str, Iterable[T]]) -> Iterator[T]:
        """Yield items by smooth weighted round-robin.

        At each step every queue earns its weight, and the richest pays for one item.
        """
        iterators = {name: iter(items) for name, items in queued.items()}
        earned = dict.fromkeys(iterators, 0.0)
        while iterators:
            for name in iterators:
                earned[name] += self.weights.get(name, 1.0)
            name = max(iterators, key=earned.__getitem__)
            earned[name] -= sum(self.weights.get(other, 1.0) for other in iterators)
            item = next(iterators[name], _END)
            if item is _END:
                del iterators[name]
            else:
                yield item  # type: ignore[misc]


_END = object()


def shares_of(text: str, queues: Iterable[str], *, listing: bool = False) -> Shares:
    """Parse option `queueShares` (already checked) into the shares of these queues, and of `listing`.

    What listings find counts as one more queue, which takes no room from the others: this reader fills it itself.
    """
    names = list(queues)
    kind, _, numbers = text.partition(":")
    every = [*names, LISTING] if listing else names
    if kind == "percentage":
        return Shares({name: int(number) / 100 for name, number in zip(every, numbers.split(","), strict=True)})
    return Shares(dict.fromkeys(every, 1 / max(1, len(names))), greedy=kind == "greedy")
