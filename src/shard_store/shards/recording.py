"""Recording objects for sources whose readers have no queue, and handing them out (decision 0075).

A receiver takes messages of one queue for many sources. What it records is a shard without an owner: any pipeline of
the source acquires it, as one that was released. Its message is acknowledged by then, so that nothing but this row
leads to the object: it is never pruned before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from shard_store.errors import LostProgress, StoreConfigurationError
from shard_store.model import BEGINNING, STORE, Content, PublishToken, Shard, ShardKey, ShardState, time_of
from shard_store.shards.announcing import announced_anew, newest_of, take_up
from shard_store.shards.ownership import (
    ANNOUNCED,
    announced_row,
    counts_inserts,
    fence,
    keep_released,
    read_shards,
)
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import receivers, shards, sources

COUNTS = ("messages", "recorded", "duplicates", "changed", "ignored", "unrouted", "malformed")
"""What is counted of a receiver, in the order in which people read it."""


@dataclass(frozen=True, slots=True)
class Receipts:
    """What one set of messages has brought to a receiver. `unrouted`: objects that no route takes."""

    messages: int = 0
    ignored: int = 0
    unrouted: int = 0
    malformed: int = 0


class Recorded(NamedTuple):
    """How many objects were recorded, over all sources, and how many were known already (`duplicates`).

    `reopened` of these are read again: nothing of them is published. `changed`, which are no duplicates, are published
    in another version. `messages`: of the receiver, in all.
    """

    new: int
    duplicates: int
    reopened: int
    changed: int
    messages: int


@dataclass(frozen=True, slots=True)
class Receiver:
    """What is known of a receiver, or of all those of one name, since it was first started.

    Attributes:
        receiver: Its name.
        queue: The queue that it was started with last, without secrets.
        host: The machine on which it was started last.
        started_at: When that was.
        worked_at: When it last asked its queue; `silence`: how many seconds ago, by the database's clock.
        received_at: When a message came last; None: none did.
        messages: Messages that were acknowledged because of it, also those that came again.
        recorded: Objects that were recorded, once for each source.
        duplicates: Objects of which their source knew.
        changed: Objects of which their source has published another version.
        ignored: Records of messages that announce nothing to read.
        unrouted: Objects that no route takes.
        malformed: Messages that went to the error table.
    """

    receiver: str
    queue: str
    host: str
    started_at: datetime
    worked_at: datetime
    silence: float
    received_at: datetime | None
    messages: int
    recorded: int
    duplicates: int
    changed: int
    ignored: int
    unrouted: int
    malformed: int

    @property
    def counts(self) -> dict[str, int]:
        """Return its counts, by their names."""
        return {name: getattr(self, name) for name in COUNTS}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is recorded for a source and not taken by a reader yet. `oldest_age`: seconds since the first of it came."""

    source: str
    objects: int
    oldest_age: float


def start_receiver(
    transaction: Transaction,
    receiver: str,
    queue: str,
    host: str,
    names: Collection[str],
    seen: int = 0,
) -> None:
    """Write down that a receiver begins, for the sources of these names. Raises StoreConfigurationError.

    Several may have one name: they are counted together. `seen`: as in `record`.
    """
    _admit(transaction, names)
    now = transaction.now()
    numbers = dict.fromkeys(COUNTS, 0)
    row = {"receiver": receiver, "queue": queue, "host": host[:255], "started_at": now, "worked_at": now, **numbers}
    transaction.execute(transaction.dialect.insert_if_absent(receivers).values(**row))
    _counted(transaction, receiver, seen)
    this = receivers.update().where(receivers.c.receiver == receiver)
    transaction.execute(this.values(queue=queue, host=host[:255], started_at=now, worked_at=now))


def note_work(transaction: Transaction, receiver: str, seen: int = 0) -> None:
    """Write down that the receiver has asked its queue just now. `seen`: as in `record`."""
    _counted(transaction, receiver, seen)
    this = receivers.update().where(receivers.c.receiver == receiver)
    transaction.execute(this.values(worked_at=transaction.now()))


def record(
    transaction: Transaction,
    receiver: str,
    announced: Mapping[str, Sequence[Content]],
    receipts: Receipts,
    seen: int = 0,
) -> Recorded:
    """Record what was announced for each source, for its readers, and count it. May be called again for the same.

    All of it is in this transaction: once it is committed, the messages may be acknowledged (invariant 1). Of objects
    that are known already, some are changed by a new announcement: see `announcing`. `seen`: the number of
    messages that the caller knows of. Raises StoreConfigurationError for a source that is in another store, or has
    versions in its ids; LostProgress where the store counts fewer messages: it went back in time (decision 0065).
    """
    _admit(transaction, announced)
    # as they come from the store: without a group, whose order is lost
    announced = {source: [c._replace(queue=STORE, group=None) for c in of] for source, of in announced.items()}
    newest = {key: (source, c) for source, of in announced.items() for key, c in newest_of(source, of).items()}
    contents = {key: content for key, (_, content) in newest.items()}
    counts, repeats = counts_inserts(transaction), sum(map(len, announced.values())) > len(contents)
    stored = {} if counts and not repeats else read_shards(transaction, contents)
    before = set(stored)
    inserted: set[ShardKey] = set()
    new = 0
    # one of another pipeline may be finished and pruned between our insert and our query: then it is new again
    while absent := sorted(contents.keys() - stored.keys() - inserted):
        rows = transaction.row_set(source=shards.c.source, **{name: shards.c[name] for name in ANNOUNCED})
        fixed = {"position": BEGINNING, "state": ShardState.OPEN.value, "opened_at": transaction.now()}
        insert = rows.insert(transaction.dialect.insert_if_absent(shards), fixed)
        for chunk in chunks(absent):
            values = [(newest[key][0], *announced_row(key, contents[key])) for key in chunk]
            result = rows.execute(transaction.connection, insert, values)
            new += result.rowcount if counts else len(chunk)
            if counts and result.rowcount == len(chunk):
                inserted.update(chunk)
            else:
                stored |= read_shards(transaction, chunk)
    existing = stored
    if repeats or not counts:  # what is recorded by this call is among them; not so what came before its insert
        recorded = {key for key in stored.keys() - before if _is_recorded(stored[key], contents[key])}
        existing = {key: shard for key, shard in stored.items() if key not in recorded}
        new = new if counts else len(recorded)
    if repeats:  # what is delivered again may hide what is new
        for source, of_source in announced.items():
            contents |= announced_anew(source, of_source, existing)
    taken = take_up(transaction, None, contents, existing.values())
    existing, taken_up = existing | taken, taken.values()
    keep_released(transaction, existing.values())
    # what another pipeline has opened by its own queue would wait for that queue's message, and this is it
    theirs = [
        key
        for key, shard in existing.items()
        if shard.state is ShardState.OPEN and (shard.content.queue != STORE or shard.content.group is not None)
    ]
    from_here_on = shards.update().where(shards.c.finished_at.is_(None)).values(queue=STORE, message_group=None)
    transaction.change_among(from_here_on, shards.c.shard_key, theirs)
    reopened, changed = sum(shard.reopened for shard in taken_up), sum(shard.changed for shard in taken_up)
    duplicates = len(newest) - new - changed
    numbers = asdict(receipts) | {"recorded": new, "duplicates": duplicates, "changed": changed}
    messages = _counted(transaction, receiver, seen) + receipts.messages
    raised = {name: receivers.c[name] + number for name, number in numbers.items()}
    this, now = receivers.update().where(receivers.c.receiver == receiver), transaction.now()
    transaction.execute(this.values(worked_at=now, received_at=now, **raised))
    return Recorded(new, duplicates, reopened, changed, messages)


def _is_recorded(shard: Shard, content: Content) -> bool:
    """Return whether the shard is as recording this content leaves it."""
    stored = shard.content
    return shard.token is None and (stored.queue, stored.message_id) == (STORE, content.message_id)


def decline(transaction: Transaction, token: PublishToken, keys: Sequence[ShardKey]) -> None:
    """Forget recorded objects that the options of their reader leave out, as a message about them would be.

    Only while they have no owner, and nothing of them was read.
    """
    fence(transaction, token)
    unread = sa.and_(shards.c.finished_at.is_(None), shards.c.position == BEGINNING, shards.c.queue == STORE)
    gone = shards.delete().where(shards.c.owner.is_(None), unread)
    transaction.change_among(gone, shards.c.shard_key, keys)


def waiting(transaction: Transaction) -> tuple[Waiting, ...]:
    """Return for each source what is recorded and not taken, where there is any, by their names."""
    now, oldest = transaction.now(), sa.func.min(shards.c.opened_at)
    unowned = sa.and_(shards.c.owner.is_(None), shards.c.finished_at.is_(None), shards.c.queue == STORE)
    query = sa.select(shards.c.source, sa.func.count(), now - oldest).where(unowned)
    rows = transaction.execute(query.group_by(shards.c.source).order_by(shards.c.source))
    return tuple(Waiting(source, number, max(0, age) / 1_000_000) for source, number, age in rows)


def count_waiting(transaction: Transaction, source: str) -> int:
    """Return how much is recorded for a source and not taken yet."""
    unowned = sa.and_(shards.c.owner.is_(None), shards.c.finished_at.is_(None), shards.c.queue == STORE)
    query = sa.select(sa.func.count()).where(unowned, shards.c.source == source)
    return int(transaction.execute(query).scalar_one())


def count_open(transaction: Transaction, source: str) -> int:
    """Return how many objects of a source are announced or listed and not finished, with or without an owner."""
    query = sa.select(sa.func.count()).where(shards.c.source == source, shards.c.finished_at.is_(None))
    return int(transaction.execute(query).scalar_one())


def all_receivers(transaction: Transaction) -> tuple[Receiver, ...]:
    """Return all receivers that were ever started with this store, by their names."""
    now = transaction.now().label("now")
    rows = transaction.execute(sa.select(receivers, now).order_by(receivers.c.receiver))
    return tuple(
        Receiver(
            **{name: getattr(row, name) for name in ("receiver", "queue", "host", *COUNTS)},
            started_at=time_of(row.started_at),
            worked_at=time_of(row.worked_at),
            silence=max(0, row.now - row.worked_at) / 1_000_000,
            received_at=None if row.received_at is None else time_of(row.received_at),
        )
        for row in rows
    )


def _admit(transaction: Transaction, names: Collection[str]) -> None:
    """Make sure that there are these sources, and that objects can be recorded for them; new ones are made."""
    columns = sa.select(sources.c.source, sources.c.naming).with_for_update(read=True)
    rows = list(transaction.select_among(columns, sources.c.source, names))
    for row in rows:
        if json.loads(row.naming or "{}").get("versions"):
            raise StoreConfigurationError(
                f"a route leads to source {row.source!r}, which was read with allowOverwrites=true; routes record "
                "objects by their URIs alone, so let it have a queue of its own"
            )
    if absent := sorted(set(names) - {row.source for row in rows}):
        insert = transaction.dialect.insert_if_absent(sources)
        transaction.execute(insert, [{"source": name, "forgotten_before": 0} for name in absent])


def _counted(transaction: Transaction, receiver: str, seen: int) -> int:
    """Lock the receiver's row, and return its messages. Raises LostProgress where they are fewer than were `seen`."""
    query = sa.select(receivers.c.messages).where(receivers.c.receiver == receiver).with_for_update()
    messages: int | None = transaction.execute(query).scalar_one_or_none()
    if messages is None or messages < seen:
        raise LostProgress(
            f"database {transaction.database!r} went back in time, or is another one: it counts {messages or 0} "
            f"messages of receiver {receiver!r}, which has had {seen}; nothing more is acknowledged. What was recorded "
            "in between is in no queue: for each source of the routes `cuesqueue reconcile PREFIX --source S --send "
            "QUEUE_URL` finds it, as does a reader with backfillPrefixes; then start the receiver again, without the "
            "file of --memory if it has one"
        )
    return messages
