"""Messages that wait for the transaction that makes them visible: how a sink delivers to a SQL queue exactly once.

Tasks insert their messages into the queue's own table, as messages of a queue that no URL can name; each attempt at a
task has such a queue, and an entry in `cuesqueue_staged` that counts them. The transaction that publishes the batch
moves those of the winning attempts to the real queue, with one statement however many there are, and marks the other
entries of the same owner as abandoned: from then on nothing can be added to them, and `clean` removes their messages.
The entries of an owner that never publishes again are removed by `cuesqueue vacuum` (`admin/vacuum_staged.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from queue_source.errors import QueueError
from queue_source.messages import Outgoing
from queue_source.queues.adapter import convert_each
from queue_source.queues.sql.database import Address, QueueRows, checked, create_tables, messages, open_database
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, Transaction, chunks
from shard_store.sql.dialects import Trouble

metadata = sa.MetaData()

staged = sa.Table(
    "cuesqueue_staged",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),  # one attempt at one task
    sa.Column("owner", sa.String(255), nullable=False),  # whose publishing shows or abandons it: a pipeline
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("abandoned", sa.SmallInteger, nullable=False),
    sa.Column("staged_at", sa.BigInteger, nullable=False),
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    mysql_engine="InnoDB",
    mariadb_charset="utf8mb4",
    mariadb_collate="utf8mb4_bin",
    mariadb_engine="InnoDB",
)
sa.Index("ix_cuesqueue_staged_owner", staged.c.owner)

_s = staged.c


def hidden_queue(name: str) -> str:
    """Return the queue of an attempt's messages. No URL names it: names do not begin with a space."""
    return f" {name}"


class Staging:
    """The staged messages of one SQL queue and one owner. `show` and `abandon` run in the transaction of a caller.

    An owner's batches follow one another, and only its current incarnation publishes: a caller of `show` or `abandon`
    holds the owner's lock (`ShardStore.publish`), so any other staged message is left from an attempt that failed.
    """

    def __init__(self, address: Address, owner: str) -> None:
        self._address = address
        self._owner = owner
        again = frozenset({Trouble.ROLLED_BACK, Trouble.PASSING})
        self._database = open_database(address, None, 30.0, again)  # `add` notices what is already there

    def close(self) -> None:
        self._database.close()

    def prepare(self) -> None:
        """Create the absent tables, outside of other transactions, which some databases would end for it."""
        create_tables(self._database, messages.metadata, metadata)

    # executors

    def begin(self) -> str:
        """Enter a new attempt; return its name."""
        self.prepare()
        name = uuid.uuid4().hex
        values = {"name": name, "owner": self._owner, "rows": 0, "abandoned": 0}

        def enter(transaction: Transaction) -> None:
            if transaction.execute(sa.select(_s.name).where(_s.name == name)).first() is None:
                transaction.execute(sa.insert(staged).values(**values, staged_at=transaction.now()))

        self._database.write(enter)
        return name

    def add(self, name: str, before: int, sent: Sequence[Outgoing]) -> int:
        """Stage more messages in one transaction, after `before` earlier ones; return how many there are now.

        Raises `Unsendable` for what the database cannot keep, and QueueError when the attempt was abandoned meanwhile.
        """
        rows = QueueRows(hidden_queue(name), self._address.name)
        checked_ones = convert_each(sent, checked)
        after = before + len(checked_ones)

        def work(transaction: Transaction) -> None:
            entry = transaction.execute(
                sa.select(_s.rows, _s.abandoned).where(_s.name == name).with_for_update()
            ).first()
            if entry is None or entry.abandoned:
                raise QueueError(
                    self._address.name, "another attempt at this batch was published: this one is not needed any more"
                )
            if entry.rows == after:
                return  # the connection was lost while this was committed
            rows.insert(transaction, checked_ones, visible=False)
            transaction.execute(sa.update(staged).where(_s.name == name).values(rows=after))

        self._database.write(work)
        return after

    # the commit process

    def show(self, transaction: Transaction, names: Sequence[str]) -> list[str]:
        """Move the messages of these attempts to the queue; all others of the owner are abandoned, and returned."""
        now = transaction.now()
        for chunk in chunks(names):
            ours = _s.name.in_(chunk), _s.owner == self._owner, _s.abandoned == 0
            # locked: a process that abandons them meanwhile (`cuesqueue vacuum`) either was first, which is noticed
            # here, or cannot see them any more
            entries = transaction.execute(sa.select(_s.rows).where(*ours).with_for_update()).scalars().all()
            counted = sum(entries)
            hidden = messages.c.queue.in_([hidden_queue(name) for name in chunk])
            counted_messages = transaction.execute(
                sa.update(messages).where(hidden).values(queue=self._address.queue, sent_at=now, visible_at=now)
            ).rowcount
            if (len(entries), counted) != (len(chunk), counted_messages):
                raise QueueError(
                    self._address.name,
                    f"of {len(chunk)} tasks that staged messages {len(entries)} are known with {counted} messages, and "
                    f"{counted_messages} are there; nothing was published, the batch has to run again",
                )
            transaction.execute(sa.delete(staged).where(_s.name.in_(chunk)))
        return self.abandon(transaction)

    def abandon(self, transaction: Transaction) -> list[str]:
        """Mark everything else that the owner has staged as abandoned; return the attempts that are to be cleaned."""
        transaction.execute(sa.update(staged).where(_s.owner == self._owner, _s.abandoned == 0).values(abandoned=1))
        return list(transaction.execute(sa.select(_s.name).where(_s.owner == self._owner)).scalars())

    def clean(self, abandoned: Sequence[str]) -> int:
        """Remove the messages of abandoned attempts; what a crash leaves goes with the next batch, or by `vacuum`."""
        return remove(self._database, abandoned)


def remove(database: Database, abandoned: Sequence[str]) -> int:
    """Remove the messages of abandoned attempts, some a transaction; return how many.

    The entry goes last: as long as it exists no message can be added, and its messages are not forgotten.
    """
    removed = 0
    for name in abandoned:
        hidden = messages.c.queue == hidden_queue(name)

        def remove_some(transaction: Transaction, hidden: Any = hidden, name: str = name) -> int:
            ids = transaction.execute(sa.select(messages.c.id).where(hidden).limit(ROWS_PER_STATEMENT)).scalars().all()
            if ids:  # still hidden: one that was shown since the SELECT must not be removed
                transaction.execute(sa.delete(messages).where(transaction.among(messages.c.id, ids), hidden))
            else:
                transaction.execute(sa.delete(staged).where(_s.name == name, _s.abandoned == 1))
            return len(ids)

        while gone := database.write(remove_some):
            removed += gone
    return removed
