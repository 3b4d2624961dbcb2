"""The table under a SQL queue, the way to it from a queue's URL, and every statement on it.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.engine import URL, make_url

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received, headers_of
from queue_source.queues.base import Depth
from queue_source.queues.urls import KINDS, checked_parameters
from shard_store.redaction import redact_url
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, ErrorKinds, Transaction, chunks
from shard_store.sql.dialects import Trouble
from shard_store.sql.install import schema_lock

LONGEST_NAME = 255  # of queues and groups: both are index columns
_ID = " table"  # no queue's name: those have no spaces around them
_YEAR_9999 = 253_370_764_800_000_000  # its beginning: jobs that delete old messages by SQL leave the id

# what SQLAlchemy hands to Python's sqlite3, and with uri=true (or 1, yes, True) to SQLite
_SQLITE = ("timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements", "plugin", "uri")
_SQLITE_URI = ("mode", "cache", "immutable", "nolock", "psow", "vfs", "modeof")

metadata = sa.MetaData()

# A message waits when visible_at <= now. It is leased when visible_at > now and it has a receipt; without a receipt it
# was returned by nack with a delay. Times are microseconds since 1970. Ids are never used twice.
messages = sa.Table(
    "cuesqueue_messages",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("queue", sa.String(LONGEST_NAME), nullable=False),
    sa.Column("message_id", sa.String(64), nullable=False),
    sa.Column("body", sa.LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb"), nullable=False),
    sa.Column("tag", sa.Text().with_variant(LONGTEXT, "mysql", "mariadb"), nullable=False),
    sa.Column("headers", sa.Text().with_variant(LONGTEXT, "mysql", "mariadb"), nullable=False),
    sa.Column("group_name", sa.String(LONGEST_NAME)),
    sa.Column("sent_at", sa.BigInteger, nullable=False),
    sa.Column("visible_at", sa.BigInteger, nullable=False),
    sa.Column("receive_count", sa.Integer, nullable=False, default=0),
    sa.Column("receipt", sa.String(64)),
    sqlite_autoincrement=True,
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    mariadb_charset="utf8mb4",
    mariadb_collate="utf8mb4_bin",
)
sa.Index("ix_cuesqueue_messages_visible", messages.c.queue, messages.c.visible_at, messages.c.id)
sa.Index("ix_cuesqueue_messages_sent", messages.c.queue, messages.c.id)
sa.Index(
    "ix_cuesqueue_messages_group",
    messages.c.queue,
    messages.c.group_name,
    # messages without a group do not pay for those with one, and the planner cannot mistake this index for the other
    sqlite_where=messages.c.group_name.is_not(None),
    postgresql_where=messages.c.group_name.is_not(None),
)


@dataclass(frozen=True, slots=True)
class Address:
    """A `sql+...` URL taken apart: the database, the queue in it, and the name for people (without secrets)."""

    url: URL
    queue: str
    name: str


def parse_address(url: str) -> Address:
    """Take `sql+SQLALCHEMY-URL?queue=NAME` apart; what is not ours is the driver's (`?sslmode=...`, `?charset=...`).

    Drivers refuse what they do not know, except that of SQLite, for which SQLAlchemy picks what it knows.
    """
    name = redact_url(url)
    try:
        parsed = make_url(url.removeprefix("sql+"))
    except (sa.exc.ArgumentError, ValueError):
        # from None: SQLAlchemy's text holds the whole URL, with its password
        raise QueueConfigurationError(
            name, "not a database URL; write sql+sqlite:///FILE?queue=NAME or sql+postgresql://USER@HOST/DB?queue=NAME"
        ) from None
    drivers = None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        drivers = (*_SQLITE, *_SQLITE_URI) if parsed.query.get("uri", "false") != "false" else _SQLITE
    pairs = [(key, value) for key, values in parsed.normalized_query.items() for value in values]
    parameters = checked_parameters(name, pairs, drivers)
    queue = parameters.get("queue", "")
    if not queue or queue != queue.strip() or len(queue) > LONGEST_NAME or not queue.isprintable():
        raise QueueConfigurationError(
            name,
            f"the URL needs queue=NAME (1 to {LONGEST_NAME} printable characters), as in sql+sqlite:///jobs.db?queue=jobs",
        )
    return Address(parsed.difference_update_query(KINDS["sql+"].takes), queue, name)


def open_database(
    address: Address,
    clock: Callable[[], float] | None,
    patience: float,
    again: frozenset[Trouble] = frozenset({Trouble.ROLLED_BACK}),
) -> Database:
    """Open the queue's database.

    A transaction that the database undid runs again; one whose outcome is unknown does not: redelivery is the retry of
    acknowledging and receiving, and sending twice would be two messages.
    """
    name = address.name
    return Database(
        address.url,
        clock=clock,
        patience=patience,
        again=again,
        errors=ErrorKinds(
            configuration=lambda problem: QueueConfigurationError(name, problem),
            unavailable=lambda problem: QueueUnavailable(name, problem),
            other=lambda problem: QueueError(name, problem),
        ),
    )


def create_tables(database: Database, *metadata: sa.MetaData) -> None:
    """Create the tables that are absent; several processes may do it at once."""

    def absent(transaction: Transaction) -> bool:
        present = set(sa.inspect(transaction.connection).get_table_names())
        return any(not some.tables.keys() <= present for some in metadata)

    def create(transaction: Transaction) -> None:
        with schema_lock(transaction):
            for some in metadata:
                some.create_all(transaction.connection, checkfirst=True)

    if database.read(absent):
        database.write(create)


def table_id(transaction: Transaction) -> str | None:
    """Return the random id of this table of messages, which every URL of it leads to; None if it has none yet.

    It is the one message of a queue that no URL can name: a table of its own would need the right to create it.
    """
    identity: str | None = transaction.execute(
        sa.select(messages.c.message_id).where(messages.c.queue == _ID).order_by(messages.c.id).limit(1)
    ).scalar()
    return identity


def give_id(transaction: Transaction) -> str:
    """Make sure that the table has an id, also while others do the same, and return it."""
    with schema_lock(transaction):
        if (identity := table_id(transaction)) is not None:
            return identity
        made = uuid.uuid4().hex
        values = {"body": b"", "tag": "", "headers": "{}", "receive_count": 0}
        values |= {"sent_at": _YEAR_9999, "visible_at": _YEAR_9999}
        transaction.execute(messages.insert().values(queue=_ID, message_id=made, **values))
        return made


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
        ours = sa.select(*_SHOWN).where(_m.queue == self.queue, _m.visible_at <= transaction.now())
        return ours.order_by(_m.visible_at, _m.id)

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
        headers = headers_of(row.headers, "headers") if row.headers != "{}" else {}
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
