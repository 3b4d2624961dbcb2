"""The record of a message in a reader's hands: its lease, and its state. Pure."""

from __future__ import annotations

from enum import Enum

from queue_source.messages import Received
from queue_source.queues.leases import Lease, Terms
from shard_store.model import ShardKey


class State(Enum):
    """The states of a message, in their order."""

    RECEIVED = "its body waits to be opened"
    LATE = "it is left for the next run (AvailableNow)"
    OPENED = "it waits for shards that are ours to read"
    IDLE = "it waits for shards of other pipelines alone"
    COMPLETE = "all that it announced is finished: it waits for its acknowledgement"
    ACKNOWLEDGING = "its queue is asked to delete it"


UNACKNOWLEDGED = frozenset({State.COMPLETE, State.ACKNOWLEDGING})
RESTING = UNACKNOWLEDGED | {State.LATE, State.IDLE}
"""Nothing is left for us to read."""


class Message(Lease):
    """One delivery of a message, from its receipt on. `unopened`: the delivery with its body, until it is opened.

    It waits for the shards that are `pending`, of which so many are `foreign`: other pipelines have them. `is_delayed`:
    its queue was away when it was to be acknowledged; so it may be deleted already.
    """

    __slots__ = ("foreign", "is_delayed", "is_grouped", "log_id", "pending", "state", "unopened")

    def __init__(self, received: Received, terms: Terms, state: State) -> None:
        super().__init__(received, terms)
        self.state = state
        self.unopened = received if state is State.RECEIVED else None
        self.is_grouped = received.group is not None
        self.log_id = received.headers.get(terms.log_id_header) if terms.log_id_header else None
        self.pending: set[ShardKey] = set()
        self.foreign = 0
        self.is_delayed = False
