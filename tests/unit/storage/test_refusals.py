"""What a store refuses for good is told from passing trouble, as far as the store and pyarrow say it."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.options import StorageOptions, parse_reader_options
from queue_source.storage import pauses
from queue_source.storage.files import open_object, stat_objects
from queue_source.storage.open_files import raise_mapped
from support.privileges import without_privileges
from support.servers.s3 import ARCHIVED, DENIED, NO_KEY_OF_KMS, SLOW_DOWN, Refusal, S3Server, etag_of, s3_server

GCS = "google::cloud::Status({}: Permanent error, with a last message of {} error_info={{reason=forbidden}})"
AZURE = "GetProperties failed for 'https://a.blob.core.windows.net/c/k'. Azure Error: [{}] {}\n\nRequest ID: 1"


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def storage(s3: S3Server) -> StorageOptions:
    given = {"queueUrl": "sim://q", "fileFormat": "csv", "allowedPrefixes": "s3://", **s3.options}
    return parse_reader_options(given).content.storage


def read(uri: str, store: StorageOptions | None) -> bytes:
    with open_object(uri, store) as file:
        return file.read()


@pytest.mark.parametrize(
    ("refusal", "own"),
    [
        (DENIED, False),
        (ARCHIVED, True),
        (NO_KEY_OF_KMS, True),
        (Refusal(400, "KMS.DisabledException", "the key is disabled", get_only=True), True),
        (Refusal(400, "InvalidRequest", "stored using a form of Server Side Encryption"), True),
        (Refusal(400, "KeyTooLongError", "Your key is too long"), True),
        (Refusal(400, "ExpiredToken", "The provided token has expired."), False),
        (Refusal(403, "InvalidAccessKeyId", "The key you provided does not exist"), False),
        (Refusal(403, "SignatureDoesNotMatch", "The request signature", get_only=True), False),
        (Refusal(401, "Unauthorized", "who are you"), False),
    ],
)
@pytest.mark.parametrize("size", [4, 100_000])
def test_what_s3_refuses_for_good_is_a_refusal_of_the_object_or_perhaps_of_its_bucket(
    s3: S3Server, refusal: Refusal, own: bool, size: int
) -> None:
    s3.objects["b/k"] = b"x" * size
    s3.refusals["b/k"] = refusal
    with pytest.raises(ObjectRefused, match=refusal.code) as refused:
        read("s3://b/k", storage(s3))
    assert refused.value.own is own
    assert "s3://b/k" in str(refused.value)


@pytest.mark.parametrize(
    "refusal",
    [
        SLOW_DOWN,
        SLOW_DOWN._replace(get_only=True),
        Refusal(500, "InternalError", get_only=True),
        Refusal(400, "RequestTimeout", get_only=True),
    ],
)
def test_what_may_pass_is_no_refusal(s3: S3Server, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "PATIENCE", 0.1)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # by botocore
    s3.objects["b/k"] = b"abcd"
    s3.refusals["b/k"] = refusal
    with pytest.raises(ObjectStoreError) as trouble:
        read("s3://b/k", storage(s3))
    assert not isinstance(trouble.value, ObjectRefused)


@pytest.mark.parametrize("first", [1, 2, 3], ids=["the first request", "the next one", "the last one"])
@pytest.mark.parametrize("tries", [1, 2, 3])
def test_an_answer_that_is_cut_off_is_tried_again_and_never_taken_for_the_object(
    s3: S3Server, first: int, tries: int
) -> None:
    s3.objects["b/k"] = data = os.urandom(1_000_000)
    s3.cuts["b/k"] = range(first, first + tries)
    with ExitStack() as stack:
        parts: list[bytes] = []
        if tries == 3:  # all of them
            stack.enter_context(pytest.raises(ObjectStoreError, match="'s3://b/k' cannot be read"))
        file = stack.enter_context(open_object("s3://b/k", storage(s3)))
        parts += iter(lambda: file.read(500_000), b"")
    assert b"".join(parts) == (data if tries < 3 else data[: max(0, first - 2) * 500_000])
    assert s3.requests["GET", "b/k"] == (3 + tries if tries < 3 else first + 2)


@pytest.mark.parametrize(
    ("uri", "said", "own"),
    [
        ("gs://b/k", GCS.format("PERMISSION_DENIED", "no storage.objects.get access"), False),
        ("gs://b/k", GCS.format("UNAUTHENTICATED", "no credentials"), False),
        ("gs://b/k", GCS.format("PERMISSION_DENIED", "Cloud KMS: Permission denied on the key"), True),
        ("gs://b/k", GCS.format("UNAVAILABLE", "retry policy exhausted"), None),
        ("abfss://c@a.dfs.core.windows.net/k", AZURE.format("AuthorizationPermissionMismatch", "403 F"), False),
        ("abfss://c@a.dfs.core.windows.net/k", AZURE.format("InvalidAuthenticationInfo", "401 U"), False),
        ("abfss://c@a.dfs.core.windows.net/k", AZURE.format("BlobArchived", "409 Conflict"), True),
        ("az://c/k", AZURE.format("BlobBeingRehydrated", "409 Conflict"), True),
        ("az://c/k", AZURE.format("ServerBusy", "503 Server busy"), None),
    ],
)
def test_google_and_azure_say_it_in_their_own_words(uri: str, said: str, own: bool | None) -> None:
    with pytest.raises(ObjectStoreError) as caught:
        raise_mapped(uri, OSError(said))
    assert (caught.value.own if isinstance(caught.value, ObjectRefused) else None) is own


def test_a_size_that_nobody_tells_is_not_known_and_nothing_more(s3: S3Server) -> None:
    s3.objects |= {"b/1": b"a", "b/2": b"ab", "b/3": b"abc"}
    s3.refusals |= {"b/1": DENIED, "b/2": SLOW_DOWN}
    uris = [f"s3://b/{number}" for number in range(4)] + ["az://c/k"]  # the last one lacks azure.accountName
    assert [stat and stat.size for stat in stat_objects(uris, storage(s3))] == [None, None, None, 3, None]
    assert stat_objects(["s3://b/1"], storage(s3)) == [None]


def test_a_local_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "secret", tmp_path / "folder" / "inside"):
        path.write_bytes(b"a")
    (tmp_path / "secret").chmod(0)
    (tmp_path / "folder").chmod(0)
    with without_privileges():
        for name in ("secret", "folder/inside"):
            with pytest.raises(ObjectRefused, match="Permission denied") as refused:
                read(f"file://{tmp_path}/{name}", None)
            assert not refused.value.own
        assert stat_objects([f"file://{tmp_path}/folder/inside"]) == [None]
    (tmp_path / "folder").chmod(0o700)


def test_a_refusal_travels_between_processes() -> None:
    refused = pickle.loads(pickle.dumps(ObjectRefused("why", own=True)))
    assert (str(refused), refused.own) == ("why", True)


def test_threads_are_left_to_nobody(s3: S3Server) -> None:
    s3.objects["b/k"] = b"a"
    s3.refusals["b/k"] = DENIED
    before = threading.active_count()
    with pytest.raises(ObjectRefused):
        read("s3://b/k", storage(s3))
    assert threading.active_count() <= before + 1  # the server's own, which may still be ending


@pytest.mark.parametrize("name", ["a//b.csv", "/first.csv", "folder/", "a//b//"])
def test_keys_of_s3_that_pyarrow_cannot_address_are_read(s3: S3Server, name: str) -> None:
    data = bytes(range(256)) * 1000
    s3.objects[f"b/{name}"] = data
    uri = f"s3://b/{name}"
    assert stat_objects([uri], storage(s3))[0].size == len(data)  # type: ignore[union-attr]
    with open_object(uri, storage(s3)) as file:
        assert (file.size(), file.version.etag) == (len(data), etag_of(data))
        assert file.read(10) == data[:10]
        assert file.tell() == 10
        assert file.seek(-5, 2) == len(data) - 5
        assert file.read(100) == data[-5:]
        assert file.read(100) == b""
        file.seek(7)
        assert file.read() == data[7:]
    s3.refusals[f"b/{name}"] = ARCHIVED
    with pytest.raises(ObjectRefused, match="InvalidObjectState"):
        read(uri, storage(s3))
    with pytest.raises(BadObject, match="missing-object"):
        read(f"{uri}x//no", storage(s3))
    s3.objects[f"b/{name}"] = b""
    s3.refusals.clear()
    assert read(uri, storage(s3)) == b""


@pytest.mark.parametrize("uri", ["gs://b/a//b", "abfss://c@a.dfs.core.windows.net/a//b", "gs://b/folder/"])
def test_keys_that_no_library_addresses_are_named_as_what_they_are(uri: str) -> None:
    with pytest.raises(BadObject, match=r"empty segment|ends with a slash") as bad:
        read(uri, StorageOptions(anonymous=True))
    assert bad.value.cause == "unsupported-key"


def test_without_boto3_a_refusal_is_told_by_what_pyarrow_says(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    s3.objects |= {"b/large": b"x" * 100_000, "b/small": b"x", "b/a//b": b"x"}
    for refusal in (DENIED, DENIED._replace(get_only=True), Refusal(400, "KMS.DisabledException")):
        s3.refusals["b/large"] = refusal
        with pytest.raises(ObjectRefused) as refused:
            read("s3://b/large", storage(s3))
        assert not refused.value.own
    s3.refusals["b/small"] = ARCHIVED
    with pytest.raises(ObjectStoreError, match=r"cuesqueue\[aws\]") as unknown:
        read("s3://b/small", storage(s3))
    assert not isinstance(unknown.value, ObjectRefused)
    for _ in range(2):
        with pytest.raises(BadObject, match=r"cuesqueue\[aws\]") as bad:
            read("s3://b/a//b", storage(s3))
        assert bad.value.cause == "unsupported-key"
