"""A message is complete once, when all it announced is finished, in whatever order and however often that is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.messages import UNACKNOWLEDGED, State
from queue_source.coordinator.ready import Limits
from queue_source.messages import MessageKey, Receipt, key_of
from shard_store.model import BEGINNING, Content, PublishToken, Shard, ShardKey, ShardState, Snapshot
from support.deliveries import TERMS, hold, received

TOKEN = PublishToken("p", 1)
SHARDS = [ShardKey(bytes([number])) for number in range(6)]
MESSAGES = [("q", Receipt(str(number))) for number in range(5)]


def in_flight(messages: Iterable[MessageKey] = MESSAGES) -> InFlight:
    """They are in our hands, and not opened."""
    held = InFlight(["q"], Limits(messages=100, work=100))
    hold(held, [received(message) for message in messages])
    held.begin_opening(len(MESSAGES), 0.0)
    held.end_opening()
    return held


def content(key: ShardKey, size: int = 10) -> Content:
    return Content(key.hex(), key.hex(), size, queue="q")


def shard(key: ShardKey) -> Shard:
    return Shard(key, content(key), BEGINNING, ShardState.OPEN, TOKEN, stale=False)


announced = st.lists(st.lists(st.sampled_from(SHARDS), min_size=1), min_size=1, max_size=len(MESSAGES))
events = st.lists(st.lists(st.sampled_from(SHARDS)), max_size=20)


@given(announced, events)
def test_each_message_completes_exactly_when_its_last_shard_does(
    announced: list[list[ShardKey]], events: list[list[ShardKey]]
) -> None:
    waiting = dict(zip(MESSAGES, map(set, announced), strict=False))
    held = in_flight(waiting)
    held.announce(Opened(message, {key: content(key) for key in keys}) for message, keys in waiting.items())
    finished: set[ShardKey] = set()
    for event in [*events, SHARDS]:  # the same shard may be finished again and again, also within one event
        before = {message for message, keys in waiting.items() if keys <= finished}
        complete = held.finish(event).complete
        finished |= set(event)
        assert set(complete) == {message for message, keys in waiting.items() if keys <= finished} - before
        assert len(complete) == len(set(complete))
        held.leave(complete)
    assert held.awaited(SHARDS) == set()
    assert held.empty() == ([], [], [], [], [])
    assert held.counts().bytes == 0


step = st.one_of(
    st.tuples(st.just("offer"), st.sampled_from(SHARDS)),
    st.tuples(st.just("watch"), st.sampled_from(SHARDS)),
    st.tuples(st.just("finish"), st.sampled_from(SHARDS)),
    st.tuples(st.just("leave"), st.sampled_from(SHARDS)),
    st.tuples(st.just("snapshot"), st.sampled_from(SHARDS)),
    st.tuples(st.just("fail"), st.sampled_from(SHARDS)),
    st.tuples(st.just("confirm"), st.sampled_from(SHARDS)),
)


@given(st.lists(step, max_size=40), st.integers(1, 4))
def test_a_shard_is_in_one_place_only_and_the_bytes_held_are_those_of_what_is_there(
    steps: list[tuple[str, ShardKey]], files: int
) -> None:
    held, seq = in_flight(), 0
    held.announce(Opened(message, {key: content(key)}) for message, key in zip(MESSAGES, SHARDS, strict=False))
    for what, key in steps:
        if what == "offer":
            held.offer([shard(key)])
        elif what == "watch":
            held.watch([shard(key)])
        elif what == "finish" and key not in held.planned_until(seq):  # what is planned is ours until it is confirmed
            held.leave(held.finish([key]).complete)
        elif what == "leave":
            held.leave([MESSAGES[SHARDS.index(key) % len(MESSAGES)]])
        elif what == "snapshot" and (ranges := held.take(files, None)):
            seq += 1
            held.plan(Snapshot(seq, ranges))
        elif what == "fail":
            before = held.counts()
            held.take(files, None)
            held.put_back()
            assert held.counts() == before
        elif what == "confirm":
            held.confirm(seq)
        planned, foreign = set(held.planned_until(seq)), set(held.foreign())
        counts = held.counts()
        assert not planned & foreign
        assert (counts.planned, counts.held) == (len(planned), len(foreign))
        assert counts.ready + len(planned | foreign) <= len(SHARDS)
        assert counts.bytes == 10 * (counts.ready + counts.planned)


@given(st.permutations(SHARDS), st.integers(1, 6))
def test_everything_is_taken_by_arrival_in_whatever_order_the_store_gives_it(
    given_back: list[ShardKey], files: int
) -> None:
    held = in_flight()
    held.announce([Opened(MESSAGES[0], {key: content(key) for key in SHARDS})])
    held.offer(shard(key) for key in given_back)
    taken: list[ShardKey] = []
    while ranges := held.take(files, None):
        taken += [entry.key for entry in ranges]
        held.plan(Snapshot(len(taken), ranges))
    assert taken == SHARDS


class Hands:
    """What is in a reader's hands by the simplest bookkeeping, beside the reader's own."""

    def __init__(self) -> None:
        self.held = InFlight(["q"], Limits(messages=100, work=100))
        self.now = 0.0
        self.unopened: set[MessageKey] = set()
        self.waiting: dict[MessageKey, set[ShardKey]] = {}
        self.asked: list[MessageKey] = []
        self.finished: set[ShardKey] = set()

    def here(self) -> set[MessageKey]:
        return {*self.unopened, *self.waiting, *self.asked}

    def forget(self, keys: Iterable[MessageKey]) -> None:
        for key in keys:
            self.unopened.discard(key)
            self.waiting.pop(key, None)
        self.asked = [key for key in self.asked if key not in keys]

    def receive(self, number: int) -> None:
        key = MESSAGES[number]
        if key not in self.here():
            hold(self.held, [replace(received(key), lease_until=self.now + TERMS.period)])
            self.unopened.add(key)

    def open(self, number: int) -> None:
        keys = [key_of(message) for message in self.held.begin_opening(number + 1, 0.0)]
        pending = {key: {*SHARDS[MESSAGES.index(key) :][: number % 3]} - self.finished for key in keys}
        self.held.announce(Opened(key, {shard: content(shard) for shard in pending[key]}) for key in keys)
        self.held.end_opening()
        assert set(keys) <= self.unopened
        self.unopened -= set(keys)
        self.waiting |= pending

    def finish(self, number: int) -> None:
        self.finished.add(SHARDS[number])
        before = {key for key, shards in self.waiting.items() if not shards}
        for shards in self.waiting.values():
            shards.discard(SHARDS[number])
        complete = {key for key, shards in self.waiting.items() if not shards}
        assert set(self.held.finish([SHARDS[number]]).complete) == complete - before

    def ask(self, number: int) -> None:
        """Not only for what is complete by chance."""
        self.receive(number)
        self.open(3)
        keys = list(self.held.begin_acknowledging("q", number + 1))
        assert all(self.waiting.pop(key) == set() for key in keys), "only what is complete is acknowledged"
        assert keys or all(self.waiting.values())
        self.asked += keys

    def answer(self, _: int) -> None:
        self.held.leave(self.asked)
        self.asked = []

    def be_away(self, _: int) -> None:
        self.held.put_off("q", self.asked)
        self.waiting |= {key: set() for key in self.asked}
        self.asked = []

    def give_back(self, number: int) -> None:
        self.held.leave([MESSAGES[number]])
        self.forget([MESSAGES[number]])

    def lose(self, number: int) -> None:
        key = MESSAGES[number]
        lost = self.held.end_extending([key], self.now + TERMS.period, {key})
        assert lost == [key] * (key in self.here() and key not in self.asked)
        self.forget(lost)

    def extend(self, number: int) -> None:
        self.now += 10.0 * number
        due = self.held.begin_extending(self.now)
        keys = [("q", receipt) for receipts in due.extensions.values() for receipt in receipts]
        assert due.ended == [], "a queue that reports what is stale is asked, however late it is"
        assert len(keys) == len(set(keys))
        assert set(keys) <= self.here() - set(self.asked), "no lease is extended while its message is acknowledged"
        assert self.held.end_extending(keys, self.now + TERMS.period, ()) == []


things = st.sampled_from(["receive", "open", "finish", "ask", "answer", "be_away", "give_back", "lose", "extend"])


@given(st.lists(st.tuples(things, st.integers(0, 4)), min_size=20, max_size=80))
def test_a_message_is_in_one_state_and_its_lease_is_kept_until_its_queue_is_asked_to_delete_it(
    steps: list[tuple[str, int]],
) -> None:
    hands = Hands()
    for name, number in steps:
        getattr(hands, name)(number)
        held, complete = hands.held, [key for key, shards in hands.waiting.items() if not shards]
        assert held.counts().in_flight == len(hands.here())
        assert held.has(UNACKNOWLEDGED, complete) == bool(complete)
        assert held.has({State.RECEIVED}) == bool(hands.unopened)
        assert held.has({State.ACKNOWLEDGING}) == bool(hands.asked)
        assert not held.has({State.IDLE, State.LATE})
    hands.extend(60)  # all that is kept is due by now, and at no other time again
    due = hands.held.begin_extending(hands.now + TERMS.period)
    kept = [receipt for receipts in due.extensions.values() for receipt in receipts]
    assert sorted(("q", receipt) for receipt in kept) == sorted(hands.here() - set(hands.asked))
    left = hands.held.empty()
    assert {*left.unplanned, *left.complete, *left.unanswered} == hands.here()
    assert (set(left.unanswered), left.planned, left.shards) == (set(hands.asked), [], [])
