"""Other steps come in between any two transactions of a step, as the seed says, and wait for each other's locks."""

from __future__ import annotations

import pytest

from support.explorer import meetings
from support.explorer.explorer import explore

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
