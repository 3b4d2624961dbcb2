"""Of which objects a reader asks for size and version, where they are announced by their URIs alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queue_source.announcements.contents import Stated
from queue_source.coordinator import sizes as module
from queue_source.coordinator.sizes import Sizes
from queue_source.storage.fetching import WHOLE
from queue_source.storage.files import ObjectStat, answers_tell
from shard_store.model import Content
from support.sessions import make_session

URIS = [f"s3://b/{number}" for number in range(100)]


class Store:
    """What a source has finished is of this size; asked once."""

    is_trusted = True

    def __init__(self, usual: int | None) -> None:
        self.usual, self.asked = usual, 0

    def usual_size(self, source: str) -> int | None:
        self.asked += 1
        return self.usual


def looked_up(uris: Sequence[str], *, finished: int | None = None, size: int | None = 100, **options: str) -> int:
    """How many objects are asked for, each once; the others are to be read without."""
    asked: list[str] = []

    def stat(some: Sequence[str]) -> list[Stated | None]:
        asked.extend(some)
        return [None if size is None else ObjectStat(size, None, "etag")] * len(some)

    given: dict[str, Any] = {"fileFormat": "parquet", "allowedPrefixes": "s3://,gs://", **options}
    sizes = Sizes(make_session(Store(finished), **given), stat, answers_tell)
    if not sizes.spares:  # all are looked up as before
        assert sizes.spared(uris) == []
        return len(uris)
    assert list(sizes.stat(uris)) == asked
    return len(asked)


def test_only_the_first_objects_of_a_source_are_looked_up_where_they_are_small() -> None:
    assert looked_up(URIS) == 32
    assert looked_up(URIS, finished=1000) == 0


@pytest.mark.parametrize(
    ("finished", "size", "options"),
    [
        (WHOLE + 1, 100, {}),
        (None, WHOLE + 1, {}),
        (None, None, {}),  # none of them is there
        (100, 100, {"deliverySemantics": "at-least-once"}),
        (100, 100, {"deliverySemantics": "at-most-once"}),
        (100, 100, {"content": "reference"}),
        (100, 100, {"modifiedAfter": "2020-01-01T00:00:00Z"}),
        (5 << 20, 100, {"fileFormat": "csv"}),  # it would be read in pieces
        (300 << 10, 100, {"fileFormat": "csv", "maxBytesPerTrigger": "256k"}),
    ],
)
def test_what_needs_its_size_or_time_is_looked_up(
    finished: int | None, size: int | None, options: dict[str, str]
) -> None:
    assert looked_up(URIS, finished=finished, size=size, **options) == 100


def test_objects_of_other_stores_are_looked_up() -> None:
    assert looked_up(["gs://b/1", "s3://b/1", "/local"], finished=100) == 2


def test_the_store_is_asked_where_a_size_is_unknown_and_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(700)
    sizes = Sizes(make_session(store), lambda uris: [None] * len(uris), answers_tell)
    assert sizes.usual_of([Content("a", "a", 10)]) == 0
    assert store.asked == 0
    assert sizes.usual_of([Content("a", "a", 10), Content("b", "b")]) == 700
    assert sizes.usual == 700
    assert store.asked == 1
    monkeypatch.setattr(module, "_FRESH", 0.0)
    assert sizes.usual == 700
    assert store.asked == 2
