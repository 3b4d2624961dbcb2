"""What a reader holds: its room, its order, and who may take what away."""

from __future__ import annotations

import pytest

from queue_source.coordinator.in_flight import InFlight, Opened
from queue_source.coordinator.ready import Limits, limits_of, shares_of
from queue_source.messages import Receipt, Received
from queue_source.options import parse_reader_options
from shard_store.model import BEGINNING, Content, PublishToken, Range, Shard, ShardState, Snapshot, shard_key
from support.deliveries import TERMS, message
from support.sessions import LEAST

OURS = PublishToken("p", 1)


def content(name: str, size: int = 10, group: str | None = None) -> Content:
    return Content(name, name, size, queue="q", group=group)


def shard(name: str, size: int = 10, group: str | None = None) -> Shard:
    return Shard(shard_key("s", name), content(name, size, group), BEGINNING, ShardState.OPEN, OURS, stale=False)


def receive(held: InFlight, *names: str, late: tuple[str, ...] = (), queue: str = "q") -> int:
    """As a receiver would: how many messages there was room for."""
    under_way = held.begin_receive(queue, 0, 10)
    if under_way is None:
        return 0
    brought, left = ([Received(queue, n, Receipt(n), b"", 1, 0.0) for n in some] for some in (names, late))
    held.end_receive(under_way, brought[: under_way.room], TERMS, left)
    return under_way.room


def opened(held: InFlight, *names: str, group: str | None = None) -> None:
    """Each message announced the shard of its name."""
    held.begin_opening(100, 0.0)
    held.announce(Opened(message(n), {shard_key("s", n): content(n, group=group)}) for n in names)
    held.end_opening()


def names(ranges: tuple[Range, ...]) -> list[str]:
    return [entry.content.uri for entry in ranges]


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({"maxFilesPerTrigger": "20"}, Limits(10_000, 60)),
        ({"maxFilesPerTrigger": "20", "maxInFlightMessages": "30"}, Limits(30, 30)),
        ({"maxFilesPerTrigger": "1"}, Limits(10_000, 3)),
        ({"maxFilesPerTrigger": "20", "maxBytesPerTrigger": "7b", "maxInFlightBytes": "9b"}, Limits(10_000, 60, 9, 21)),
        ({"maxFilesPerTrigger": "1", "queueUrl": "sim://a,sim://b,sim://c"}, Limits(10_000, 9)),
        ({"maxFilesPerTrigger": "20", "content": "message"}, Limits(10_000, 60, 256 << 20)),
        ({"maxFilesPerTrigger": "20", "content": "message", "maxInFlightBytes": "2g"}, Limits(10_000, 60, 2 << 30)),
    ],
)
def test_no_more_is_held_than_three_triggers_can_take(options: dict[str, str], limits: Limits) -> None:
    assert limits_of(parse_reader_options({**LEAST, **options})) == limits


def test_there_is_room_until_a_few_triggers_are_held_and_again_when_one_is_done() -> None:
    held = InFlight(["q"], Limits(messages=100, work=4))
    assert receive(held, "1", "2", "3", "4") == 4
    assert receive(held) == 0
    opened(held, "1", "2", "3", "4")
    held.offer(shard(n) for n in "1234")
    held.plan(Snapshot(1, held.take(2, None)))
    assert receive(held) == 0
    held.confirm(1)
    complete = held.finish(shard_key("s", n) for n in "12").complete
    assert complete == [message("1"), message("2")]
    assert receive(held) == 2, "what only waits for its acknowledgement is no work"


def test_what_waits_for_other_pipelines_or_for_the_next_run_keeps_no_work_out() -> None:
    held = InFlight(["q"], Limits(messages=6, work=3))
    assert receive(held, "1", "2", late=("3",)) == 3
    opened(held, "1", "2")
    held.watch([shard("1"), shard("2")])
    assert receive(held) == 3, "none of the three is work for us"
    held.offer([shard("1")])
    assert receive(held) == 2


def test_a_message_that_announced_more_than_a_few_triggers_can_take_is_worked_on_before_more_comes() -> None:
    held = InFlight(["q"], Limits(messages=100, work=3))
    receive(held, "1")
    held.begin_opening(1, 0.0)
    held.announce([Opened(message("1"), {shard(str(n)).key: content(str(n)) for n in range(9)})])
    held.end_opening()
    held.offer(shard(str(n)) for n in range(9))
    taken = 0
    while ranges := held.take(1, None):
        assert taken == 8 or receive(held) == 0
        taken += 1
        held.plan(Snapshot(taken, ranges))
    assert taken == 9
    assert receive(held) == 2, "nothing is ready: there is room for the next trigger"


def test_the_bodies_of_messages_that_nobody_has_opened_yet_count() -> None:
    """They are in memory from the moment on that they are received."""
    held = InFlight(["q"], Limits(messages=10_000, work=10_000, bytes=1000))
    under_way = held.begin_receive("q", 0, 1000)
    assert under_way is not None
    held.end_receive(under_way, [Received("q", n, Receipt(n), b"x" * 150, 1, 0.0) for n in "1234"], TERMS)
    assert (under_way.room, receive(held)) == (1000, (1000 - 600) // 150), "no more than would fit"
    held.end_receive(
        held.begin_receive("q", 0, 10) or under_way, [Received("q", "5", Receipt("5"), b"x" * 400, 1, 0.0)], TERMS
    )
    assert receive(held) == 0
    held.begin_opening(100, 0.0)
    assert receive(held) == 0, "still in memory"
    held.end_opening()
    assert receive(held) == 2
    held.end_receive(
        held.begin_receive("q", 0, 10) or under_way, [Received("q", "6", Receipt("6"), b"x" * 1000, 1, 0.0)], TERMS
    )
    assert receive(held) == 0
    held.leave([message("6")])
    assert receive(held) == 1, "what has left is not in memory any more"


def test_an_object_larger_than_all_limits_of_a_trigger_stops_no_receive_while_it_is_read() -> None:
    held = InFlight(["q"], Limits(messages=100, work=30, batch_bytes=3))
    receive(held, "1")
    opened(held, "1")
    held.offer([shard("1")])
    assert receive(held) == 0
    held.plan(Snapshot(1, held.take(1, 1)))
    assert receive(held) == 10


def test_each_of_several_queues_has_room_however_little_a_trigger_takes() -> None:
    queues = [f"q{n}" for n in range(5)]
    options = parse_reader_options(
        {**LEAST, "queueUrl": ",".join(f"sim://{n}" for n in queues), "maxFilesPerTrigger": "1"}
    )
    held = InFlight(queues, limits_of(options), shares_of("percentage:96,1,1,1,1", queues))
    for queue in queues:
        assert held.begin_receive(queue, 0, 10) is not None


def test_a_full_reader_is_not_done_while_what_fills_it_is_about_to_leave() -> None:
    """Else AvailableNow would end with messages left in the queue."""
    held = InFlight(["q"], Limits(messages=2, work=2))
    receive(held, "1", "2")
    held.begin_opening(2, 0.0)
    held.announce([Opened(message("1"), {}), Opened(message("2"), {})])
    held.end_opening()
    calls = 0

    def over() -> bool:
        nonlocal calls
        calls += 1
        if calls == 2:
            held.leave([message("1"), message("2")])
            receive(held)  # comes back empty: the queue is
        return calls > 5

    held.wait_for_batch(10, None, over)
    assert calls == 2


def test_what_is_taken_is_nobody_elses_until_it_is_planned_or_put_back() -> None:
    held = InFlight(["q"], Limits(messages=10, work=10))
    receive(held, "1", "2", "3")
    opened(held, "1", "2", "3")
    held.offer(shard(n) for n in "123")
    assert names(held.take(2, None)) == ["1", "2"]
    assert held.counts().ready == 1
    held.watch([shard("1")])
    held.offer([shard("2")])
    assert held.counts() == (3, 1, 0, 0, 30)
    left = held.empty()
    assert sorted(left.planned) == [message("1"), message("2")]
    assert (left.unplanned, left.shards) == ([message("3")], [shard_key("s", "3")])


def test_what_could_not_be_stored_is_ready_again_where_it_was() -> None:
    held = InFlight(["q"], Limits(messages=10, work=10))
    receive(held, "1", "2", "3")
    opened(held, "1", "2", "3")
    held.offer(shard(n) for n in "321")
    held.take(2, None)
    held.put_back()
    assert names(held.take(10, None)) == ["1", "2", "3"]


def test_an_ordered_group_that_comes_back_after_a_takeover_is_in_its_order() -> None:
    """h4 to h9 were ready before h0 to h3, which another pipeline had, were acquired."""
    held, group = InFlight(["q"], Limits(messages=100, work=100)), [f"h{n}" for n in range(10)]
    receive(held, *group)
    opened(held, *group, group="g")
    held.watch(shard(n, group="g") for n in group[:4])
    held.offer(shard(n, group="g") for n in group[4:])
    assert held.take(10, None) == ()
    held.offer(shard(n, group="g") for n in reversed(group[:4]))
    assert names(held.take(10, None)) == group


def test_an_ordered_group_is_in_the_order_of_its_queue_after_a_restart_too() -> None:
    """The store has one time for all that was opened together, and gives it in the order of keys."""
    held, group = InFlight(["q"], Limits(messages=100, work=100)), [f"h{n}" for n in range(10)]
    shards = sorted((shard(n, group="g") for n in group), key=lambda s: s.key)
    planned = tuple(Range(s.key, s.content, BEGINNING, BEGINNING) for n in group[:4] for s in [shard(n, group="g")])
    held.recover(shards, [Snapshot(1, planned)], ())
    held.confirm(1)  # lost: it has to be planned again
    receive(held, *group)
    opened(held, *group, group="g")
    held.offer(reversed(shards))
    assert names(held.take(10, None)) == group


def test_what_the_store_gives_back_comes_before_what_is_received_later() -> None:
    held = InFlight(["q"], Limits(messages=100, work=100))
    held.recover([shard("b"), shard("a")], [], ())
    receive(held, "0", "b")
    opened(held, "0", "b")
    held.offer(shard(n) for n in ("0", "b"))
    assert names(held.take(10, None)) == ["b", "a", "0"]


def test_what_waits_for_its_group_in_another_pipeline_is_no_batch_and_keeps_no_other_work_out() -> None:
    """Else AvailableNow would end with messages left in the queue, and no other group would be read."""
    held, group = InFlight(["q"], Limits(messages=100, work=100, batch_bytes=30)), [f"h{n}" for n in range(4)]
    receive(held, *group)
    opened(held, *group, group="g")
    held.watch([shard(group[0], group="g")])
    held.offer(shard(n, group="g") for n in group[1:])
    assert held.begin_receive("q", 0, 10) is not None
    asked = []

    def over() -> bool:
        asked.append(held.take(10, None))
        return len(asked) > 1

    held.wait_for_batch(3, 30, over)
    assert asked == [(), ()], "there was a batch only in name"
    held.offer([shard(group[0], group="g")])
    assert names(held.take(10, None)) == group


def test_a_planned_message_whose_opening_broke_off_is_not_given_back_too() -> None:
    held = InFlight(["q"], Limits(messages=10, work=10))
    held.recover([], [Snapshot(1, (Range(shard("1").key, content("1"), BEGINNING, BEGINNING),))], ())
    receive(held, "1", "2")
    held.begin_opening(10, 0.0)
    held.announce([Opened(message("1"), {shard("1").key: content("1")})])
    assert held.empty() == ([message("2")], [message("1")], [], [], [])


def test_a_delivery_that_comes_again_while_its_message_is_opened_is_not_opened_twice() -> None:
    """Where all deliveries have one receipt: what it waits for is counted once."""
    held = InFlight(["q"], Limits(messages=1, work=1))
    receive(held, "1")
    held.begin_opening(1, 0.0)
    assert held.end_extending([message("1")], 60.0, {message("1")}) == [message("1")], "its lease is lost"
    receive(held, "1")
    held.announce([Opened(message("1"), {shard_key("s", "a"): content("a")})])
    held.watch([shard("a")])
    held.end_opening()
    assert held.begin_opening(1, 0.0) == []
    assert held.make_room() == [message("1")], "it only waits for another pipeline"
