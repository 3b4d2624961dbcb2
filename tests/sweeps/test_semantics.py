"""What at-least-once does not promise: a driver dies, another goes on, and rows are there twice.

What each semantics does promise, at every point and into each sink: `test_crashes.py`. Six objects in batches of
two; the foreign sink here takes every attempt at a batch anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shard_store import failpoints
from shard_store.failpoints import FailpointReached
from support.coordinator_world import EMPTY, World, patiently, uris
from support.driver_loop import published, taken_by_foreign_sink, until

TIMES = {"visibilityTimeout": "5s", "commitTimeout": "1s"}
"""Leases outlive the way to the failure, also on a busy machine: else the reader gets its messages again by itself."""
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
    assert all(found[uri] > 1 for uri in before), found


def test_at_least_once_into_a_sink_that_is_not_idempotent_repeats_a_batch_that_spark_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path / "case", "at-least-once", publishes=False)
    case.die_at("published", monkeypatch)
    before = case.result()
    assert sorted(before.values()) == [1, 1]
    case.go_on()
    assert all(case.result()[uri] > 1 for uri in before)
