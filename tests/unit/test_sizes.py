"""Of which objects a reader asks for size and version, where they are announced by their URIs alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queue_source.announcements.contents import Stated
from queue_source.coordinator import sizes as module
from queue_source.coordinator.sizes import Sizes
from queue_source.read.partitions import partition, whole_pieces
from queue_source.storage.fetching import WHOLE
from queue_source.storage.files import ObjectStat, answers_with_facts
from shard_store.model import (
    BEGINNING,
    DELIVERY,
    OTHER,
    SINK,
    Content,
    Plan,
    PlanIdentity,
    PublishToken,
    Range,
    end_at,
    shard_key,
)
from support.sessions import make_session

URIS = [f"s3://b/{number}" for number in range(100)]


class Store:
    """What a source has finished is of this size; asked once."""

    is_trusted = True

    def __init__(self, usual: int | None, sink: str | None = SINK) -> None:
        self.usual, self.sink, self.asked = usual, sink, 0

    def usual_size(self, source: str, pipeline: str) -> tuple[int | None, str | None]:
        self.asked += 1
        return self.usual, self.sink


def looked_up(
    uris: Sequence[str],
    *,
    finished: int | None = None,
    sink: str | None = SINK,
    **options: str,
) -> int:
    """How many objects are asked for, each once; the others are to be read without."""
    asked: list[str] = []

    def stat(some: Sequence[str]) -> list[Stated | None]:
        asked.extend(some)
        return [ObjectStat(100, None, "etag")] * len(some)

    given: dict[str, Any] = {"fileFormat": "parquet", "allowedPrefixes": "s3://,gs://", **options}
    sizes = Sizes(make_session(Store(finished, sink), **given), stat, answers_with_facts)
    if not sizes.spares:  # all are looked up as before
        assert sizes.spared(uris) == []
        return len(uris)
    assert list(sizes.stat(uris)) == asked
    return len(asked)


def test_objects_are_looked_up_until_some_are_finished_and_are_small() -> None:
    assert looked_up(URIS) == 100
    assert looked_up(URIS, finished=1000) == 0


@pytest.mark.parametrize(
    ("finished", "options"),
    [
        (WHOLE + 1, {}),
        (100, {"deliverySemantics": "at-least-once"}),
        (100, {"deliverySemantics": "at-most-once"}),
        (100, {"content": "reference"}),
        (100, {"modifiedAfter": "2020-01-01T00:00:00Z"}),
        (5 << 20, {"fileFormat": "csv"}),  # it would be read in pieces
        (300 << 10, {"fileFormat": "csv", "maxBytesPerTrigger": "256k"}),
    ],
)
def test_what_needs_its_size_or_time_is_looked_up(finished: int, options: dict[str, str]) -> None:
    assert looked_up(URIS, finished=finished, **options) == 100


@pytest.mark.parametrize(("sink", "requests"), [(None, 100), (DELIVERY, 100), (OTHER, 0), (SINK, 0)])
def test_batches_that_may_be_known_elsewhere_by_their_hash_alone_name_versions(sink: str | None, requests: int) -> None:
    assert looked_up(URIS, finished=1000, sink=sink) == requests


def test_objects_of_other_stores_are_looked_up() -> None:
    assert looked_up(["gs://b/1", "s3://b/1", "/local"], finished=100) == 2


def test_the_store_is_asked_where_a_size_is_unknown_and_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(700)
    sizes = Sizes(make_session(store), lambda uris: [None] * len(uris), answers_with_facts)
    assert sizes.usual_of([Content("a", "a", 10)]) == 0
    assert store.asked == 0
    assert sizes.usual_of([Content("a", "a", 10), Content("b", "b")]) == 700
    assert sizes.usual == 700
    assert store.asked == 1
    monkeypatch.setattr(module, "_FRESH", 0.0)
    assert sizes.usual == 700
    assert store.asked == 2


def test_tasks_take_an_object_of_unknown_size_for_one_of_the_usual_size_and_cut_none() -> None:
    sizes = [None, 10, None, 10, None, None]
    contents = [Content(str(place), str(place), size) for place, size in enumerate(sizes)]
    ranges = tuple(Range(shard_key("s", c.uri), c, BEGINNING, end_at(c.size or 0)) for c in contents)
    plan = Plan(PlanIdentity("s", PublishToken("p", 1), 0, 1, "f" * 64), ranges)
    tasks = partition(plan, 1, 20, lambda _: True, 10)
    assert [[piece.content.uri for piece in task] for task in tasks] == [["0", "1"], ["2", "3"], ["4", "5"]]
    (large,) = partition(plan, 1, 1 << 30, lambda _: True, 40 << 20)
    assert large == whole_pieces(ranges)
