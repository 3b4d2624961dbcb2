"""A message is complete once, when all it announced is finished, in whatever order and however often that is said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.room import Limits
from queue_source.messages import Receipt
from shard_store.model import BEGINNING, Content, PublishToken, Shard, ShardKey, ShardState, Snapshot

TOKEN = PublishToken("p", 1)
SHARDS = [ShardKey(bytes([number])) for number in range(6)]
MESSAGES = [("q", Receipt(str(number))) for number in range(5)]


def in_flight() -> InFlight:
    return InFlight(["q"], Limits(messages=100, work=100))


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
    held = in_flight()
    waiting = dict(zip(MESSAGES, map(set, announced), strict=False))
    held.announce(Opened(message, {key: content(key) for key in keys}) for message, keys in waiting.items())
    finished: set[ShardKey] = set()
    for event in [*events, SHARDS]:  # the same shard may be finished again and again, also within one event
        before = {message for message, keys in waiting.items() if keys <= finished}
        complete = held.finish(event)
        finished |= set(event)
        assert set(complete) == {message for message, keys in waiting.items() if keys <= finished} - before
        assert len(complete) == len(set(complete))
        held.leave(complete)
    assert held.waited_for(SHARDS) == set()
    assert held.empty() == ([], [], [])
    assert held.bytes_held == 0


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
            held.leave(held.finish([key]))
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
        assert held.bytes_held == 10 * (counts.ready + counts.planned)


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
