"""The delivery semantics: what is remembered of each announcement, and when it counts as done.

| | shard rows | a shard is final | a plan that is made again holds |
|---|---|---|---|
| exactly-once | yes | with the publication, or the confirm | the same, less what passed to others |
| at-least-once | no | its message is acknowledged at the confirm | the same |
| at-most-once | yes | with its snapshot, before Spark sees the offset | nothing: it was begun |

A pipeline's row holds its semantics, so that every process which locks it (reader, sink) reads them there.
"""

from __future__ import annotations

from enum import Enum


class Semantics(str, Enum):
    """One of the three; the code asks the two questions below and never for a name."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"

    @property
    def keeps_shards(self) -> bool:
        """Whether announcements become rows of the shard table: else nothing tells one from its repetition."""
        return self is not Semantics.AT_LEAST_ONCE

    @property
    def final_at_snapshot(self) -> bool:
        """Whether shards are final with their snapshot: what is begun is never read again."""
        return self is Semantics.AT_MOST_ONCE

    @property
    def final_at_delivery(self) -> bool:
        """Whether shards advance in the transaction that delivers their plan."""
        return self is Semantics.EXACTLY_ONCE
