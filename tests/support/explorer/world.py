"""What outlives every process: objects, queues, the store, its earlier states, checkpoints, and where rows go to."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import sqlalchemy as sa

from queue_source.messages import Outgoing, Receipt, Received
from queue_source.options.connections import StorageOptions
from queue_source.queues.sim import SimQueue
from queue_source.storage.buckets import Known, Outcome, Page
from queue_source.storage.buckets.local import LocalBucket
from shard_store.model import LISTING, Content, Pending, PublishToken, ShardKey, ShardState, shard_key
from shard_store.operators import repair
from shard_store.shards import recording
from shard_store.shards.recording import Receipts, Recorded
from shard_store.sql.database import Database, Transaction
from shard_store.sql.schema import shard_changes, shards
from shard_store.store import ShardStore, open_store
from support.explorer.casts import TABLES, Cast, Kind
from support.explorer.objects import Event, Objects, body_of, etag_of, name_of, path_of, shard_ids_in, uris_in
from support.explorer.points import POINTS, SENT, TRANSACTION
from support.explorer.promises import Broken, Promises
from support.explorer.tables import Table, open_table

STALE = 60.0
"""Seconds after which the pipelines of the explorer are stale."""
LEASE = 90.0
ROUTES = "routes"
"""The queue of a receiver."""

_LEAST_FAR = [state.value for state in (ShardState.OPEN, ShardState.QUARANTINED, ShardState.DONE)]

Offsets = dict[str, dict[str, Any]]
"""What a batch of a query begins or ends with: the offset of each of its pipelines."""


@dataclass
class Checkpoint:
    """Spark's folder of a query: the batches that were logged, and those that are done."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    starts: Offsets | None = None
    batches: dict[int, tuple[Offsets, Offsets]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    @property
    def unfinished(self) -> int | None:
        last = max(self.batches, default=None)
        return last if last is not None and last not in self.done else None

    def end(self) -> Offsets | None:
        return self.batches[max(self.batches)][1] if self.batches else None

    def state_of(self, number: int, names: Sequence[str]) -> list[str]:
        """The row that a query with state brings in a batch without input.

        Once the checkpoint went back, a batch of this number may be another one.
        """
        begin, end = self.batches[number]
        seqs = [(begin[name]["seq"], end[name]["seq"]) for name in names]
        return [f"state of {self.name}, batch {number}, from {seqs}"] if begin == end else []

    def copy(self) -> Checkpoint:
        return Checkpoint(self.name, self.starts, dict(self.batches), set(self.done))


class Moment(NamedTuple):
    """What may be put back: store, tables, checkpoints, what other sinks had taken; and how many messages had ended."""

    store: sqlite3.Connection
    tables: Mapping[Kind, Any]
    checkpoints: Mapping[Kind, Checkpoint]
    taken: Mapping[tuple[str, int], list[str]]
    acknowledged: int
    in_tables: Mapping[Kind, set[str]]
    queues: Mapping[str, sqlite3.Connection]
    sent: int

    def close(self) -> None:
        for database in (self.store, *self.queues.values()):
            database.close()


class WatchedQueue(SimQueue):
    """A queue that tells the world what is about to be acknowledged. `of`: its source, or ROUTES."""

    world: World
    of: str

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        messages = super()._receive(max_messages, lease, wait)
        for message in messages:
            self.world.received[message.receipt] = message
        return messages

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        by_command = not self.world.is_telling
        uris = [uri for message in messages for uri in uris_in(message.body)]
        events = self.world.about_to_send(self.of, uris) if by_command else []
        sent = super()._send(messages, in_order=in_order)
        if by_command:
            self.world.note_sent(self.of, events)
            self.world.sent += [(self.of, message.body.decode()) for message in messages]
        POINTS.passed(SENT)
        return sent

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        for receipt in receipts:
            others = partial(self._others, receipt, receipts)
            self.world.before_acknowledged(self.of, self.world.received[receipt], others)
        return super().acknowledge(receipts)

    def _others(self, receipt: Receipt, receipts: Sequence[Receipt]) -> set[str]:
        """What other messages in the queue announce, leased or not; but not what waits for this message itself."""
        with closing(sqlite3.connect(self.world.folder / "queues" / f"{self.of}.sim.db")) as file:
            query = "SELECT receipt, message_id, body FROM cuesqueue_messages WHERE queue = ?"
            rows = file.execute(query, [self.of]).fetchall()
        ids = [message_id for its, message_id, _ in rows if its == receipt]
        waiting = {uri for its, _, body in rows if its not in receipts for uri in uris_in(body)}
        return waiting - {uri for source, uri in self.world.opened_by(ids) if source == self.of}


class WatchedBucket(LocalBucket):
    """The files as a bucket would have them: by the world's clock, with ETags; it tells what is about to be deleted."""

    world: World
    lists_for: str | None = None

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        page = super()._page(prefix, cursor, versions)
        newest = self.world.objects.newest
        objects = [listed._replace(etag=etag_of(newest(listed.uri)), appeared=None) for listed in page.objects]
        if self.world.keeps_versions:
            objects = [listed._replace(version=f"v{newest(listed.uri).number}") for listed in objects]
        for listed in objects if self.lists_for is not None else ():
            self.world.objects.let_read(str(self.lists_for), listed.uri)
        now = datetime.fromtimestamp(self.world.now, timezone.utc)
        return Page(objects, page.cursor, now, page.skipped)

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        there = [known.uri for known in objects if self.world.objects.is_there(known.uri)]
        outcomes = super().delete(objects)
        for uri in there:
            if not self.world.objects.is_there(uri):  # else it was another version, which stays
                self.world.log(f"  deleted: {name_of(uri)}")
                self.world.objects.vanish(uri)
                self.world.promises.check_may_be_deleted(uri)
        return outcomes


def watch(database: Database) -> None:
    """Let each transaction that writes be a point of its own; and some run twice, as after a passing failure."""
    once = database._once

    def watched(work: Callable[[Transaction], Any], write: bool) -> Any:
        if write and POINTS.runs_twice():

            def undone(transaction: Transaction) -> None:
                work(transaction)
                raise _Undone

            with suppress(_Undone):
                once(undone, write)
        result = once(work, write)
        if write:
            POINTS.passed(TRANSACTION)
        return result

    database._once = watched  # type: ignore[method-assign]


def _copy(database: sqlite3.Connection) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:")
    database.backup(copy)
    return copy


def _keep(moments: deque[Moment], moment: Moment) -> None:
    """Keep a copy of the moment, instead of the oldest one."""
    if len(moments) == moments.maxlen:
        moments.popleft().close()
    queues = {name: _copy(queue) for name, queue in moment.queues.items()}
    moments.append(moment._replace(store=_copy(moment.store), queues=queues))


def _object_of(row: str) -> str:
    """What a row is of, without the version of it."""
    return row.rpartition("@")[0]


class _Undone(Exception):
    """A transaction is rolled back."""


@dataclass
class World:
    """A folder with the objects of some sources, their queues, one store, tables, and two databases of somebody else.

    `recorded`: the objects of each message of a receiver that were in the store when it had last recorded the message.
    `taken`: what sinks of other kinds hold, by checkpoint and batch id: the first attempt at a batch counts.
    `own_sinks`: the pipelines whose sinks make themselves known. `names`: the objects of each source, by URI.
    `acknowledged`: the source and the URI of all that was, in that order. `passed`: the shards that a pipeline has
    got from another one. `pruned`: rows that an operator has removed. `pruned_as`: the state that an object had when a
    prune has forgotten it, until it is announced anew. `forgotten`: what was found bad, before the store went back
    behind that. `lost_messages`: the objects of a source whose messages were acknowledged after the moment to which
    all was put back. `excused`: those whose rows were taken out of a table behind the store's back, or that another
    reader has read. `done_before`: those that had ended before the store went back under what runs:
    what was read in it by then may be acknowledged, until the reader asks the store anything. `anew`: those whose
    rows may come once more, since an operator said so. `coming`: the same, while a command works. `by_hand`: those
    that an operator has given up or opened again. `lately`: what was read last. `is_calm`: no object changes any
    more by itself. `is_telling`: a notification is sent, not by a command. `lists`: sources with listings.
    `spares`: objects that a URI alone announces are planned without a look-up, as those of S3. `first_form`: of an
    object. `in_tables`: the rows that the store has published, by the table that has them; `spelled`: how it was
    put back. `unheard_of`: the rows of a table whose pipelines had no batch yet in the store and the checkpoint
    that were put back; another pipeline that reads the objects once more cannot tell. `lost_outputs`: the hashes of
    batches with an output elsewhere, where the store was put back to before that: with what their tasks had found;
    `unaudited`: what such a batch brought when it was repeated, and that output does not get. `beginnings`: moments
    before any batch; `before_tables`: before commits of tables. `sent`: all messages, in order. `half_reset`: sources
    of which a reset runs, or was killed. `requeues`: a command that requeues runs, or was killed.
    """

    folder: Path
    cast: Cast
    names: dict[str, list[str]]
    first_form: Callable[[], str] = lambda: "whole"
    now: float = field(default_factory=time.time)
    taken: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    received: dict[Receipt, Received] = field(default_factory=dict)
    recorded: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    log: Callable[[str], None] = lambda line: None
    between_tasks: Callable[[Sequence[str]], None] = lambda uris: None
    is_calm: bool = False
    went_back: bool = False
    is_telling: bool = False
    lists: frozenset[str] = frozenset()
    remembers: bool = False
    spares: bool = False
    states: deque[Moment] = field(default_factory=lambda: deque(maxlen=6))
    forgotten: set[str] = field(default_factory=set)
    pruned: set[str] = field(default_factory=set)
    pruned_as: dict[tuple[str, str], str] = field(default_factory=dict)
    lost_messages: set[tuple[str, str]] = field(default_factory=set)
    excused: set[tuple[str, str]] = field(default_factory=set)
    done_before: set[tuple[str, str]] = field(default_factory=set)
    anew: set[tuple[str, str]] = field(default_factory=set)
    coming: set[tuple[str, str]] = field(default_factory=set)
    by_hand: set[tuple[str, str]] = field(default_factory=set)
    lately: deque[str] = field(default_factory=lambda: deque(maxlen=3))
    passed: set[ShardKey] = field(default_factory=set)
    keeps_queues: bool = False
    keeps_versions: bool = False
    tells_errors: bool = False
    beginnings: deque[Moment] = field(default_factory=lambda: deque(maxlen=3))
    before_tables: deque[Moment] = field(default_factory=lambda: deque(maxlen=5))
    half_reset: list[str] = field(default_factory=list)
    requeues: bool = False
    sent: list[tuple[str, str]] = field(default_factory=list)
    in_tables: dict[Kind, set[str]] = field(default_factory=dict)
    spelled: dict[Kind, str] = field(default_factory=dict)
    unheard_of: dict[Kind, set[str]] = field(default_factory=dict)
    lost_outputs: set[str] = field(default_factory=set)
    unaudited: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.driver, self.data = self.folder / "driver", self.folder / "data"
        self.objects, self.promises = Objects(self.folder), Promises(self)
        places = {self.place(source) for source in self.names}
        for place in places:
            (self.folder / place).mkdir(parents=True)
        self.names = {s: [self.objects.uri(self.place(s), name) for name in n] for s, n in self.names.items()}
        for uri in sorted({uri for uris in self.names.values() for uri in uris}):
            self.objects.write(uri, self.first_form(), self.now)
        self.own_sinks = {name for kind in self.cast.kinds if kind.sink != "other" for name in kind.names}
        self.checkpoints = {kind: Checkpoint() for kind in self.cast.kinds}
        self.store = self.open_store()
        with self.store.database.begin() as connection:
            connection.execute(sa.text("CREATE TABLE delivered (query TEXT, row_id TEXT)"))
            connection.commit()
        self.tables: dict[Kind, Table] = {
            kind: open_table(kind.sink, self.folder / f"table-{kind.names[0]}", self.store_url)
            for kind in self.cast.kinds
            if kind.sink in TABLES
        }
        self._file = sqlite3.connect(self.folder / "store.db")
        self._data_files: dict[str, list[str]] = {}
        self._version: object = None
        self.elsewhere = sa.create_engine(f"sqlite:///{self.folder}/elsewhere.db")
        with self.elsewhere.begin() as connection:
            connection.execute(sa.text("CREATE TABLE audit (query TEXT, row_id TEXT)"))
            connection.execute(sa.text("CREATE TABLE batches (hash TEXT PRIMARY KEY, query TEXT, row_ids TEXT)"))
        self._other = sqlite3.connect(self.folder / "elsewhere.db")

    def close(self) -> None:
        self.store.close()
        self.elsewhere.dispose()
        self._file.close()
        self._other.close()
        for moment in [*self.states, *self.beginnings, *self.before_tables]:
            moment.close()

    # --- objects and queues -------------------------------------------------------------------------------------------

    def place(self, source: str) -> str:
        """The folder with the objects of the source."""
        return "shared" if self.cast.shared else source

    def open_bucket(self, prefix: str, lists_for: str | None = None) -> WatchedBucket:
        """Open it; what a source `lists_for` itself, it may read."""
        bucket = WatchedBucket(StorageOptions())
        bucket.world, bucket.lists_for = self, lists_for
        return bucket

    def queue_url(self, name: str) -> str:
        return f"sim://{name}?dir={self.folder}/queues"

    def open_queue(self, name: str) -> WatchedQueue:
        queue = WatchedQueue(self.queue_url(name), clock=lambda: self.now, sleep=lambda _: None)
        queue.world, queue.of = self, name
        return queue

    def announce(self, source: str, events: Sequence[Event]) -> None:
        """Send one message to the queue of the source, or to that of the receiver for all sources."""
        name = ROUTES if self.cast.routed else source
        self.sent.append((name, body_of(events, with_versions=self.keeps_versions)))
        for told in self.names if self.cast.routed else [source]:
            self.objects.announce(told, events)
            self._begin_anew(told, [event.uri for event in events])
        self._tell(*self.sent[-1])  # somebody may die once the message is there
        self.log(f"  {' '.join(event.name for event in events)}")

    def _tell(self, queue: str, body: str) -> None:
        self.is_telling = True
        try:
            with closing(self.open_queue(queue)) as opened:
                opened.send([body])
        finally:
            self.is_telling = False

    def about_to_send(self, queue: str, uris: Sequence[str]) -> list[Event]:
        """What a command announces may be read as it is now, or later; at once, before the command goes on."""
        for source in self._told_by(queue):
            self._begin_anew(source, uris)
            for uri in uris:
                self.objects.let_read(source, uri)
        return [self.objects.event(uri, facts=False) for uri in uris]

    def note_sent(self, queue: str, events: Sequence[Event]) -> None:
        """A command has announced the versions that were there before: others may have come since."""
        for source in self._told_by(queue):
            self.objects.announce(source, events)

    def _begin_anew(self, source: str, uris: Sequence[str]) -> None:
        """What is announced has to be read, also where a prune had forgotten that it was."""
        for uri in uris:
            self.pruned_as.pop((source, uri), None)

    def _told_by(self, queue: str) -> Collection[str]:
        return self.names if queue == ROUTES else [queue]

    def before_acknowledged(self, queue: str, message: Received, others: Callable[[], set[str]]) -> None:
        uris = uris_in(message.body)
        self.log(f"  acknowledged: {' '.join(map(name_of, uris))}")
        if queue == ROUTES:
            self.promises.check_is_recorded(uris, self.recorded.get(message.message_id, set()))
        else:
            versions: dict[str, str] = {}
            if queue in self.cast.versioned:
                versions = dict.fromkeys(uris, "") | shard_ids_in(message.body)
            self.promises.check_may_be_acknowledged(queue, uris, others, versions)
        self.acknowledged += [(source, uri) for source in self._told_by(queue) for uri in uris]

    def waiting_messages(self) -> int:
        total = 0
        for name in [ROUTES] if self.cast.routed else self.names:
            with closing(self.open_queue(name)) as queue:
                total += queue.depth().total
        return total

    # --- the store, and its earlier states ----------------------------------------------------------------------------

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def open_store(self) -> ShardStore:
        store = open_store(self.store_url, clock=lambda: self.now)
        watch(store.database)
        engine = store.database.engine
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        engine.dispose()
        acquire = store.acquire

        def watched(token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]) -> set[ShardKey]:
            won = acquire(token, seen)
            self.passed |= {key for key in won if (owner := seen[key]) is None or owner.pipeline != token.pipeline}
            return won

        store.acquire = watched  # type: ignore[method-assign]
        store.record = lambda *said: store._write(self._record, *said)  # type: ignore[method-assign]
        store.adopt = lambda *said: store._write(self._adopt, *said)  # type: ignore[method-assign]
        return store

    def _record(
        self,
        transaction: Transaction,
        receiver: str,
        announced: Mapping[str, Sequence[Content]],
        receipts: Receipts,
        seen: int = 0,
    ) -> Recorded:
        """As the store does; what is there then is noted, in the same transaction: at once it may be pruned."""
        recorded = recording.record(transaction, receiver, announced, receipts, seen)
        c = shards.c
        there = {*transaction.execute(sa.select(c.source, sa.func.coalesce(c.uri, c.shard_id))).tuples()}
        of_messages: dict[str, set[tuple[str, str]]] = {}
        for source, contents in announced.items():
            for content in contents:
                of_messages.setdefault(content.message_id, set()).update({(source, content.uri)} & there)
        self.recorded |= of_messages
        return recorded

    def _adopt(self, transaction: Transaction, source: str, uris: Sequence[str], origin: str) -> int:
        """As the store does; what it did not know counts as read from the commit on, also while the command works."""
        c = shards.c
        of_source = sa.select(sa.func.coalesce(c.uri, c.shard_id)).where(c.source == source)
        before = {*transaction.execute(of_source).scalars()}
        new = repair.adopt(transaction, source, uris, origin)
        adopted = {(source, uri) for uri in uris if uri not in before}
        transaction.on_commit.append(lambda: self.excused.update(adopted))
        return new

    def remember_state(self) -> None:
        """Keep the store and the tables as they are now, for a while, if they are ever to go back."""
        if not self.remembers:
            return
        tables = {kind: table.state() for kind, table in self.tables.items()}
        version = self._file.execute("PRAGMA data_version").fetchone(), tables
        if version == self._version:
            return  # nothing was committed since
        self._version = version
        store = sqlite3.connect(":memory:")
        self._file.backup(store)
        if len(self.states) == self.states.maxlen:
            self.states[0].close()
        checkpoints = {kind: checkpoint.copy() for kind, checkpoint in self.checkpoints.items()}
        in_tables = {kind: set(rows) for kind, rows in self.in_tables.items()}
        queues = self._copies_of_queues() if self.keeps_queues else {}
        told, sent = len(self.acknowledged), len(self.sent)
        moment = Moment(store, tables, checkpoints, dict(self.taken), told, in_tables, queues, sent)
        if self._file.execute("SELECT 1 FROM cuesqueue_attempts").fetchone() is None:
            _keep(self.beginnings, moment)
        if self.states and self.states[-1].tables != tables:
            _keep(self.before_tables, self.states[-1])
        self.states.append(moment)

    def _copies_of_queues(self) -> dict[str, sqlite3.Connection]:
        copies = {}
        for file in sorted((self.folder / "queues").glob("*.sim.db")):
            copies[file.name] = sqlite3.connect(":memory:")
            with closing(sqlite3.connect(file)) as queue:
                queue.backup(copies[file.name])
        return copies

    def put_queues_back(self, moment: Moment) -> None:
        """A backup of the queues is restored. What came since is sent once more by whoever had sent it.

        No process dies meanwhile: else the rest is not sent, and the step does not note what it has put back.
        """
        for name, copy in moment.queues.items():
            with closing(sqlite3.connect(self.folder / "queues" / name)) as queue:
                copy.backup(queue)
        with POINTS.calm():
            for name, body in self.sent[moment.sent :]:
                self._tell(name, body)

    def forget_earlier_states(self) -> None:
        """The store does not go back behind this moment."""
        for moment in self.states:
            moment.close()
        self.states.clear()
        for kept in (self.beginnings, self.before_tables):
            for moment in kept:
                moment.close()
            kept.clear()
        self._version = None
        self.remember_state()

    def moment(self, steps: int) -> Moment:
        """What was so many steps ago."""
        return self.states[max(0, len(self.states) - 1 - steps)]

    def moments_before_tables(self) -> list[Moment]:
        """Moments before a query has begun the batch that its table has by now."""
        return [
            moment
            for moment in (*self.before_tables, *self.states)
            if any(
                moment.tables[kind] != table.state()
                and moment.checkpoints[kind].batches.keys() != self.checkpoints[kind].batches.keys()
                for kind, table in self.tables.items()
            )
        ]

    def go_back(self, moment: Moment) -> None:
        """Let the store be what it was: a backup was restored, or a standby that lagged promoted.

        Of a batch of another sink nothing but the store knows what its tasks have found bad: without that it is done.
        """
        bad, outputs = self._bad_of_other_sinks(), self._noted_outputs()
        self.went_back = True
        moment.store.backup(self._file)
        self.lost_outputs |= outputs - self._noted_outputs()
        self.in_tables = {kind: set(rows) for kind, rows in moment.in_tables.items()}
        self.forgotten |= bad - self._bad_of_other_sinks()
        self.promises.note_that_batches_come_anew()

    # --- rows ---------------------------------------------------------------------------------------------------------

    def published(self) -> Counter[str]:
        """How often each row is in the places that sinks publish to, each with its source.

        Without what a table has `unheard_of`, of objects that another place has by now: that is there twice.
        """
        rows: Counter[str] = Counter()
        for (path,) in self._file.execute("SELECT path FROM cuesqueue_splits WHERE replaced_by IS NULL"):
            rows.update(self._rows_of(path))
        for _, row in self.delivered():
            rows[row] += 1
        for taken in self.taken.values():
            rows.update(taken)
        in_tables = {kind: Counter(table.rows()) for kind, table in self.tables.items()}
        for its in in_tables.values():
            rows += its
        for kind, unheard_of in self.unheard_of.items():
            elsewhere = {_object_of(row) for row in rows - in_tables[kind]}
            rows -= Counter(row for row in unheard_of if _object_of(row) in elsewhere)
        return rows

    def _rows_of(self, path: str) -> list[str]:
        """The rows of a data file, which never changes."""
        if path not in self._data_files:
            name = path_of(path)
            if not name.exists():
                raise Broken(f"a data file that is published is not there: {name.name}")
            self._data_files[path] = pq.read_table(name).column("row_id").to_pylist()
        return self._data_files[path]

    def check_data_files(self) -> None:
        """All are there, and the view has what the table has."""
        paths = [path for page in self.store.pages("splits", columns=["path"]) for (path,) in page]
        self._data_files = {}
        if sorted(row for path in paths for row in self._rows_of(path)) != sorted(self.shown().elements()):
            raise Broken("the view 'data' has other rows than the table of data files")

    def shown(self) -> Counter[str]:
        """The rows of the sinks with a path."""
        rows: Counter[str] = Counter()
        for (path,) in self._file.execute("SELECT path FROM cuesqueue_splits WHERE replaced_by IS NULL"):
            rows.update(self._rows_of(path))
        return rows

    def delivered(self) -> list[tuple[str, str]]:
        """The rows that deliveries have put into the store's database, each with its query."""
        return self._file.execute("SELECT query, row_id FROM delivered").fetchall()

    def audited(self) -> list[tuple[str, str]]:
        """The same of their second output, which is in another database."""
        return self._other.execute("SELECT query, row_id FROM audit").fetchall()

    def written_by_hash(self) -> list[tuple[str, str]]:
        """The same of what a user has written with the delivery hash as its key."""
        batches = self._other.execute("SELECT query, row_ids FROM batches").fetchall()
        return [(query, row) for query, rows in batches for row in json.loads(rows)]

    # --- what the store says ------------------------------------------------------------------------------------------

    def shard_states(self) -> dict[tuple[str, str], str]:
        """The state of each object, by source and URI. With versions in ids: of the one that is least far."""
        states: dict[tuple[str, str], str] = {}
        rows = self._file.execute("SELECT source, shard_id, uri, state FROM cuesqueue_shards").fetchall()
        for source, shard_id, uri, state in rows:
            before = states.setdefault((source, uri or shard_id), state)
            states[source, uri or shard_id] = min(state, before, key=_LEAST_FAR.index)
        return states

    def every_shard(self) -> dict[tuple[str, str, str], str]:
        """The state of each shard, by source, URI and id: an object may have several, one for each version."""
        query = "SELECT source, coalesce(uri, shard_id), shard_id, state FROM cuesqueue_shards"
        return {(source, uri, shard_id): state for source, uri, shard_id, state in self._file.execute(query)}

    def planned_until(self, pipeline: str) -> int:
        """The offset up to which the store has planned batches of this pipeline."""
        query = "SELECT plan_end FROM cuesqueue_pipelines WHERE pipeline = ?"
        return max([end or 0 for (end,) in self._file.execute(query, [pipeline])], default=0)

    def is_locked_elsewhere(self) -> bool:
        """Whether a batch writes to its output elsewhere: there another one would wait for its commit."""
        if not self.elsewhere.pool.checkedout():  # type: ignore[attr-defined]
            return False
        with closing(sqlite3.connect(self.folder / "elsewhere.db", timeout=0)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def _noted_outputs(self) -> set[str]:
        """The hashes of batches of which the store knows that an output of theirs may be elsewhere."""
        query = "SELECT target FROM cuesqueue_pipelines WHERE target IS NOT NULL"
        targets = [json.loads(text) for (text,) in self._file.execute(query).fetchall()]
        return {target["hash"] for target in targets if target["kind"] == "outputs"}

    def states_of(self, source: str, uri: str) -> dict[str, str]:
        """The states of the versions of an object, by their ids."""
        query = "SELECT shard_id, state FROM cuesqueue_shards WHERE source = ? AND coalesce(uri, shard_id) = ?"
        return dict(self._file.execute(query, [source, uri]).fetchall())

    def failed_cleanings(self) -> list[str]:
        """The URIs of objects that are not cleaned, since they are not there."""
        query = "SELECT uri FROM cuesqueue_cleanings WHERE ended_at IS NULL AND cause = 'missing-object'"
        return sorted(uri for (uri,) in self._file.execute(query))

    def owned_open_shards(self) -> list[str]:
        """The ids of open shards that a pipeline has."""
        query = "SELECT shard_id FROM cuesqueue_shards WHERE state = 'open' AND owner IS NOT NULL"
        return sorted(shard_id for (shard_id,) in self._file.execute(query))

    def given_up_unknown(self) -> set[tuple[str, str]]:
        """What the store calls given up, since it went back: to before the first sink of a pipeline was known to it."""
        query = "SELECT source, coalesce(uri, shard_id) FROM cuesqueue_shards WHERE pending = ?"
        return set(self._file.execute(query, [Pending.GIVEN_UP.value])) if self.went_back else set()

    def finished_without_etag(self) -> dict[tuple[str, str], int]:
        """When shards ended of which no version is known (microseconds), by source and URI."""
        query = "SELECT source, shard_id, finished_at FROM cuesqueue_shards WHERE etag IS NULL"
        return {(source, shard_id): finished or 0 for source, shard_id, finished in self._file.execute(query)}

    def passed_objects(self) -> set[tuple[str, str]]:
        """The objects of a source that a pipeline has got from another one."""
        return {(s, uri) for s, uris in self.names.items() for uri in uris if shard_key(s, uri) in self.passed}

    def opened_again(self) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """What was bad, or empty, and is read again; and what of it waits for a message, which has opened it last.

        What is requeued waits for the message of the command, unless that has not sent it: it was killed, or it works
        now. What a person has reopened, or a listing had found, waits for none. What `forget` or `reset` has forgotten
        waits for the next announcement, which comes behind the command; and is open by it, until it is read.
        """
        pages = self.store.pages("errors", columns=["source", "subject", "state"])
        bad = {(source, subject) for page in pages for source, subject, state in page if state == "reopened"}
        c = shard_changes.c
        changes = sa.select(c.source, c.shard_id, c.action).where(c.action != "quarantine").order_by(c.id)
        rows = self.store.database.read(lambda transaction: transaction.execute(changes).all())
        last = {(row.source, row.shard_id): row.action for row in rows}
        opened = {of for of, action in last.items() if action in ("announced again", "requeue", "reopen", "forget")}
        query = "SELECT source, shard_id FROM cuesqueue_shards WHERE queue = ?"
        found = set(self._file.execute(query, [LISTING]))
        listed = opened if self.requeues else found
        announced = {
            of
            for of in opened
            if (last[of] == "announced again" and of not in found)
            or (last[of] == "requeue" and of not in listed)
            or last[of] == "forget"
        }
        states = self.shard_states()
        reset = {(of[0], of[1].partition("#")[0]) for of, action in last.items() if action == "reset"}
        gone, anew = reset - states.keys(), {of for of in reset if states.get(of) == ShardState.OPEN.value}
        known = [{(source, shard_id.partition("#")[0]) for source, shard_id in of} for of in (bad | opened, announced)]
        return known[0] | gone | anew, known[1] | anew | {of for of in gone if of[0] not in self.half_reset}

    def opened_by(self, ids: Sequence[str]) -> set[tuple[str, str]]:
        """What one of these messages has opened again, as the last change to it; or opened, since it was reset."""
        message = "CASE c.action WHEN 'reset' THEN s.message_id ELSE c.message_id END"
        joined = "cuesqueue_shard_changes c LEFT JOIN cuesqueue_shards s ON s.shard_key = c.shard_key"
        rows = self._file.execute(f"SELECT c.source, c.shard_id, {message} FROM {joined} ORDER BY c.id")
        last = {(source, shard_id): message_id for source, shard_id, message_id in rows}
        return {of for of, message_id in last.items() if message_id in ids}

    def known_unread(self) -> set[tuple[str, str]]:
        """What is quarantined, and of which the store knows that nothing was read."""
        columns = ["source", "subject", "scope", "cause", "position", "state"]
        last = dict[tuple[str, str], bool]()
        for page in self.store.pages("errors", columns=columns):
            for source, subject, scope, cause, position, state in page:
                if state != "reopened":
                    unread = (scope, position) == ("object", "") and cause != "quarantined-by-hand"
                    last[source, subject] = unread and last.get((source, subject), True)
        states = self.shard_states()
        return {of for of, unread in last.items() if unread and states.get(of) == ShardState.QUARANTINED.value}

    def _bad_of_other_sinks(self) -> set[str]:
        pages = self.store.pages("errors", columns=["subject", "pipeline"])
        return {subject for page in pages for subject, pipeline in page if pipeline not in self.own_sinks}
