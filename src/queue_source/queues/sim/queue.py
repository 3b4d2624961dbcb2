"""The simulator: a source with its pools in a SQLite file, for tests of pipelines, with faults to order.

`sim://SOURCE?dir=PATH&pool=P&tags=FILTER,FILTER` is the SQL queue in every verb, with RabbitMQ's shape on top: what is
sent goes to each pool of the source whose filters let its tag pass. Several processes may use it at once; a test
orders faults in its own process for the reader that Spark runs in another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import convert_each
from queue_source.queues.base import Depth
from queue_source.queues.sim import tables as sim_tables
from queue_source.queues.sim.address import LISTENER, parse_address
from queue_source.queues.sim.listening import hold, is_held
from queue_source.queues.sql import SqlQueue
from queue_source.queues.sql.database import create_tables, messages
from queue_source.queues.sql.rows import QueueRows
from queue_source.tags import EVERYTHING, check_tag, matches_any
from shard_store.sql.database import Database
from shard_store.sql.transaction import Transaction


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

    A pool is made by the first use of a URL that names it, or receives from it. Sending by another URL makes one only
    where the source has none, unless such messages may be dropped (`mandatory=false`).

    `clock` and `sleep` are those of `SqlQueue`: with them no test has to wait for a lease to end.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
        patience: float = 30.0,
    ) -> None:
        self._sim = parse_address(url)
        super().__init__(url, self._sim.table, clock=clock, sleep=sleep, patience=patience)
        self.capabilities = replace(SqlQueue.capabilities, loses_while_closed=self._sim.listener)
        self._is_bound = False
        self._lock: int | None = None  # a listener's

    # --- faults ------------------------------------------------------------------------------------------------------

    def order(self, fault: Fault, times: int = 1, *, seconds: float = 0.0, verb: str | None = None) -> None:
        """Let the next `times` messages (or calls) of this pool, in whatever process, meet the `fault`.

        `seconds` is the length of a fault that has one. `verb` limits a disconnect to one of the protocol's methods, as
        in `verb="acknowledge"`.
        """
        name, on = Fault(fault).value, "send" if verb == "publish" else verb
        self._run(lambda c: sim_tables.order(c, self._sim.pool, name, on, times, float(seconds)))

    def ordered(self) -> dict[Fault, int]:
        """Return how often each fault is still to come."""
        counts = self._run(lambda transaction: sim_tables.ordered(transaction, self._sim.pool), read=True)
        return {Fault(fault): times for fault, times in counts.items()}

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        self._opened()
        self._bind()
        if self._faulty():
            self._connected("receive")
            for seconds in self._met(Fault.SLOW_RECEIVE, "receive", 1):
                self._sleep(seconds)
        taken = super()._receive(max_messages, lease, wait)
        if taken and self._faulty():
            self._spoil([message.receipt for message in taken])
        return taken

    def _spoil(self, receipts: Sequence[Receipt]) -> None:
        twice = len(self._met(Fault.DUPLICATE_DELIVERY, "receive", len(receipts)))
        self._change(receipts[:twice], self._rows.duplicate)
        for receipt, seconds in zip(receipts, self._met(Fault.EARLY_EXPIRY, "receive", len(receipts)), strict=False):
            self._change([receipt], lambda transaction, ids, s=seconds: self._rows.extend(transaction, ids, s))  # type: ignore[misc]

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
        super().reject(receipts)

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
        pools = dict(sim_tables.pools(transaction))
        for pool in [pool for pool in pools if pool.startswith(LISTENER) and not is_held(self._lock_of(pool))]:
            self._remove(transaction, pool)  # its process was killed
            del pools[pool]
        if not pools and self._sim.mandatory and not self._sim.is_named:
            sim_tables.bind(transaction, self._sim.pool, None)
            pools = {self._sim.pool: (EVERYTHING,)}
        for pool, filters in pools.items():
            passing = {tag for tag in tags if matches_any(filters, tag)}
            heard |= passing
            matching = [(message, key) for message, key in zip(sent, ids, strict=True) if message.tag in passing]
            if matching:
                QueueRows(pool, self.name).insert(transaction, *zip(*matching, strict=True))
        if self._sim.mandatory and (unheard := tags - heard):
            raise self._unrouted(min(unheard), sum(message.tag in unheard for message in sent))
        return [key if message.tag in heard else "" for message, key in zip(sent, ids, strict=True)]

    def _unrouted(self, tag: str, count: int) -> QueueConfigurationError:
        return QueueConfigurationError(
            self.name,
            f"no pool of source {self._sim.source!r} takes messages with the tag {tag!r}: {count} were not "
            "sent; create a pool whose filter lets it pass, or add mandatory=false to the URL to drop such messages",
        )

    def depth(self) -> Depth:
        self._connected("depth")
        return super().depth()

    def close(self) -> None:
        """Close the queue; a listener's queue is deleted."""
        if self._sim.listener and self._created and not self._closed.is_set():
            self.delete()
        super().close()
        if self._lock is not None:
            self._lock_of(self._sim.pool).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Tell whether the pool is bound to the source; creates nothing."""
        return self._query(lambda transaction: sim_tables.exists(transaction, self._sim.pool))

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
        sim_tables.forget(transaction, pool)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        self._sim.folder.mkdir(parents=True, exist_ok=True)
        create_tables(self._database, messages.metadata, sim_tables.metadata)
        if self._sim.listener and self._lock is None:
            self._lock = hold(self._lock_of(self._sim.pool))
        if self._sim.is_named:
            self._bind()

    def _bind(self) -> None:
        """Make the pool, with the filters that the URL names."""
        pool, filters = self._sim.pool, self._sim.filters
        if not self._is_bound:
            if not self._database.read(lambda transaction: sim_tables.is_bound(transaction, pool, filters)):
                self._database.write(lambda transaction: sim_tables.bind(transaction, pool, filters))
            self._is_bound = True

    def _lock_of(self, pool: str) -> Path:
        return self._sim.folder / f"{self._sim.source}.{pool}.lock"

    def _connected(self, verb: str) -> None:
        if self._faulty() and self._met(Fault.DISCONNECT, verb, 1):
            raise QueueUnavailable(self.name, f"was disconnected during {verb}, as ordered")

    def _met(self, fault: Fault, verb: str, max_messages: int) -> list[float]:
        """Use up the faults that were ordered; return the seconds of each."""
        return self._run(lambda c: sim_tables.take(c, self._sim.pool, fault.value, verb, max_messages))

    def _faulty(self) -> bool:
        """Tell whether a fault is ordered. Reads without a lock, since mostly there is none."""
        return self._run(lambda transaction: bool(sim_tables.ordered(transaction, self._sim.pool)), read=True)
