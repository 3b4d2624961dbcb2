"""A message is complete once, when all it announced is finished, in whatever order and however often that is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queue_source.coordinator.tracking import Tracker
from queue_source.messages import Receipt
from shard_store.model import BEGINNING, Content, PublishToken, Shard, ShardKey, ShardState, Snapshot

TOKEN = PublishToken("p", 1)
SHARDS = [ShardKey(bytes([number])) for number in range(6)]
MESSAGES = [("q", Receipt(str(number))) for number in range(5)]


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
    tracker = Tracker()
    waiting = dict(zip(MESSAGES, map(set, announced), strict=False))
    for message, keys in waiting.items():
        tracker.hang(message, {key: content(key) for key in keys}, now=0.0)
    finished: set[ShardKey] = set()
    for told in [*events, SHARDS]:  # the same shard may be told again and again, also within one event
        before = {message for message, keys in waiting.items() if keys <= finished}
        complete = tracker.finish(told)
        finished |= set(told)
        assert set(complete) == {message for message, keys in waiting.items() if keys <= finished} - before
        assert len(complete) == len(set(complete))
        tracker.drop(complete)
    assert (tracker.messages, tracker.waiting, tracker.bytes_held) == ({}, {}, 0)


step = st.one_of(
    st.tuples(st.just("offer"), st.sampled_from(SHARDS)),
    st.tuples(st.just("watch"), st.sampled_from(SHARDS)),
    st.tuples(st.just("finish"), st.sampled_from(SHARDS)),
    st.tuples(st.just("forget"), st.sampled_from(SHARDS)),
    st.tuples(st.just("snapshot"), st.sampled_from(SHARDS)),
    st.tuples(st.just("settle"), st.sampled_from(SHARDS)),
)


@given(st.lists(step, max_size=40), st.integers(1, 4))
def test_a_shard_is_in_one_place_only_and_the_bytes_held_are_those_of_what_is_there(
    steps: list[tuple[str, ShardKey]], most: int
) -> None:
    tracker, seq = Tracker(), 0
    for number, message in enumerate(MESSAGES):
        tracker.hang(message, {SHARDS[number]: content(SHARDS[number])}, now=0.0)
    for what, key in steps:
        if what == "offer":
            tracker.offer(shard(key), 0.0)
        elif what == "watch" and key not in tracker.planned:  # what is planned is ours until its plan is settled
            tracker.watch(shard(key))
        elif what == "finish" and key not in tracker.planned:
            tracker.drop(tracker.finish([key]))
        elif what == "forget":
            tracker.forget([key])
        elif what == "snapshot" and (ranges := tracker.take(most, None)):
            seq += 1
            tracker.plan(Snapshot(seq, tuple(ranges)))
        elif what == "settle":
            tracker.settle(seq)
        places = [set(tracker.ready), set(tracker.planned), set(tracker.foreign)]
        assert sum(map(len, places)) == len(set().union(*places))
        assert tracker.bytes_held == 10 * (len(tracker.ready) + len(tracker.planned))
