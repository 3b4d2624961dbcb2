"""Objects that are asked for before their turn: in order, bounded, each error its object's alone, nothing left over."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.options import parse_reader_options
from queue_source.options.connections import StorageOptions
from queue_source.storage import fetching, pauses, s3_client, s3_object
from queue_source.storage.fetching import WHOLE, Fetcher, Requested
from queue_source.storage.files import open_object
from queue_source.storage.memory import BoundedMemory
from queue_source.storage.open_files import ObjectVersion
from support.servers.s3 import DENIED, SLOW_DOWN, Refusal, S3Server, fails, s3_server

PLACES = range(100)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cuesqueue-fetch")]


def read_all(s3: S3Server, requested: list[Requested], **limits: int) -> list[bytes | Exception]:
    found: list[bytes | Exception] = []
    with Fetcher(requested, storage(s3), **{"requests": 16, "ahead": 1 << 20} | limits) as fetcher:
        for place in range(len(requested)):
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
    requested = [Requested(f"s3://b/{place}", place + 1 if announced else None) for place in PLACES]
    assert read_all(s3, requested) == [b"x" * (place + 1) for place in PLACES]
    assert sum(s3.requests.values()) == len(PLACES)


def test_an_error_is_that_of_its_object_alone_and_the_next_try_asks_anew(s3: S3Server) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x"
    del s3.objects["b/7"]
    s3.refusals["b/8"] = Refusal(403, "AccessDenied", times=2)
    requested = [Requested(f"s3://b/{place}", 1) for place in PLACES]
    found = read_all(s3, requested)
    assert [place for place, what in enumerate(found) if what != b"x"] == [7, 8]
    assert isinstance(found[7], BadObject)
    assert isinstance(found[8], ObjectRefused)
    with Fetcher(requested[8:9], storage(s3), requests=16, ahead=1) as fetcher, fetcher.open(0) as file:
        assert file.read() == b"x"


def test_no_more_is_ahead_than_may_be(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = bytes(10_000)
    requested = [Requested(f"s3://b/{place}", 10_000) for place in PLACES]
    with Fetcher(requested, storage(s3), requests=64, ahead=50_000) as fetcher:
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
        Fetcher([Requested(f"s3://b/{p}", 1) for p in PLACES], storage(s3), requests=4, ahead=9) as f,
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
    with Fetcher([Requested("s3://b/k", 7)], storage(s3), requests=4, ahead=9) as fetcher:
        for _ in range(2):
            with fetcher.open(0) as file:
                assert file.read() == b"content"
    assert s3.requests["GET", "b/k"] == 1


@pytest.mark.parametrize("start", [0, 20 << 20, None])
def test_a_large_object_is_read_by_ranges_of_which_none_is_asked_for_twice(s3: S3Server, start: int | None) -> None:
    s3.objects["b/k"] = data = bytes(range(256)) * (40 << 12)
    assert len(data) > WHOLE
    with Fetcher([Requested("s3://b/k", len(data), start)], storage(s3), requests=4, ahead=9) as fetcher:
        with fetcher.open(0) as file:
            if start is None:
                assert file.read_range(len(data) - 1000, len(data)) == data[-1000:]
                assert s3.requests["GET", "b/k"] == 1
                return
            file.seek(start)
            pieces = list(iter(lambda: file.read(fetching._BLOCK), b""))
    assert b"".join(pieces) == data[start:]
    assert s3.requests["GET", "b/k"] == len(pieces)


def test_objects_of_unknown_size_that_turn_out_large_do_not_take_more_than_may_be_ahead(s3: S3Server) -> None:
    """64 of 8 MB would be 512; only the first of them is asked for as a whole at once, since it is its turn."""
    for place in range(20):
        s3.objects[f"b/{place}"] = bytes(8 << 20)
    held: list[int] = []
    requested = [Requested(f"s3://b/{place}") for place in range(20)]
    with Fetcher(requested, storage(s3), requests=64, ahead=32 << 20) as fetcher:
        for place in range(20):
            with fetcher.open(place) as file:
                time.sleep(0.02)
                ready = [future for future, _ in fetcher._under_way.values() if future.done()]
                held.append(sum(len(future.result()._held) for future in ready))
                assert file.size() == 8 << 20
                assert sum(len(piece) for piece in iter(lambda: file.read(4 << 20), b"")) == 8 << 20
            fetcher.leave([place])
    assert max(held) <= (32 + 8) << 20


def test_one_huge_object_of_unknown_size_does_not_slow_down_the_small_ones(s3: S3Server) -> None:
    s3.objects |= {f"b/{place}": b"x" for place in PLACES} | {"b/0": bytes(100 << 20)}
    with Fetcher(
        [Requested(f"s3://b/{place}") for place in PLACES], storage(s3), requests=64, ahead=32 << 20
    ) as fetcher:
        for place in range(20):
            with fetcher.open(place):
                pass
            fetcher.leave([place])
        assert fetcher._met[0] // fetcher._met[1] <= 1 << 20


@pytest.mark.parametrize("bad", [0, 50, 99], ids=["the first", "in the middle", "the last"])
@pytest.mark.parametrize("kind", ["missing", "denied", "throttled", "cut off", "wrong", "out of memory"])
def test_a_bad_object_is_bad_alone(s3: S3Server, monkeypatch: pytest.MonkeyPatch, bad: int, kind: str) -> None:
    monkeypatch.setattr(pauses, "PATIENCE", 0.01)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"%d" % place
    name, failing = f"b/{bad}", [True]
    if kind == "missing":
        del s3.objects[name]
    elif kind == "out of memory":
        fetch = fetching._fetch

        def short_of_memory(uri: str, *arguments: Any) -> ObjectVersion:
            if uri == f"s3://{name}" and failing:
                failing.clear()
                raise MemoryError
            return fetch(uri, *arguments)

        monkeypatch.setattr(fetching, "_fetch", short_of_memory)
    elif kind == "wrong":
        s3.changes[name] = lambda asked, reply: replace(reply, headers={"Content-Range": "bytes 7-9/10"})
    elif kind == "cut off":
        s3.cuts[name] = range(1, 100)
    else:
        s3.refusals[name] = {"denied": DENIED, "throttled": SLOW_DOWN}[kind]
    found = read_all(s3, [Requested(f"s3://b/{place}", len(str(place))) for place in PLACES])
    if kind == "out of memory":
        assert found[bad] == b"%d" % bad, "it is asked for once more, in its turn"
        return
    assert [place for place, what in enumerate(found) if what != b"%d" % place] == [bad]
    assert name in str(found[bad])


def test_of_two_tasks_each_has_no_more_threads_than_requests(s3: S3Server) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x"
    s3.changes["b/"] = lambda asked, reply: time.sleep(0.005)
    requested = [Requested(f"s3://b/{place}", 1) for place in PLACES]
    with (
        Fetcher(requested, storage(s3), requests=64, ahead=1 << 20) as one,
        Fetcher(requested, storage(s3), requests=8, ahead=1 << 20) as other,
    ):
        for place in PLACES:
            with one.open(place) as file, other.open(place) as same:
                assert file.read() == same.read() == b"x"
                assert len(threads()) <= 64 + 8
    assert not threads()


def test_connections_are_kept_however_many_requests_are_under_way(caplog: pytest.LogCaptureFixture) -> None:
    with s3_server(keeps=True) as s3:
        s3.objects |= {f"b/{place}": b"x" for place in range(300)}
        s3.changes["b/"] = lambda asked, reply: time.sleep(0.05)
        requested = [Requested(f"s3://b/{place}", 1) for place in range(300)]
        assert read_all(s3, requested, requests=100, ahead=1 << 20) == [b"x"] * 300
        assert len(s3.connections) < 150  # a few of them are boto3's, before the bucket was met
    assert "pool is full" not in caplog.text


def test_where_the_system_allows_few_threads_a_task_does_with_them(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a limit of addresses, of which the stack of each takes 8 MB."""
    start, started = threading.Thread.start, iter(range(3))

    def few(thread: threading.Thread) -> None:
        if thread.name.startswith("cuesqueue-fetch") and next(started, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x"
    assert read_all(s3, [Requested(f"s3://b/{place}", 1) for place in PLACES]) == [b"x"] * 100
    assert s3.requests.total() == len(PLACES)


def test_a_task_that_ends_does_not_wait_for_a_bucket_that_throttles(s3: S3Server) -> None:
    for place in PLACES:
        s3.objects[f"b/{place}"] = b"x"
    s3.refusals |= {f"b/{place}": SLOW_DOWN for place in range(2, 60)}
    with Fetcher([Requested(f"s3://b/{p}", 1) for p in PLACES], storage(s3), requests=64, ahead=1 << 20) as fetcher:
        with fetcher.open(0) as file:
            assert file.read() == b"x"
        time.sleep(0.5)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert not threads()


def test_a_request_that_hangs_when_its_task_ends_is_not_sent_again(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, by boto3: the task ended when each had hung four times."""
    monkeypatch.setattr(s3_client, "TIME_OUT", (5, 2))
    s3.objects |= {f"b/{place}": b"x" for place in range(8)}
    with open_object("s3://b/0", storage(s3)) as met:
        assert met.read() == b"x"
    asked: list[str] = []

    def hang(request: Any, reply: Any) -> None:
        asked.append(request.path)
        time.sleep(0 if request.path == "/b/0" else 3)

    s3.changes["b/"] = hang
    requested = [Requested(f"s3://b/{place}", 1) for place in range(8)]
    with Fetcher(requested, storage(s3), requests=8, ahead=1 << 20) as fetcher, fetcher.open(0):
        wait_for(lambda: len(asked) == 8)
    assert sorted(asked) == [f"/b/{place}" for place in range(8)]
    assert not threads()


def test_what_others_read_ahead_is_not_taken_by_the_object_that_is_decoded(s3: S3Server) -> None:
    """However much may be ahead: else it would be called too large for memory."""
    for place in range(24):
        s3.objects[f"b/{place}"] = bytes(8 << 20)
    begun = threading.Event()
    s3.changes["b/"] = lambda asked, reply: None if asked.path == "/b/0" or begun.wait(10) else reply
    requested = [Requested(f"s3://b/{place}", 8 << 20) for place in range(24)]
    with Fetcher(requested, storage(s3), requests=64, ahead=1 << 30) as fetcher, fetcher.open(0):
        with BoundedMemory(64 << 20):
            begun.set()
            for future, _ in fetcher._under_way.values():
                assert future.result().size == 8 << 20
            taken = pa.allocate_buffer(48 << 20)
        assert taken.size == 48 << 20


def test_a_child_of_a_task_uses_no_connection_of_its_parent() -> None:
    """Answers would come to the wrong one. Nor does it wait for a lock that another thread had."""
    with s3_server(keeps=True) as s3:
        for place in PLACES:
            s3.objects[f"b/{place}"] = bytes([place]) * 200_000
        requested = [Requested(f"s3://b/{place}", 200_000, 0, 64 << 10) for place in PLACES]
        with Fetcher(requested, storage(s3), requests=4, ahead=1 << 20) as fetcher, fetcher.open(0) as file:
            kept = file.version
            assert kept.read_range(150_000, 150_010) == bytes(10)
            wait_for(lambda: all(future.done() for future, _ in fetcher._under_way.values()))
            known = set(s3.connections)
            with s3_client._making:
                child = os.fork()
                if not child:
                    signal.alarm(10)  # where it hangs
                    good = kept.read_range(160_000, 160_010) == bytes(10)
                    with open_object("s3://b/7", storage(s3)) as other:
                        good = good and other.read() == bytes([7]) * 200_000
                    os._exit(0 if good else 1)
            before = dict(s3.connections)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert {one: s3.connections[one] for one in known} == {one: before[one] for one in known}
            assert kept.read_range(170_000, 170_010) == bytes(10)


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("requests", [64])
def test_a_bucket_that_throttles_each_tenth_request_is_read_to_its_end(s3: S3Server, requests: int) -> None:
    """Each thread waits by itself, and for a moment."""
    number = 500
    s3.objects |= {f"b/{place}": b"%d" % place for place in range(number)}
    counted = itertools.count(1)
    s3.changes["b/"] = lambda asked, reply: fails(503, "SlowDown") if next(counted) % 10 == 0 else None
    requested = [Requested(f"s3://b/{place}", len(str(place))) for place in range(number)]
    assert read_all(s3, requested, requests=requests) == [b"%d" % place for place in range(number)]


def test_a_bucket_that_throttles_everything_for_a_while_slows_a_task_down(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of pauses, which this does not make; they differ, and grow."""
    made: list[float] = []
    monkeypatch.setattr(s3_object, "pause", made.append)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # by boto3, and by any other thread
    s3.objects |= {f"b/{place}": b"x" for place in range(8)}
    s3.changes["b/"] = lambda asked, reply: fails(503, "SlowDown") if sum(made) < 60 else None
    requested = [Requested(f"s3://b/{place}", 1) for place in range(8)]
    assert read_all(s3, requested, requests=8) == [b"x"] * 8
    assert len(set(made)) > 8
    assert max(made) <= 8


def test_a_bucket_that_does_not_answer_is_waited_for_by_all_threads_at_once(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one after another: a task of many objects would take hours to fail."""
    s3.objects |= {f"b/{place}": b"x" for place in range(16)}
    s3.changes["b/"] = lambda asked, reply: time.sleep(0.2) or fails(403, "AccessDenied")  # type: ignore[func-returns-value]
    requested = [Requested(f"s3://b/{place}", 1) for place in range(16)]
    began = time.monotonic()
    with Fetcher(requested, storage(s3), requests=16, ahead=1 << 20) as fetcher:
        with pytest.raises(ObjectRefused), fetcher.open(0):
            pass
        wait_for(lambda: all(future.done() for future, _ in fetcher._under_way.values()))
    assert time.monotonic() - began < 16 * 0.2


_READS = """
import sys, threading
from queue_source.options import parse_reader_options
from queue_source.storage.fetching import Fetcher, Requested

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

def read_all(requested):
    most = 0
    with Fetcher(requested, storage, requests=64, ahead=32 << 20) as fetcher:
        for place in range(len(requested)):
            with fetcher.open(place) as file:
                while file.read(1 << 20):
                    pass
                most = max(most, resident())
            fetcher.leave([place])
    return most

url, size = sys.argv[1], int(sys.argv[2])
given = {"queueUrl": "sim://q", "fileFormat": "csv", "allowedPrefixes": "s3://", "s3.region": "us-east-1"}
given |= {"s3.endpointUrl": url, "s3.accessKeyId": "test", "s3.secretAccessKey": "test"}
storage = parse_reader_options(given).content.storage
small = [Requested(f"s3://b/{place}", 1) for place in range(200)]
before = read_all(small)
large = [Requested(f"s3://b/large{place}", size) for place in range(60)]
print(read_all(small + large) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of what other systems keep nothing is known")
def test_many_threads_keep_no_memory_of_what_they_have_read(s3: S3Server) -> None:
    """60 objects of 7 MB, with 32 MB ahead: what was freed stays with as few threads as there are places for it."""
    size = 7 << 20
    s3.objects |= {f"b/{place}": b"x" for place in range(200)}
    s3.objects |= dict.fromkeys([f"b/large{place}" for place in range(60)], bytes(size))
    done = subprocess.run(
        [sys.executable, "-c", _READS, s3.url, str(size)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 + 7 + 40
