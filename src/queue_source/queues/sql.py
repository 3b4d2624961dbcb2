"""A queue in a table (`cuesqueue_messages`): the embedded default on SQLite, and real on PostgreSQL and MySQL.

Every verb is one transaction, with statements for up to 1,000 messages each. Three columns say it all:

- `visible_at` orders the queue and is the lease: a message is to be had from then on, oldest first. Taking it moves
  `visible_at` to the end of the lease, so that a redelivery needs nobody to notice that a consumer died.
- `receipt` names the latest delivery (`id.token`, the token new at each receive), so a stale one matches no row.
- `group_name`: a message waits while an earlier one of its group becomes visible later than itself, which is true of
  every leased or delayed one. Messages without a group never touch that rule.

Who calls it: the reader process (many threads), commands, sinks on executors. The engine is made lazily, per process.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Row,
    String,
    and_,
    cast,
    delete,
    exc,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from queue_source.errors import QueueConfigurationError, QueueError, QueueUnavailable
from queue_source.messages import Receipt, Received
from queue_source.queues.base import Capabilities, Depth, Payload, encode_payloads, republished
from queue_source.queues.sql_database import (
    LONGEST_NAME,
    create_queue_engine,
    create_table,
    mapped_errors,
    may_run_again,
    messages,
    parse_address,
)

ROWS_PER_STATEMENT = 1000
_RUNS = 5  # of a transaction that the database rolls back as a deadlock victim
_POLL = (0.05, 0.2)  # seconds between two looks at an empty queue, drawn at random so that pollers do not march
_MICROSECONDS = 1_000_000

_Result = TypeVar("_Result")
_m = messages.c
_earlier = messages.alias("earlier")
_SHOWN: tuple[Column[Any], ...] = (
    _m.id,
    _m.message_id,
    _m.body,
    _m.tag,
    _m.headers,
    _m.group_name,
    _m.sent_at,
    _m.receive_count,
)
_BLOCKED = (
    select(_earlier.c.id)
    .where(
        _earlier.c.queue == _m.queue,
        _earlier.c.group_name == _m.group_name,
        _earlier.c.id < _m.id,
        _earlier.c.visible_at > _m.visible_at,
    )
    .correlate(messages)
    .exists()
)


class SqlQueue:
    """The queue `queue=NAME` of a `sql+SQLALCHEMY-URL`; created by its first use, and gone when it is empty.

    `clock` (seconds since 1970) stands in for the database's clock and for waiting, `sleep` for the pauses between
    polls: both for tests. An extension or acknowledgement finds an expired lease alive as long as nobody else took it.
    """

    capabilities = Capabilities(largest_batch=ROWS_PER_STATEMENT, longest_wait=1.0, ordered_groups=True)

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, sleep: Callable[[float], object] | None = None
    ) -> None:
        self._address = parse_address(url)
        self._clock = clock
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._engine: Engine | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._address.name

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def receive(self, most: int, lease: float, wait: float) -> list[Received]:
        """Up to `most` messages in one transaction, the longest visible first; polls until `wait` is over."""
        _positive("lease", lease)
        self._connected()
        try:
            return self._receive(most, lease, wait)
        except QueueError:
            if self._closed.is_set():
                return []
            raise

    def _receive(self, most: int, lease: float, wait: float) -> list[Received]:
        now = self._clock or time.monotonic
        until = now() + wait

        def take(connection: Connection) -> list[Received]:
            return self._take(connection, most, lease, started)

        while most > 0:
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
                if self._run(self._anything_visible, read=True):
                    break
        return []

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        _positive("lease", lease)
        return self._change(receipts, lambda c, ids: c.execute(_set(ids, visible_at=self._now() + _micros(lease))))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        return self._change(receipts, _delete)

    def give_back(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        # at once: back to the place where it was sent; a whole group comes back in its order
        visible = self._now() + _micros(delay) if delay > 0 else _m.sent_at
        self._change(receipts, lambda c, ids: c.execute(_set(ids, visible_at=visible, receipt=None)))

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Drop the messages for good: there is no dead-letter queue here, so the caller keeps what it wants to keep."""
        self._change(receipts, _delete)

    def republish(self, message: Received) -> bool:
        def copy(connection: Connection) -> bool:
            leased = _leased(connection, [message.receipt])
            if not leased:
                return False
            self._insert(connection, [message.body], message.tag, republished(message.headers), message.group)
            _delete(connection, list(leased.values()))
            return True

        return self._run(copy)

    def publish(
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
        _check("tag", tag)
        _check("group", group or "", LONGEST_NAME)
        return self._run(lambda connection: self._insert(connection, bodies, tag, headers or {}, group or None))

    def depth(self) -> Depth:
        def count(connection: Connection) -> Depth:
            now, ours = self._now(), _m.queue == self._address.queue
            ready = connection.execute(select(func.count()).where(ours, _m.visible_at <= now)).scalar_one()
            later = select(func.count(), func.count(_m.receipt)).where(ours, _m.visible_at > now)
            hidden, leased = connection.execute(later).one()
            return Depth(ready, leased, hidden - leased)

        return self._run(count, read=True)

    def close(self) -> None:
        """Also ends a `receive` that waits in another thread. A closed queue is not opened again."""
        self._closed.set()
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def __enter__(self) -> SqlQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def peek(self, most: int) -> list[Received]:
        """The next messages without taking them, waiting or leased; their receipts are good for nothing."""
        query = select(*_SHOWN).where(_m.queue == self._address.queue).order_by(_m.visible_at, _m.id).limit(most)
        rows = self._run(lambda connection: connection.execute(query).all(), read=True)
        return [self._received(row, Receipt(""), row.receive_count, 0.0) for row in rows]

    def purge(self) -> int:
        """Delete every message, leased ones too; returns how many there were."""
        query = delete(messages).where(_m.queue == self._address.queue)
        return self._run(lambda connection: connection.execute(query).rowcount)

    def exists(self) -> bool:
        """Whether it holds any message: a queue in a table is no more than its messages."""
        query = select(_m.id).where(_m.queue == self._address.queue).limit(1)
        return self._run(lambda connection: connection.execute(query).first() is not None, read=True)

    # --- inside a transaction ----------------------------------------------------------------------------------------

    def _take(self, connection: Connection, most: int, lease: float, started: float) -> list[Received]:
        grouped = select(_m.id).where(_m.queue == self._address.queue, _m.group_name >= "").limit(1)
        ordered = connection.execute(grouped).first() is not None
        taken: list[Received] = []
        while len(taken) < most:
            size = min(most - len(taken), ROWS_PER_STATEMENT)
            rows = self._lock_ordered(connection, size) if ordered else self._lock_oldest(connection, size)
            if rows:
                token = secrets.token_hex(8)
                values = {
                    "visible_at": self._now() + _micros(lease),
                    "receive_count": _m.receive_count + 1,
                    "receipt": cast(_m.id, String(20)) + f".{token}",
                }
                connection.execute(_set([row.id for row in rows], **values))
                until = started + lease
                taken += [
                    self._received(row, Receipt(f"{row.id}.{token}"), row.receive_count + 1, until) for row in rows
                ]
            if len(rows) < size:
                break
        return taken

    def _lock_oldest(self, connection: Connection, size: int) -> list[Row[Any]]:
        """The oldest messages that nobody else is taking. One with a group may have come in meanwhile: not here."""
        query = self._visible().limit(size).with_for_update(skip_locked=True)
        return [row for row in connection.execute(query) if row.group_name is None]

    def _lock_ordered(self, connection: Connection, size: int) -> list[Row[Any]]:
        """The oldest messages whose group is free, each group in its order.

        What was waited for may have changed the groups: once the rows are ours they are looked at again.
        """
        free = or_(_m.group_name.is_(None), ~_BLOCKED)
        rows = list(connection.execute(self._visible().where(free).limit(size).with_for_update()))
        grouped = [row.id for row in rows if row.group_name is not None]
        if self._address.dialect.one_writer or not grouped:
            return rows
        query = select(_m.group_name).where(_m.id.in_(grouped), _BLOCKED).distinct()
        busy = set(connection.execute(query).scalars())
        return [row for row in rows if row.group_name not in busy]

    def _visible(self) -> Any:
        return (
            select(*_SHOWN)
            .where(and_(_m.queue == self._address.queue, _m.visible_at <= self._now()))
            .order_by(_m.visible_at, _m.id)
        )

    def _anything_visible(self, connection: Connection) -> bool:
        query = select(_m.id).where(_m.queue == self._address.queue, _m.visible_at <= self._now()).limit(1)
        return connection.execute(query).first() is not None

    def _insert(
        self, connection: Connection, bodies: Sequence[bytes], tag: str, headers: Mapping[str, str], group: str | None
    ) -> list[str]:
        ids = [uuid.uuid4().hex for _ in bodies]
        now = self._now()
        statement = insert(messages).values(
            queue=self._address.queue,
            tag=tag,
            headers=json.dumps({str(key): str(value) for key, value in headers.items()}),
            group_name=group,
            sent_at=now,
            visible_at=now,
            receive_count=0,
        )
        for pairs in _chunks(list(zip(ids, bodies, strict=True))):
            connection.execute(statement, [{"message_id": key, "body": body} for key, body in pairs])
        return ids

    def _received(self, row: Row[Any], receipt: Receipt, count: int, lease_until: float) -> Received:
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

    # --- transactions ------------------------------------------------------------------------------------------------

    def _change(self, receipts: Sequence[Receipt], change: Callable[[Connection, list[int]], object]) -> set[Receipt]:
        """Apply `change` to the messages that the receipts still hold; returns the receipts that hold none."""
        wanted = list(dict.fromkeys(receipts))

        def work(connection: Connection) -> set[Receipt]:
            stale: set[Receipt] = set()
            for chunk in _chunks(wanted):
                leased = _leased(connection, chunk)
                stale |= set(chunk) - leased.keys()
                if leased:
                    change(connection, list(leased.values()))
            return stale

        return self._run(work) if wanted else set()

    def _run(self, work: Callable[[Connection], _Result], *, read: bool = False) -> _Result:
        """One transaction; run again when the database chose it as the victim of a deadlock."""
        for last in (False,) * (_RUNS - 1) + (True,):
            with mapped_errors(self._address):
                try:
                    with self._connected().connect() as connection:
                        connection.execution_options(cuesqueue_read=read)
                        with connection.begin():
                            return work(connection)
                except exc.DBAPIError as error:
                    if last or not may_run_again(self._address.dialect, error):
                        raise
        raise QueueUnavailable(self.name, "the transaction was rolled back again and again")

    def _connected(self) -> Engine:
        if self._process != os.getpid():  # forked: the parent's connections and locks are not ours to touch
            self._process, self._lock, self._engine = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._closed.is_set():
                raise QueueConfigurationError(self.name, "is closed; open it again")
            if self._engine is None:
                engine = create_queue_engine(self._address)
                create_table(engine)
                self._engine = engine
            return self._engine

    def _now(self) -> ColumnElement[int]:
        if self._clock is not None:
            return literal(round(self._clock() * _MICROSECONDS), BigInteger)
        return literal_column(self._address.dialect.now, BigInteger)


def _leased(connection: Connection, receipts: Sequence[Receipt]) -> dict[Receipt, int]:
    """The ids of the messages that the receipts hold, locked. A receipt starts with its id, so both tests agree."""
    ids = [int(head) for head in (receipt.partition(".")[0] for receipt in receipts) if _is_id(head)]
    query = select(_m.receipt, _m.id).where(_m.id.in_(sorted(ids)), _m.receipt.in_(receipts)).with_for_update()
    return {Receipt(str(row.receipt)): row.id for row in connection.execute(query)}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _set(ids: Sequence[int], **values: object) -> Any:
    return update(messages).where(_m.id.in_(ids)).values(**values)


def _delete(connection: Connection, ids: Sequence[int]) -> None:
    connection.execute(delete(messages).where(_m.id.in_(ids)))


_Item = TypeVar("_Item")


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), ROWS_PER_STATEMENT):
        yield items[start : start + ROWS_PER_STATEMENT]


def _micros(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _positive(what: str, seconds: float) -> None:
    if not seconds > 0:
        raise ValueError(f"{what} must be more than 0 seconds, not {seconds!r}")


def _check(what: str, text: str, longest: int | None = None) -> None:
    """Text that every database can keep and give back the same."""
    text.encode()  # UnicodeEncodeError, a ValueError, for lone surrogates
    if "\0" in text:
        raise ValueError(f"{what} {text!r} holds a NUL character")
    if longest is not None and len(text) > longest:
        raise ValueError(f"{what} is longer than {longest} characters: {text[:50]!r}...")
