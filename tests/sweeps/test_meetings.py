"""Other steps come in between any two transactions of a step, as the seed says, and wait for each other's locks."""

from __future__ import annotations

from unittest import mock

import pytest

from support.explorer import explorer, meetings
from support.explorer.explorer import Explorer, explore
from support.explorer.reader import Reader
from support.explorer.usual import Steps

_KINDS = frozenset(("meetings", "versions", "certificates"))


@pytest.mark.usefixtures("iceberg_threads")
def test_meetings_are_repeated_by_the_seed() -> None:
    meetings.MET.clear()
    runs: list[list[str]] = []
    for _ in range(2):
        lines = list[str]()
        explore(3, takes=_KINDS, log=lines.append)
        runs.append([line for line in lines if line.startswith("    ")])
    assert runs[0] == runs[1]
    assert len({guest for _, guest in meetings.MET}) > 5


@pytest.mark.usefixtures("iceberg_threads")
def test_points_are_before_and_after_transactions_and_between_what_threads_share() -> None:
    meetings.REACHED.clear()
    for seed in range(3):
        explore(seed, takes=_KINDS)
    reached = " ".join(meetings.REACHED)
    for place in ("_advance after write advance", "_conclude before confirm", "open after write open_shards"):
        assert place in reached
    assert len(meetings.REACHED) > 100


def test_a_turn_does_not_wait_for_a_lock_that_it_holds() -> None:
    class Alone:
        turn = object()

        def wait_for(self, lock: meetings.TurnLock) -> None:
            raise AssertionError(lock)

    lock = meetings.TurnLock(Alone())  # type: ignore[arg-type]
    with lock:
        assert lock.locked()
        assert not lock.acquire(blocking=False)
        with pytest.raises(AssertionError):
            lock.acquire()
    assert not lock.locked()


def test_guests_of_the_end_come_at_other_points_in_each_round() -> None:
    """One that stops with a message until its lease has ended, as a round does, would else do so in each of them."""
    rounds: list[list[str]] = [[]]

    def is_through(explorer: Explorer) -> bool:
        rounds.append([])
        return len(rounds) > 20

    def log(line: str) -> None:
        if line.startswith("    "):
            rounds[-1].append(line)

    with mock.patch.object(Explorer, "_is_through", is_through):
        explore(3, takes=frozenset(("meetings",)), steps=[], log=log)
    late = [tuple(lines) for lines in rounds[5:20]]  # nothing is left to do
    assert len({*late}) > len(late) // 2


def test_a_query_goes_on_behind_what_the_one_that_it_replaces_has_logged_while_it_starts() -> None:
    """Both have one checkpoint, as with Spark, until the store knows the second: then the first plans nothing more."""
    seen = list[tuple[set[int], set[int]]]()

    def steps_of(explorer: Explorer) -> Steps:
        lives = explorer.lives

        def take_over() -> None:
            kind = lives.kinds[0]
            lives.start(kind)
            first = lives.queries[kind]

            def late(*arguments: str) -> Reader:
                explorer.usual.announce()
                first.readers[0].work()
                first.trigger()
                return Reader(explorer.world, *arguments[1:])

            with mock.patch("support.explorer.query.Reader", late):
                while not lives.zombies:
                    explorer.usual.take_over()
            second = lives.queries[kind]
            seen.append(({*first.checkpoint.done}, {*second.checkpoint.done}))
            assert explorer.world.checkpoints[kind] is second.checkpoint is not first.checkpoint

        return {"take_over_late": (0, take_over)}

    with mock.patch.object(explorer, "MODULES", [steps_of]):
        explore(0, takes=frozenset(), steps=[(0, "take_over_late")])
    assert seen == [({0}, {0})]
