"""What is read in pieces has a version by which each piece is compared, whether it was announced or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from queue_source.announcements.contents import announced_objects, looked_up
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.messages import Receipt, Received
from queue_source.options import ReaderOptions, parse_reader_options
from queue_source.storage.buckets import Known, open_bucket
from queue_source.storage.files import ObjectStat, stat_objects
from shard_store.model import Content
from support.sessions import LEAST

LARGE = 5 << 20


def options(**given: str) -> ReaderOptions:
    return parse_reader_options({**LEAST, "fileFormat": "csv", "allowedPrefixes": "s3://,file:///", **given})


def event(key: str, said: dict[str, object]) -> bytes:
    """What S3 sends; without a size only the name, as people send it."""
    if not said:
        return f"s3://b/{key}".encode()
    about = {"bucket": {"name": "b"}, "object": {"key": key, **said}}
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "eventVersion": "2.1", "s3": about}
    return json.dumps({"Records": [record]}).encode()


def announced(key: str, said: dict[str, object], reader: ReaderOptions, size: int = LARGE) -> tuple[Content, list[str]]:
    """The content that a message comes to, and what the store was asked for."""
    asked: list[str] = []

    def stat(uris: Sequence[str]) -> list[ObjectStat]:
        asked.extend(uris)
        return [ObjectStat(size, None, "stated")] * len(uris)

    message = Received("q", "m", Receipt("r"), event(key, said), receive_count=1, lease_until=0.0, headers={})
    in_pieces = partial(may_come_in_pieces, reader)
    [found] = announced_objects([message], reader.notifications, stat, in_pieces=in_pieces)
    return found.contents[0], asked


@pytest.mark.parametrize(
    ("said", "key", "etag", "requests"),
    [
        ({"size": LARGE, "eTag": "announced"}, "a.csv", "announced", 0),
        ({"size": LARGE}, "a.csv", "stated", 1),
        ({}, "a.csv", "stated", 1),
        ({}, "a.csv.gz", "stated", 1),  # the store was asked for its size: all attempts read the version that it met
        ({"size": 1000}, "a.csv", None, 0),  # one task reads it, by one open file
        ({"size": LARGE}, "a.csv.gz", None, 0),
        ({"size": LARGE + 1}, "a.csv", None, 1),  # another one is there: reading it says so
    ],
)
def test_only_what_is_read_in_pieces_is_asked_for_its_version(
    said: dict[str, object], key: str, etag: str | None, requests: int
) -> None:
    content, asked = announced(key, said, options())
    assert (content.etag, len(asked), content.shard_id) == (etag, requests, f"s3://b/{key}")


@pytest.mark.parametrize("small", [{"maxPartitionBytes": "1m"}, {"maxBytesPerTrigger": "1m"}])
def test_smaller_parts_are_pieces_too(small: dict[str, str]) -> None:
    assert announced("a.csv", {"size": 2 << 20}, options(**small), 2 << 20)[0].etag == "stated"
    assert announced("a.csv", {"size": 2 << 20}, options(), 2 << 20)[0].etag is None


def test_references_are_read_by_nobody() -> None:
    reader = parse_reader_options(
        {
            **{name: value for name, value in LEAST.items() if name != "fileFormat"},
            "content": "reference",
            "allowedPrefixes": "s3://",
        }
    )
    assert announced("a.csv", {"size": LARGE}, reader)[0].etag is None


def test_what_a_listing_finds_has_a_version_too_and_is_cleaned_by_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"1,x\n" * (LARGE // 4))
    uri = f"file://{tmp_path}/a.csv"
    [content] = looked_up([Content(uri, uri, LARGE)], stat_objects, partial(may_come_in_pieces, options()))
    assert content.etag is not None
    [stat] = stat_objects([uri])
    assert stat is not None
    assert stat.etag == content.etag
    bucket = open_bucket(f"file://{tmp_path}/")
    assert stat.modified is not None
    (tmp_path / "a.csv").write_bytes(b"2,x\n" * (LARGE // 4))
    [changed] = bucket.delete([Known(uri, LARGE, content.etag, stat.modified)])
    assert "object-changed" in str(changed)
    [now] = stat_objects([uri])
    assert now is not None
    assert bucket.delete([Known(uri, LARGE, now.etag, stat.modified)]) == [None]
    bucket.close()
    assert not (tmp_path / "a.csv").exists()
