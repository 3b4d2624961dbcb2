"""The store over which verbs race: a few objects in each state, made once by real calls, and put back for each race."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from shard_store.completeness.listing import Found
from shard_store.errors import ShardStoreError
from shard_store.model import LISTING, STORE, Content, ErrorRecord, Semantics, position_at, shard_key
from shard_store.shards.changes import Audit
from shard_store.shards.recording import Receipts
from shard_store.sql.schema import identity, metadata, version
from shard_store.store import ShardStore
from shard_store.upkeep.cleaning import DONE, Ended, Planned
from shard_store.upkeep.pruning import RetentionPolicy
from support.races.reader import SOURCE, Queue, Reader, begun
from support.store_backends import STALE, StoreBackend

DAY = 86_400.0
AUDIT = Audit("an operator", "a reason")
TABLES = [table for table in metadata.sorted_tables if table not in (identity, version)]
PREFIX = "file:///"


def said(name: str, number: int, message: str, size: int = 10, count: int = 1) -> Content:
    """An event of one version of an object."""
    return Content(name, name, size, f"v{number}", "q", message, count, sequence=f"s{number:03}")


def alone(name: str, message: str, size: int | None = None) -> Content:
    """A URI alone, which says nothing of a version."""
    return Content(name, name, size, None, "q", message)


class World:
    """The store, as several processes have it open, with the readers p, q, d (dead), a (at-most-once) and i (idle)."""

    def __init__(self, backend: StoreBackend) -> None:
        self.backend, self.clock = backend, backend.clock
        backend.wipe()
        self.queue = Queue()
        self.names = ("p", "q", "d", "a", "i", "operator")
        self.stores: dict[str, ShardStore] = {name: backend.open(patience=5.0) for name in self.names}
        self.operator = self.stores["operator"]
        self.readers: dict[str, Reader] = {}
        self.first: dict[str, Reader] = {}  # those of before any start: what races is done by them
        self.readers["i"] = begun(self.stores["i"], "i", self.queue, "driver of i")
        backend.run_for(DAY)  # it is idle for longer than anything is finished
        for name in ("p", "q", "d"):
            self.readers[name] = begun(self.stores[name], name, self.queue, f"driver of {name}")
        at_most_once = "driver of a", Semantics.AT_MOST_ONCE
        self.readers["a"] = begun(self.stores["a"], "a", self.queue, *at_most_once)
        self._prepare()
        self._now = self.clock.now
        with self.operator.database.engine.connect() as connection:
            rows = {table: [row._asdict() for row in connection.execute(sa.select(table))] for table in TABLES}
        self._rows = {table: of_table for table, of_table in rows.items() if of_table}
        self._queue = copy.deepcopy(self.queue)
        self._readers = {name: reader.copied(self._queue) for name, reader in self.readers.items()}
        self._memories = {name: copy.deepcopy(store.database.memory) for name, store in self.stores.items()}

    def put_back(self) -> None:
        """Have all be as it was prepared."""
        with self.operator.database.engine.begin() as connection:
            for table in reversed(TABLES):
                connection.execute(table.delete())
            for table, rows in self._rows.items():
                connection.execute(table.insert(), rows)
        self.clock.now = self._now
        self.queue = copy.deepcopy(self._queue)
        self.readers = {name: reader.copied(self.queue) for name, reader in self._readers.items()}
        self.first = dict(self.readers)
        for name, store in self.stores.items():
            store.database.memory = copy.deepcopy(self._memories[name])

    def _prepare(self) -> None:
        p, q, d = (self.readers[name] for name in ("p", "q", "d"))
        self.operator.start_receiver("r", "rq", "host", [SOURCE])
        p.receive(said("old done", 1, "m1"), said("old bad", 1, "m2"), said("old empty", 1, "m3", 0))
        p.receive(said("old released", 1, "m4"))
        p.take("old done", "old bad", "old empty")
        p.make()
        p.report({"old bad": "missing-object"})
        p.bring()
        p.conclude()
        p.give_up("old released")
        self.backend.run_for(8 * DAY)
        self.operator.prune(RetentionPolicy(source="another"))  # the clock is trusted
        self.beat("p", "q", "d")

        d.receive(said("dead", 1, "m5"), said("dead part", 1, "m6"), said("dead planned", 1, "m7"))
        d.take("dead part", until=position_at(3))
        d.make()
        d.bring()
        d.conclude()
        self.list_page(d, ["listed"], cursor=None)
        d.take("dead planned")
        d.make()
        self.clock.advance(2 * STALE)
        self.beat("p", "q")

        p.receive(said("done", 1, "m8"), said("bad", 1, "m9"), said("given up", 1, "m10"), said("empty", 1, "m11", 0))
        p.receive(said("changed", 1, "m12"), said("corrupt", 1, "m13"))
        self.operator.quarantine([shard_key(SOURCE, "given up")], AUDIT)
        p.batch({"bad": "missing-object", "corrupt": "corrupt-object"})
        p.receive(said("done too", 1, "m14"))
        p.batch()
        self.operator.record_errors(SOURCE, "p", [ErrorRecord("message", "malformed-message", "", "x", queue="q")])
        self.operator.name_error_queue(p.token, "errors")
        q.receive(said("changed", 2, "m15"))

        planned = ("planned", "planned later", "planned bad", "planned empty")
        p.receive(*(said(name, 1, f"m of {name}", 0 if name == "planned empty" else 10) for name in planned))
        p.take()
        p.make()
        p.report({"planned bad": "missing-object"})
        q.receive(said("planned later", 2, "m16"), said("planned empty", 2, "m17"))
        p.receive(said("open", 1, "m18"), said("asked", 1, "m19"), said("released", 1, "m20"), alone("uri", "m21"))
        p.give_up("released")
        self.operator.quarantine([shard_key(SOURCE, "asked")], AUDIT)
        q.receive(said("open", 1, "m22"), said("q open", 1, "m23"), said("q planned", 1, "m24"))
        q.take("q planned")
        p.receive(said("q open", 1, "m25"))
        self.operator.record("r", {SOURCE: [said("recorded", 1, "m26")._replace(queue=STORE)]}, Receipts(1))
        self.beat("a")
        a = self.readers["a"]
        a.receive(said("a planned", 1, "m27"), said("a next", 1, "m28"), said("a open", 1, "m29"))
        a.take("a planned")
        a.make()
        self.clock.advance(1200.0)  # what is published is old enough to be cleaned
        self.beat("p", "q", "a")

    def beat(self, *names: str) -> None:
        for name in names:
            if not self.readers[name].is_retired:
                self.readers[name].store.heartbeat(self.readers[name].token, STALE)

    def list_page(self, reader: Reader, names: Iterable[str], cursor: str | None, number: int = 1) -> None:
        """Claim the listing, if it is due, and compare a page with the store."""
        claimed = reader.store.claim_listing(reader.token, SOURCE, PREFIX, 60.0)
        if claimed is None:
            return
        now = int(self.clock() * 1_000_000)
        names = [*names]
        page = [Found(said(n, number, f"listed v{number}")._replace(queue=LISTING), now - 600_000_000) for n in names]
        look = reader._look()
        compared = reader.store.compare_listed(
            reader.token, claimed, page, objects=len(names), cursor=cursor, grace=0.0, clock=lambda: now
        )
        if compared is not None:
            reader.resolve(compared.shards, look)
        else:
            found = reader.store.look(shard_key(SOURCE, entry.content.shard_id) for entry in page)
            reader.resolve([shard for shard in found.values() if shard.token == reader.token], look)

    def announce_later(self, *names: str) -> None:
        """Send what is forgotten once more: its reader is to read it."""
        for name in names:
            self.queue.messages[f"{name} once more"] = said(name, 1, f"{name} once more")

    def plan_cleanings(self) -> None:
        self.operator.plan_cleanings(SOURCE, timedelta(0), lambda _, uri: Planned(uri, None), 100)

    def clean(self) -> None:
        """Delete what is read, unless it is needed."""
        self.plan_cleanings()
        due = self.operator.due_cleanings(SOURCE, 100).cleanings
        ended = [c for c in due if not c.again and c.needed is None and not c.has_bad_records]
        self.queue.gone |= {(c.uri, c.etag) for c in ended}
        self.operator.end_cleanings([Ended(c.shard_key, c.read_at, DONE) for c in ended])

    # what comes after a race

    def go_on(self, alive: str) -> list[str]:
        """Have these readers announce, read and publish until nothing is left; return the errors on the way."""
        raised = []
        self.clean()
        for turn in range(12):
            self.clock.advance(STALE / 3)
            for number, name in enumerate(alive):
                reader = self.readers[name]
                try:
                    if reader.is_retired:
                        self.readers[name] = reader = reader.again()
                    self.beat(name)
                    self._redeliver(reader, alive, (turn + number) % 2)
                    reader.get_again()
                    reader.get_renewed()
                    reader.take_unannounced()
                    reader.batch()
                    reader.conclude()
                except ShardStoreError as error:
                    raised.append(f"{name}: {type(error).__name__}: {error}")
                    reader.is_retired = True
        return raised

    def _redeliver(self, reader: Reader, alive: str, half: int) -> None:
        """Deliver what no reader has in its hands."""
        held = {message for name in alive for message in self.readers[name].waiting}
        held |= self.queue.acknowledged
        free = sorted(message for message in self.queue.messages if message not in held)
        if chosen := free[half::2]:
            reader.receive(*(self.queue.messages[m]._replace(receive_count=2) for m in chosen))


def rows_of(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    return [row._asdict() for row in connection.execute(sa.select(table))]
