"""The simulator: a source with its pools in a SQLite file, for tests of pipelines, with faults to order.

`sim://SOURCE?dir=PATH&pool=P&tags=FILTER,FILTER` is the SQL queue in every verb, with RabbitMQ's shape on top: what is
sent goes to each pool of the source whose filters let its tag pass. Several processes may use it at once; a test
orders faults in its own process for the reader that Spark runs in another.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL

from queue_source.common.local_paths import hold, is_held, release
from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import Consumers, convert_each, no_pool_takes
from queue_source.queues.base import Depth
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import LONGEST_NAME, Address, QueueRows, create_tables, messages
from queue_source.queues.urls import checked_parameters, query_of, without_fragment
from queue_source.tags import EVERYTHING, check_tag, matches_any
from shard_store.redaction import redact_url
from shard_store.sql.database import Database, Transaction

_LISTENER = "listener-"
"""What the names of the private queues of listeners begin with."""

_NAME = re.compile(r"[\w.\-]{1,200}")
_FORM = "write sim://SOURCE?dir=PATH, with &pool=NAME and &tags=FILTER where they are wanted"

metadata = sa.MetaData()

bindings = sa.Table(
    "sim_bindings",
    metadata,
    sa.Column("pool", sa.String(LONGEST_NAME), primary_key=True),
    sa.Column("filter", sa.String(LONGEST_NAME), primary_key=True),
)
faults = sa.Table(
    "sim_faults",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("pool", sa.String(LONGEST_NAME), nullable=False),
    sa.Column("fault", sa.Text, nullable=False),
    sa.Column("verb", sa.Text),  # None: any
    sa.Column("times", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
)


class Fault(str, Enum):
    """The faults that can be ordered. Each message or call that meets one uses one up."""

    LOST_ACKNOWLEDGEMENT = "lost-acknowledgement"
    """A message is acknowledged, as it seems, and comes again after its lease."""
    DUPLICATE_DELIVERY = "duplicate-delivery"
    """A message is delivered a second time, whatever becomes of the first delivery."""
    EARLY_EXPIRY = "early-expiry"
    """A message's lease ends `seconds` after it was received, however long a lease was asked for."""
    SLOW_RECEIVE = "slow-receive"
    """A receive takes `seconds` longer."""
    DISCONNECT = "disconnect"
    """A call fails with QueueUnavailable and does nothing."""


class SimQueue(SqlQueue):
    """One pool of a source; without `pool=` the one that has the source's name; or a private one with `listener=true`.

    A pool is made by the first use of a URL that names it, or receives from it; by sending only where the source has
    none, unless such messages may be dropped (`mandatory=false`). With a `clock` and a `sleep` of its own, a test never
    waits for a lease to end.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._sim = _parse(url)
        super().__init__(url, self._sim.table, clock=clock, sleep=sleep)
        self.capabilities = replace(SqlQueue.capabilities, loses_while_closed=self._sim.consumers.listener)
        self._any_fault = sa.select(faults.c.id).where(faults.c.pool == self._sim.pool)
        self._is_bound = False
        self._lock: int | None = None  # a listener's

    def order(self, fault: Fault, times: int = 1, *, seconds: float = 0.0, verb: str | None = None) -> None:
        """Let the next `times` messages (or calls) of this pool, in whatever process, meet the `fault`.

        `seconds` is the length of a fault that has one. `verb` limits a disconnect to one of the protocol's methods, as
        in `verb="acknowledge"`.
        """
        on = "send" if verb == "publish" else verb
        values = {"pool": self._sim.pool, "fault": Fault(fault).value, "verb": on, "times": times, "seconds": seconds}
        self._run(lambda transaction: transaction.execute(faults.insert().values(values)))

    def ordered(self) -> dict[Fault, int]:
        """Return how often each fault is still to come."""

        def count(transaction: Transaction) -> dict[Fault, int]:
            query = sa.select(faults.c.fault, sa.func.sum(faults.c.times)).where(faults.c.pool == self._sim.pool)
            return {Fault(fault): times for fault, times in transaction.execute(query.group_by(faults.c.fault))}

        return self._run(count, read=True)

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        self._opened()
        self._bind()
        if self._faulty():
            self._connected("receive")
            for seconds in self._met(Fault.SLOW_RECEIVE, "receive", 1):
                self._sleep(seconds)
        taken = super()._receive(max_messages, lease, wait)
        if taken and self._faulty():
            receipts = [message.receipt for message in taken]
            twice = len(self._met(Fault.DUPLICATE_DELIVERY, "receive", len(receipts)))
            self._change(receipts[:twice], self._rows.duplicate)
            early = self._met(Fault.EARLY_EXPIRY, "receive", len(receipts))
            for receipt, seconds in zip(receipts, early, strict=False):
                self._change([receipt], lambda transaction, ids, s=seconds: self._rows.extend(transaction, ids, s))  # type: ignore[misc]
        return taken

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        self._connected("extend")
        return super().extend(receipts, lease)

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        self._connected("acknowledge")
        if self._faulty():
            leased = self._run(lambda transaction: self._rows.held(transaction, receipts))
            alive = [receipt for receipt in dict.fromkeys(receipts) if receipt in leased]
            lost = alive[: len(self._met(Fault.LOST_ACKNOWLEDGEMENT, "acknowledge", len(alive)))]
            receipts = [receipt for receipt in receipts if receipt not in lost]
        return super().acknowledge(receipts)

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._connected("nack")
        super().nack(receipts, delay)

    def reject(self, receipts: Sequence[Receipt]) -> None:
        self._connected("reject")
        super().acknowledge(receipts)

    def republish(self, message: Received) -> bool:
        """Put the copy to the back of this pool only, as other queues do."""
        self._connected("republish")
        return super().republish(message)

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send to every pool of the source with a filter that matches the tag; raises without one, as RabbitMQ does."""
        convert_each(messages, lambda message: check_tag(message.tag))
        self._connected("send")
        return super()._send(messages, in_order=in_order)

    def joins(self, database: Database) -> bool:
        """Return False: the queues that are simulated have no transactions with a store."""
        return False

    def _insert(self, transaction: Transaction, sent: Sequence[Outgoing], ids: list[str]) -> list[str]:
        tags = {message.tag for message in sent}
        heard: set[str] = set()
        pools: dict[str, list[str]] = {}
        for pool, tag_filter in transaction.execute(sa.select(bindings).order_by(bindings.c.pool)):
            pools.setdefault(pool, []).append(tag_filter)
        for pool in [pool for pool in pools if pool.startswith(_LISTENER) and not is_held(self._lock_of(pool))]:
            self._remove(transaction, pool)  # its process was killed
            del pools[pool]
        if not pools and self._sim.consumers.mandatory and not self._sim.is_named:
            _bind(transaction, self._sim.pool, None)
            pools = {self._sim.pool: [EVERYTHING]}
        for pool, filters in pools.items():
            passing = {tag for tag in tags if matches_any(filters, tag)}
            heard |= passing
            matching = [(message, key) for message, key in zip(sent, ids, strict=True) if message.tag in passing]
            if matching:
                QueueRows(pool, self.name).insert(transaction, *zip(*matching, strict=True))
        if self._sim.consumers.mandatory and (unheard := tags - heard):
            count = sum(message.tag in unheard for message in sent)
            raise no_pool_takes(self.name, self._sim.source, min(unheard), str(count))
        return [key if message.tag in heard else "" for message, key in zip(sent, ids, strict=True)]

    def depth(self) -> Depth:
        self._connected("depth")
        return super().depth()

    def close(self) -> None:
        """Close the queue; a listener's queue is deleted."""
        if self._sim.consumers.listener and self._created and not self._closed.is_set():
            self.delete()
        super().close()
        if self._lock is not None:
            release(self._lock_of(self._sim.pool), self._lock)
            self._lock = None

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Tell whether the pool is bound to the source; creates nothing."""

        def look(transaction: Transaction) -> bool:
            has_table = sa.inspect(transaction.connection).has_table(bindings.name)
            return has_table and _is_bound(transaction, self._sim.pool, None)

        return self._query(look)

    def create(self) -> None:
        """Create the pool where it is absent."""
        self._opened()
        self._bind()

    def delete(self) -> None:
        """Delete the pool, its messages, and the faults that were ordered for it."""
        if self.exists():
            self._run(lambda transaction: self._remove(transaction, self._sim.pool))
        self._created = self._is_bound = False

    def _remove(self, transaction: Transaction, pool: str) -> None:
        QueueRows(pool, self.name).purge(transaction)
        for table in (bindings, faults):
            transaction.execute(sa.delete(table).where(table.c.pool == pool))

    def _create(self) -> None:
        self._sim.folder.mkdir(parents=True, exist_ok=True)
        create_tables(self._database, messages.metadata, metadata)
        if self._sim.consumers.listener and self._lock is None:
            self._lock = hold(self._lock_of(self._sim.pool))
        if self._sim.is_named:
            self._bind()

    def _bind(self) -> None:
        """Make the pool, with the filters that the URL names."""
        pool, filters = self._sim.pool, self._sim.consumers.filters
        if not self._is_bound:
            if not self._database.read(lambda transaction: _is_bound(transaction, pool, filters)):
                self._database.write(lambda transaction: _bind(transaction, pool, filters))
            self._is_bound = True

    def _lock_of(self, pool: str) -> Path:
        return self._sim.folder / f"{self._sim.source}.{pool}.lock"

    def _connected(self, verb: str) -> None:
        if self._faulty() and self._met(Fault.DISCONNECT, verb, 1):
            raise QueueUnavailable(self.name, f"was disconnected during {verb}, as ordered")

    def _met(self, fault: Fault, verb: str, max_messages: int) -> list[float]:
        """Use up to `max_messages` of an ordered fault, the oldest order first; return the seconds of each."""
        ours = faults.c.pool == self._sim.pool, faults.c.fault == fault.value
        orders = (
            sa.select(faults).where(*ours, sa.or_(faults.c.verb.is_(None), faults.c.verb == verb)).order_by(faults.c.id)
        )

        def use_up(transaction: Transaction) -> list[float]:
            taken: list[float] = []
            for row in transaction.execute(orders).all():
                used = min(row.times, max_messages - len(taken))
                taken += [row.seconds] * used
                transaction.execute(sa.update(faults).where(faults.c.id == row.id).values(times=row.times - used))
            transaction.execute(sa.delete(faults).where(faults.c.times <= 0))
            return taken

        return self._run(use_up)

    def _faulty(self) -> bool:
        """Tell whether a fault is ordered. Reads without a lock, since mostly there is none."""
        return self._run(lambda transaction: transaction.execute(self._any_fault).first() is not None, read=True)


@dataclass(frozen=True, slots=True)
class _Address:
    """A `sim://` URL taken apart.

    `table` holds the pool's messages. `is_named`: the URL says what is read here; one that does not may be a sender's.
    """

    table: Address
    folder: Path
    source: str
    pool: str
    consumers: Consumers
    is_named: bool


def _parse(url: str) -> _Address:
    """Parse the URL, without touching a file. Raises `QueueConfigurationError` for whatever is wrong with it."""
    name = redact_url(url)

    def refused(problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(name, f"{problem}; {_FORM}")

    parts = urlsplit(without_fragment(url))
    parameters = checked_parameters(name, query_of(url))
    source, pool = parts.netloc, parameters.get("pool", parts.netloc)
    if parts.path not in ("", "/") or not _NAME.fullmatch(source) or not _NAME.fullmatch(pool):
        raise refused("source and pool are named by letters, digits, '.', '-' and '_'")
    if not parameters.get("dir"):
        raise refused("it needs dir=PATH, a folder of this machine for the simulator's file")
    if pool.startswith(_LISTENER):
        raise refused(f"names that start with {_LISTENER!r} are those of listeners")
    consumers = Consumers.of(parameters, refused)
    pool = f"{_LISTENER}{uuid.uuid4().hex}" if consumers.listener else pool
    folder = Path(parameters["dir"])
    database = URL.create("sqlite", database=str(folder / f"{source}.sim.db"))
    table = Address(database, pool, name)
    is_named = not parameters.keys().isdisjoint(("pool", "listener", "tags"))
    return _Address(table, folder, source, pool, consumers, is_named)


def _bind(transaction: Transaction, pool: str, filters: Sequence[str] | None) -> None:
    """Add filters to those that the pool has; without any, a new pool takes everything."""
    if filters is None:
        filters = () if _is_bound(transaction, pool, None) else (EVERYTHING,)
    for tag_filter in filters:
        transaction.execute(insert(bindings).values(pool=pool, filter=tag_filter).on_conflict_do_nothing())


def _is_bound(transaction: Transaction, pool: str, filters: Sequence[str] | None) -> bool:
    bound_filters = set(transaction.execute(sa.select(bindings.c.filter).where(bindings.c.pool == pool)).scalars())
    return bool(bound_filters) if filters is None else bound_filters.issuperset(filters)
