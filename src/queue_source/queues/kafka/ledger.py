"""What a reader knows of one partition that it owns: what is handed out, and which offset may be committed. Pure.

A partition is an ordered stream, and its group has one offset in it: all before that is done. Messages are done in any
order, so only what is not done is remembered; the lowest of these is what may be committed. Offsets that have no record
(markers of transactions, what compaction has removed) are never waited for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from queue_source.messages import Receipt

WIDEST = 100_000
"""Offsets between the one that may be committed and the last one handed out, above which a partition is paused: a
reader that dies has all of them delivered again."""


class OffsetsGone(Exception):
    """The group's offset is outside of what the partition has: messages were deleted before they were read."""


class Held:
    """A message that is handed out, or was given back and waits: then it has no receipt."""

    __slots__ = ("count", "ledger", "offset", "raw", "receipt")

    def __init__(self, ledger: Ledger, offset: int, raw: Any) -> None:
        self.ledger = ledger
        self.offset = offset
        self.raw = raw
        self.count = 0
        self.receipt: Receipt | None = None


class Ledger:
    """One partition during one assignment. `position` is the offset after the last message that was handed out.

    Attributes:
        committed: The group's offset at the brokers; None while it has none.
        at_end: Nothing was behind `position` when the brokers were last heard of.
    """

    def __init__(self, partition: int, epoch: str, position: int, committed: int | None) -> None:
        self.partition = partition
        self.epoch = epoch
        self.position = position
        self.committed = committed
        self.at_end = False
        self._unfinished: OrderedDict[int, Held] = OrderedDict()

    @property
    def low(self) -> int:
        """The offset that may be committed: everything before it is done."""
        return next(iter(self._unfinished), self.position)

    @property
    def is_wide(self) -> bool:
        return self.position - self.low > WIDEST

    @property
    def is_dirty(self) -> bool:
        """Tell whether there is something to commit."""
        return self.committed != self.low

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    def hand_out(self, offset: int, raw: Any) -> Held | None:
        """Note that the record at `offset` is handed out; None for one that was handed out before."""
        if offset < self.position:
            return None
        self.at_end = False
        self.position = offset + 1
        held = self._unfinished[offset] = Held(self, offset, raw)
        return held

    def reach_end(self, offset: int) -> None:
        """Note that the partition ends at `offset`, where the next record will be."""
        self.position = max(self.position, offset)
        self.at_end = True

    def finish(self, held: Held) -> None:
        self._unfinished.pop(held.offset, None)


def first_offset(committed: int | None, bounds: tuple[int, int], *, is_new_group: bool, starting: str) -> int:
    """Return the offset at which to begin in a partition whose records are in `bounds` (the first, and after the last).

    `startingOffsets` is for a group that has no offset in any partition. Where it has one in another, this partition
    came later, and is read from its beginning: what was sent before the reader noticed it counts as well.
    """
    low, high = bounds
    if committed is not None:
        if committed < low:
            raise OffsetsGone(f"messages {committed} to {low - 1} were deleted before they were read")
        return committed
    return high if is_new_group and starting == "latest" else low
