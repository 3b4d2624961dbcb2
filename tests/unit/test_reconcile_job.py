"""What the tasks of `cuesqueue.reconcile` say of each joined row; the engine tests compare whole jobs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from queue_source.spark.reconcile import _JUDGED, _judge
from shard_store.completeness.comparing import HOUR, Memory
from shard_store.model import Pending, ShardState

NOW = 1_795_000_000_000_000
STORED = ("shard_key", "state", "size", "etag", "finished_at", "owner", "pending")  # as the job selects them
TEXT = pa.string()
KNOWN = pa.struct(list(zip(STORED, (pa.binary(), TEXT, pa.int64(), TEXT, pa.int64(), TEXT, TEXT), strict=True)))
SCHEMA = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("last_modified", pa.timestamp("us", "Europe/Berlin")),
        ("version", pa.string()),
        ("shard_key", pa.binary()),
        ("known", KNOWN),
        ("plain", KNOWN),
        ("modified", pa.int64()),
    ]
)


def stored(state: ShardState = ShardState.DONE, **columns: Any) -> dict[str, Any]:
    row = {"shard_key": b"k", "state": state.value, "size": 10, "etag": "e", "finished_at": NOW, "owner": "p"}
    return row | {"pending": None} | columns


def said(memory: Memory = Memory(), **columns: Any) -> tuple[str, str | None]:  # noqa: B008 -- a constant
    row = {"uri": "s3://b/x", "size": 10, "etag": "e", "version": None, "shard_key": b"k", "known": None, "plain": None}
    row |= {"modified": NOW} | columns
    batch = pa.RecordBatch.from_pylist([row | {"last_modified": row["modified"]}] * 2, SCHEMA)
    [found] = _judge(memory)([batch])
    assert found.schema.names == _JUDGED.names
    assert found.column("uri").to_pylist() == ["s3://b/x"] * 2
    assert found.column("last_modified").cast(pa.int64()).to_pylist() == [row["modified"]] * 2
    [category], [pipeline] = (set(found.column(name).to_pylist()) for name in ("category", "pipeline"))
    return category, pipeline


@pytest.mark.parametrize(
    ("known", "category"),
    [
        (stored(), "published"),
        (stored(etag="other"), "changed"),
        (stored(etag=None), "published"),
        (stored(etag=None, size=11), "changed"),
        (stored(etag=None, size=None, finished_at=NOW - HOUR), "published"),
        (stored(etag=None, finished_at=NOW - HOUR - 1), "changed"),
        (stored(pending=Pending.BEGUN.value), "waiting"),
        (stored(pending=Pending.SKIPPED.value), "skipped"),
        (stored(pending=Pending.GIVEN_UP.value, etag="other"), "given_up"),
        (stored(ShardState.QUARANTINED), "quarantined"),
        (stored(ShardState.OPEN, finished_at=None), "waiting"),
    ],
)
def test_an_object_whose_shard_is_known_is_what_became_of_it(known: dict[str, Any], category: str) -> None:
    assert said(known=known) == (category, "p")
    assert said(known=known, plain=stored(etag="another", owner="q")) == (category, "p")


def test_an_object_that_was_read_under_its_uri_alone_is_published_if_it_is_surely_the_same() -> None:
    assert said(plain=stored(owner="q")) == ("published", "q")
    assert said(plain=stored(etag=None, finished_at=NOW)) == ("published", "p")
    others = [stored(etag="other"), stored(etag=None, finished_at=NOW - 1), stored(pending=Pending.GIVEN_UP.value)]
    for plain in [*others, stored(ShardState.OPEN)]:
        assert said(plain=plain) == ("missing", None)


def test_an_unknown_object_is_missing_if_the_store_would_remember_it() -> None:
    assert said() == ("missing", None)
    assert said(shard_key=None) == ("left_out", None)
    assert said(Memory(NOW - HOUR)) == ("beyond_memory", None)
    assert said(Memory(NOW - HOUR - 1)) == ("missing", None)
    assert said(Memory(NOW, NOW + 1_000_000)) == ("before_beginning", None)
    assert said(Memory(0, NOW + 999_999)) == ("missing", None)  # of whole seconds: it may have come in this one
    assert said(Memory(0, NOW + 1), modified=NOW + 1) == ("missing", None)
    assert said(Memory(0, NOW + 2), modified=NOW + 1) == ("before_beginning", None)
