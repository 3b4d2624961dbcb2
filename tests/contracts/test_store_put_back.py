"""Contract: a store that is put back from any step of a pipeline's first batches to any step before tells no lie.

A model of Spark, of a queue and of where the rows are goes through all pairs of steps, with each kind of sink and each
end of the reader in between. At the end all that was announced is published where the store says so, is called
something else, or an error was raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from shard_store.completeness.comparing import Category, ListedShard
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError
from shard_store.model import DELIVERY, SINK, Content, Plan, Range, Semantics, ShardState, Split, end_at
from shard_store.shards.activity import Report
from shard_store.sql.schema import metadata, pipelines
from shard_store.store import ShardStore
from support.store_backends import BACKENDS, STALE, StoreBackend, rows

PART = ("open", "offset", "plan", "known", "publish", "done")
"""The steps of a batch; the next one's `offset` confirms it."""
STEPS = ("start", *(f"{step} {number}" for number in (1, 2) for step in PART), "open 3", "offset 3")
SINKS = (SINK, DELIVERY, "another")


class Life:
    """A query, its checkpoint, its queue and its target."""

    def __init__(self, backend: StoreBackend, sink: str, semantics: Semantics) -> None:
        self.backend, self.sink, self.semantics = backend, sink, semantics
        self.store = backend.open()
        self.queue: dict[str, str] = {}  # messages that are not acknowledged, by object
        self.batches: dict[int, int] = {}  # the checkpoint: the end of each batch; `finished` are those that are done
        self.finished: set[int] = set()
        self.taken: dict[int, set[str]] = {}  # by another sink: the first attempt at a batch counts
        self.unread: dict[str, Range] = {}
        self.confirmed = 0
        self.number = 0

    def start(self) -> None:
        self.store = self.backend.open()
        started = self.store.start("s", "p", stale_after=STALE, semantics=self.semantics, settings={})
        self.token, self.seq, self.confirmed = started.token, started.last_seq, started.confirmed_seq
        self.unread = {}
        planned = {entry.key for part in started.unconfirmed for entry in part.ranges}
        self._offer(shard for shard in started.unfinished if shard.key not in planned)

    def step(self, name: str) -> None:
        kind, _, number = name.partition(" ")
        self.number = int(number or 0)
        getattr(self, kind)()

    def open(self) -> None:
        """Two messages come, beside those that come again."""
        if self.number:
            self.queue |= {f"{name}{self.number}": f"m{name}{self.number}" for name in "ab"}
        contents = [Content(name, name, 10, None, "q", message) for name, message in self.queue.items()]
        opened = self.store.open_shards(self.token, "s", contents) if contents else {}
        self._offer(opened.values())

    def offset(self) -> None:
        """Spark asks for the next offset: what is before is done."""
        start = self.batches[max(self.finished)] if self.finished else 0
        self._confirm(start)
        if self.unread:
            ranges = tuple(self.unread.values())
            self.store.advance(self.token, snapshot=(self.seq + 1, ranges))
            self.seq += 1
            self.unread = {}
        if self.seq > start:
            self.batches[len(self.batches)] = self.seq

    def plan(self) -> None:
        if (batch := self._running()) is None:
            return
        start = self.batches.get(batch - 1, 0)
        self._confirm(start)
        self.planned: Plan = self.store.plan(self.token, start, self.batches[batch])

    def known(self) -> None:
        if self._running() is not None and self.sink != "another":
            self.identity = self.store.take_plan("p", None, self.sink)

    def publish(self) -> None:
        if (batch := self._running()) is None:
            return
        names = {entry.content.shard_id for entry in self.planned.ranges}
        if self.sink == "another":
            self.taken.setdefault(batch, names)
        else:
            self.store.publish([self.identity], [Split("/" + " ".join(sorted(names)), len(names), 1)], batch_id=batch)

    def done(self) -> None:
        if (batch := self._running()) is not None:
            self.finished.add(batch)

    def _running(self) -> int | None:
        last = max(self.batches, default=None)
        return None if last is None or last in self.finished else last

    def _confirm(self, seq: int) -> None:
        if seq <= self.confirmed:
            return
        keys = [shard.key for shard in self.look().values()]
        finished = self.store.advance(self.token, confirm=seq, keys=keys).finished
        self.confirmed = seq
        for name, shard in self.look().items():
            if shard.key in finished:
                self.queue.pop(name, None)
            elif shard.token == self.token:
                self._offer([shard])

    def look(self) -> dict[str, Any]:
        from shard_store.model import shard_key

        names = [f"{name}{number}" for name in "ab" for number in (1, 2, 3)]
        found = self.store.look([shard_key("s", name) for name in names])
        return {shard.content.shard_id: shard for shard in found.values()}

    def _offer(self, shards: Any) -> None:
        for shard in shards:
            if shard.state is ShardState.OPEN and shard.token == self.token:
                content = shard.content
                self.unread[content.shard_id] = Range(shard.key, content, shard.position, end_at(content.size or 0))

    # what happens

    def stop(self) -> None:
        try:
            self.store.retire(self.token, Report(stopped=True))
        except LostProgress:  # it is logged, and nothing is acknowledged any more
            return

    def goes_on(self) -> None:
        pass

    def ends_and_starts(self) -> None:
        self.stop()
        self.start()

    def dies_and_starts(self) -> None:
        self.backend.clock.advance(2 * STALE)
        self.start()

    def dies_and_stops_again(self) -> None:
        """A start after it plans nothing before its end."""
        self.dies_and_starts()
        self.stop()
        self.start()

    def end(self) -> None:
        """Spark repeats what its log has, and goes on until nothing is left."""
        self.number = 0
        for turn in range(4):
            if self._running() is None:
                if turn:
                    self.open()
                self.offset()
            for step in PART[2:]:
                getattr(self, step)()

    def found(self) -> set[str]:
        if self.sink == "another":
            return {name for names in self.taken.values() for name in names}
        return {name for split in rows(self.store, "splits") for name in split["path"][1:].split()}


def kept(store: ShardStore) -> Callable[[], None]:
    """Remember the store as it is; returns what puts it back to that."""
    tables = list(metadata.sorted_tables)
    with store.database.engine.connect() as connection:
        then = {table: [row._asdict() for row in connection.execute(sa.select(table))] for table in tables}

    def put_back() -> None:
        with store.database.engine.begin() as connection:
            for table in reversed(tables):
                connection.execute(table.delete())
            for table in tables:
                if then[table]:
                    connection.execute(table.insert(), then[table])

    return put_back


ENDS = ("goes_on", "ends_and_starts", "dies_and_starts", "dies_and_stops_again")


QUICK = {("exactly-once", SINK, "goes_on"), ("exactly-once", DELIVERY, "ends_and_starts")}
CASES = [
    pytest.param(kind, *case, marks=() if is_quick else pytest.mark.thorough)
    for kind in BACKENDS
    for case in itertools.product((Semantics.EXACTLY_ONCE, Semantics.AT_MOST_ONCE), SINKS, ENDS)
    if (is_quick := (case[0].value, *case[1:]) in QUICK) or kind == "sqlite"  # all pairs are 20 s of a server
]


@pytest.mark.parametrize(("backend", "semantics", "sink", "happens"), CASES, indirect=["backend"])
def test_a_store_that_goes_back_is_noticed_or_says_what_is_not_there(
    backend: StoreBackend, semantics: Semantics, sink: str, happens: str
) -> None:
    noticed = whole = 0
    for first, last in itertools.combinations(range(len(STEPS)), 2):
        backend.close()  # a case that is noticed ends anywhere, and a server has few connections
        backend.wipe()
        life = Life(backend, sink, semantics)
        for name in STEPS[: first + 1]:
            life.step(name)
        put_back = kept(life.store)
        for name in STEPS[first + 1 : last + 1]:
            life.step(name)
        put_back()
        life.store.database.memory.connection_broke()
        try:
            getattr(life, happens)()
            life.end()
        except (LostProgress, PipelineTakenOver):
            noticed += 1
            continue
        except ShardStoreError as error:
            if not any(why in str(error) for why in ("no plan", "is not the one that was planned last")):
                raise
            noticed += 1
            continue
        whole += 1
        listed = [ListedShard(f"{name}{number}", 10, None, 0) for name in "ab" for number in (1, 2, 3)]
        said = dict(zip([entry.shard_id for entry in listed], life.store.compare("s", listed), strict=True))
        lies = {name for name, finding in said.items() if finding.category is Category.PUBLISHED} - life.found()
        assert not lies, f"{STEPS[first]} <- {STEPS[last]}: {lies} are not there"
    assert noticed
    assert whole


def test_a_reader_that_ends_says_nothing_to_a_store_that_went_back(backend: StoreBackend) -> None:
    """Its last word would tell that its last batch was another sink's, since ours makes itself known before that."""
    life = Life(backend, SINK, Semantics.EXACTLY_ONCE)
    for name in ("start", "open 1", "offset 1", "plan 1"):
        life.step(name)
    put_back = kept(life.store)
    for name in ("known 1", "publish 1", "done 1"):
        life.step(name)
    life.store.heartbeat(life.token, STALE)
    put_back()  # in the same place: no connection breaks
    with pytest.raises(LostProgress, match="has gone back in time"):
        life.store.retire(life.token, Report(stopped=True))
    life.start()
    life._confirm(life.batches[0])
    listed = [ListedShard(name, 10, None, 0) for name in ("a1", "b1")]
    assert {finding.category for finding in life.store.compare("s", listed)} == {Category.GIVEN_UP}


def test_a_first_batch_that_a_stop_has_interrupted_is_nobodys_when_it_runs_again(backend: StoreBackend) -> None:
    life = Life(backend, SINK, Semantics.EXACTLY_ONCE)
    for name in ("start", "open 1", "offset 1", "plan 1", "ends_and_starts", "plan 1"):
        life.step(name)
    put_back = kept(life.store)
    for name in ("known 1", "publish 1", "done 1"):
        life.step(name)
    put_back()
    life.dies_and_starts()
    life.end()
    listed = [ListedShard(name, 10, None, 0) for name in ("a1", "b1")]
    assert {finding.category for finding in life.store.compare("s", listed)} == {Category.GIVEN_UP}


@pytest.mark.parametrize("plans", ["before", "again"])
def test_a_first_batch_of_which_another_pipeline_has_read_a_part_since_is_said_to_be_there_twice(
    backend: StoreBackend, plans: str
) -> None:
    """It may be in a table of its own, and nothing tells: no sink had made itself known by then."""
    life = Life(backend, SINK, Semantics.EXACTLY_ONCE)
    for name in ("start", "open 1", "offset 1", "plan 1"):
        life.step(name)
    if plans == "again":
        life.dies_and_starts()
        life.step("plan 1")
    put_back = kept(life.store)
    for name in ("known 1", "publish 1", "done 1"):
        life.step(name)
    put_back()
    life.store.database.memory.connection_broke()
    backend.clock.advance(2 * STALE)
    other = life.store.start("s", "other", stale_after=STALE, settings={}).token
    left = life.look()["a1"]
    assert life.store.acquire(other, {left.key: left.token}) == {left.key}
    life.start()
    with pytest.raises(LostProgress, match=r"1 shard\(s\) of it .* another pipeline .* in one of both"):
        life._confirm(life.batches[0])
    assert life.look()["b1"].state is ShardState.OPEN  # nothing is changed
    confirmed = life.store.advance(life.token, confirm=life.batches[0], fail_on_data_loss=False)
    assert [move.key for move in confirmed.lost] == [left.key]
    listed = [ListedShard(name, 10, None, 0) for name in ("a1", "b1")]
    said = [finding.category for finding in life.store.compare("s", listed)]
    assert said == [Category.WAITING, Category.GIVEN_UP]


@pytest.mark.parametrize("happens", ENDS)
@pytest.mark.parametrize("sink", SINKS)
def test_without_a_loss_all_is_published_whatever_ends_between_two_steps(
    backend: StoreBackend, sink: str, happens: str
) -> None:
    """But what another sink has taken in the first batch, if the query was killed before it was confirmed."""
    for place in range(len(STEPS)):
        backend.close()
        backend.wipe()
        life = Life(backend, sink, Semantics.EXACTLY_ONCE)
        for name in STEPS[: place + 1]:
            life.step(name)
        getattr(life, happens)()
        life.end()
        listed = [ListedShard(name, 10, None, 0) for name in sorted(life.look())]
        said = {f.category for f in life.store.compare("s", listed)}
        is_first = sink == "another" and happens.startswith("dies") and STEPS[place] in ("done 1", "open 2")
        assert said <= {Category.PUBLISHED, Category.GIVEN_UP} if is_first else said <= {Category.PUBLISHED}
        assert life.found() >= {entry.shard_id for entry in listed}
        with life.store.database.engine.connect() as connection:
            known = connection.execute(sa.select(pipelines.c.sink)).scalar_one()
        assert known in ((None, "other") if sink == "another" else (None, sink))
