"""An object that its store refuses is a bad object; a bucket that is refused fails the query, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.options import parse_reader_options
from queue_source.read import objects, task
from queue_source.read.partitions import whole_pieces
from queue_source.read.task import Work, read_pieces
from queue_source.storage import pauses as pauses_of_requests
from queue_source.storage.fetching import Requested
from queue_source.storage.open_files import ObjectFile
from shard_store.model import BEGINNING, Content, ErrorRecord, PlanIdentity, PublishToken, Range, end_at, shard_key
from shard_store.store import open_store
from support.privileges import without_privileges
from support.reading import plan_store
from support.servers.s3 import ARCHIVED, DENIED, SLOW_DOWN, S3Server, s3_server
from support.store_backends import whole

SCHEMA = pa.schema([("a", pa.int64())])
IDENTITY = PlanIdentity("files", PublishToken("files", 1), 0, 1, "f" * 64)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a task would have made."""
    made: list[float] = []
    monkeypatch.setattr(
        objects, "time", SimpleNamespace(sleep=made.append)
    )  # not the module's: other threads sleep too
    return made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def work(s3: S3Server, url: str, *uris: str, max_attempts: int = 3, group: str | None = None, **options: str) -> Work:
    given = {"queueUrl": "sim://files", "source": "files", "allowedPrefixes": "s3://,file:///", "store": url}
    parsed = parse_reader_options({**given, "fileFormat": "json", "mode": "FAILFAST", **s3.options, **options})
    contents = [Content(uri, uri, queue="q", message_id="m", group=group) for uri in uris]
    ranges = [Range(shard_key("files", one.uri), one, BEGINNING, end_at(10)) for one in contents]
    return Work(IDENTITY, whole_pieces(ranges), parsed.content, plan_store(parsed), max_attempts=max_attempts)


def put(s3: S3Server, *names: str) -> list[str]:
    """Objects of one row each: their number."""
    for number, name in enumerate(names):
        s3.objects[name] = b'{"a": %d}\n' % number
    return [f"s3://{name}" for name in names]


def read(todo: Work) -> tuple[list[int], list[ErrorRecord]]:
    reported: list[ErrorRecord] = []

    def report(records: Sequence[ErrorRecord]) -> None:
        reported.extend(records)

    return [row["a"] for batch in read_pieces(todo, SCHEMA, report) for row in batch.to_pylist()], reported


def test_a_forbidden_object_is_a_bad_object_when_its_neighbours_can_be_read(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1", "b/2")
    s3.refusals["b/1"] = DENIED
    rows, errors = read(work(s3, url, *uris))
    assert rows == [0, 2]
    (error,) = errors
    assert (error.scope, error.cause, error.subject) == ("object", "forbidden-object", "s3://b/1")
    assert "AccessDenied" in error.detail
    assert 3 <= s3.requests["GET", "b/1"] <= 2 * 3, "maxAttempts, and each time boto3 asks why"


def test_the_verdict_does_not_hang_on_the_order(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1", "b/2")
    s3.refusals |= {"b/0": DENIED, "b/1": DENIED}
    rows, errors = read(work(s3, url, *uris, max_attempts=1))
    assert rows == [2]
    assert [error.cause for error in errors] == ["forbidden-object"] * 2


def test_a_refusal_that_passes_harms_nobody(s3: S3Server, url: str, pauses: list[float]) -> None:
    uris = put(s3, "b/0", "b/1")
    s3.refusals["b/0"] = DENIED._replace(times=2)
    assert read(work(s3, url, *uris)) == ([0, 1], [])
    assert pauses in ([0.5], [0.5, 1.0]), "a try is one request, or two: boto3 asks why"


def test_a_task_waits_for_all_its_refused_objects_together(s3: S3Server, url: str, pauses: list[float]) -> None:
    uris = put(s3, *(f"b/{number}" for number in range(20)))
    s3.refusals |= {f"b/{number}": DENIED for number in range(19)}
    assert len(read(work(s3, url, *uris))[1]) == 19
    assert sum(pauses) == sum(objects.PAUSES)


@pytest.mark.parametrize("refusal", [DENIED, DENIED._replace(get_only=True)])
def test_a_bucket_that_is_refused_fails_the_query_and_nothing_is_given_up(
    s3: S3Server, url: str, refusal: object
) -> None:
    uris = put(s3, "b/0", "b/1", "b/2", "other/3")
    s3.refusals["b/"] = refusal  # type: ignore[assignment]
    reported: list[ErrorRecord] = []
    with pytest.raises(ObjectStoreError, match=r"nothing else of s3://b/ could be read.*credentials"):
        list(read_pieces(work(s3, url, *uris), SCHEMA, reported.extend))
    assert reported == []


def test_credentials_that_end_in_the_middle_of_a_task_are_no_fault_of_its_objects(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1", "b/2")
    reported: list[ErrorRecord] = []
    batches = read_pieces(work(s3, url, *uris, readAheadBytes="1"), SCHEMA, reported.extend)
    assert next(batches).num_rows == 1
    s3.refusals["b/"] = DENIED
    with pytest.raises(ObjectStoreError, match="nothing else of s3://b/"):
        list(batches)
    assert reported == []


def test_a_reason_of_its_own_needs_no_neighbours(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1")
    s3.refusals["b/"] = ARCHIVED
    rows, errors = read(work(s3, url, *uris))
    assert rows == []
    assert [error.cause for error in errors] == ["forbidden-object"] * 2
    assert "InvalidObjectState" in errors[0].detail


def test_passing_trouble_is_left_to_spark(s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses_of_requests, "PATIENCE", 0.1)
    uris = put(s3, "b/0", "b/1")
    s3.refusals["b/1"] = SLOW_DOWN._replace(get_only=True)
    with pytest.raises(ObjectStoreError, match=r"SlowDown|SLOW_DOWN"):
        read(work(s3, url, *uris))


def test_the_query_fails_where_the_options_say_so(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1")
    s3.refusals["b/1"] = DENIED
    with pytest.raises(BadObject, match=r"forbidden-object: .*AccessDenied"):
        read(work(s3, url, *uris, onForbiddenObject="fail"))
    assert s3.requests["GET", "b/1"] <= 2, "boto3 asks why"


def test_an_ordered_group_stays_in_order(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1", "b/2")
    s3.refusals["b/1"] = DENIED._replace(times=2)
    assert read(work(s3, url, *uris, group="g")) == ([0, 1, 2], [])


@contextmanager
def pipeline_of(url: str, *uris: str, published: bool) -> Iterator[PlanIdentity]:
    """A store that knows these objects; with a plan of `s3://b/0` alone."""
    with open_store(url) as store:
        started = store.start("files", "files")
        contents = [Content(uri, uri) for uri in uris]
        known = store.open_shards(started.token, "files", contents)
        seq = 0
        if published:
            store.advance(started.token, snapshot=(1, [whole(shard) for shard in known.values()]))
            plan = store.plan(started.token, 0, 1)
            store.publish([plan.identity], [], batch_id=0)
            seq = 1
        found = store.open_shards(started.token, "files", [Content("s3://b/0", "s3://b/0")])
        ranges = [whole(shard) for shard in found.values()]
        store.advance(started.token, confirm=seq or None, snapshot=(seq + 1, ranges))
        yield store.plan(started.token, seq, seq + 1).identity


@pytest.mark.parametrize("published", [True, False])
def test_an_object_that_is_alone_in_its_plan_is_compared_with_what_the_source_knows(
    s3: S3Server, url: str, published: bool
) -> None:
    put(s3, "b/0", "b/1", "other/2")
    s3.refusals["b/0"] = DENIED
    with pipeline_of(url, "s3://other/2", published=published):
        with pytest.raises(ObjectStoreError, match="nothing else of s3://b/"):
            read(work(s3, url, "s3://b/0"))
    with open_store(url) as store:
        store.open_shards(store.start("files", "files").token, "files", [Content("s3://b/1", "s3://b/1")])
    assert [error.cause for error in read(work(s3, url, "s3://b/0"))[1]] == ["forbidden-object"]
    s3.refusals["b/1"] = ARCHIVED
    with pytest.raises(ObjectStoreError, match="nothing else of s3://b/"):
        read(work(s3, url, "s3://b/0"))


def test_local_files_without_permission_are_refused_likewise(tmp_path: Path, s3: S3Server, url: str) -> None:
    for name in ("0", "1", "2"):
        (tmp_path / name).write_bytes(b'{"a": %s}\n' % name.encode())
    (tmp_path / "1").chmod(0)
    uris = [f"file://{tmp_path}/{name}" for name in "012"]
    with without_privileges():
        rows, errors = read(work(s3, url, *uris))
        with pytest.raises(ObjectStoreError, match="Permission denied"):
            read(work(s3, url, uris[1]))
    assert rows == [0, 2]
    assert [error.cause for error in errors] == ["forbidden-object"]


def overwriting(monkeypatch: pytest.MonkeyPatch, s3: S3Server, name: str, times: int) -> None:
    """The object is written again whenever a large part of it is to be read, so often; the first one is small."""
    monkeypatch.setattr(task, "Requested", partial(Requested, whole=64 << 10))
    read, left = ObjectFile.read_range, iter(range(times))

    def noticed(file: ObjectFile, start: int, end: int) -> bytes:
        if end - start > 1 << 20 and next(left, None) is not None:
            s3.objects[name] = s3.objects[name].translate(bytes.maketrans(b"123", b"231"))
        return read(file, start, end)

    monkeypatch.setattr(ObjectFile, "read_range", noticed)


@pytest.mark.parametrize("times", [1, 2])
def test_an_object_that_is_replaced_before_any_row_is_read_again_as_a_whole(
    s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    s3.objects["b/0"] = b'{"a": 1}\n' * 200_000
    overwriting(monkeypatch, s3, "b/0", times)
    assert read(work(s3, url, "s3://b/0")) == ([1 + times] * 200_000, [])


def test_an_object_that_is_replaced_at_every_try_is_bad_and_its_neighbours_are_read(
    s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.objects["b/0"] = b'{"a": 1}\n' * 200_000
    s3.objects["b/1"] = b'{"a": 7}\n'
    overwriting(monkeypatch, s3, "b/0", 3)
    rows, errors = read(work(s3, url, "s3://b/0", "s3://b/1"))
    assert (rows, [(error.cause, error.subject) for error in errors]) == ([7], [("object-changed", "s3://b/0")])


def test_an_object_of_which_every_answer_is_cut_off_is_bad_and_its_neighbours_are_read(s3: S3Server, url: str) -> None:
    uris = put(s3, "b/0", "b/1", "b/2")
    s3.cuts["b/1"] = range(1000)
    rows, errors = read(work(s3, url, *uris))
    assert (rows, [(error.cause, error.subject) for error in errors]) == ([0, 2], [("corrupt-object", "s3://b/1")])
    s3.cuts = {name.removeprefix("s3://"): range(1000) for name in uris}
    with pytest.raises(ObjectStoreError, match="nothing else of s3://b/"):
        read(work(s3, url, *uris))
