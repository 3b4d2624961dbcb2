"""How several queues share a reader."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from queue_source.coordinator.ready import shares_of

QUEUED = {"a": [f"a{n}" for n in range(100)], "b": [f"b{n}" for n in range(100)]}


def test_in_turn_each_queue_gives_one() -> None:
    assert list(islice(shares_of("round-robin", ["a", "b"]).interleave(QUEUED), 4)) == ["a0", "b0", "a1", "b1"]


def test_by_weight_each_queue_gives_its_part_from_the_start_on() -> None:
    taken = list(islice(shares_of("percentage:70,30", ["a", "b"]).interleave(QUEUED), 100))
    for count in (10, 50, 100):
        assert Counter(item[0] for item in taken[:count]) == {"a": count * 7 // 10, "b": count * 3 // 10}


def test_the_greedy_way_empties_the_first_queue_first_whatever_came_earlier() -> None:
    late = {"b": ["b0"], "a": ["a0", "a1"]}
    assert list(shares_of("greedy", ["a", "b"]).interleave(late)) == ["a0", "a1", "b0"]


def test_a_queue_without_anything_leaves_its_part_to_the_others() -> None:
    for text in ("round-robin", "percentage:10,90", "greedy"):
        assert list(shares_of(text, ["a", "b"]).interleave({"a": QUEUED["a"], "b": []})) == QUEUED["a"]


def test_nothing_is_left_out_and_each_queue_keeps_its_order() -> None:
    uneven = {"a": ["a0"], "b": ["b0", "b1", "b2"], "known to nobody": ["x0"]}
    for text in ("round-robin", "percentage:99,1", "greedy"):
        taken = list(shares_of(text, ["a", "b"]).interleave(uneven))
        assert sorted(taken) == ["a0", "b0", "b1", "b2", "x0"]
        assert [item for item in taken if item[0] == "b"] == ["b0", "b1", "b2"]


def test_no_queue_may_fill_the_room_of_the_others() -> None:
    shares = shares_of("percentage:75,25", ["a", "b"])
    assert (shares.room("a", 1000), shares.room("b", 1000), shares.room("b", 1)) == (750, 250, 1)
    assert shares_of("greedy", ["a", "b"]).room("a", 1000) == 500
    assert shares_of("round-robin", ["a"]).room("a", 1000) == 1000
