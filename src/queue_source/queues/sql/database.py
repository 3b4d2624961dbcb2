"""The table under a SQL queue, and the way from a queue's URL to its database; `shard_store.sql` does the rest."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.engine import URL, make_url

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.queues.urls import KINDS, checked_parameters
from shard_store.redaction import redact_url
from shard_store.sql.database import Database, ErrorKinds, Transaction
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
