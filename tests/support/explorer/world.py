"""What outlives every process: objects, queues, the store and its earlier states, and the places that rows go to."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from queue_source.messages import Receipt, Received
from queue_source.queues.sim import SimQueue
from queue_source.storage.files import ObjectStat
from shard_store.model import PublishToken, ShardKey, ShardState, shard_key
from shard_store.store import ShardStore, open_store

STALE = 60.0
"""Seconds after which the pipelines of the explorer are stale."""
LEASE = 90.0
ROWS = 2
"""Rows of each object."""


class Broken(AssertionError):
    """A promise of the design was broken."""


class WatchedQueue(SimQueue):
    """A queue that tells the world what is about to be acknowledged."""

    world: World

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        messages = super()._receive(max_messages, lease, wait)
        for message in messages:
            self.world.bodies[message.receipt] = json.loads(message.body)
        return messages

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        for receipt in receipts:
            self.world.log(f"  acknowledged: {_names(self.world.bodies[receipt])}")
            self.world.check_may_be_acknowledged(self.world.bodies[receipt])
        return super().acknowledge(receipts)


@dataclass
class World:
    """A folder with the objects of some sources, their queues, one store, and two databases of somebody else.

    `taken`: what sinks of other kinds hold, by checkpoint and batch id: the first attempt at a batch counts.
    `own_sinks`: the pipelines whose sinks make themselves known. `hashes`: what each batch of a delivery was
    known by, `before_loss` those of a time that the store has lost. `announced`: the objects of each source that a
    message names. `passed`: the shards that a pipeline has got from another one. `forgotten`: what was found bad,
    before the store went back behind that.
    """

    folder: Path
    objects: dict[str, list[str]]
    now: float = field(default_factory=time.time)
    taken: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    bodies: dict[Receipt, list[str]] = field(default_factory=dict)
    own_sinks: set[str] = field(default_factory=set)
    hashes: dict[tuple[str, int], str] = field(default_factory=dict)
    before_loss: set[tuple[str, int]] = field(default_factory=set)
    announced: dict[str, set[str]] = field(default_factory=dict)
    log: Callable[[str], None] = lambda line: None
    remembers: bool = False
    states: deque[sqlite3.Connection] = field(default_factory=lambda: deque(maxlen=6))
    forgotten: set[str] = field(default_factory=set)
    passed: set[ShardKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.driver = self.folder / "driver"
        for source, names in self.objects.items():
            (self.folder / source).mkdir(parents=True)
            self.announced[source] = set()
            for name in names:
                self.appear(self.uri(source, name))
        self.store = self.open_store()
        with self.store.database.begin() as connection:
            connection.execute(sa.text("CREATE TABLE delivered (query TEXT, row_id TEXT)"))
            connection.commit()
        self._file = sqlite3.connect(self.folder / "store.db")
        self._version: object = None
        self.elsewhere = sa.create_engine(f"sqlite:///{self.folder}/elsewhere.db")
        with self.elsewhere.begin() as connection:
            connection.execute(sa.text("CREATE TABLE audit (query TEXT, row_id TEXT)"))
            connection.execute(sa.text("CREATE TABLE batches (hash TEXT PRIMARY KEY, query TEXT, row_ids TEXT)"))

    def close(self) -> None:
        self.store.close()
        self.elsewhere.dispose()
        self._file.close()
        for state in self.states:
            state.close()

    # --- objects and queues -------------------------------------------------------------------------------------------

    def uri(self, source: str, name: str) -> str:
        return (self.folder / source / f"{name}.json").as_uri()

    def appear(self, uri: str) -> None:
        path, name = _path(uri), f"{_path(uri).parent.name}/{_path(uri).stem}"
        path.write_text("".join(json.dumps({"row_id": f"{name}#{n}"}) + "\n" for n in range(ROWS)))

    def vanish(self, uri: str) -> None:
        _path(uri).unlink(missing_ok=True)

    def is_there(self, uri: str) -> bool:
        return _path(uri).exists()

    def stat(self, uris: Sequence[str]) -> list[ObjectStat | None]:
        return [ObjectStat(_path(uri).stat().st_size, None) if self.is_there(uri) else None for uri in uris]

    def queue_url(self, source: str) -> str:
        return f"sim://{source}?dir={self.folder}/queues"

    def open_queue(self, source: str) -> WatchedQueue:
        queue = WatchedQueue(self.queue_url(source), clock=lambda: self.now, sleep=lambda _: None)
        queue.world = self
        return queue

    def announce(self, source: str, names: Sequence[str]) -> None:
        uris = [self.uri(source, name) for name in names]
        with closing(self.open_queue(source)) as queue:
            queue.send([json.dumps(uris)])
        self.announced[source].update(uris)
        self.log(f"  {_names(uris)}")

    def waiting_messages(self) -> int:
        total = 0
        for source in self.objects:
            with closing(self.open_queue(source)) as queue:
                total += queue.depth().total
        return total

    # --- the store, and its earlier states ----------------------------------------------------------------------------

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def open_store(self) -> ShardStore:
        store = open_store(self.store_url, clock=lambda: self.now)
        engine = store.database.engine
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        engine.dispose()
        acquire = store.acquire

        def watched(token: PublishToken, seen: Mapping[ShardKey, PublishToken | None]) -> set[ShardKey]:
            won = acquire(token, seen)
            self.passed |= {key for key in won if (owner := seen[key]) is None or owner.pipeline != token.pipeline}
            return won

        store.acquire = watched  # type: ignore[method-assign]
        return store

    def remember_state(self) -> None:
        """Keep the store as it is now, for a while, if it is ever to go back.

        Not while a first batch has a plan, and its sink has not made itself known: nothing but that sink knows of it.
        """
        if not self.remembers:
            return
        unknown = self._file.execute("SELECT pipeline FROM cuesqueue_pipelines WHERE plan_hash > '' AND sink IS NULL")
        if self.own_sinks & {pipeline for (pipeline,) in unknown}:
            return
        version = self._file.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return  # nothing was committed since
        self._version = version
        state = sqlite3.connect(":memory:")
        self._file.backup(state)
        if len(self.states) == self.states.maxlen:
            self.states[0].close()
        self.states.append(state)

    def forget_earlier_states(self) -> None:
        """The store does not go back behind this moment."""
        for state in self.states:
            state.close()
        self.states.clear()
        self._version = None
        self.remember_state()

    def go_back(self, steps: int) -> None:
        """Let the store be what it was so many steps ago: a backup was restored, or a standby that lagged promoted.

        Of a batch of another sink nothing but the store knows what its tasks have found bad: without that it is done.
        """
        bad = self._bad_of_other_sinks()
        self.states[max(0, len(self.states) - 1 - steps)].backup(self._file)
        self.forgotten = bad - self._bad_of_other_sinks()
        self.before_loss = set(self.hashes)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def published(self) -> Counter[str]:
        """How often each row is in the places that sinks publish to: once, or a promise is broken."""
        rows: Counter[str] = Counter()
        for page in self.store.pages("splits", columns=["path"]):
            for (path,) in page:
                rows.update(json.loads(path.partition(":")[2]))
        for _, row in self.delivered():
            rows[row] += 1
        for taken in self.taken.values():
            rows.update(taken)
        return rows

    def delivered(self) -> list[tuple[str, str]]:
        """The rows that deliveries have put into the store's database, each with its query."""
        with self.store.database.engine.connect() as connection:
            return [(query, row) for query, row in connection.execute(sa.text("SELECT query, row_id FROM delivered"))]

    def audited(self) -> list[tuple[str, str]]:
        """The same of their second output, which is in another database."""
        with self.elsewhere.connect() as connection:
            return [(query, row) for query, row in connection.execute(sa.text("SELECT query, row_id FROM audit"))]

    def written_by_hash(self) -> list[tuple[str, str]]:
        """The same of what a user has written with the delivery hash as its key."""
        with self.elsewhere.connect() as connection:
            batches = connection.execute(sa.text("SELECT query, row_ids FROM batches")).all()
        return [(query, row) for query, rows in batches for row in json.loads(rows)]

    def shard_states(self) -> dict[str, str]:
        """The state of each shard, by URI."""
        pages = self.store.pages("shards", columns=["shard_id", "state"])
        return {shard_id: state for page in pages for shard_id, state in page}

    def opened_again(self) -> set[str]:
        pages = self.store.pages("errors", columns=["subject", "state"])
        return {subject for page in pages for subject, state in page if state == "reopened"}

    def _bad_of_other_sinks(self) -> set[str]:
        pages = self.store.pages("errors", columns=["subject", "pipeline"])
        return {subject for page in pages for subject, pipeline in page if pipeline not in self.own_sinks}

    # --- promises -----------------------------------------------------------------------------------------------------

    def check_may_be_acknowledged(self, uris: Sequence[str]) -> None:
        """Invariant 1: whatever the message announced is published, or was given up with its cause.

        What was opened again since then has another message that waits for it.
        """
        rows, states, excused = self.published(), self.shard_states(), self.opened_again() | self.forgotten
        for uri in uris:
            given_up = states.get(uri) == ShardState.QUARANTINED.value or uri in excused
            if not all(rows[row] for row in rows_of(uri)) and not given_up:
                raise Broken(f"a message is acknowledged, and {uri} is not published ({states.get(uri)})")

    def check_hash(self, digest: str, batch: tuple[str, int]) -> None:
        """A batch has one delivery hash at every attempt, and no other batch has it.

        If the store went back and the checkpoint is lost as well, a new checkpoint begins at the same offsets. With the
        same objects the same hash is right; that no output misses rows then is checked at the end.
        """
        if (before := self.hashes.setdefault(batch, digest)) != digest:
            raise Broken(f"batch {batch} had the delivery hash {before}, and has {digest} now")
        same = [other for other, its in self.hashes.items() if its == digest and other != batch]
        if others := [other for other in same if other not in self.before_loss]:
            raise Broken(f"batch {batch} has the delivery hash of {others}: {digest}")

    def check_nothing_is_doubled(self) -> None:
        uris = [(source, uri) for source, announced in self.announced.items() for uri in announced]
        passed = {row for source, uri in uris if shard_key(source, uri) in self.passed for row in rows_of(uri)}
        audited = Counter(row for row in self.audited() if row[1] not in passed)
        for name, rows in (("published", self.published()), ("audit", audited)):
            if doubled := [row for row, times in rows.items() if times > 1]:
                raise Broken(f"{name}: more than once: {doubled}")

    def check_all(self) -> None:
        """When everything has ended: each object is in one place, or was given up.

        A second output may have more than was delivered: what another pipeline has acquired after it was committed,
        and more than once, if it comes back from there.
        """
        self.check_nothing_is_doubled()
        rows, states = self.published(), self.shard_states()
        for uris in self.announced.values():
            for uri in uris:
                there = [rows[row] for row in rows_of(uri)]
                if states.get(uri) == ShardState.QUARANTINED.value or uri in self.forgotten:
                    continue  # of what may have been read before it was found bad, rows may be out; it stays closed
                if there != [1] * ROWS:
                    raise Broken(f"{uri} is {states.get(uri)}, and published {there} times")
        delivered = set(self.delivered())
        for name, others in (("audit", self.audited()), ("by hash", self.written_by_hash())):
            if missing := delivered - set(others):
                raise Broken(f"{name}: {sorted(missing)} are missing, and were delivered")


def rows_of(uri: str) -> list[str]:
    path = _path(uri)
    return [f"{path.parent.name}/{path.stem}#{n}" for n in range(ROWS)]


def _names(uris: Sequence[str]) -> str:
    return " ".join(f"{_path(uri).parent.name}/{_path(uri).stem}" for uri in uris)


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
