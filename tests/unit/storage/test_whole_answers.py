"""Objects that a store hands out as a whole, unpacked or not: their rows are those of the same bytes in a local file.

Cloud Storage unpacks what is stored with `Content-Encoding: gzip`, without a length, and announces the packed size.
"""

from __future__ import annotations

import gzip
import io
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, ObjectRefused
from queue_source.formats.base import BadRecords, Part
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read.combined import read_together
from queue_source.read.objects import ExpectedObject, Refusals, read_object
from queue_source.storage import s3_object, whole
from queue_source.storage.fetching import Fetcher, Requested
from queue_source.storage.files import open_object, stat_object
from queue_source.storage.whole import Whole
from support.servers.gcs import VARIABLE
from support.servers.gcs_model import GcsProcess, gcs_process
from support.servers.s3 import Asked, Reply, S3Server, s3_server

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
STORAGE = StorageOptions(region="whole answers")
_names = itertools.count()


@pytest.fixture(scope="module")
def gcs_server() -> Iterator[GcsProcess]:
    with gcs_process() as server:
        yield server


@pytest.fixture
def gcs(gcs_server: GcsProcess, monkeypatch: pytest.MonkeyPatch) -> GcsProcess:
    monkeypatch.setenv(VARIABLE, gcs_server.url)
    return gcs_server


def csv_of(rows: int) -> bytes:
    return b"".join(b"%d,row %d\n" % (number, number % 1000) for number in range(rows))


def json_of(rows: int) -> bytes:
    return b"".join(b'{"a":%d,"b":"row %d"}\n' % (number, number % 1000) for number in range(rows))


def parquet_of(rows: int) -> bytes:
    sink = io.BytesIO()
    numbers = list(range(rows))
    table = pa.table({"a": numbers, "b": [f"row {number % 1000}" for number in numbers]}, SCHEMA)
    pq.write_table(table, sink, row_group_size=max(1, rows // 4), compression="none", use_dictionary=False)
    return sink.getvalue()


FORMATS = {"csv": csv_of, "json": json_of, "parquet": parquet_of}
STORED = {
    "plain": ("", ""),
    "unpacked": ("gzip", ""),
    "packed": ("gzip", "no-transform"),
    "said to be itself": ("identity", ""),
}


def read(uri: str, format: str, storage: StorageOptions, **more: Any) -> list[Any]:
    batches = read_object(uri, SCHEMA, FormatOptions(format), BadRecords("PERMISSIVE"), storage=storage, **more)
    return [row for batch in batches for row in batch.to_pylist()]


def cut(size: int, parts: int) -> list[Part]:
    """As plans cut an object of the announced size; the last one goes to the end, whatever that is."""
    bounds = [size * number // parts for number in range(parts)]
    return [Part(start, end) for start, end in zip(bounds, [*bounds[1:], None], strict=True)]


@pytest.mark.parametrize("rows", [0, 1, 3_000, 200_000])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("stored", STORED)
def test_the_rows_of_cloud_storage_are_those_of_a_local_file(
    gcs: GcsProcess, tmp_path: Path, stored: str, format: str, rows: int
) -> None:
    if stored == "packed" and format == "parquet":
        pytest.skip("packed bytes are no Parquet, in any store")
    content = FORMATS[format](rows)
    (local := tmp_path / "object").write_bytes(content)
    expected = read(f"file://{local}", format, STORAGE)
    assert len(expected) == rows
    encoding, cache = STORED[stored]
    name = f"k{next(_names)}"
    gcs.put("b", name, gzip.compress(content) if encoding == "gzip" else content, encoding, cache)
    uri, size = f"gs://b/{name}", stat_object(f"gs://b/{name}", STORAGE).size
    for announced in (None, size):
        assert read(uri, format, STORAGE, expected=ExpectedObject(announced)) == expected
        requested = [Requested(uri, announced, None if format == "parquet" else 0)]
        with Fetcher(requested, STORAGE, requests=4, ahead=32 << 20) as fetcher:
            assert read(uri, format, STORAGE, expected=ExpectedObject(announced), opener=partial(fetcher.open, 0)) == (
                expected
            )
    for parts in (2, 3):
        found = [
            row
            for part in cut(size, parts)
            for row in read(uri, format, STORAGE, expected=ExpectedObject(size), part=part)
        ]
        assert found == expected
    for wrong in (size - 1, size + 1, len(content) if encoding == "gzip" else size * 2 + 1):
        with pytest.raises(BadObject, match="object-changed"):
            read(uri, format, STORAGE, expected=ExpectedObject(wrong))


def test_small_objects_are_read_together_once_each(gcs: GcsProcess) -> None:
    """Those that the service unpacked came doubled."""
    sizes = []
    for number in range(6):
        packed = gzip.compress(csv_of(number))
        sizes.append(len(packed) if number % 2 else len(csv_of(number)))
        gcs.put("b", f"s{number}", packed if number % 2 else csv_of(number), "gzip" if number % 2 else "")
    openers = [partial(open_object, f"gs://b/s{number}", STORAGE, size=sizes[number]) for number in range(6)]
    results = list(read_together([ExpectedObject(size) for size in sizes], openers, SCHEMA, FormatOptions("csv")))
    found: list[Any] = []
    for result in results:
        found += read(f"gs://b/s{result}", "csv", STORAGE) if isinstance(result, int) else result.to_pylist()
    assert [row["a"] for row in found] == [row for number in range(6) for row in range(number)]


def test_a_plain_object_of_cloud_storage_costs_no_more_requests(gcs: GcsProcess) -> None:
    gcs.put("b", "requests", csv_of(3_000))
    gcs.requests()
    with open_object("gs://b/requests", STORAGE) as file:
        assert file.read() == csv_of(3_000)
    assert len(gcs.requests()) == 3


# --- services that speak S3 ---


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(s3_object, "pause", lambda seconds: None)
    with s3_server(keeps=True) as server:
        yield server


def storage_of(s3: S3Server) -> StorageOptions:
    return StorageOptions(endpoint=s3.url, region="us-east-1", access_key="test", secret_key="test")


def ignores_ranges(body: bytes, *, chunks: bool, **headers: str) -> Any:
    said = {name.replace("_", "-"): text for name, text in headers.items()}

    def changed(asked: Asked, reply: Reply) -> Reply | None:
        return Reply(200, {"ETag": '"e"', **said}, body, is_chunked=chunks) if asked.method == "GET" else None

    return changed


@pytest.mark.parametrize("rows", [0, 1, 3_000, 800_000])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("chunks", [False, True])
def test_the_rows_of_a_service_that_ignores_ranges_are_those_of_a_local_file(
    s3: S3Server, tmp_path: Path, format: str, chunks: bool, rows: int
) -> None:
    content = FORMATS[format](rows)
    (local := tmp_path / "object").write_bytes(content)
    expected = read(f"file://{local}", format, STORAGE)
    s3.objects["b/k"] = content
    s3.changes["b/k"] = ignores_ranges(content, chunks=chunks)
    known = ExpectedObject(len(content), "e")
    assert read("s3://b/k", format, storage_of(s3)) == expected
    assert read("s3://b/k", format, storage_of(s3), expected=known) == expected
    found = [
        row
        for part in cut(len(content), 3)
        for row in read("s3://b/k", format, storage_of(s3), expected=known, part=part)
    ]
    assert found == expected


@pytest.mark.parametrize("says", [True, False], ids=["the stored size is said", "by its ETag"])
@pytest.mark.parametrize("rows", [1, 3_000, 200_000])
def test_what_a_service_unpacks_is_read_to_its_end(s3: S3Server, rows: int, says: bool) -> None:
    """As Cloud Storage does that speaks S3; it announces the packed size."""
    content, packed = csv_of(rows), gzip.compress(csv_of(rows))
    s3.objects["b/k"] = packed
    stored = {"x_goog_stored_content_encoding": "gzip", "x_goog_stored_content_length": str(len(packed))}
    s3.changes["b/k"] = ignores_ranges(content, chunks=True, **(stored if says else {}))
    for parts in (1, 3):
        known = ExpectedObject(len(packed), None if says else "e")
        found = [
            row["a"]
            for part in cut(len(packed), parts)
            for row in read("s3://b/k", "csv", storage_of(s3), expected=known, part=part)
        ]
        assert found == list(range(rows))
    with pytest.raises(BadObject, match="object-changed"):
        read("s3://b/k", "csv", storage_of(s3), expected=ExpectedObject(len(packed) - 1, "x"))


ODD: dict[str, Callable[[Reply], Any]] = {
    "more than the range": lambda reply: reply.headers.update({"Content-Range": "bytes 0-9/5"}),
    "another range": lambda reply: reply.headers.update({"Content-Range": "bytes 7-11/30"}),
    "no range": lambda reply: reply.headers.pop("Content-Range", None),
    "no size": lambda reply: reply.headers.update({"Content-Range": "bytes 0-29/*"}),
    "more bytes": lambda reply: setattr(reply, "body", reply.body + b"more"),
    "fewer bytes": lambda reply: setattr(reply, "body", reply.body[:3]),
    "always cut off": lambda reply: setattr(reply, "sent", 5),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_answer_makes_its_object_bad_and_no_other(s3: S3Server, odd: str) -> None:
    """The whole query failed for ever, with the neighbours of such an object."""
    s3.objects |= {"b/good": csv_of(2), "b/k": csv_of(3)}

    def changed(asked: Asked, reply: Reply) -> Reply:
        ODD[odd](reply)
        return reply

    s3.changes["b/k"] = changed
    storage = storage_of(s3)
    refusals = Refusals(storage, 2, lambda: ["s3://b/good"])
    assert len(list(refusals.read("s3://b/good", lambda: iter(read("s3://b/good", "csv", storage))))) == 2
    with pytest.raises(BadObject, match="corrupt-object"):
        list(refusals.read("s3://b/k", lambda: iter(read("s3://b/k", "csv", storage))))


def test_an_object_that_is_another_one_at_each_look_is_bad(s3: S3Server) -> None:
    s3.objects["b/k"] = csv_of(600_000)
    sizes = itertools.count(8_000_000)

    def changed(asked: Asked, reply: Reply) -> Reply:
        begin = reply.headers["Content-Range"][6:].partition("-")[0]
        last = int(begin) + len(reply.body) - 1
        reply.headers.update({"Content-Range": f"bytes {begin}-{last}/{next(sizes)}"})
        return reply

    s3.changes["b/k"] = changed
    refusals = Refusals(storage_of(s3), 3, list)
    with pytest.raises(BadObject, match="object-changed"):
        list(refusals.read("s3://b/k", lambda: iter(read("s3://b/k", "csv", storage_of(s3)))))


# --- what is kept of them ---


def pieces(data: bytes, step: int) -> Any:
    stream = io.BytesIO(data)
    return lambda size: stream.read(min(size, step))


@pytest.mark.parametrize("size", [0, 1, whole._IN_MEMORY, whole._IN_MEMORY + 1, 3 * whole._IN_MEMORY + 7])
def test_all_bytes_are_kept_and_given_from_any_place(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    kept = Whole("u", pieces(data, 100_003))
    assert kept.size == size
    for start, end in itertools.combinations(sorted({0, 1, size // 2, size, size + 5}), 2):
        assert kept.get(start, end) == data[start:end]
    kept.close()


def test_an_answer_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_MOST", 3 * whole._IN_MEMORY)
    with pytest.raises(ObjectRefused, match="without a length") as error:
        Whole("u", lambda size: b"x" * size)
    assert error.value.cause == "corrupt-object"


def test_an_answer_that_does_not_fit_on_the_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(ObjectRefused, match="too large for"):
        Whole("u", pieces(bytes(4 * whole._IN_MEMORY), 1 << 20))
