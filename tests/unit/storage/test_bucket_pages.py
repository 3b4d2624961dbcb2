"""What holds for pages of every kind of bucket: they go forward, and hold only names that are text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone

import pytest

from queue_source.errors import ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.storage.buckets import Bucket, Known, Outcome, Page

NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)


class Scripted(Bucket):
    def __init__(self, cursor: str | None, *names: str) -> None:
        self._answer = Page([ListedObject(f"s3://b/{name}", 1, None, NOW) for name in names], cursor, NOW)

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        return self._answer

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        raise NotImplementedError

    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("before", "after"),
    [("b", "b"), ("b", "a"), ("b", ""), ("\U0001f600", "\uffff"), ("\udcff", "\u00ff")],
    ids=["the same", "before", "empty", "by code units only", "not UTF-8"],
)
def test_a_listing_that_goes_back_or_stands_still_is_an_error(before: str, after: str) -> None:
    with pytest.raises(ObjectStoreError, match=r"s3://b/.*does not go on"):
        Scripted(after, "x").page("s3://b/", before)


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "a"), ("b", None), ("b", "c"), ("b", "b\0"), ("\uffff", "\U0001f600"), ("\u00ff", "\udcff")],
)
def test_a_listing_that_goes_on_in_the_order_of_bytes_is_none(before: str | None, after: str | None) -> None:
    assert Scripted(after, "x").page("s3://b/", before).cursor == after


def test_a_listing_that_begins_with_nothing_to_go_on_after_is_an_error() -> None:
    with pytest.raises(ObjectStoreError, match="does not go on"):
        Scripted("").page("s3://b/")


def test_names_that_are_no_text_are_left_out_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cuesqueue"):
        page = Scripted("z", "a", "\udcff", "ä", "x\ud800/y", "z").page("s3://b/")
    assert [one.uri for one in page.objects] == ["s3://b/a", "s3://b/ä", "s3://b/z"]
    assert (page.skipped, page.cursor) == (2, "z")
    (record,) = caplog.records
    assert r"s3://b/\udcff" in record.getMessage()


def test_googles_client_still_has_what_is_used_of_it_without_a_public_name() -> None:
    """If this fails with a new version, `GcsBucket` has to find the dates of answers in another way."""
    client = pytest.importorskip("google.cloud.storage").Client.create_anonymous_client()
    assert client._http.hooks["response"] == []
    assert client._bucket_metadata_cache is not None
