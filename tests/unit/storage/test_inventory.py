"""S3 Inventories: all three formats come to the same objects, and nothing of what is damaged or foreign is used."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import BadObject, CuesqueueError, OptionError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage import inventory
from support.inventories import CREATED, FORMATS, Entry, versions_of, write_inventory
from support.servers.ministack import client, new_name

AT = datetime(2026, 11, 20, tzinfo=timezone.utc)
ODD = ["in/a b", "in/ü+", "in/50%25", 'in/"quoted", with a comma', "in/new\nline", "in/plain"]

EMPTY = gzip.compress(b"", mtime=0)

Put = Callable[[str, bytes], object]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, body: bytes) -> None:
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    return write


def at(tmp_path: Path, name: str) -> str:
    return f"file://{tmp_path}/copy/{name}"


def objects(uri: str, storage: StorageOptions | None = None) -> list[ListedObject]:
    found = inventory.open_inventory(uri, storage)
    return [one for page in inventory.pages(found, storage) for one in page.objects]


@pytest.fixture(autouse=True)
def _leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_comes_to_the_same_objects(tmp_path: Path, put: Put, format: str) -> None:
    manifest = write_inventory(put, [Entry(key, etag="ab-2") for key in ODD], format=format, per_file=4)
    assert objects(at(tmp_path, manifest)) == [ListedObject(f"s3://landing/{key}", 10, "ab-2", AT) for key in ODD]
    opened = inventory.open_inventory(at(tmp_path, manifest))
    assert (opened.bucket, opened.created, len(opened.files), opened.has_versions) == ("landing", CREATED, 2, False)


@pytest.mark.parametrize("format", FORMATS)
def test_of_versions_the_latest_counts_and_no_delete_marker(tmp_path: Path, put: Put, format: str) -> None:
    entries = [*versions_of("in/x"), Entry("in/older than the versions", version="null")]
    manifest = write_inventory(put, entries, format=format, versions=True)
    assert [(one.uri, one.version) for one in objects(at(tmp_path, manifest))] == [
        ("s3://landing/in/x", "v2"),
        ("s3://landing/in/older than the versions", None),
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_many_objects_come_in_pages(tmp_path: Path, put: Put, format: str) -> None:
    manifest = write_inventory(put, [Entry(f"in/{i}") for i in range(5000)], format=format, per_file=2500)
    found = inventory.open_inventory(at(tmp_path, manifest))
    pages = list(inventory.pages(found))
    assert all(len(page.objects) <= 1000 for page in pages)
    assert [page.cursor is None for page in pages] == [False] * (len(pages) - 1) + [True]
    assert [one.uri for page in pages for one in page.objects] == [f"s3://landing/in/{i}" for i in range(5000)]
    assert {page.now for page in pages} == {CREATED}


def test_an_inventory_without_objects_is_one_empty_page(tmp_path: Path, put: Put) -> None:
    assert objects(at(tmp_path, write_inventory(put, []))) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_with_another_checksum_is_not_read(tmp_path: Path, put: Put, format: str) -> None:
    manifest = write_inventory(put, [Entry("a"), Entry("b")], format=format, per_file=1)
    file = next((tmp_path / "copy").rglob("1.*"))
    file.write_bytes(file.read_bytes() + b"\0")
    found = inventory.pages(inventory.open_inventory(at(tmp_path, manifest)))
    assert [[one.uri for one in next(found).objects] for _ in range(2)] == [[], ["s3://landing/a"]]
    with pytest.raises(BadObject, match=r"corrupt-object: .*1\..* has the MD5 .*, and the manifest says"):
        next(found)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("Size", "Size"),
        ("LastModifiedDate", "LastModifiedDate"),
        ("ETag", "ETag"),
        ("Key", "Key"),
        ("Bucket", "Bucket"),
    ],
)
def test_a_missing_column_is_named(tmp_path: Path, put: Put, format: str, column: str, named: str) -> None:
    manifest = write_inventory(put, [Entry("a")], format=format, without=[column])
    with pytest.raises(OptionError, match=f"has no column {named}; add it"):
        objects(at(tmp_path, manifest))


def test_versions_without_what_says_which_is_the_latest_are_refused(tmp_path: Path, put: Put) -> None:
    manifest = write_inventory(put, [Entry("a")], versions=True, without=["IsLatest"])
    with pytest.raises(OptionError, match="lists versions without IsLatest"):
        objects(at(tmp_path, manifest))


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update({name: value})


def _file(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["files"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("fileFormat", "XML"), "of the format 'xml'; those that are read: CSV, ORC, Parquet"),
        (_set("fileSchema", "id, name"), "has no column Bucket, Key, Size, LastModifiedDate, ETag"),
        (_set("fileSchema", None), "is no manifest of an S3 Inventory"),
        (_set("creationTimestamp", "yesterday"), "is no manifest of an S3 Inventory"),
        (_set("files", None), "is no manifest of an S3 Inventory"),
        (lambda manifest: manifest.pop("sourceBucket"), "is no manifest of an S3 Inventory"),
        (_file("key", ""), "missing-object|corrupt-object"),
        (_file("key", "../../../../etc/passwd"), "missing-object|corrupt-object"),
        (_file("key", "daily/landing/../.."), "leads elsewhere|missing-object|corrupt-object"),
        (_file("MD5checksum", None), "has the MD5"),
        (_set("sourceBucket", "another"), "lists the bucket 'landing', not 'another'"),
    ],
)
def test_a_foreign_manifest_is_refused(
    tmp_path: Path, put: Put, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    manifest = write_inventory(put, [Entry("a")], change=change)
    with pytest.raises(CuesqueueError, match=problem):
        objects(at(tmp_path, manifest))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"null", b"\xff", b'"text"', b'{"fileFormat": "CSV", "files": [1]}']
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, put: Put, body: bytes) -> None:
    put("x/manifest.json", body)
    put("x/manifest.checksum", hashlib.md5(body, usedforsecurity=False).hexdigest().encode())
    with pytest.raises(BadObject, match="is no manifest of an S3 Inventory"):
        objects(at(tmp_path, "x/manifest.json"))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "body",  # their names are the same in each process that collects the tests: so no time is in them
    [b"", EMPTY, b"not it", gzip.compress(b'"landing"\n', mtime=0), gzip.compress(b"a,b,c,d,e,f\n", mtime=0)],
)
def test_a_file_of_another_form_is_refused_though_its_checksum_is_right(
    tmp_path: Path, put: Put, format: str, body: bytes
) -> None:
    def put_another(name: str, content: bytes) -> None:
        put(name, body if "/data/" in name else content)

    checksum = hashlib.md5(body, usedforsecurity=False).hexdigest()
    manifest = write_inventory(put_another, [Entry("a")], format=format, change=_file("MD5checksum", checksum))
    if format == "CSV" and body in (b"", EMPTY):  # without rows
        assert objects(at(tmp_path, manifest)) == []
        return
    with pytest.raises(BadObject, match="corrupt-object"):
        objects(at(tmp_path, manifest))


def test_a_file_whose_columns_are_not_those_of_the_manifest_is_refused(tmp_path: Path, put: Put) -> None:
    manifest = write_inventory(
        put,
        [Entry("a")],
        format="Parquet",
        without=["ETag"],
        change=lambda m: m.update(fileSchema=m["fileSchema"][:-1] + " optional binary e_tag (UTF8);}"),
    )
    with pytest.raises(BadObject, match=r"lacks the columns \['ETag'\]"):
        objects(at(tmp_path, manifest))


def test_an_inventory_is_read_in_s3(ministack_url: str) -> None:
    s3, bucket = client(ministack_url, "s3"), new_name("inventories")
    s3.create_bucket(Bucket=bucket)
    try:
        manifest = write_inventory(
            lambda name, body: s3.put_object(Bucket=bucket, Key=name, Body=body),
            [Entry(key) for key in ODD],
            destination=bucket,
        )
        storage = StorageOptions(endpoint=ministack_url, region="us-east-1", access_key="test", secret_key="test")
        found = objects(f"s3://{bucket}/{manifest}", storage)
    finally:
        s3.close()
    assert [one.uri for one in found] == [f"s3://landing/{key}" for key in ODD]
