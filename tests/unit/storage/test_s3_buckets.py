"""What only buckets of S3 have: versions, conditions, services that know less, and how much a page costs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.options.connections import StorageOptions
from queue_source.storage import s3_client
from queue_source.storage.buckets import Known, open_bucket, s3
from queue_source.storage.buckets.s3 import S3Bucket
from support.servers.ministack import client, new_name

LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.fixture
def aws(ministack_url: str) -> Iterator[Any]:
    made = client(ministack_url, "s3")
    yield made
    made.close()


@pytest.fixture
def storage(ministack_url: str) -> StorageOptions:
    return StorageOptions(endpoint=ministack_url, access_key="test", secret_key="test", region="us-east-1")


@pytest.fixture
def root(aws: Any) -> str:
    name = new_name("bucket")
    aws.create_bucket(Bucket=name)
    return f"s3://{name}/"


@pytest.fixture
def bucket(root: str, storage: StorageOptions) -> Iterator[S3Bucket]:
    made = open_bucket(root, storage)
    assert isinstance(made, S3Bucket)
    yield made
    made.close()


def put(aws: Any, uri: str, body: bytes, **more: Any) -> Any:
    name, key = s3_client.place(uri)
    return aws.put_object(Bucket=name, Key=key, Body=body, **more)


def known(bucket: S3Bucket, prefix: str) -> list[Known]:
    return [Known(one.uri, one.size, one.etag, LATER) for one in bucket.page(prefix).objects]


def test_of_versions_the_latest_of_each_key_is_listed(aws: Any, bucket: S3Bucket, root: str) -> None:
    put(aws, f"{root}before", b"x")  # before the bucket kept versions: its version is "null", and none to us
    aws.put_bucket_versioning(Bucket=root[5:-1], VersioningConfiguration={"Status": "Enabled"})
    ids = {}
    for turn in range(3):
        for name in ("a", "b", "gone"):
            ids[name] = put(aws, root + name, b"x" * turn)["VersionId"]
    aws.delete_object(Bucket=root[5:-1], Key="gone")
    page = bucket.page(root, versions=True)
    assert [(one.uri, one.size, one.version) for one in page.objects] == [
        (f"{root}a", 2, ids["a"]),
        (f"{root}b", 2, ids["b"]),
        (f"{root}before", 1, None),
    ]
    assert [(one.uri, one.version) for one in bucket.page(root).objects] == [
        (f"{root}{name}", None) for name in ("a", "b", "before")
    ]


def test_pages_of_versions_go_on_behind_a_key_with_more_versions_than_a_page(
    aws: Any, bucket: S3Bucket, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PAGE", 3)
    aws.put_bucket_versioning(Bucket=root[5:-1], VersioningConfiguration={"Status": "Enabled"})
    for name, versions in (("a", 8), ("b", 1), ("c", 4), ("d", 1)):
        for _ in range(versions):
            put(aws, root + name, b"x")
    found, cursor, pages = [], None, 0
    while True:
        page = bucket.page(root, cursor, versions=True)
        found += [one.uri for one in page.objects]
        pages += 1
        if (cursor := page.cursor) is None:
            break
    assert found == [root + name for name in "abcd"]
    assert pages <= 4


def test_an_object_exchanged_between_the_look_and_the_request_stays(aws: Any, bucket: S3Bucket, root: str) -> None:
    put(aws, f"{root}a", b"old")
    put(aws, f"{root}b", b"old")
    looked = s3_client.client(bucket._storage)
    real = looked.delete_object

    def exchanged(**given: Any) -> Any:
        if given["Key"] == "a":
            put(aws, f"{root}a", b"new")
        return real(**given)

    with mock.patch.object(looked, "delete_object", exchanged):
        a, b = bucket.delete(known(bucket, root))
    assert isinstance(a, BadObject)
    assert a.cause == "object-changed"
    assert b is None
    assert [one.uri for one in bucket.page(root).objects] == [f"{root}a"]


def test_an_object_exchanged_while_it_is_moved_stays(aws: Any, bucket: S3Bucket, root: str) -> None:
    put(aws, f"{root}in/a", b"old")
    looked = s3_client.client(bucket._storage)
    real = looked.copy_object

    def exchanged(**given: Any) -> Any:
        answer = real(**given)
        put(aws, f"{root}in/a", b"new")
        return answer

    with mock.patch.object(looked, "copy_object", exchanged):
        (outcome,) = bucket.move([(known(bucket, root)[0], f"{root}out/a")])
    assert isinstance(outcome, BadObject)
    assert outcome.cause == "object-changed"
    assert [one.uri for one in bucket.page(root).objects] == [f"{root}in/a", f"{root}out/a"]


def test_each_failure_of_a_request_is_its_objects_own(aws: Any, bucket: S3Bucket, root: str) -> None:
    answers = {
        "a": (403, "AccessDenied"),
        "b": (503, "SlowDown"),
        "c": (412, "PreconditionFailed"),
        "d": (404, "NoSuchKey"),
    }
    for name in "abcde":
        put(aws, root + name, b"x")
    looked = s3_client.client(bucket._storage)
    real = looked.delete_object

    def refuses(**given: Any) -> Any:
        if given["Key"] not in answers:
            return real(**given)
        status, code = answers[given["Key"]]
        answer = {"Error": {"Code": code, "Message": "why"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise looked.exceptions.ClientError(answer, "DeleteObject")

    with mock.patch.object(looked, "delete_object", refuses):
        a, b, c, d, e = bucket.delete(known(bucket, root))
    assert isinstance(a, ObjectRefused)
    assert isinstance(b, ObjectStoreError)
    assert not isinstance(b, ObjectRefused)
    assert isinstance(c, BadObject)
    assert (d, e) == (None, None)


def test_a_moved_object_keeps_what_it_was_told(aws: Any, bucket: S3Bucket, root: str) -> None:
    put(aws, f"{root}in/a", b"x", ContentType="text/csv", ContentEncoding="gzip", Metadata={"mine": "1"})
    assert bucket.move([(known(bucket, root)[0], f"{root}out/a")]) == [None]
    head = aws.head_object(Bucket=root[5:-1], Key="out/a")
    assert (head["ContentType"], head["ContentEncoding"], head["Metadata"]["mine"]) == ("text/csv", "gzip", "1")


def test_a_copy_with_another_etag_is_known_by_its_origin(aws: Any, bucket: S3Bucket, root: str) -> None:
    etag = put(aws, f"{root}in/a", b"abc")["ETag"].strip('"')
    put(aws, f"{root}out/a", b"xyz", Metadata={"cuesqueue-moved-from": etag})  # as with keys of KMS
    assert bucket.move([(known(bucket, f"{root}in/")[0], f"{root}out/a")]) == [None]
    assert [one.uri for one in bucket.page(root).objects] == [f"{root}out/a"]


def test_a_large_object_is_copied_in_parts(
    aws: Any, bucket: S3Bucket, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_LARGEST_COPY", 9 << 20)
    body = b"0123456789" * (1 << 20)
    put(aws, f"{root}in/a", body, Metadata={"mine": "1"})
    assert bucket.move([(known(bucket, root)[0], f"{root}out/a")]) == [None]
    made = aws.get_object(Bucket=root[5:-1], Key="out/a")
    assert made["Body"].read() == body
    assert made["Metadata"]["mine"] == "1"


def test_a_bucket_deletes_nothing_of_another(bucket: S3Bucket) -> None:
    with pytest.raises(ValueError, match="is not in"):
        bucket.delete([Known("s3://another/a", 1, None, LATER)])


def test_without_boto3_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "is_installed", lambda: False)
    with pytest.raises(ObjectStoreError, match=r"cuesqueue\[aws\]"):
        open_bucket("s3://b/")


def test_our_own_parser_says_what_botocores_says(aws: Any, bucket: S3Bucket, root: str) -> None:
    for name in ("a b", "a+b", "ä%41", "q&<>"):
        put(aws, root + name, b"xyz")
    of_botocore = aws.list_objects_v2(Bucket=root[5:-1])["Contents"]
    assert [(one.uri, one.size, one.etag, one.modified) for one in bucket.page(root).objects] == [
        (root + one["Key"], one["Size"], one["ETag"].strip('"'), one["LastModified"]) for one in of_botocore
    ]


def test_times_of_all_forms_are_read() -> None:
    expected = datetime(2026, 11, 22, 1, 2, 3, tzinfo=timezone.utc)
    for text in ("2026-11-22T01:02:03Z", "2026-11-22T01:02:03.000Z", "2026-11-22T01:02:03.000000Z"):
        assert s3._time(text) == expected
    assert s3._time("2026-11-22T01:02:03.0Z") == expected


def test_the_same_content_once_more_is_another_object_where_versions_are_told_apart(
    aws: Any, bucket: S3Bucket, root: str
) -> None:
    aws.put_bucket_versioning(Bucket=root[5:-1], VersioningConfiguration={"Status": "Enabled"})
    first, second = (put(aws, f"{root}a", b"x")["VersionId"] for _ in range(2))
    (one,) = known(bucket, root)
    (outcome,) = bucket.delete([one._replace(version=first)])
    assert isinstance(outcome, BadObject)
    assert outcome.cause == "object-changed"
    assert bucket.delete([one._replace(version=second)]) == [None]
    assert bucket.page(root).objects == []
