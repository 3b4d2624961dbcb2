"""Objects that the options choose by when they were modified, and objects of others in one queue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from queue_source.announcements.contents import Announced, Stated, announced_objects, listed_contents
from queue_source.errors import OptionError
from queue_source.messages import ListedObject, Receipt, Received
from queue_source.options import NotificationOptions, check_zone, parse_reader_options
from queue_source.storage.files import ObjectStat

LEAST = {"queueUrl": "sql+sqlite:///jobs.db?queue=files", "fileFormat": "json", "allowedPrefixes": "s3://ours/in/"}
NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def options(**given: str) -> NotificationOptions:
    return parse_reader_options({**LEAST, **given}).notifications


def s3(*keys: str, time: str | None = None, size: int | None = 3, bucket: str = "ours") -> str:
    """One message, as S3 sends it."""
    said = {} if size is None else {"size": size}
    timed = {} if time is None else {"eventTime": time}
    records = [
        {"eventName": "ObjectCreated:Put", **timed, "s3": {"bucket": {"name": bucket}, "object": {"key": key, **said}}}
        for key in keys
    ]
    return json.dumps({"Records": records})


class Store:
    """What is in the bucket: URI -> when it was modified; counts what it is asked for."""

    def __init__(self, **modified: datetime | None) -> None:
        self.modified = {f"s3://ours/in/{key}": time for key, time in modified.items()}
        self.asked: list[list[str]] = []

    def __call__(self, uris: Sequence[str]) -> list[Stated | None]:
        self.asked.append(list(uris))
        return [ObjectStat(7, self.modified[uri]) if uri in self.modified else None for uri in uris]


def take(*bodies: str, store: Store | None = None, **given: str) -> list[Announced]:
    messages = [
        Received("files", str(number), Receipt(str(number)), body.encode(), receive_count=1, lease_until=0.0)
        for number, body in enumerate(bodies)
    ]
    return announced_objects(messages, options(**given), store or Store(), NOW)


def read(announced: list[Announced]) -> list[str]:
    return [content.uri.rpartition("/")[2] for one in announced for content in one.contents]


def left_out(announced: list[Announced]) -> list[str]:
    return [content.uri.rpartition("/")[2] for one in announced for content in one.left_out]


# objects of others


def test_what_others_are_told_of_is_left_out_and_counted() -> None:
    announced = take(
        json.dumps(["s3://ours/in/1", "s3://theirs/2", "gs://ours/in/3", "s3://ours/in/4", "s3://ours/out/5"]),
        "s3://theirs/6",
        onForeignObject="ignore",
    )
    assert read(announced) == ["1", "4"]
    assert [(one.foreign, one.ignored, one.error) for one in announced] == [(3, 0, None), (1, 0, None)]


def test_without_the_option_a_message_with_an_object_of_others_is_an_error_as_a_whole() -> None:
    givens: list[dict[str, Any]] = [{}, {"onForeignObject": "QUARANTINE"}]
    for given in givens:
        (one,) = take(json.dumps(["s3://ours/in/1", "s3://theirs/2"]), **given)
        assert one.error is not None
        assert (one.contents, one.foreign) == ((), 0)


@pytest.mark.parametrize(
    "body",
    [
        "hello",
        "s3://theirs/../ours/in/1",
        "s3://theirs/in/./1",
        "s3://ours/in/../in/1",
        '["s3://theirs/1", "s3://ours/in/.."]',
        '["s3://theirs/1", 5]',
        s3("in/1", bucket="a/b"),
        json.dumps({"Records": [{"eventName": "Nonsense", "s3": {"bucket": {"name": "theirs"}}}]}),
    ],
)
def test_what_is_malformed_or_climbs_is_never_taken_for_an_object_of_others(body: str) -> None:
    (one,) = take(body, onForeignObject="ignore")
    assert one.error is not None
    assert one.foreign == 0


def test_the_limit_of_objects_a_message_counts_only_ours() -> None:
    many = json.dumps([f"s3://theirs/{number}" for number in range(9)] + ["s3://ours/in/1", "s3://ours/in/2"])
    given: dict[str, Any] = {"onForeignObject": "ignore"}
    assert read(take(many, maxObjectsPerMessage="2", **given)) == ["1", "2"]
    assert take(many, maxObjectsPerMessage="1", **given)[0].error is not None


def test_an_object_of_ours_that_the_name_leaves_out_is_ignored_and_not_foreign() -> None:
    (one,) = take('["s3://ours/in/_x", "s3://theirs/_x"]', onForeignObject="ignore")
    assert (one.ignored, one.foreign, one.contents) == (1, 1, ())


# times


def test_objects_are_chosen_by_the_time_of_their_notification() -> None:
    given: dict[str, Any] = {"modifiedAfter": "2026-11-20T00:00:00Z", "modifiedBefore": "2026-11-21T00:00:00Z"}
    store = Store()
    bodies = [
        s3(f"in/{number}", time=time)
        for number, time in enumerate(
            (
                "2026-11-19T23:59:59.999Z",
                "2026-11-20T00:00:00.000Z",
                "2026-11-20T00:00:00.001Z",
                "2026-11-20T23:59:59.999Z",
                "2026-11-21T00:00:00.000Z",
            )
        )
    ]
    announced = take(*bodies, store=store, **given)
    assert read(announced) == ["2", "3"]
    assert left_out(announced) == ["0", "1", "4"]
    assert store.asked == []


def test_ages_are_counted_from_now_and_what_has_just_that_age_is_read() -> None:
    times = {"older": NOW - timedelta(hours=1, microseconds=1), "just": NOW - timedelta(hours=1), "new": NOW}
    announced = take(*(f"s3://ours/in/{key}" for key in times), store=Store(**times), maxFileAge="1h")
    assert read(announced) == ["just", "new"]
    assert left_out(announced) == ["older"]


def test_the_store_is_asked_once_and_only_for_what_no_notification_says() -> None:
    store = Store(a=NOW - timedelta(days=9), b=NOW, sent=NOW - timedelta(days=9), silent=NOW)
    announced = take(
        "s3://ours/in/a",
        '["s3://ours/in/b", "s3://ours/in/a", "s3://ours/in/gone"]',
        s3("in/told", time="2026-11-22T11:59:00Z"),
        s3("in/sent", time="2026-11-22T11:59:00Z", size=None),  # by somebody who sends it now: `cuesqueue send`
        s3("in/silent"),
        s3("in/silent", time="1970-01-01T00:00:00.000Z"),
        store=store,
        maxFileAge="1 day",
    )
    assert read(announced) == ["b", "gone", "told", "silent", "silent"]
    assert left_out(announced) == ["a", "a", "sent"]
    assert store.asked == [[f"s3://ours/in/{key}" for key in ("a", "b", "gone", "sent", "silent")]]
    sizes = {content.uri[-4:]: content.size for one in announced for content in one.contents}
    assert sizes == {"in/b": 7, "gone": None, "told": 3, "lent": 3}


def test_an_object_of_which_the_time_is_not_known_is_read() -> None:
    announced = take("s3://ours/in/a", "s3://ours/in/gone", store=Store(a=None), modifiedBefore="2000-01-01T00:00:00Z")
    assert read(announced) == ["a", "gone"]


def test_without_the_options_no_store_is_asked_for_times() -> None:
    store = Store()
    assert read(take(s3("in/1"), store=store)) == ["1"]
    assert store.asked == []


def listed(key: str, modified: datetime) -> ListedObject:
    return ListedObject(f"s3://ours/in/{key}", 3, "e", modified)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["old", "day", "new"]),
        ({"maxFileAge": "1 day"}, ["day", "new"]),
        ({"modifiedAfter": "2026-11-21T12:00:00Z"}, ["new"]),
        ({"modifiedBefore": "2026-11-21T12:00:00Z"}, ["old"]),
        ({"modifiedBefore": "2026-11-21T12:00:01Z", "modifiedAfter": "2026-11-21T11:59:59Z"}, ["day"]),
    ],
)
def test_what_is_listed_is_chosen_as_what_is_announced(given: dict[str, Any], found: list[str]) -> None:
    times = {"old": NOW - timedelta(days=2), "day": NOW - timedelta(days=1), "new": NOW}
    contents = listed_contents([listed(key, time) for key, time in times.items()], options(**given), NOW)
    assert [content.uri.rpartition("/")[2] for content in contents if content is not None] == found
    bodies = [f"s3://ours/in/{key}" for key in times]
    assert read(take(*bodies, store=Store(**times), **given)) == found


# options


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-11-20T08:30:00", "UTC", "2026-11-20T08:30:00+00:00"),
        ("2026-11-20 08:30:00", "Europe/Berlin", "2026-11-20T07:30:00+00:00"),
        ("2026-07-20T08:30:00", "Europe/Berlin", "2026-07-20T06:30:00+00:00"),
        ("2026-11-20T08:30:00", "+05:30", "2026-11-20T03:00:00+00:00"),
        ("2026-11-20T08:30:00Z", "Europe/Berlin", "2026-11-20T08:30:00+00:00"),
        ("2026-11-20T08:30:00+01:00", "+05:30", "2026-11-20T07:30:00+00:00"),
        ("2026-11-20T08:30:00.123456789 America/New_York", "UTC", "2026-11-20T13:30:00.123456+00:00"),
        ("2020-01-01 00:00:00.000000 UTC+0", "Europe/Berlin", "2020-01-01T00:00:00+00:00"),
        ("2026-11-20", "Europe/Berlin", "2026-11-19T23:00:00+00:00"),
        ("2026-1-2 3:4", "UTC", "2026-01-02T03:04:00+00:00"),
        ("2026", "UTC", "2026-01-01T00:00:00+00:00"),
        ("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T00:30:00+00:00"),  # twice: the earlier one
        ("2026-03-29T02:30:00", "Europe/Berlin", "2026-03-29T01:30:00+00:00"),  # never: an hour later
    ],
)
def test_a_timestamp_is_read_as_spark_reads_it(text: str, zone: str, expected: str) -> None:
    found = options(modifiedAfter=text, timeZone=zone).modified_after
    assert found is not None
    assert found.isoformat() == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "yesterday", "2026-13-01", "2026-02-30T00:00:00", "2026-11-20T24:00:00", "20-11-2026", "2026-11-20T08",
        "2026-11-20T08:30:00 Nowhere/Town", "2026-11-20T08:30:00+19:00", "2026-11-20Z", "1763627400", "7 days",
        "0001-01-01T00:00:00+14:00", "2026-11-20T08:30:00Zonk", "+2026-11-20", "٢٠٢٦-11-20",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["modifiedAfter", "modifiedBefore"])
def test_what_is_no_timestamp_is_refused_with_an_example(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=r"is not a timestamp.*2026-11-20T08:30:00Z") as caught:
        options(**{name: text})
    assert caught.value.option == name


def test_a_local_time_that_the_zone_moves_out_of_the_calendar_is_refused() -> None:
    with pytest.raises(OptionError, match="beyond the years 1 to 9999"):
        options(modifiedAfter="0001-01-01T00:00:00", timeZone="+14:00")


def test_the_zone_acts_on_times_whatever_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(fileFormat="parquet", timeZone="+02:00", modifiedBefore="2026-11-20T08:30:00").modified_before
    assert found == datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)
    with pytest.raises(OptionError, match="acts only on fileFormat"):
        options(fileFormat="parquet", timeZone="+02:00")


def test_a_zone_that_nobody_gave_is_that_of_the_machine_and_a_task_compares_it_with_the_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assumed = options(modifiedBefore="2026-11-20T08:30:00")
    assert assumed.modified_before == datetime(2026, 11, 19, 23, 30, tzinfo=timezone.utc)
    check_zone(assumed, "Asia/Tokyo")
    with pytest.raises(OptionError, match=r"modifiedBefore.*Asia/Tokyo.*session's zone is UTC; write the zone"):
        check_zone(assumed, "UTC")
    for said in (
        options(modifiedBefore="2026-11-20T08:30:00Z"),
        options(modifiedBefore="2026-11-20T08:30:00", timeZone="Asia/Seoul"),
        options(),
    ):
        check_zone(said, "UTC")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modifiedAfter", "2026-11-20T00:00:00Z"),
        ("modifiedBefore", "2026-11-20T00:00:00Z"),
        ("maxFileAge", "7 days"),
        ("onForeignObject", "ignore"),
        ("pathGlobFilter", "*.json"),
        ("fullPathGlobFilter", "s3://landing/**/*.json"),
        ("readHiddenFiles", "true"),
        ("allowOverwrites", "true"),
    ],
)
def test_messages_are_not_chosen_as_objects_are(name: str, value: str) -> None:
    given: dict[str, Any] = {"queueUrl": LEAST["queueUrl"], "content": "message", name: value}
    with pytest.raises(OptionError, match="with content message there are none") as caught:
        parse_reader_options(given)
    assert caught.value.option == name
    assert parse_reader_options({**given, name: "quarantine"}) if name == "onForeignObject" else True


def test_times_between_which_nothing_is_are_refused() -> None:
    for before in ("2026-11-20T00:00:00Z", "2026-11-19T23:00:00Z"):
        with pytest.raises(OptionError, match="no object is between them"):
            options(modifiedAfter="2026-11-20T00:00:00Z", modifiedBefore=before)
    assert options(modifiedAfter="2026-11-20T00:00:00Z", modifiedBefore="2026-11-20T00:00:01Z").chooses_by_time


@pytest.mark.parametrize("text", ["0s", "7", "-1 days", "long"])
def test_an_age_is_a_duration_above_zero(text: str) -> None:
    with pytest.raises(OptionError):
        options(maxFileAge=text)


def test_the_age_that_auto_loader_means_has_another_name_here() -> None:
    with pytest.raises(OptionError, match=r"set deduplicationWindow.*leaves out what is older"):
        options(**{"cloudFiles.maxFileAge": "30 days"})
    assert options(**{"cloudFiles.modifiedAfter": "2026-11-20T00:00:00Z"}).modified_after is not None
