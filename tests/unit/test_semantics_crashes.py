"""A driver dies at each named place, under each semantics, into each kind of sink; another goes on.

Six objects in batches of two: the driver dies at the first, and the others are bystanders. The foreign sink here takes
every attempt at a batch anew: from it nobody can have exactly-once, but at-most-once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contracts.store_backends import rows
from coordinator_world import EMPTY, World, patiently, uris
from driver_loop import published, states, taken_by_foreign_sink, until
from shard_store import failpoints
from shard_store.failpoints import POINTS, FailpointReached

PLACES = [p for p in POINTS if not p.startswith(("object-", "table-", "rows-", "errors-"))]  # not reached by this loop
LOSING = {"plan-made", "split-written", "before-publish"}
"""The places at which a batch is begun, and its rows are nowhere yet: there at-most-once loses them."""
TIMES = {"visibilityTimeout": "900ms", "pendingTimeout": "800ms", "commitTimeout": "1s"}
OBJECTS = uris(6)


@dataclass
class Case:
    """One query of its own, with the sink and the semantics that are looked at."""

    folder: Path
    semantics: str
    publishes: bool
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.world = World(self.folder)
        self.world.publish(*OBJECTS)

    def __str__(self) -> str:
        return f"{self.semantics} into {'our sink' if self.publishes else 'a foreign sink'}"

    @property
    def how(self) -> dict[str, Any]:
        return {
            "publishes": self.publishes,
            "idempotent": False,
            "deliverySemantics": self.semantics,
            "maxFilesPerTrigger": "2",
            **TIMES,
        }

    def die_at(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with self.world.loop(**self.how) as loop, monkeypatch.context() as patch:
            patch.setattr(failpoints, "_armed", {place: (1, "", "raise")})
            patch.setattr(failpoints, "_reached", {})
            with pytest.raises(FailpointReached):
                until(lambda: False, patiently(loop))
            loop.die()

    def go_on(self, **how: str) -> None:
        with self.world.loop(**{**self.how, **how}) as loop:
            until(lambda: self.world.depth() == EMPTY, patiently(loop))
            while loop.batch():
                pass

    def result(self) -> Counter[str]:
        found = taken_by_foreign_sink(self.world.folder / "output")
        if self.publishes:
            with self.world.store() as store:
                found = published(store)
        by_uri: Counter[str] = Counter()
        for shard_id, times in found.items():
            by_uri[shard_id.partition("#")[0]] += times
        return by_uri

    def told_lost(self) -> int:
        with self.world.store() as store:
            return sum(row["lost"] for row in rows(store, "attempts"))

    def shards(self) -> Counter[str]:
        with self.world.store() as store:
            return states(store)


@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_driver_dies_each_semantics_keeps_its_promise(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = (True, False) if place != "split-written" else (True,)
    cases = [
        Case(tmp_path / f"{semantics}-{publishes}", semantics, publishes)
        for semantics in ("at-least-once", "at-most-once")
        for publishes in sinks
    ]
    for case in cases:
        case.die_at(place, monkeypatch)
    for case in cases:
        case.go_on()
        found = case.result()
        if case.semantics == "at-least-once":
            assert found.keys() == set(OBJECTS), f"{case}: rows were lost"
            assert case.shards() == {}, str(case)
        else:
            assert set(found.values()) <= {1}, f"{case}: rows came twice"
            missing = len(OBJECTS) - len(found)
            assert missing == (2 if place in LOSING else 0), f"{case}: {missing} objects are lost"
            assert case.told_lost() >= missing, f"{case}: a loss was not counted"
            assert case.shards() == {"done": len(OBJECTS)}, str(case)


@pytest.mark.parametrize("publishes", [True, False], ids=["cuesqueue", "foreign"])
def test_at_least_once_repeats_a_batch_whose_messages_come_again_to_another_pipeline(
    tmp_path: Path, publishes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price: nothing tells others what was read. The pipeline itself knows it for a while."""
    case = Case(tmp_path / "case", "at-least-once", publishes)
    case.die_at("confirmed", monkeypatch)
    before = case.result()
    assert sorted(before.values()) == [1, 1]
    case.go_on(pipeline="other", checkpoint="other")
    found = case.result()
    assert found.keys() == set(OBJECTS)
    assert any(found[uri] > 1 for uri in before), found


def test_at_least_once_into_a_sink_that_is_not_idempotent_repeats_a_batch_that_spark_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path / "case", "at-least-once", publishes=False)
    case.die_at("published", monkeypatch)
    before = case.result()
    assert sorted(before.values()) == [1, 1]
    case.go_on()
    assert all(case.result()[uri] > 1 for uri in before)
