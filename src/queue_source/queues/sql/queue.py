"""A queue in a table (`cuesqueue_messages`): the embedded default on SQLite, and real on PostgreSQL and MySQL.

Every verb is one transaction, with statements for up to 1,000 messages each; `rows.py` has the statements and says
how the columns make a queue, `database.py` has the table.
Who calls it: the reader process (many threads), commands, sinks on executors.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from queue_source.errors import QueueConfigurationError, QueueError
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.base import (
    BaseQueue,
    Capabilities,
    Depth,
    Extras,
    Payload,
    convert_each,
    encode_payloads,
    republished,
)
from queue_source.queues.sql.database import (
    LONGEST_NAME,
    Address,
    create_table,
    has_table,
    open_database,
    parse_address,
)
from queue_source.queues.sql.rows import QueueRows, check_text, checked
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, chunks
from shard_store.sql.urls import same_database

_POLL = (0.05, 0.2)  # seconds between two looks at an empty queue, drawn at random so that pollers do not march

_Result = TypeVar("_Result")


class SqlQueue(BaseQueue):
    """The queue `queue=NAME` of a `sql+SQLALCHEMY-URL`; created by its first use, and gone when it is empty.

    `clock` (seconds since 1970) stands in for the database's clock and for waiting, `sleep` for the pauses between
    polls: both for tests. `patience` is for how many seconds locks are waited for. An extension or acknowledgement
    finds an expired lease alive as long as nobody else took it.
    """

    capabilities = Capabilities(
        max_batch_size=ROWS_PER_STATEMENT, max_wait=1.0, ordered_groups=True, empty_is_certain=True
    )
    extras = Extras(sends_many=True, transactional=True, administered=True)

    def __init__(
        self,
        url: str | Address,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
        patience: float = 30.0,
    ) -> None:
        self._address = address = url if isinstance(url, Address) else parse_address(url)
        self._database = open_database(address, clock, patience)
        self._rows = QueueRows(address.queue, address.name, self._database)
        self._clock = clock
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._created = False

    @property
    def name(self) -> str:
        return self._address.name

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Up to `max_messages` messages in one transaction, the longest visible first; polls until `wait` is over."""
        _positive("lease", lease)
        self._refuse_closed()
        try:
            return self._receive(max_messages, lease, wait)
        except QueueError:
            if self._closed.is_set():
                return []
            raise

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        now = self._clock or time.monotonic
        until = now() + wait

        def take(connection: Connection) -> list[Received]:
            return self._rows.take(connection, max_messages, lease, started)

        while max_messages > 0:
            started = time.monotonic()
            taken = self._run(take)
            if taken:
                return taken
            while True:
                left = until - now()
                if left <= 0:
                    return []
                self._sleep(min(left, random.uniform(*_POLL)))
                if self._closed.is_set():
                    return []
                # looking costs no write lock: idle consumers do not slow down busy ones
                if self._run(self._rows.anything_visible, read=True):
                    break
        return []

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        _positive("lease", lease)
        return self._change(receipts, lambda connection, ids: self._rows.extend(connection, ids, lease))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        return self._change(receipts, self._rows.remove)

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._change(receipts, lambda connection, ids: self._rows.nack(connection, ids, delay))

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Drop the messages for good: there is no dead-letter queue here, so the caller keeps what it wants to keep."""
        self._change(receipts, self._rows.remove)

    def republish(self, message: Received) -> bool:
        def copy(connection: Connection) -> bool:
            leased = self._rows.held(connection, [message.receipt])
            if not leased:
                return False
            self._rows.insert(connection, [message.body], message.tag, republished(message.headers), message.group)
            self._rows.remove(connection, list(leased.values()))
            return True

        return self._run(copy)

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """All of them or none: one transaction, durable when this returns."""
        bodies = encode_payloads(payloads)
        if not bodies:
            return []
        check_text("tag", tag)
        check_text("group", group or "", LONGEST_NAME)
        return self._run(lambda connection: self._insert(connection, bodies, tag, headers or {}, group or None))

    def _insert(
        self, connection: Connection, bodies: Sequence[bytes], tag: str, headers: Mapping[str, str], group: str | None
    ) -> list[str]:
        return self._rows.insert(connection, bodies, tag, headers, group)

    def send_messages(self, messages: Sequence[Outgoing]) -> None:
        """All of them or none: one transaction, durable when this returns."""
        sent = convert_each(messages, checked)
        if sent:
            self._run(lambda connection: self._insert_each(connection, sent))

    def joins(self, database: Database) -> bool:
        if not same_database(self._database.url, database.url):
            return False
        self._opened()
        return True

    def send_in_transaction(self, connection: Connection, messages: Sequence[Outgoing]) -> None:
        """In the caller's transaction, which is one of a database that it `joins`."""
        self._insert_each(connection, convert_each(messages, checked))

    def _insert_each(self, connection: Connection, sent: Sequence[Outgoing]) -> None:
        self._rows.insert_each(connection, sent)

    def depth(self) -> Depth:
        return self._run(self._rows.depth, read=True)

    def close(self) -> None:
        """Also ends a `receive` that waits in another thread. A closed queue is not opened again."""
        self._closed.set()
        self._database.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def peek(self, max_messages: int) -> list[Received]:
        """The next messages without taking them, waiting or leased; their receipts are good for nothing."""
        return self._run(lambda connection: self._rows.peek(connection, max_messages), read=True)

    def purge(self) -> int:
        """Delete every message, leased ones too; returns how many there were."""
        return self._run(self._rows.purge)

    def exists(self) -> bool:
        """Whether the table is there: every name in it is a queue, with messages or without."""
        return self._looked(has_table)

    def create(self) -> None:
        """Make the table when it is absent."""
        self._opened()

    def delete(self) -> None:
        """The same as to purge it; the table stays, since other queues may be in it."""
        self.purge()

    def _looked(self, look: Callable[[Connection], bool]) -> bool:
        """What a look says that creates neither a table nor a file."""
        self._refuse_closed()
        file = self._database.file()
        return (file is None or file.exists()) and self._database.read(look)

    # --- transactions ------------------------------------------------------------------------------------------------

    def _change(self, receipts: Sequence[Receipt], change: Callable[[Connection, list[int]], object]) -> set[Receipt]:
        """Apply `change` to the messages that the receipts still hold; returns the receipts that hold none."""
        wanted = list(dict.fromkeys(receipts))

        def work(connection: Connection) -> set[Receipt]:
            stale: set[Receipt] = set()
            for chunk in chunks(wanted):
                leased = self._rows.held(connection, chunk)
                stale |= set(chunk) - leased.keys()
                if leased:
                    change(connection, list(leased.values()))
            return stale

        return self._run(work) if wanted else set()

    def _run(self, work: Callable[[Connection], _Result], *, read: bool = False) -> _Result:
        """One transaction; run again when the database chose it as the victim of a deadlock."""
        database = self._opened()
        return database.read(work) if read else database.write(work)

    def _opened(self) -> Database:
        """The database, with our table in it."""
        self._refuse_closed()
        if not self._created:
            self._create()
            self._created = True
        return self._database

    def _create(self) -> None:
        create_table(self._database)

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise QueueConfigurationError(self.name, "is closed; open it again")


def _positive(what: str, seconds: float) -> None:
    if not seconds > 0:
        raise ValueError(f"{what} must be more than 0 seconds, not {seconds!r}")
