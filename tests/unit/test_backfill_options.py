"""Options of listings: what they need, what contradicts them, and what they are when nobody says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from queue_source.errors import OptionError
from queue_source.options import ReaderOptions, options_of_choice, parse_listing_options, parse_reader_options

ALONE = {"backfillPrefixes": "s3://landing/orders/", "fileFormat": "json", "source": "orders"}
BESIDE = {**ALONE, "queueUrl": "sim://files", "allowedPrefixes": "s3://landing/"}


def parse(options: dict[str, str], **more: str) -> ReaderOptions:
    return parse_reader_options({**options, **more})


def test_without_a_queue_the_folders_that_are_listed_are_all_that_is_read() -> None:
    options = parse(ALONE)
    assert options.queue.urls == ()
    assert options.notifications.allowed_prefixes == ("s3://landing/orders/",)
    assert options.backfill.prefixes == ("s3://landing/orders/",)
    assert (options.backfill.interval, options.backfill.grace) == (timedelta(minutes=1), timedelta(0))
    assert (options.source, options.pipeline) == ("orders", "orders")


def test_local_files_are_read_only_where_they_are_listed() -> None:
    options = parse(ALONE, backfillPrefixes="/data/in/")
    assert options.content.storage.local_prefixes == ("file:///data/in/",)


def test_beside_a_queue_listings_are_rare_and_leave_time_for_messages() -> None:
    options = parse(BESIDE)
    assert (options.backfill.interval, options.backfill.grace) == (timedelta(days=1), timedelta(minutes=10))
    assert options.backfill.include_existing
    assert options.notifications.allowed_prefixes == ("s3://landing/",)


def test_what_is_given_counts() -> None:
    given = {"backfillInterval": "1 week", "backfillGrace": "0s", "includeExistingFiles": "false"}
    for options in (
        parse(BESIDE, **given),
        parse(BESIDE, **{f"cloudFiles.{name}": text for name, text in given.items()}),
    ):
        assert (options.backfill.interval, options.backfill.grace) == (timedelta(weeks=1), timedelta(0))
        assert not options.backfill.include_existing


def test_a_folder_in_another_is_listed_with_that_one() -> None:
    options = parse(
        BESIDE, backfillPrefixes="s3://landing/orders/eu/, s3a://landing/orders/,s3://landing/b,s3://landing/b"
    )
    assert options.backfill.prefixes == ("s3://landing/orders/", "s3://landing/b")


def test_nothing_is_listed_unless_it_is_asked_for() -> None:
    options = {name: text for name, text in BESIDE.items() if name != "backfillPrefixes"}
    assert parse(options).backfill.prefixes == ()
    assert parse(options, includeExistingFiles="false").backfill.prefixes == ()


TO_A_MOUNT = {"pathRewrites": '{"s3://b/": "file:///mnt/b/"}', "allowedPrefixes": "s3://,file:///mnt/"}
TO_A_BUCKET = {"pathRewrites": '{"s3a://b/": "s3://c/"}', "allowedPrefixes": "s3://", "backfillPrefixes": "s3://c/"}
LISTED = {**TO_A_MOUNT, "backfillPrefixes": "file:///mnt/b/in/"}


@pytest.mark.parametrize(
    ("options", "more", "option", "says"),
    [
        # the versions of the two stores would make two objects of each
        (BESIDE, {**LISTED, "allowOverwrites": "true"}, "pathRewrites", "versions of its own"),
        (BESIDE, LISTED, "", ""),
        (BESIDE, {**TO_A_MOUNT, "backfillPrefixes": "s3://b/", "allowOverwrites": "true"}, "", ""),
        (BESIDE, {**TO_A_BUCKET, "allowOverwrites": "true"}, "", ""),
        (ALONE, {"source": ""}, "source", "a name must not be empty"),
        ({**ALONE, "source": None}, {}, "source", "is required without a queue"),
        (BESIDE, {"backfillPrefixes": "s3://elsewhere/"}, "backfillPrefixes", "outside of allowedPrefixes"),
        (BESIDE, {"backfillPrefixes": "s3://landing"}, "", ""),
        (ALONE, {"backfillPrefixes": "s3://"}, "backfillPrefixes", "no folder and no bucket"),
        (ALONE, {"backfillPrefixes": "s3://b/../a/"}, "backfillPrefixes", "write the path that it stands for"),
        (ALONE, {"backfillPrefixes": ""}, "backfillPrefixes", "empty prefix"),
        (ALONE, {"backfillInterval": "0s"}, "backfillInterval", "not more than zero"),
        (BESIDE, {"deliverySemantics": "at-least-once"}, "backfillPrefixes", "at-least-once"),
        (BESIDE, {"content": "message", "fileFormat": None}, "backfillPrefixes", "content message"),
        (BESIDE, {"deduplicationWindow": "2 days"}, "deduplicationWindow", "an hour"),
        (BESIDE, {"deduplicationMaxShards": "50000000"}, "deduplicationMaxShards", "deduplicationWindow"),
        (ALONE, {"deduplicationMaxShards": "50000000"}, "deduplicationMaxShards", "never read"),
        ({**BESIDE, "backfillPrefixes": None}, {"deduplicationMaxShards": "50000000"}, "", ""),
        (BESIDE, {"queueShares": "percentage:100"}, "queueShares", "for what listings find"),
        (BESIDE, {"queueShares": "percentage:70,30"}, "", ""),
        (ALONE, {"queueShares": "percentage:100"}, "", ""),
        ({**BESIDE, "backfillPrefixes": None}, {"backfillInterval": "1h"}, "backfillInterval", "backfillPrefixes"),
        ({**BESIDE, "backfillPrefixes": None}, {"backfillGrace": "1h"}, "backfillGrace", "backfillPrefixes"),
        ({**BESIDE, "backfillPrefixes": None}, {"includeExistingFiles": "true"}, "includeExistingFiles", "backfillP"),
        ({**ALONE, "backfillPrefixes": None}, {}, "queueUrl", "folders to list in backfillPrefixes"),
        (ALONE, {"path": "/data/in"}, "path", "backfillPrefixes"),
    ],
)
def test_what_can_never_be_right_is_refused_by_name(
    options: dict[str, str | None], more: dict[str, str | None], option: str, says: str
) -> None:
    given = {name: text for name, text in {**options, **more}.items() if text is not None}
    if not option:
        parse_reader_options(given)
        return
    with pytest.raises(OptionError, match=says) as caught:
        parse_reader_options(given)
    assert caught.value.option == option


def test_a_choice_of_objects_is_kept_as_the_texts_of_its_options() -> None:
    given = {"fullPathGlobFilter": "s3://landing/**/*.csv", "readHiddenFiles": "true", "allowOverwrites": "false"}
    choice = parse_listing_options(["s3://landing/orders/"], given).choice
    assert options_of_choice(choice) == {"fullPathGlobFilter": "s3://landing/**/*.csv", "readHiddenFiles": "true"}
