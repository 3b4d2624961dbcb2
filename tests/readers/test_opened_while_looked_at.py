"""What one thread has read in the store is old when it acts: each other step of a reader comes at each place between.

A place is before and after each transaction of the store, and before each method of what the threads share. The steps
run in one thread, so that each of the interleavings of two of them is tried.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from queue_source.announcements.dialects import DIALECTS
from queue_source.coordinator.in_flight import InFlight
from queue_source.messages import Received
from shard_store.model import ShardState
from shard_store.sql.database import Database
from support.explorer.casts import Cast, Kind
from support.explorer.objects import FILES, uris_in
from support.explorer.query import Query
from support.explorer.world import World

KIND = Kind((("p", "s"),), "ours")
OTHER = Kind((("q", "s"),), "ours")
SHARED = [
    name
    for name, value in vars(InFlight).items()
    if callable(value) and name[0] != "_" and name not in ("wait", "wake")
]


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "files", FILES)


class Scene:
    """A query whose first batch has found the objects empty, missing or damaged, and is published, not confirmed."""

    def __init__(self, folder: Path, form: str) -> None:
        self.world = World(folder, Cast((KIND, OTHER)), {"s": ["a.json", "b.json", "c.json.gz"]})
        self.a, self.b, self.c = self.world.names["s"]
        self.acknowledged = Counter[str]()
        self.world.before_acknowledged = self._before_acknowledged  # type: ignore[method-assign]
        self.acknowledged_unread: list[str] = []
        self.query = Query(self.world, KIND, random.Random(1))
        self.reader = self.query.readers[0]
        self.form = form
        self.unread_ones = [self.c] if form == "damaged" else [self.a, self.c]  # damaged text has a bad record alone
        for uri in self.unread_ones:
            if form == "missing":
                self.world.objects.vanish(uri)
            else:
                self.world.objects.write(uri, form, self.world.now)
        self.announce(self.a, self.b, self.c)
        self.take()
        self.query.trigger()

    def close(self) -> None:
        self.query.die()
        self.world.close()

    def announce(self, *uris: str) -> None:
        for uri in uris:
            self.world.announce("s", [self.world.objects.event(uri, facts=True)])

    def take(self) -> None:
        self.reader.receive()
        self.reader.open()

    def repair(self) -> None:
        """The objects are uploaded once more, and announced; the reader takes the messages."""
        for uri in self.unread_ones:
            self.world.objects.write(uri, "whole", self.world.now)
        self.announce(*self.unread_ones)
        self.take()

    def confirm(self) -> None:
        """The next call of Spark's, which acknowledges."""
        self.query.trigger()

    def work(self) -> None:
        self.take()
        self.reader.maintain()
        self.reader.acknowledge()

    def deliver_again(self) -> None:
        """The leases have ended without a word: all messages come once more."""
        self.world.now += 100
        self.take()

    def _before_acknowledged(self, queue: str, message: Received, others: Callable[[], set[str]]) -> None:
        uris = uris_in(message.body)
        states = self.world.shard_states()
        self.acknowledged.update(uris)
        self.acknowledged_unread += [
            uri for uri in uris if self.acknowledged[uri] > 1 and states["s", uri] == ShardState.OPEN.value
        ]

    def end(self) -> None:
        for _ in range(6):
            self.reader.heartbeat()
            self.work()
            self.query.trigger()
            self.work()
        assert not self.acknowledged_unread
        assert not self.reader.has_work
        assert self.world.waiting_messages() == 0
        published = self.world.published()
        assert set(published.values()) == {1}
        for uri in (self.a, self.b, self.c):
            assert set(self.world.objects.newest(uri).rows) <= {row.partition("|")[2] for row in published}
        assert set(self.world.shard_states().values()) == {"done"}


@contextmanager
def meeting(at: int, guest: Callable[[], None]) -> Iterator[list[str]]:
    """Let `guest` come at this place of the block, once; yields the places that were passed."""
    passed: list[str] = []
    is_inside = [False]

    def place(name: str) -> None:
        if is_inside[0]:
            return
        passed.append(name)
        if len(passed) == at + 1:
            is_inside[0] = True
            try:
                guest()
            finally:
                is_inside[0] = False

    once = Database._once

    def transaction(database: Database, work: Any, write: bool) -> Any:
        is_mine = not is_inside[0]
        if is_mine:
            place("before a transaction")
            is_inside[0] = True
        try:
            result = once(database, work, write)
        finally:
            if is_mine:
                is_inside[0] = False
        if is_mine:
            place("after a transaction")
        return result

    def before(method: Any) -> Any:
        @wraps(method)
        def called(*arguments: Any, **named: Any) -> Any:
            place(method.__name__)
            return method(*arguments, **named)

        return called

    with mock.patch.multiple(InFlight, **{name: before(getattr(InFlight, name)) for name in SHARED}):
        with mock.patch.object(Database, "_once", transaction):
            yield passed


MAIN = ("confirm", "work", "repair")
GUESTS = ("repair", "confirm", "work", "deliver_again")


QUICK = {("confirm", "repair", "empty"), ("work", "repair", "missing"), ("repair", "deliver_again", "empty")}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough)
    for case in itertools.product(MAIN, GUESTS, ("empty", "missing", "damaged"))
    if case in QUICK or case[2] == "empty"  # the explorer meets the others
]


@pytest.mark.parametrize(("main", "guest", "form"), CASES)
def test_what_is_opened_again_between_a_look_and_what_it_ends_is_read(
    tmp_path: Path, main: str, guest: str, form: str
) -> None:
    at, number = 0, 1
    while at < number:
        (folder := tmp_path / str(at)).mkdir()
        scene = Scene(folder, form)
        try:
            with meeting(at, getattr(scene, guest)) as passed:
                getattr(scene, main)()
            number = len(passed)
            if at >= number:
                getattr(scene, guest)()
            if "repair" not in (main, guest):
                scene.repair()
            scene.end()
        except BaseException as error:
            place = passed[at] if at < len(passed) else "after all"
            raise AssertionError(f"{guest} in {main} at place {at}, {place}") from error
        finally:
            scene.close()
        at += 1
    assert number > 5
