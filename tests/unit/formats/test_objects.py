from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats.base import Part
from queue_source.formats.binary_file import COLUMNS as BINARY_FILE
from queue_source.formats.text import blocks
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FormatOptions
from queue_source.read import objects
from queue_source.read.objects import ExpectedObject
from queue_source.storage.open_files import ObjectFile
from support.reading import load_object, read_with_problems
from support.servers.s3 import etag_of, s3_server

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
CSV = FormatOptions("csv")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    (tmp_path / "o").write_bytes(b"1,x\n2,y\n")
    return f"file://{tmp_path}/o"


def test_an_object_of_the_announced_size_is_read(uri: str) -> None:
    batches = load_object(uri, SCHEMA, CSV, expected=ExpectedObject(size=8, etag="not known to a local file"))
    assert pa.Table.from_batches(batches).to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("size", [0, 7, 9])
def test_an_object_of_another_size_has_changed(uri: str, size: int) -> None:
    with pytest.raises(BadObject) as caught:
        load_object(uri, SCHEMA, CSV, expected=ExpectedObject(size=size))
    assert caught.value.cause == "object-changed"


def test_an_empty_object_that_was_announced_with_content_has_changed(tmp_path: Path) -> None:
    (tmp_path / "o").write_bytes(b"")
    with pytest.raises(BadObject) as caught:
        load_object(f"{tmp_path}/o", SCHEMA, CSV, expected=ExpectedObject(size=5))
    assert caught.value.cause == "object-changed"


@pytest.mark.parametrize(("etag", "good"), [("{}", True), ('"{}"', True), (None, True), ("abc", False)])
def test_an_object_with_another_etag_has_changed(etag: str | None, good: bool) -> None:
    with s3_server() as server:
        server.objects["b/k"] = b"1,x\n"
        storage = StorageOptions(endpoint=server.url, access_key="test", secret_key="test", region="us-east-1")
        expected = ExpectedObject(etag=None if etag is None else etag.format(etag_of(b"1,x\n")))
        if good:
            assert len(load_object("s3://b/k", SCHEMA, CSV, expected=expected, storage=storage)) == 1
        else:
            with pytest.raises(BadObject, match="object-changed"):
                load_object("s3://b/k", SCHEMA, CSV, expected=expected, storage=storage)


def test_a_missing_object_is_told_by_its_uri(tmp_path: Path) -> None:
    with pytest.raises(BadObject) as caught:
        load_object(f"file://{tmp_path}/no such", SCHEMA, CSV)
    assert caught.value.cause == "missing-object"
    assert "no such" in caught.value.detail


def _csv(table: pa.Table, path: Path) -> None:
    pa_csv.write_csv(table, path, pa_csv.WriteOptions(include_header=False))


def _json(table: pa.Table, path: Path) -> None:
    path.write_text("".join(f'{{"a":{row["a"]},"b":"{row["b"]}"}}\n' for row in table.to_pylist()))


@pytest.mark.parametrize(("name", "write"), [("csv", _csv), ("json", _json), ("parquet", pq.write_table)])
def test_batches_are_bounded_in_order_and_complete(
    tmp_path: Path, name: str, write: Callable[[pa.Table, Path], None]
) -> None:
    rows = 2 * objects.BATCH_ROWS + 5
    table = pa.table({"a": pa.array(range(rows)), "b": pa.array(["x"] * rows)})
    write(table, tmp_path / "o")
    batches = load_object(f"{tmp_path}/o", SCHEMA, FormatOptions(name))
    assert max(batch.num_rows for batch in batches) <= objects.BATCH_ROWS
    assert pa.Table.from_batches(batches).equals(table)


@pytest.mark.parametrize("part", [Part(), Part(0, 20_000), Part(5_000, None)])
@pytest.mark.parametrize("name", ["csv", "json", "text", "binaryFile"])
def test_an_object_that_ends_too_early_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: Part
) -> None:
    """It is exchanged for a shorter one after it was opened: what is there of it is not all of it."""
    line = {"json": b'{"a":1,"b":"x"}\n'}.get(name, b"1,x\n")
    (tmp_path / "o").write_bytes(line * 1000)
    monkeypatch.setattr(ObjectFile, "size", lambda _: 100_000)
    schema = {"text": pa.schema([("value", pa.string())]), "binaryFile": BINARY_FILE}.get(name, SCHEMA)
    for block in (1_000, 1 << 20):
        monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
        with pytest.raises((BadObject, ObjectStoreError), match="object-changed"):
            load_object(f"{tmp_path}/o", schema, FormatOptions(name), part=part)


@pytest.mark.parametrize(
    ("content", "given_back"),
    [
        (b"1,a\n" * 100, False),
        (b"1,a\n" * 10_000, True),
        (b"1,a\nx,a\n", True),
    ],
    ids=["a small object", "a large object", "a record in it is bad"],
)
def test_memory_is_given_back_after_what_may_have_taken_much(
    monkeypatch: pytest.MonkeyPatch, content: bytes, given_back: bool
) -> None:
    monkeypatch.setattr(objects, "_SMALL", 16 << 10)
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    calls: list[str] = []
    monkeypatch.setattr(objects, "release_memory", lambda: calls.append("released"))
    read_with_problems(content, schema, FormatOptions("csv", mode="PERMISSIVE"))
    assert calls == ["released"] * given_back
