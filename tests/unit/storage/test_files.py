from __future__ import annotations

import errno
import os
import pickle
import threading
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.options.connections import StorageOptions
from queue_source.storage import files
from queue_source.storage.files import ObjectStat, open_object, resolve, stat_object, stat_objects
from queue_source.storage.open_files import raise_mapped, stat_local

ODD_NAMES = [
    "a b",
    "a+b",
    "100%",
    "a%20b",
    "a%2Fb",
    "a#b",
    "a?b=c&d",
    "größe-数据-🚀",
    "e\u0301-decomposed",
    "back\\slash",
    "quote'\"quote",
    "new\nline",
    "s3:",
    "~",
    "*[x]{y}",
    " leading and trailing ",
]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("prefix", ["file://", ""])
def test_a_local_name_is_taken_as_it_stands(tmp_path: Path, name: str, prefix: str) -> None:
    (tmp_path / name).write_bytes(b"12345")
    uri = f"{prefix}{tmp_path}/{name}"
    assert stat_object(uri).size == 5
    with open_object(uri) as file:
        assert file.read() == b"12345"


def test_an_encoded_and_a_plain_name_are_two_objects(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"plain")
    (tmp_path / "a%20b").write_bytes(b"encoded!")
    assert stat_object(f"file://{tmp_path}/a b").size == 5
    assert stat_object(f"file://{tmp_path}/a%20b").size == 8


def test_a_key_of_1024_bytes_is_found(tmp_path: Path) -> None:
    key = "/".join(["ä" * 100] * 5)[:507] + "/" + "x" * 10
    assert len(key.encode()) > 1000
    (tmp_path / key).parent.mkdir(parents=True)
    (tmp_path / key).write_bytes(b"1")
    assert stat_object(f"file://{tmp_path}/{key}").size == 1


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
@pytest.mark.parametrize("key", ["k", "a b/c+d/100%/%2F/#?&=/ä", "x" * 1024])
def test_the_key_in_a_bucket_is_taken_as_it_stands(scheme: str, key: str) -> None:
    storage = StorageOptions(endpoint="http://localhost:1", region="eu-west-1", anonymous=True)
    filesystem, path = resolve(f"{scheme}://bucket/{key}", storage)
    assert filesystem.type_name == "s3"
    assert filesystem.region == "eu-west-1"
    assert path == f"bucket/{key}"


def test_one_file_system_serves_all_objects_of_a_process() -> None:
    storage = StorageOptions(endpoint="http://localhost:1", region="eu-west-1", anonymous=True)
    first, _ = resolve("s3://bucket/a", storage)
    assert resolve("s3a://other/b", storage)[0] is first
    assert resolve("s3://bucket/a", StorageOptions(region="eu-west-2", anonymous=True))[0] is not first


def test_google_and_azure_uris_become_their_own_file_systems() -> None:
    assert resolve("gs://bucket/a b", StorageOptions(anonymous=True))[0].type_name == "gcs"
    filesystem, path = resolve("abfss://box@account.dfs.core.windows.net/a/b c", StorageOptions(secret_key="a2V5"))
    assert (filesystem.type_name, path) == ("abfs", "box/a/b c")


@pytest.mark.parametrize(
    "uri",
    [
        "relative/path",
        "",
        "file://relative",
        "file:/one/slash",
        "ftp://host/file",
        "s3://bucket",
        "s3://bucket/",
        "s3:///key",
        "abfss://no-container/path",
    ],
)
def test_a_uri_that_can_name_no_object_is_a_missing_object(uri: str) -> None:
    with pytest.raises(BadObject) as caught:
        resolve(uri)
    assert caught.value.cause == "missing-object"


@pytest.mark.parametrize("path", ["nothing", "file/below", "directory", "x" * 300, "nul\0byte", "\ud800"])
def test_what_is_not_there_or_no_file_is_missing(tmp_path: Path, path: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"")
    uri = f"file://{tmp_path}/{path}"
    with pytest.raises(BadObject) as caught:
        stat_object(uri)
    assert caught.value.cause == "missing-object"
    with pytest.raises(BadObject) as caught, open_object(uri):
        pass
    assert caught.value.cause == "missing-object"


def test_a_store_that_does_not_answer_is_not_a_missing_object() -> None:
    storage = StorageOptions(endpoint="http://localhost:1", region="x", access_key="AK", secret_key="hush-hush")
    filesystem, path = resolve("s3://bucket/key", storage)
    with pytest.raises(ObjectStoreError) as caught:
        raise_mapped(
            "s3://bucket/key",
            OSError("When reading information for key 'key': AWS Error NETWORK_CONNECTION during HeadObject operation"),
        )
    assert "s3://bucket/key" in str(caught.value)
    assert (filesystem.type_name, path) == ("s3", "bucket/key")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError(errno.ENOENT, "no such key"), BadObject),
        (OSError(errno.ENAMETOOLONG, "name too long"), BadObject),
        (OSError("Not a regular file: 'b/a/'"), BadObject),
        (pa.ArrowInvalid("Empty path component in path b/a//c"), BadObject),
        (PermissionError(errno.EACCES, "permission denied"), ObjectStoreError),  # not of S3's words
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), ObjectRefused),
        (OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body."), ObjectRefused),
        (
            OSError("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation: No response body."),
            ObjectStoreError,
        ),
        (OSError("AWS Error SLOW_DOWN during GetObject operation"), ObjectStoreError),
        (OSError(errno.EIO, "input/output error"), ObjectStoreError),
        (TimeoutError("timed out"), ObjectStoreError),
        (NotImplementedError("no"), ObjectStoreError),
    ],
)
def test_only_what_is_missing_is_the_fault_of_the_object(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught:
        raise_mapped("s3://b/k", error)
    assert type(caught.value) is expected
    assert "s3://b/k" in str(caught.value)
    assert caught.value.__cause__ is error


def test_many_are_asked_for_at_once_and_the_missing_are_none(tmp_path: Path) -> None:
    uris = []
    for number in range(100):
        if number % 3:
            (tmp_path / f"{number}").write_bytes(b"x" * number)
        uris.append(f"file://{tmp_path}/{number}")
    stats = stat_objects(uris)
    assert [stat and stat.size for stat in stats] == [number if number % 3 else None for number in range(100)]
    assert stat_objects([]) == []
    assert stat_objects(uris[:1]) == [None]


@pytest.mark.parametrize("far_away", [False, True])
def test_threads_ask_where_a_disk_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far_away: bool
) -> None:
    asked: list[str] = []

    def noted(uri: str, path: str) -> os.stat_result:
        asked.append(threading.current_thread().name)
        return stat_local(uri, path)

    monkeypatch.setattr(files, "stat_local", noted)
    monkeypatch.setattr(files, "_LOCAL_SECONDS", 0 if far_away else 60)
    (tmp_path / "a").write_bytes(b"12")
    found = stat_objects([f"file://{tmp_path}/a"] * 100)
    assert [stat and stat.size for stat in found] == [2] * 100
    by_threads = sum(name.startswith("cuesqueue-stat") for name in asked)
    assert by_threads == (100 - files._LOCAL_AT_ONCE if far_away else 0)


def test_the_time_of_modification_is_aware(tmp_path: Path) -> None:
    before = datetime.now(timezone.utc).timestamp()
    (tmp_path / "a").write_bytes(b"")
    stat = stat_object(f"{tmp_path}/a")
    assert stat == ObjectStat(0, stat.modified, stat.etag)
    assert stat.modified is not None
    assert stat.modified.tzinfo is not None
    assert abs(stat.modified.timestamp() - before) < 60


@pytest.mark.parametrize(("seconds", "year"), [(2**53, 9999), (-(2**53), 1)])
def test_a_time_that_no_calendar_has_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, year: int
) -> None:
    """Not every file system takes such a time (ext4 does not), so the system's answer is changed."""
    (tmp_path / "a").write_bytes(b"12")

    def odd(uri: str, path: str) -> os.stat_result:
        found = stat_local(uri, path)
        return os.stat_result((*found[:8], seconds, found[9]))

    monkeypatch.setattr(files, "stat_local", odd)
    (stat,) = stat_objects([f"file://{tmp_path}/a"])
    assert stat is not None
    assert stat.modified is not None
    assert (stat.size, stat.modified.year) == (2, year)


def test_secrets_are_not_in_the_repr_and_survive_pickling() -> None:
    storage = StorageOptions(access_key="AKIA-secret-1", secret_key="secret-2", session_token="secret-3", region="r")
    assert "secret" not in repr(storage).replace("secret_key", "")
    assert pickle.loads(pickle.dumps(storage)) == storage


def test_a_failed_read_is_remembered_as_the_fault_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with open_object(f"{tmp_path}/a") as file:
        assert (file.size(), file.seek(1), file.read(1), file.tell(), file.version.etag) == (3, 1, b"b", 2, None)
        assert file.failure is None
    with pytest.raises(ObjectStoreError):
        file.read()
    assert isinstance(file.failure, ObjectStoreError)
