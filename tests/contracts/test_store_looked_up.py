"""Contract: two pipelines look at one object, which their messages announce by its URI alone, while it gets its bytes.

All orders of their looks and openings, and of what the owner does then. What the owner reads is what is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from shard_store.model import Content, ErrorRecord, Range, Shard, ShardState, Split, end_at, shard_key
from support.store_backends import Pipeline, StoreBackend

KEY = shard_key("s", "a")
EMPTY, WHOLE, OTHER = (0, "empty"), (12, "whole"), (12, "other")
STEPS = ("look p", "open p", "look q", "open q", "fill", "renew", "batch")


def orders() -> Iterator[tuple[str, ...]]:
    """One looks while the object is empty, the other one when it is whole; nothing is read before it is opened."""
    for order in itertools.permutations(STEPS):
        place = order.index
        looks = place("look p") < place("fill") < place("look q")
        opens = place("look p") < place("open p") and place("look q") < place("open q")
        if looks and opens and min(place("open p"), place("open q")) < place("batch"):
            yield order


class Scene:
    def __init__(self, backend: StoreBackend, first: tuple[int, str]) -> None:
        backend.wipe()
        self.now = first
        self.us = {name: Pipeline.start(backend.open(), name) for name in "pq"}
        self.seen: dict[str, Content] = {}
        self.offered: dict[str, Content] = {}

    def step(self, step: str) -> None:
        what, _, name = step.partition(" ")
        getattr(self, what)(*([name] if name else []))

    def look(self, name: str) -> None:
        content = Content("a", "a", None, None, "q", f"message of {name}")
        self.seen[name] = self.stated(content)

    def stated(self, content: Content) -> Content:
        """As `with_facts` does it."""
        if content.size is not None:
            return content
        size, etag = self.now
        return content._replace(size=size, etag=etag, announced=content.announced or (None, None))

    def open(self, name: str) -> None:
        us = self.us[name]
        self.offer(us.store.open_shards(us.token, "s", [self.seen[name]]).values())

    def fill(self) -> None:
        self.now = WHOLE

    def renew(self) -> None:
        for us in self.us.values():
            self.offer(us.store.renewed(us.token).values())

    def offer(self, shards: object) -> None:
        for shard in shards:  # type: ignore[attr-defined]
            assert isinstance(shard, Shard)
            if shard.state is ShardState.OPEN and shard.token is not None:
                self.offered[shard.token.pipeline] = self.stated(shard.content)

    def batch(self) -> None:
        """The owner reads what it was offered: another version is a bad object."""
        for name, content in list(self.offered.items()):
            us = self.us[name]
            self.offered.clear()
            us.write(Range(KEY, content, "", end_at(content.size or 0)))  # type: ignore[arg-type]
            plan = us.plan()
            if plan.ranges and (content.size, content.etag) != self.now:
                bad = ErrorRecord("object", "object-changed", "", "a", plan.identity.delivery_hash)
                us.store.record_errors("s", name, [bad])
            us.publish(plan, Split(f"/{us.seq}", 1, 1))
            us.confirm()


@pytest.mark.parametrize("first", [EMPTY, OTHER])
def test_an_object_that_was_not_whole_when_one_of_two_looked_is_read_as_it_is(
    backend: StoreBackend, first: tuple[int, str]
) -> None:
    for order in orders():
        scene = Scene(backend, first)
        for step in order:
            scene.step(step)
        for _ in range(3):
            scene.renew()
            scene.batch()
        (shard,) = scene.us["p"].store.look([KEY]).values()
        was_read_before = first == OTHER and order.index("batch") < order.index("fill")
        read = first if was_read_before else scene.now
        assert (shard.state, (shard.content.size, shard.content.etag)) == (ShardState.DONE, read), order
        backend.close()
        backend.views.clear()
