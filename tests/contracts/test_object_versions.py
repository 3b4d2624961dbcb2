"""An object that is overwritten while it is read gives the rows of one version, never of both: over every store.

The versions have the same size, so only the store can tell them apart.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats.base import BadRecords, Part
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read.combined import read_together
from queue_source.read.objects import ExpectedObject, read_object
from queue_source.storage.files import open_object, stat_object
from queue_source.storage.open_files import ObjectFile
from support.bucket_backends import BACKENDS, BucketBackend
from support.servers.gcs import VARIABLE

SCHEMA = pa.schema([("a", pa.string())])
ROWS = 300_000
SMALL = 100
_names = count(1)


@pytest.fixture(scope="module", params=[name for name in BACKENDS if not name.startswith("gcs")])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketBackend]:
    with BACKENDS[request.param](request, tmp_path_factory) as backend:
        yield backend


@pytest.fixture(params=["boto3", "pyarrow"])
def reader(request: pytest.FixtureRequest, store: BucketBackend, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which library objects of S3 are read: without boto3 by pyarrow, as those of other stores always are."""
    if request.param == "pyarrow":
        if not store.root.startswith("s3://"):
            pytest.skip("boto3 reads nothing of it")
        monkeypatch.setitem(sys.modules, "boto3", None)
    library: str = request.param
    return library


def lines(version: str, rows: int) -> bytes:
    return f"{version} 456789\n".encode() * rows


def parquet(version: str, rows: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"a": [f"{version} {place % 1000:03}" for place in range(rows)]})
    pq.write_table(table, sink, row_group_size=50_000, compression="none", use_dictionary=False)
    return sink.getvalue()


def compressed(version: str, rows: int) -> bytes:
    return gzip.compress(lines(version, rows), compresslevel=0, mtime=0)


FORMATS: dict[str, tuple[FormatOptions, Callable[[str, int], bytes]]] = {
    "text": (FormatOptions("text"), lines),
    "csv": (FormatOptions("csv", mode="FAILFAST"), lines),
    "parquet": (FormatOptions("parquet"), parquet),
    "gzip": (FormatOptions("text"), compressed),
}


@pytest.fixture(params=FORMATS)
def overwritten(
    request: pytest.FixtureRequest, store: BucketBackend, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, FormatOptions, Callable[[], None]]:
    """(URI, how to read it, what has it overwritten in the middle of its first read of many bytes, and only then)."""
    options, body = FORMATS[request.param]
    uri = f"{store.root}{request.param}-{next(_names)}" + (".gz" if request.param == "gzip" else "")
    old, new = body("old", ROWS), body("new", ROWS)
    assert len(old) == len(new)
    store.put(uri, old)
    read, large = ObjectFile.read_range, count(1)

    def noticed(file: ObjectFile, start: int, end: int) -> bytes:
        if end - start < 1 << 20 or next(large) > 1:
            return read(file, start, end)
        first = read(file, start, start + 300_000)
        store.put(uri, new)
        return first + read(file, start + 300_000, end)

    return uri, options, lambda: monkeypatch.setattr(ObjectFile, "read_range", noticed)


def attempts(uri: str, options: FormatOptions, storage: Any, **more: Any) -> list[list[str]]:
    """What leaves each attempt, first words alone; an attempt that raises what Spark retries is followed by another."""
    found: list[list[str]] = []
    for last in (False, False, True):
        left: list[str] = []
        found.append(left)
        try:
            for batch in read_object(uri, SCHEMA, options, BadRecords(options.mode), storage=storage, **more):
                left += [text[:3] for text in batch.column(0).to_pylist()]
        except ObjectStoreError:
            if last:
                raise
            left.clear()  # Spark discards what a failed task gave
        else:
            break
    return found


@pytest.mark.usefixtures("reader")
def test_the_rows_of_an_object_are_those_of_one_version(
    store: BucketBackend, overwritten: tuple[str, FormatOptions, Callable[[], None]]
) -> None:
    uri, options, begin = overwritten
    begin()
    *failed, last = attempts(uri, options, store.storage)
    assert len(last) == ROWS
    assert len(set(last)) == 1, "rows of two versions"
    assert len(failed) <= 1


@pytest.mark.usefixtures("reader")
def test_an_announced_version_that_is_gone_is_a_changed_object(
    store: BucketBackend, overwritten: tuple[str, FormatOptions, Callable[[], None]]
) -> None:
    uri, options, begin = overwritten
    stat = stat_object(uri, store.storage)
    if stat.etag is None:
        pytest.skip("its stat says no version")
    begin()
    with pytest.raises(BadObject, match="object-changed"):
        attempts(uri, options, store.storage, expected=ExpectedObject(stat.size, stat.etag))


@pytest.mark.usefixtures("reader")
def test_parts_of_an_object_are_all_of_the_version_that_was_stated(store: BucketBackend) -> None:
    """Tasks read them side by side, and micro-batches one after the other."""
    uri, options = f"{store.root}parts-{next(_names)}", FormatOptions("text")
    store.put(uri, lines("old", ROWS))
    stat = stat_object(uri, store.storage)
    if stat.etag is None:
        pytest.skip("its stat says no version")
    expected = ExpectedObject(stat.size, stat.etag)
    half = stat.size // 2
    assert len(attempts(uri, options, store.storage, expected=expected, part=Part(0, half))[-1]) == ROWS // 2
    store.put(uri, lines("new", ROWS))
    with pytest.raises(BadObject, match="object-changed"):
        attempts(uri, options, store.storage, expected=expected, part=Part(half))


@pytest.mark.usefixtures("reader")
def test_small_objects_that_are_read_together_are_each_of_one_version(
    store: BucketBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{store.root}small-{next(_names)}"
    store.put(uri, lines("old", SMALL))
    read, changed = ObjectFile.read_range, count(1)

    def changing(file: ObjectFile, start: int, end: int) -> bytes:
        data = read(file, start, middle := (start + end) // 2)
        if next(changed) == 1:
            store.put(uri, lines("new", SMALL))
        return data + read(file, middle, end)

    monkeypatch.setattr(ObjectFile, "read_range", changing)
    opener = partial(open_object, uri, store.storage)
    [found] = read_together([ExpectedObject()], [opener], SCHEMA, FormatOptions("csv", mode="FAILFAST"))
    if not isinstance(found, int):  # else it is read by itself
        assert len({text[:3] for text in found.column(0).to_pylist()}) == 1


GCS = """
import sys
from support.servers.gcs_model import gcs_model
with gcs_model() as server:
    server.put("b", "k", b"old 456789\\n" * 300_000)
    print(server.url, flush=True)
    sys.stdin.readline()
    server.put("b", "k", b"new 456789\\n" * 300_000)
    print("put", flush=True)
    sys.stdin.readline()
"""


def test_google_cloud_storage_is_asked_for_one_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: pyarrow keeps Python from running while it waits for some of its answers."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", GCS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        monkeypatch.setenv(VARIABLE, server.stdout.readline().strip())
        read, large = ObjectFile.read_range, count(1)

        def noticed(file: ObjectFile, start: int, end: int) -> bytes:
            if end - start < 1 << 20 or next(large) > 1:
                return read(file, start, end)
            first = read(file, start, start + 300_000)
            print(file=server.stdin, flush=True)
            assert server.stdout is not None
            assert server.stdout.readline() == "put\n"
            return first + read(file, start + 300_000, end)

        monkeypatch.setattr(ObjectFile, "read_range", noticed)
        *failed, last = attempts("gs://b/k", FormatOptions("text"), StorageOptions(region="generations"))
        print(file=server.stdin, flush=True)
    assert (len(failed), len(last), set(last)) == (1, ROWS, {"new"})
