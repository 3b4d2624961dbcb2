"""The messages of one SQL queue, inside a transaction of the caller: every statement that there is.

Three columns make a queue:

- `visible_at` orders the queue and is the lease: a message can be taken from then on, oldest first. Taking it moves
  `visible_at` to the end of the lease, so it is redelivered although no process notices that a consumer died.
- `receipt` names the latest delivery (`id.token`, the token new at each receive), so a stale one matches no row.
- `group_name`: while a message of a group is leased or delayed, the whole group waits. Messages without a group never
  touch that rule as long as no message with one is in the queue.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from queue_source.errors import QueueError
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.base import Depth
from queue_source.queues.sql.database import LONGEST_NAME, messages
from shard_store.sql.database import ROWS_PER_STATEMENT, Transaction, chunks

_LARGE = 1 << 20  # bytes that every database takes
_MICROSECONDS = 1_000_000
_MOST_PARAMETERS = 20_000  # of a statement, in any of the databases

_m = messages.c
_SHOWN: tuple[sa.Column[Any], ...] = (
    _m.id,
    _m.message_id,
    _m.body,
    _m.tag,
    _m.headers,
    _m.group_name,
    _m.sent_at,
    _m.receive_count,
)


@dataclass(frozen=True, slots=True)
class QueueRows:
    """The rows of `queue`; each `Received` has `name` as its queue."""

    queue: str
    name: str

    def take(self, transaction: Transaction, max_messages: int, lease: float, started: float) -> list[Received]:
        """Lease the oldest visible messages; `started` is when the request began (`time.monotonic()`)."""
        grouped = sa.select(_m.id).where(_m.queue == self.queue, _m.group_name >= "").limit(1)
        ordered = transaction.execute(grouped).first() is not None
        taken: list[Received] = []
        while len(taken) < max_messages:
            size = min(max_messages - len(taken), ROWS_PER_STATEMENT)
            if ordered:
                rows = self._lock_ordered(transaction, size)
            else:  # those that no other consumer is taking, without any group that came in meanwhile
                oldest = self._visible(transaction).limit(size).with_for_update(skip_locked=True)
                rows = [row for row in transaction.execute(oldest) if row.group_name is None]
            if rows:
                token = secrets.token_hex(8)
                values = {
                    "visible_at": transaction.now() + micros(lease),
                    "receive_count": _m.receive_count + 1,
                    "receipt": sa.cast(_m.id, sa.String(20)) + f".{token}",
                }
                self._change(transaction, [row.id for row in rows], **values)
                until = started + lease
                taken += [
                    self._received(row, Receipt(f"{row.id}.{token}"), row.receive_count + 1, until) for row in rows
                ]
            if len(rows) < size:
                break
        return taken

    def _lock_ordered(self, transaction: Transaction, size: int) -> list[sa.Row[Any]]:
        """Lock the oldest messages whose group is free, in the order they were sent.

        By id, not by `visible_at`: a message whose lease ran out goes before later ones of its group. The group rule is
        a set of groups, and does not search the earlier messages of each: that would be quadratic in a long group.
        While this waited the groups may have changed: once the rows are locked the groups are read again.
        """
        busy = set(transaction.execute(self._busy_groups(transaction)).scalars())
        # as values: MariaDB runs the subquery once for each row
        waiting = busy if len(busy) <= _MOST_PARAMETERS else self._busy_groups(transaction)
        free = sa.or_(_m.group_name.is_(None), _m.group_name.not_in(waiting))
        visible = _m.visible_at + 0 <= transaction.now()  # + 0: walk along the ids rather than sort all that is visible
        query = sa.select(*_SHOWN).where(_m.queue == self.queue, visible, free).order_by(_m.id).limit(size)
        rows = list(transaction.execute(query.with_for_update()))
        groups = {row.group_name for row in rows} - {None}
        if transaction.dialect.one_writer or not groups:
            return rows
        taken = set(transaction.execute(self._busy_groups(transaction).where(_m.group_name.in_(groups))).scalars())
        return [row for row in rows if row.group_name not in taken]

    def _busy_groups(self, transaction: Transaction) -> sa.Select[Any]:
        """Select the groups with a leased or delayed message: they wait as a whole, as in SQS FIFO."""
        leased = _m.queue == self.queue, _m.visible_at > transaction.now(), _m.group_name.is_not(None)
        return sa.select(_m.group_name).where(*leased)  # not distinct: planners would choose the index of groups then

    def _visible(self, transaction: Transaction) -> sa.Select[Any]:
        return (
            sa.select(*_SHOWN)
            .where(_m.queue == self.queue, _m.visible_at <= transaction.now())
            .order_by(_m.visible_at, _m.id)
        )

    def anything_visible(self, transaction: Transaction) -> bool:
        """Tell whether a receive may succeed; messages whose group is busy count too."""
        query = sa.select(_m.id).where(_m.queue == self.queue, _m.visible_at <= transaction.now()).limit(1)
        return transaction.execute(query).first() is not None

    def insert(
        self, transaction: Transaction, sent: Sequence[Outgoing], ids: Sequence[str] = (), *, visible: bool = True
    ) -> None:
        """Add messages at the back, whose texts have passed `checked`; with new ids unless `ids` are given.

        Not `visible`: their times are set when they are shown (`staging`).
        """
        now: Any = transaction.now() if visible else 0
        statement = sa.insert(messages).values(queue=self.queue, sent_at=now, visible_at=now, receive_count=0)
        largest = max((len(message.body) for message in sent), default=0)
        most = transaction.largest_value() if largest > _LARGE else None
        if most is not None and largest > most:  # the database would close the connection
            raise QueueError(
                self.name,
                f"a message of {largest:,} bytes is larger than the database takes in one statement ({most:,} bytes, "
                "as it may be escaped); raise its setting max_allowed_packet, or send where the content is instead",
            )
        for chunk in chunks(zip(sent, ids or (uuid.uuid4().hex for _ in sent), strict=True)):
            rows = [
                {
                    "message_id": message_id,
                    "body": message.body,
                    "tag": message.tag,
                    "headers": json.dumps({str(k): str(v) for k, v in message.headers.items()})
                    if message.headers
                    else "{}",
                    "group_name": message.group or None,
                }
                for message, message_id in chunk
            ]
            transaction.execute(statement, rows)

    def depth(self, transaction: Transaction) -> Depth:
        """Count in one statement, at one time: otherwise a lease that ends in between would be counted nowhere."""
        now, ours = transaction.now(), _m.queue == self.queue
        ready = sa.select(sa.func.count()).where(ours, _m.visible_at <= now).scalar_subquery()
        later = sa.select(sa.func.count().label("hidden"), sa.func.count(_m.receipt).label("leased"))
        later_rows = later.where(ours, _m.visible_at > now).subquery()
        row = transaction.execute(sa.select(ready.label("ready"), later_rows.c.hidden, later_rows.c.leased)).one()
        return Depth(row.ready, row.leased, row.hidden - row.leased)

    def peek(self, transaction: Transaction, max_messages: int) -> list[Received]:
        query = sa.select(*_SHOWN).where(_m.queue == self.queue).order_by(_m.visible_at, _m.id).limit(max_messages)
        return [self._received(row, Receipt(""), row.receive_count, 0.0) for row in transaction.execute(query)]

    def purge(self, transaction: Transaction) -> int:
        return transaction.execute(sa.delete(messages).where(_m.queue == self.queue)).rowcount

    def extend(self, transaction: Transaction, ids: Sequence[int], lease: float) -> None:
        self._change(transaction, ids, visible_at=transaction.now() + micros(lease))

    def nack(self, transaction: Transaction, ids: Sequence[int], delay: float) -> None:
        """Return the messages; without a delay to the place where they were sent: a group comes back in its order."""
        visible = transaction.now() + micros(delay) if delay > 0 else _m.sent_at
        self._change(transaction, ids, visible_at=visible, receipt=None)

    def duplicate(self, transaction: Transaction, ids: Sequence[int]) -> None:
        """Add the same messages once more, visible now: for the simulator."""
        copied = [column for column in messages.columns if column.name not in ("id", "visible_at", "receipt")]
        source = sa.select(*copied, transaction.now()).where(_m.id.in_(ids))
        transaction.execute(
            sa.insert(messages).from_select([*(column.name for column in copied), "visible_at"], source)
        )

    def held(self, transaction: Transaction, receipts: Sequence[Receipt]) -> dict[Receipt, int]:
        """Return the ids of the messages that the receipts hold, locked; a receipt starts with its id: both agree."""
        heads = (receipt.partition(".")[0] for receipt in receipts)
        ids = [int(head) for head in heads if head.isascii() and head.isdigit() and len(head) < 19]
        ours = transaction.among(_m.id, sorted(ids)), transaction.among(_m.receipt, receipts)
        held_rows = transaction.execute(sa.select(_m.receipt, _m.id).where(*ours).with_for_update()).all()
        return {Receipt(str(receipt)): number for receipt, number in held_rows}

    def remove(self, transaction: Transaction, ids: Sequence[int]) -> None:
        transaction.execute(sa.delete(messages).where(transaction.among(_m.id, ids)))

    def _change(self, transaction: Transaction, ids: Sequence[int], **values: object) -> None:
        transaction.execute(sa.update(messages).where(transaction.among(_m.id, ids)).values(**values))

    def _received(self, row: sa.Row[Any], receipt: Receipt, count: int, lease_until: float) -> Received:
        headers = json.loads(row.headers) if row.headers != "{}" else {}
        return Received(
            queue=self.name,
            message_id=row.message_id,
            receipt=receipt,
            body=bytes(row.body),
            receive_count=count,
            lease_until=lease_until,
            sent_at=row.sent_at / _MICROSECONDS,
            tag=row.tag,
            headers=headers,
            group=row.group_name,
        )


def checked(message: Outgoing) -> Outgoing:
    """Return the message; raise ValueError for text that not every database returns unchanged."""
    check_text("tag", message.tag)
    check_text("group", message.group or "", LONGEST_NAME)
    return message


def check_text(what: str, text: str, longest: int | None = None) -> None:
    """Raise ValueError for text that not every database returns unchanged."""
    text.encode()  # UnicodeEncodeError, a ValueError, for lone surrogates
    if "\0" in text:
        raise ValueError(f"{what} {text!r} holds a NUL character")
    if longest is not None and len(text) > longest:
        raise ValueError(f"{what} is longer than {longest} characters: {text[:50]!r}...")


def micros(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)
