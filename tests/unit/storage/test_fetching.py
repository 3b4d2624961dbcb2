"""Objects that are asked for before their turn: in order, bounded, each error its object's alone, nothing left over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage import fetching
from queue_source.storage.fetching import WHOLE, Fetcher, Wanted
from support.servers.s3 import Refusal, S3Server, s3_server

PLACES = range(100)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cuesqueue-fetch")]


def read_all(s3: S3Server, wanted: list[Wanted], **limits: int) -> list[bytes | Exception]:
    found: list[bytes | Exception] = []
    with Fetcher(wanted, storage(s3), **{"requests": 16, "ahead": 1 << 20} | limits) as fetcher:
        for place in range(len(wanted)):
            try:
                with fetcher.open(place) as file:
                    found.append(bytes(file.read()))
            except (BadObject, ObjectStoreError) as error:
                found.append(error)
            fetcher.leave([place])
    assert not threads()
    return found


def storage(s3: S3Server) -> StorageOptions:
    given = {"queueUrl": "sim://q", "fileFormat": "csv", "allowedPrefixes": "s3://", **s3.options}
    return parse_reader_options(given).content.storage


@pytest.mark.parametrize("announced", [True, False])
def test_each_object_costs_one_request(s3: S3Server, announced: bool) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x" * (place + 1)
    wanted = [Wanted(f"s3://b/{place}", place + 1 if announced else None) for place in PLACES]
    assert read_all(s3, wanted) == [b"x" * (place + 1) for place in PLACES]
    assert sum(s3.requests.values()) == len(PLACES)


def test_an_error_is_that_of_its_object_alone_and_the_next_try_asks_anew(s3: S3Server) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x"
    del s3.objects["b/7"]
    s3.refusals["b/8"] = Refusal(403, "AccessDenied", times=2)
    wanted = [Wanted(f"s3://b/{place}", 1) for place in PLACES]
    found = read_all(s3, wanted)
    assert [place for place, what in enumerate(found) if what != b"x"] == [7, 8]
    assert isinstance(found[7], BadObject)
    assert isinstance(found[8], ObjectRefused)
    with Fetcher(wanted[8:9], storage(s3), requests=16, ahead=1) as fetcher, fetcher.open(0) as file:
        assert file.read() == b"x"


def test_no_more_is_ahead_than_may_be(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = bytes(10_000)
    wanted = [Wanted(f"s3://b/{place}", 10_000) for place in PLACES]
    with Fetcher(wanted, storage(s3), requests=64, ahead=50_000) as fetcher:
        for place in PLACES:
            with fetcher.open(place):
                time.sleep(0.001)
                assert sum(s3.requests.values()) <= place + 6
            fetcher.leave([place])
    assert sum(s3.requests.values()) == len(PLACES)


def test_a_task_that_ends_in_the_middle_leaves_no_thread_and_asks_for_nothing_more(s3: S3Server) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x"
    with (
        pytest.raises(KeyError),
        Fetcher([Wanted(f"s3://b/{p}", 1) for p in PLACES], storage(s3), requests=4, ahead=9) as f,
    ):
        with f.open(0):
            raise KeyError
    assert not threads()
    asked = sum(s3.requests.values())
    assert asked < len(PLACES)
    time.sleep(0.05)
    assert sum(s3.requests.values()) == asked


def test_an_object_is_asked_for_once_although_it_is_opened_twice(s3: S3Server) -> None:
    """As one that is read among others first, and then alone."""
    s3.objects["b/k"] = b"content"
    with Fetcher([Wanted("s3://b/k", 7)], storage(s3), requests=4, ahead=9) as fetcher:
        for _ in range(2):
            with fetcher.open(0) as file:
                assert file.read() == b"content"
    assert s3.requests["GET", "b/k"] == 1


@pytest.mark.parametrize("start", [0, 20 << 20, None])
def test_a_large_object_is_read_by_ranges_of_which_none_is_asked_for_twice(s3: S3Server, start: int | None) -> None:
    s3.objects["b/k"] = data = bytes(range(256)) * (40 << 12)
    assert len(data) > WHOLE
    with Fetcher([Wanted("s3://b/k", len(data), start)], storage(s3), requests=4, ahead=9) as fetcher:
        with fetcher.open(0) as file:
            if start is None:
                assert file.read_range(len(data) - 1000, len(data)) == data[-1000:]
                assert s3.requests["GET", "b/k"] == 1
                return
            file.seek(start)
            pieces = list(iter(lambda: file.read(fetching._BLOCK), b""))
    assert b"".join(pieces) == data[start:]
    assert s3.requests["GET", "b/k"] == len(pieces)
