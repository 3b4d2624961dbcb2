"""Contract: a listing opens what is unknown and surely new, once, wherever it is broken off; and one has the turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from shard_store.completeness.listing import SURE, Claim, Compared, Found
from shard_store.errors import PipelineTakenOver
from shard_store.model import LISTING, Content, ErrorRecord, ShardState, Split
from shard_store.sql.schema import listings, sources
from shard_store.store import ShardStore
from shard_store.upkeep.pruning import RetentionPolicy
from support.store_backends import SERVERS, STALE, Pipeline, StoreBackend, content, rows

PREFIX = "s3://bucket/"
HOUR, DAY = 3600.0, 86_400.0


@dataclass
class Lister:
    """A pipeline that lists, as the reader would drive it. `ahead`: seconds by which the object store's clock is."""

    us: Pipeline
    backend: StoreBackend
    ahead: float = 0.0
    grace: float = 0.0
    claims: list[Claim] = field(default_factory=list)

    @property
    def store(self) -> ShardStore:
        return self.us.store

    def clock(self) -> int:
        return round((self.backend.clock.now + self.ahead) * 1_000_000)

    def claim(self, interval: float = DAY, *, at_once: bool = False) -> Claim | None:
        return self.store.claim_listing(self.us.token, self.us.source, PREFIX, interval, at_once=at_once)

    def listed(self, name: str, age: float = 60.0, etag: str | None = None) -> Found:
        return Found(
            Content(name, name, 10, etag, LISTING, f"listed {etag or age}"), self.clock() - int(age * 1_000_000)
        )

    def compare(self, claim: Claim, *found: Found, cursor: str | None = None) -> Compared:
        compared = self.compare_unless_lost(claim, *found, cursor=cursor)
        assert compared is not None
        return compared

    def compare_unless_lost(self, claim: Claim, *found: Found, cursor: str | None = None) -> Compared | None:
        return self.store.compare_listed(
            self.us.token,
            claim,
            found,
            objects=len(found),
            cursor=cursor,
            grace=self.grace,
            clock=self.clock,
        )

    def list(self, *found: Found) -> Compared:
        """A whole listing of one page."""
        claim = self.claim(0.0)
        assert claim is not None
        return self.compare(claim, *found)

    def opened(self, *found: Found) -> set[str]:
        return {shard.content.shard_id for shard in self.list(*found).shards}

    def deliver(self, compared: Compared) -> None:
        self.us.snapshot(*compared.shards)
        self.us.publish(self.us.plan(), Split(f"/split-{self.us.seq}", 1, 1))
        self.us.confirm()


@pytest.fixture
def lister(backend: StoreBackend) -> Lister:
    return Lister(Pipeline.start(backend.open()), backend)


def memory(store: ShardStore) -> Any:
    return store.database.read(lambda t: t.execute(sa.select(sources)).one())


def test_what_is_unknown_is_opened_once_and_what_is_known_is_left_alone(lister: Lister) -> None:
    lister.us.deliver("done")
    first = lister.list(lister.listed("done"), lister.listed("new"))
    assert [shard.content.shard_id for shard in first.shards] == ["new"]
    assert (first.opened, first.claim.objects, first.claim.opened) == (1, 2, 1)
    lister.deliver(first)
    again = lister.list(lister.listed("done"), lister.listed("new"))
    assert (again.shards, again.opened) == ([], 0)
    assert {row["shard_id"]: row["state"] for row in rows(lister.store, "shards")} == {"done": "done", "new": "done"}


def test_a_late_announcement_of_what_a_listing_has_found_is_a_duplicate(lister: Lister) -> None:
    lister.deliver(lister.list(lister.listed("a")))
    assert lister.us.open("a")["a"].state is ShardState.DONE


def test_a_listing_changes_nothing_of_what_is_open(lister: Lister) -> None:
    lister.us.open("a")
    (shard,) = lister.list(lister.listed("a", etag="older than the announcement")).shards
    assert (shard.content.etag, shard.content.message_id) == (None, "message of a")


def test_what_was_opened_and_not_said_is_said_again(lister: Lister) -> None:
    """The answer to a commit may be lost: the same page is compared again, and what is ours is not left to nobody."""
    claim = lister.claim()
    assert claim is not None
    first = lister.compare(claim, lister.listed("a"), cursor="a")
    again = lister.compare(claim, lister.listed("a"), cursor="a")
    assert [s.key for s in again.shards] == [s.key for s in first.shards]
    assert again.claim.objects == 1
    last = lister.compare(again.claim, lister.listed("b"))
    assert [s.key for s in lister.compare(again.claim, lister.listed("b")).shards] == [s.key for s in last.shards]


def test_a_source_forgets_and_its_listings_know(lister: Lister, backend: StoreBackend) -> None:
    lister.us.deliver("old")
    ended = backend.clock.now
    backend.clock.advance(8 * DAY)
    lister.us.deliver("young")
    assert memory(lister.store).forgotten_before == 0
    lister.store.prune(RetentionPolicy(timedelta(days=7)))
    assert memory(lister.store).forgotten_before == round(ended * 1_000_000)
    found = lister.list(lister.listed("old", age=8 * DAY + 1), lister.listed("young"), lister.listed("new"))
    assert [s.content.shard_id for s in found.shards] == ["new"]
    assert (found.beyond_memory, found.claim.beyond_memory) == (1, 1)


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_a_listing_that_is_forgotten_as_it_is_claimed_is_claimed_next_time(
    lister: Lister, backend: StoreBackend
) -> None:
    lister.list(lister.listed("a"))
    other, forgotten = backend.open(), list[None]()

    def forget(_1: Any, _2: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO cuesqueue_listings") and not forgotten:
            forgotten.append(None)
            other.database.write(lambda transaction: transaction.execute(listings.delete()))

    sa.event.listen(lister.store.database.engine, "after_cursor_execute", forget)
    assert lister.claim(0.0) is None
    assert lister.claim(0.0) is not None


def test_what_was_forgotten_is_not_read_again_by_a_reader_that_slept_over_its_page(
    lister: Lister, backend: StoreBackend
) -> None:
    """Its own clock has not told it so, as with that of a machine that was suspended."""
    old = lister.listed("old", age=1)
    lister.us.deliver("old")
    lister.store.prune(RetentionPolicy(max_shards=0))
    asked = lister.store.database_time()
    answered = lister.clock()
    claim = lister.claim(0.0)
    assert claim is not None
    backend.clock.advance(3 * HOUR)
    lister.store.heartbeat(lister.us.token, STALE)
    how: dict[str, Any] = {"objects": 2, "cursor": None, "grace": 0.0, "clock": lambda: answered}
    new = lister.listed("new", age=HOUR)
    compared = lister.store.compare_listed(lister.us.token, claim, [old, new], **how, at_most=answered - asked)
    assert compared is not None
    assert ([s.content.shard_id for s in compared.shards], compared.beyond_memory) == (["new"], 1)


def test_the_newest_of_what_was_pruned_by_number_counts(lister: Lister, backend: StoreBackend) -> None:
    for name in "abcd":
        lister.us.deliver(name)
        backend.clock.advance(DAY)
    lister.store.prune(RetentionPolicy(max_shards=1))
    ages = {name: backend.clock.now - lister.backend.clock.now + DAY * (4 - place) for place, name in enumerate("abcd")}
    assert memory(lister.store).forgotten_before == round((backend.clock.now - 2 * DAY) * 1_000_000)
    found = lister.list(*(lister.listed(name, age + 1) for name, age in ages.items()), lister.listed("e", DAY))
    assert ([s.content.shard_id for s in found.shards], found.beyond_memory) == (["e"], 3)


def test_pruning_of_one_source_forgets_nothing_of_another_and_never_less_than_before(backend: StoreBackend) -> None:
    store = backend.open()
    us, other = Pipeline.start(store), Pipeline.start(store, "other", "t")
    us.deliver("a")
    backend.clock.advance(8 * DAY)
    store.prune(RetentionPolicy(timedelta(days=7)))
    store.prune(RetentionPolicy(timedelta(days=7)))
    found = store.database.read(
        lambda t: dict(t.execute(sa.select(sources.c.source, sources.c.forgotten_before)).all())
    )
    assert found == {"s": round((backend.clock.now - 8 * DAY) * 1_000_000), "t": 0}
    assert other.source == "t"
    Pipeline.start(store)
    assert memory_of(store, "s") == found["s"], "a start remembers what was forgotten"


def memory_of(store: ShardStore, source: str) -> int:
    query = sa.select(sources.c.forgotten_before).where(sources.c.source == source)
    return store.database.read(lambda t: int(t.execute(query).scalar_one()))


def test_what_a_person_forgets_is_read_again(lister: Lister) -> None:
    from shard_store.shards.changes import Audit

    lister.us.deliver("a")
    lister.store.forget(list({s.key for s in lister.us.look("a").values()}), Audit("me@here"))
    assert lister.opened(lister.listed("a")) == {"a"}


@pytest.mark.parametrize("age", [-10 * DAY, -2 * HOUR], ids=["in ten days", "in two hours"])
def test_a_time_in_the_future_is_no_proof_that_an_object_is_new(
    lister: Lister, backend: StoreBackend, age: float
) -> None:
    future = lister.listed("future", age=age)
    assert lister.opened(future) == {"future"}, "of what nothing is forgotten, everything is remembered"
    lister.us.deliver("future")
    backend.clock.advance(1)
    lister.store.prune(RetentionPolicy(timedelta(0)))
    found = lister.list(future)
    assert (found.shards, found.beyond_memory) == ([], 1)


def test_a_time_that_was_in_the_future_when_it_was_set_proves_nothing_when_it_has_come(
    lister: Lister, backend: StoreBackend
) -> None:
    written = lister.clock()
    found = lister.listed("a", age=-10 * DAY)._replace(appeared=written)
    renamed = found._replace(appeared=written + int(5 * DAY) * 1_000_000)
    lister.us.deliver("a")
    backend.clock.advance(1)
    lister.store.prune(RetentionPolicy(timedelta(0)))
    for days in (0, 9, 11):
        backend.clock.advance(days * DAY)
        assert [lister.list(one).beyond_memory for one in (found, renamed)] == [1, 1], days
    assert lister.opened(lister.listed("new", age=60)._replace(appeared=lister.clock())) == {"new"}


@pytest.mark.parametrize("ahead", [-HOUR, 0.0, HOUR], ids=["an hour behind", "the same", "an hour ahead"])
def test_the_object_stores_clock_may_be_another(lister: Lister, backend: StoreBackend, ahead: float) -> None:
    """Both are seen, so the difference is known: nothing is read twice, and nothing is left out for it."""
    lister.ahead = ahead
    lister.us.deliver("old")
    backend.clock.advance(8 * DAY)
    lister.store.prune(RetentionPolicy(timedelta(days=7)))
    after = SURE / 1_000_000
    found = lister.list(
        lister.listed("old", age=8 * DAY + 10),
        lister.listed("perhaps forgotten", age=8 * DAY - after + 10),
        lister.listed("surely not", age=8 * DAY - after - 10),
    )
    assert [s.content.shard_id for s in found.shards] == ["surely not"]
    assert found.beyond_memory == 2


@pytest.mark.parametrize("ahead", [-HOUR, 0.0, HOUR], ids=["an hour behind", "the same", "an hour ahead"])
def test_what_existed_before_the_first_listing_may_be_left_out_for_ever(
    lister: Lister, backend: StoreBackend, ahead: float
) -> None:
    lister.ahead = ahead
    backend.clock.now += 0.5
    lister.store.leave_existing(lister.us.token, "s")
    before, after = lister.listed("before", age=1.0), lister.listed("after", age=-1.0)
    within = Found(content("within the second"), lister.clock() - 500_000)  # of stores that tell whole seconds
    assert within.modified % 1_000_000 == 0
    backend.clock.advance(DAY)
    for expected in ({"after", "within the second"}, {"after", "within the second"}):
        assert lister.opened(before, within, after) == expected
    lister.store.leave_existing(lister.us.token, "s")
    assert memory(lister.store).existing_before == round((backend.clock.now - DAY) * 1_000_000)


def test_what_appeared_later_with_an_older_time_did_not_exist_and_what_did_is_counted(lister: Lister) -> None:
    lister.store.leave_existing(lister.us.token, "s")
    moved_in = lister.listed("moved in", age=DAY)._replace(appeared=lister.clock())
    there = lister.listed("there", age=DAY)._replace(appeared=lister.clock() - 60_000_000)
    claim = lister.claim()
    assert claim is not None
    first = lister.compare(claim, moved_in, there, cursor="x")
    assert ({s.content.shard_id for s in first.shards}, first.existing) == ({"moved in"}, 1)
    last = lister.compare(first.claim, lister.listed("there too", age=DAY))
    assert (last.existing, last.claim.existing, last.beyond_memory) == (1, 2, 0)
    row = lister.store.database.read(lambda t: t.execute(sa.select(listings)).one())
    assert row.existing == 2


def test_memory_goes_by_the_time_of_the_last_change_and_not_by_that_of_the_name(
    lister: Lister, backend: StoreBackend
) -> None:
    """A change of its rights alone gives a file a new time of the kernel; what was read is not read again for it."""
    lister.us.deliver("old")
    backend.clock.advance(8 * DAY)
    lister.store.prune(RetentionPolicy(timedelta(days=7)))
    found = lister.list(lister.listed("old", age=8 * DAY + 10)._replace(appeared=lister.clock()))
    assert (found.shards, found.beyond_memory, found.existing) == ([], 1, 0)


def test_existing_objects_are_not_left_out_any_more_once_the_source_was_listed(lister: Lister) -> None:
    lister.list()
    lister.store.leave_existing(lister.us.token, "s")
    assert memory(lister.store).existing_before is None
    assert lister.opened(lister.listed("old", age=DAY)) == {"old"}


def test_existing_objects_are_left_out_of_a_source_that_was_never_listed_at_all(
    lister: Lister, backend: StoreBackend
) -> None:
    """A start with other prefixes leaves out nothing that the listing of an earlier one is still to find."""
    Lister(Pipeline.start(backend.open(), "other", "t"), backend).list()
    lister.list()
    leave(lister)
    assert memory_of_existing(lister.store, "s") is None
    new = Pipeline.start(backend.open(), "new", "u")
    leave(Lister(new, backend))
    assert memory_of_existing(new.store, "u") is not None


def memory_of_existing(store: ShardStore, source: str) -> Any:
    query = sa.select(sources.c.existing_before).where(sources.c.source == source)
    return store.database.read(lambda t: t.execute(query).scalar_one())


def leave(lister: Lister) -> None:
    lister.store.leave_existing(lister.us.token, lister.us.source)


def test_what_is_younger_than_the_grace_is_left_to_its_message(lister: Lister, backend: StoreBackend) -> None:
    lister.grace = 600.0
    ages = {"young": 599.0, "old": 601.0, "in the future": -599.0, "far in the future": -DAY}
    found = [lister.listed(name, age) for name, age in ages.items()]
    assert lister.opened(*found) == {"old", "far in the future"}
    backend.clock.advance(1200)
    assert lister.opened(*found) == set(ages), "those of before are ours still, and said again"


def test_an_object_that_was_read_before_overwrites_were_allowed_is_not_read_again(
    lister: Lister, backend: StoreBackend
) -> None:
    plain = [Content("same", "same", 10, "e1"), Content("other", "other", 10, "e1"), Content("unknown", "unknown")]
    found = lister.store.open_shards(lister.us.token, "s", plain)
    lister.us.snapshot(*found.values())
    lister.us.publish(lister.us.plan())
    lister.us.confirm()

    def versioned(uri: str, etag: str, age: float) -> Found:
        return Found(
            Content(f"{uri}#{etag}", uri, 10, etag, LISTING, f"listed {etag}"), lister.clock() - int(age * 1e6)
        )

    assert lister.opened(versioned("same", "e1", 60), versioned("other", "e2", 60)) == {"other#e2"}
    backend.clock.advance(HOUR)
    assert lister.opened(versioned("unknown", "e1", HOUR + 60)) == set()
    assert lister.opened(versioned("unknown", "e3", -10 * DAY)) == set(), "a time that is set proves nothing"
    assert lister.opened(versioned("unknown", "e2", 60)) == {"unknown#e2"}


# --- quarantined ---


def quarantine(lister: Lister, cause: str, shards: Sequence[Any]) -> None:
    lister.us.snapshot(*shards)
    plan = lister.us.plan()
    records = [
        ErrorRecord("object", cause, "why", s.content.shard_id, plan.identity.delivery_hash, s.position) for s in shards
    ]
    lister.store.record_errors("s", "p", records)
    lister.us.publish(plan)
    lister.us.confirm()


@pytest.mark.parametrize("cause", ["missing-object", "object-changed", "forbidden-object"])
def test_a_listing_opens_what_was_missing_or_changed_once_for_each_version(lister: Lister, cause: str) -> None:
    quarantine(lister, cause, list(lister.us.open("a").values()))
    first = lister.list(lister.listed("a", etag="v1"))
    assert (first.reopened, first.opened) == (1, 0)
    assert first.shards[0].content.etag == "v1"
    quarantine(lister, cause, first.shards)
    assert lister.list(lister.listed("a", etag="v1")).shards == []
    assert lister.opened(lister.listed("a", etag="v2")) == {"a"}


def test_a_listing_does_not_open_what_is_bad_for_other_reasons(lister: Lister) -> None:
    quarantine(lister, "corrupt-object", list(lister.us.open("a").values()))
    assert lister.list(lister.listed("a", etag="v1")).shards == []


def test_a_quarantined_object_with_a_time_in_the_future_is_opened_once_and_not_when_it_is_forgotten(
    lister: Lister, backend: StoreBackend
) -> None:
    quarantine(lister, "missing-object", list(lister.us.open("a").values()))
    future = lister.listed("a", age=-10 * DAY)
    again = lister.list(future)
    assert again.reopened == 1
    quarantine(lister, "missing-object", again.shards)
    assert lister.list(future).shards == []
    backend.clock.advance(1)
    lister.store.prune(RetentionPolicy(timedelta(0)))
    assert lister.list(future).beyond_memory == 1


# --- other pipelines ---


def test_shards_of_a_pipeline_that_lives_are_left_to_it_and_those_of_a_dead_one_are_offered(
    lister: Lister, backend: StoreBackend
) -> None:
    other = Pipeline.start(lister.store, "other")
    (shard,) = other.open("a").values()
    assert lister.list(lister.listed("a")).shards == []
    backend.clock.advance(STALE + 1)
    lister.store.heartbeat(lister.us.token, STALE)
    (found,) = lister.list(lister.listed("a")).shards
    assert found.stale
    assert lister.store.acquire(lister.us.token, {found.key: found.token}) == {shard.key}


def test_what_is_in_an_ordered_group_is_left_to_its_message(lister: Lister, backend: StoreBackend) -> None:
    other = Pipeline.start(lister.store, "other")
    lister.store.open_shards(other.token, "s", [content("a")._replace(group="g")])
    backend.clock.advance(STALE + 1)
    assert lister.list(lister.listed("a")).shards == []


def test_what_a_dead_pipeline_found_by_listing_is_found_without_a_message(
    lister: Lister, backend: StoreBackend
) -> None:
    other = Pipeline.start(backend.open(), "other")
    lister.list(lister.listed("a"), lister.listed("b"))
    lister.us.open("announced")
    assert other.store.abandoned("s", 10) == []
    backend.clock.advance(STALE + 1)
    other.store.heartbeat(other.token, STALE)
    found = other.store.abandoned("s", 10)
    assert {s.content.shard_id for s in found} == {"a", "b"}
    assert len(other.store.abandoned("s", 1)) == 1
    assert other.store.abandoned("t", 10) == []
    assert other.store.acquire(other.token, {s.key: s.token for s in found}) == {s.key for s in found}
    assert other.store.abandoned("s", 10) == []


def test_a_released_shard_of_a_listing_is_never_pruned(lister: Lister, backend: StoreBackend) -> None:
    found = lister.list(lister.listed("a")).shards
    lister.us.open("announced")
    everything = [*found, *lister.us.look("announced").values()]
    lister.store.release(lister.us.token, [s.key for s in everything])
    backend.clock.advance(100 * DAY)
    lister.store.prune(RetentionPolicy(timedelta(days=7)))
    assert {row["shard_id"] for row in rows(lister.store, "shards")} == {"a"}
    assert lister.opened(lister.listed("a", age=100 * DAY)) == {"a"}


# --- whose turn it is ---


def test_one_pipeline_lists_an_interval_and_anybody_the_next(lister: Lister, backend: StoreBackend) -> None:
    other = Lister(Pipeline.start(backend.open(), "other"), backend)
    claim = lister.claim()
    assert claim is not None
    assert other.claim() is None
    assert other.claim(at_once=True) is None, "it is under way"
    lister.compare(claim)
    assert lister.claim() is None
    assert other.claim() is None
    backend.clock.advance(DAY - 1)
    assert other.claim() is None
    backend.clock.advance(1)
    assert other.claim() is not None
    other.store.heartbeat(other.us.token, STALE)
    assert lister.claim() is None


def test_sources_and_prefixes_are_listed_apart(lister: Lister, backend: StoreBackend) -> None:
    other = Pipeline.start(backend.open(), "other", "t")
    assert lister.claim() is not None
    assert other.store.claim_listing(other.token, "t", PREFIX, DAY) is not None
    assert lister.store.claim_listing(lister.us.token, "s", "s3://other/", DAY) is not None


def test_a_reader_may_list_at_once_though_the_interval_is_not_over(lister: Lister) -> None:
    lister.list()
    assert lister.claim() is None
    assert lister.claim(at_once=True) is not None


def test_a_broken_listing_goes_on_where_it_was_by_its_owner_at_once(lister: Lister) -> None:
    claim = lister.claim()
    assert claim is not None
    after = lister.compare(claim, lister.listed("a"), cursor="a").claim
    assert lister.claim() == after
    lister.us = Pipeline.start(lister.store)
    assert lister.claim() == after


def test_a_broken_listing_goes_on_where_it_was_by_another_when_its_owner_is_dead(
    lister: Lister, backend: StoreBackend
) -> None:
    other = Lister(Pipeline.start(backend.open(), "other"), backend)
    claim = lister.claim()
    assert claim is not None
    after = lister.compare(claim, lister.listed("a"), cursor="a").claim
    assert other.claim() is None
    backend.clock.advance(STALE + 1)
    assert other.claim() == after
    lister.store.heartbeat(lister.us.token, STALE)
    assert lister.compare_unless_lost(after, lister.listed("b"), cursor="b") is None
    assert lister.us.look("b") == {}, "nothing of a page that another will list"


def test_a_listing_that_makes_no_progress_may_be_taken_from_an_owner_that_lives(
    lister: Lister, backend: StoreBackend
) -> None:
    other = Lister(Pipeline.start(backend.open(), "other"), backend)
    assert lister.claim(600.0) is not None
    for _ in range(20):
        backend.clock.advance(29)
        lister.store.heartbeat(lister.us.token, STALE)
        other.store.heartbeat(other.us.token, STALE)
        assert other.claim(600.0) is None
    backend.clock.advance(20)
    assert other.claim(600.0) is not None


def test_after_a_graceful_stop_others_need_not_wait(lister: Lister, backend: StoreBackend) -> None:
    other = Lister(Pipeline.start(backend.open(), "other"), backend)
    claim = lister.claim()
    assert claim is not None
    after = lister.compare(claim, lister.listed("a"), cursor="a").claim
    lister.store.let_go_of_listings(lister.us.token, "s", [PREFIX])
    assert other.claim() == after
    lister.store.let_go_of_listings(lister.us.token, "s", [PREFIX])
    assert lister.claim() is None, "what another goes on with is not ours to let go"


def test_a_listing_whose_page_fails_twice_begins_anew(lister: Lister, backend: StoreBackend) -> None:
    claim = lister.claim()
    assert claim is not None
    after = lister.compare(claim, lister.listed("a"), cursor="a").claim
    assert not lister.store.fail_listing(lister.us.token, "s", PREFIX)
    assert lister.claim() == after, "once is no reason"
    backend.clock.advance(60)
    assert lister.store.fail_listing(lister.us.token, "s", PREFIX)
    anew = lister.claim()
    assert anew == Claim("s", PREFIX, claim.began_at + 60_000_000)
    assert not lister.store.fail_listing(lister.us.token, "s", PREFIX)
    assert lister.claim() == anew


def test_a_page_that_is_read_makes_the_failures_before_it_no_reason(lister: Lister) -> None:
    claim = lister.claim()
    assert claim is not None
    for name in "abc":
        assert not lister.store.fail_listing(lister.us.token, "s", PREFIX)
        claim = lister.compare(claim, lister.listed(name), cursor=name).claim
        assert lister.claim() == claim


def test_failures_count_for_all_pipelines_and_only_of_whose_listing_it_is(
    lister: Lister, backend: StoreBackend
) -> None:
    other = Lister(Pipeline.start(backend.open(), "other"), backend)
    claim = lister.claim()
    assert claim is not None
    after = lister.compare(claim, lister.listed("a"), cursor="a").claim
    lister.store.fail_listing(lister.us.token, "s", PREFIX)
    assert not other.store.fail_listing(other.us.token, "s", PREFIX)
    lister.store.let_go_of_listings(lister.us.token, "s", [PREFIX])
    assert other.claim() == after
    assert other.store.fail_listing(other.us.token, "s", PREFIX)


def test_a_zombie_neither_claims_nor_opens(lister: Lister) -> None:
    claim = lister.claim()
    assert claim is not None
    Pipeline.start(lister.store)
    with pytest.raises(PipelineTakenOver):
        lister.compare_unless_lost(claim, lister.listed("a"))
    with pytest.raises(PipelineTakenOver):
        lister.claim()
    assert lister.us.look("a") == {}


def test_the_store_says_what_was_listed(lister: Lister, backend: StoreBackend) -> None:
    lister.list(lister.listed("a"), lister.listed("b"))
    row = lister.store.database.read(lambda t: t.execute(sa.select(listings)).one())
    assert (row.source, row.prefix, row.owner, row.objects, row.opened) == ("s", PREFIX, "p", 2, 2)
    assert row.ended_at == round(backend.clock.now * 1_000_000)
    assert row.cursor is None


def find_bad(us: Pipeline, name: str) -> None:
    us.snapshot(*us.open(name).values())
    plan = us.plan()
    bad = ErrorRecord("object", "missing-object", "", name, plan.identity.delivery_hash)
    us.store.record_errors("s", us.token.pipeline, [bad])
    us.publish(plan)
    us.confirm()


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_what_is_announced_while_a_listing_finds_it_is_read_as_announced(lister: Lister, backend: StoreBackend) -> None:
    """The listing may be older. It has seen the object bad, and finds it open once it is locked."""
    find_bad(lister.us, "a")
    other = Pipeline.start(backend.open(), "other")
    newest = content("a")._replace(etag="newest", message_id="later")
    opened: list[bool] = []

    def announce(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not opened and statement.startswith("SELECT cuesqueue_shards.") and statement.endswith("FOR UPDATE"):
            opened.extend(shard.reopened for shard in other.store.open_shards(other.token, "s", [newest]).values())

    sa.event.listen(lister.store.database.engine, "before_cursor_execute", announce)
    claim = lister.claim()
    assert claim is not None
    assert lister.compare(claim, lister.listed("a", etag="older")).opened == 0
    assert opened == [True]
    assert other.look("a")["a"].content.etag == "newest"


@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_what_is_pruned_while_a_listing_finds_it_is_new(lister: Lister, backend: StoreBackend) -> None:
    """It was bad, and is another version by now. On SQLite no other transaction comes between."""
    us, store = lister.us, backend.open()
    find_bad(us, "a")
    backend.run_for(8 * DAY)
    store.prune(RetentionPolicy(timedelta(days=9)))
    pruned: list[int] = []

    def prune(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not pruned and "LEFT OUTER JOIN cuesqueue_pipelines" in statement and "cuesqueue_shards" in statement:
            pruned.append(store.prune(RetentionPolicy(timedelta(days=7))).shards)

    sa.event.listen(lister.store.database.engine, "before_cursor_execute", prune)
    claim = lister.claim()
    assert claim is not None
    compared = lister.compare(claim, lister.listed("a", etag="other"))
    assert pruned == [1]
    assert compared.opened == 1
    assert [shard.token for shard in compared.shards] == [us.token]
