"""A queue in a table (`cuesqueue_messages`, SQLAlchemy): embedded on SQLite, and real on PostgreSQL and MySQL.

Every verb is one transaction, with statements for up to 1,000 messages each; `database.py` has the table and the
statements. Used by the reader process (many threads), commands, and sinks on executors.
"""

from __future__ import annotations

import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import inspect

from queue_source.errors import QueueConfigurationError
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, check_lease, convert_each, copy_of
from queue_source.queues.base import Capabilities, Depth, Extras
from queue_source.queues.sql.database import (
    Address,
    QueueRows,
    checked,
    create_tables,
    give_id,
    messages,
    open_database,
    parse_address,
    table_id,
)
from queue_source.queues.urls import canonical
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, Transaction, chunks
from shard_store.sql.engines import same_database

_POLL = (0.05, 0.2)  # seconds between two polls of an empty queue, drawn at random so that pollers do not run in step
_LOOK = 0.01  # seconds between two checks of the version of a SQLite file

Wait = Callable[[float], object]
"""Sleeps for so many seconds, or less."""

_Result = TypeVar("_Result")


class SqlQueue(BaseQueue):
    """The queue `queue=NAME` of a `sql+SQLALCHEMY-URL`; created by its first use, and gone when it is empty.

    `clock` (seconds since 1970) replaces the database's clock and waiting, `sleep` the pauses between polls: both for
    tests. Locks are waited for `patience` seconds. An extension or acknowledgement finds an expired lease alive as long
    as no other consumer took it.
    """

    capabilities = Capabilities(
        max_batch_size=ROWS_PER_STATEMENT, max_wait=1.0, ordered_groups=True, empty_is_certain=True
    )
    extras = Extras(sends_many=True, transactional=True, administered=True)

    def __init__(
        self,
        url: str,
        address: Address | None = None,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
        patience: float = 30.0,
    ) -> None:
        address = address or parse_address(url)
        super().__init__(address.name, url)
        self._database = open_database(address, clock, patience)
        self._rows = QueueRows(address.queue, address.name)
        self._clock = clock
        self._sleep = sleep or self._closed.wait
        self._created = False

    @property
    def identity(self) -> str:
        """The id that is stored among the messages, with the queue's name: the same queue, whichever URL leads to it.

        The URL, as long as no id is stored: a reader may lack the right to insert one.
        """
        identity = self._run(table_id, read=True)
        if identity is None:
            try:
                identity = self._run(give_id)
            except QueueConfigurationError:
                return canonical(self.name)
        return f"sql:{identity}/{self._rows.queue}"

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Take up to `max_messages` messages in one transaction, the longest visible first; poll until then."""
        now = self._clock or time.monotonic
        until = now() + wait

        def take(transaction: Transaction) -> list[Received]:
            return self._rows.take(transaction, max_messages, lease, started)

        # a test that sets the clock waits by it
        file = self._opened().file() if wait > 0 and self._clock is None else None
        with waking_early(file, self._sleep) as sleep:
            while True:
                started = time.monotonic()
                if taken := self._run(take):
                    return taken
                while True:
                    remaining = until - now()
                    if remaining <= 0:
                        return []
                    sleep(min(remaining, random.uniform(*_POLL)))
                    if self._closed.is_set():
                        return []
                    # this takes no write lock: idle consumers do not slow down busy ones
                    if self._run(self._rows.anything_visible, read=True):
                        break

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        check_lease(lease)
        return self._change(receipts, lambda transaction, ids: self._rows.extend(transaction, ids, lease))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        return self._change(receipts, self._rows.remove)

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._change(receipts, lambda transaction, ids: self._rows.nack(transaction, ids, delay))

    def republish(self, message: Received) -> bool:
        def copy(transaction: Transaction) -> bool:
            leased = self._rows.held(transaction, [message.receipt])
            if not leased:
                return False
            self._rows.insert(transaction, [copy_of(message)])
            self._rows.remove(transaction, list(leased.values()))
            return True

        return self._run(copy)

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send all of the messages or none, in one transaction, durable when this returns."""
        sent = convert_each(messages, checked)
        ids = [uuid.uuid4().hex for _ in sent]
        return self._run(lambda transaction: self._insert(transaction, sent, ids))

    def joins(self, database: Database) -> bool:
        if not same_database(self._database.url, database.url):
            return False
        self._opened()
        return True

    def send_in_transaction(self, transaction: Transaction, messages: Sequence[Outgoing]) -> None:
        self._rows.insert(transaction, convert_each(self._stamped(messages), checked))

    def _insert(self, transaction: Transaction, sent: Sequence[Outgoing], ids: list[str]) -> list[str]:
        self._rows.insert(transaction, sent, ids)
        return ids

    def depth(self) -> Depth:
        return self._run(self._rows.depth, read=True)

    def close(self) -> None:
        self._closed.set()
        self._database.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages without taking them, waiting or leased; their receipts cannot be used."""
        return self._run(lambda transaction: self._rows.peek(transaction, max_messages), read=True)

    def purge(self) -> int:
        """Delete every message, leased ones too; returns how many there were."""
        return self._run(self._rows.purge)

    def exists(self) -> bool:
        """Tell whether the table exists: every name in it is a queue, with messages or without."""
        return self._query(lambda transaction: inspect(transaction.connection).has_table(messages.name))

    def create(self) -> None:
        """Create the table where it is absent."""
        self._opened()

    def delete(self) -> None:
        """Delete every message; the table stays, since other queues may be in it."""
        self.purge()

    def _query(self, query: Callable[[Transaction], bool]) -> bool:
        """Run the query, and return its result; create neither a table nor a file."""
        self._refuse_closed()
        file = self._database.file()
        return (file is None or file.exists()) and self._database.read(query)

    def _change(self, receipts: Sequence[Receipt], change: Callable[[Transaction, list[int]], object]) -> set[Receipt]:
        """Apply `change` to the messages that the receipts still hold; return the receipts that hold none."""
        distinct = list(dict.fromkeys(receipts))

        def work(transaction: Transaction) -> set[Receipt]:
            stale: set[Receipt] = set()
            for chunk in chunks(distinct):
                leased = self._rows.held(transaction, chunk)
                stale |= set(chunk) - leased.keys()
                if leased:
                    change(transaction, list(leased.values()))
            return stale

        return self._run(work) if distinct else set()

    def _run(self, work: Callable[[Transaction], _Result], *, read: bool = False) -> _Result:
        """Run one transaction; again when the database chose it as the victim of a deadlock."""
        database = self._opened()
        return database.read(work) if read else database.write(work)

    def _opened(self) -> Database:
        """Open the database, with our table in it."""
        self._refuse_closed()
        if not self._created:
            self._create()
            self._created = True
        return self._database

    def _create(self) -> None:
        create_tables(self._database, messages.metadata)


@contextmanager
def waking_early(file: Path | None, wait: Wait) -> Iterator[Wait]:
    """Yield a `wait` that a change of the file by another connection ends early; without a file `wait` itself.

    Enter it before the first query of the rows. SQLite counts a version of the file for each connection (`PRAGMA
    data_version`) in memory that all processes share: checking it takes microseconds. The caller must still poll: time
    makes messages visible without any change, and an unwatchable file is noticed by the poll.
    """
    uri = "" if file is None else f"{file.absolute().as_uri()}?mode=ro"
    try:
        connection = None if file is None else sqlite3.connect(uri, uri=True, isolation_level=None)
    except sqlite3.Error:
        connection = None
    if connection is None:
        yield wait
        return
    with closing(connection):

        def version() -> int:
            try:
                return int(connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return 0

        seen_version = version()

        def wait_for_change(seconds: float) -> None:
            nonlocal seen_version
            until = time.monotonic() + seconds
            while (remaining := until - time.monotonic()) > 0:
                if wait(min(remaining, _LOOK)) or version() != seen_version:
                    break
            seen_version = version()  # before the caller queries the rows: later changes end the next wait

        yield wait_for_change
