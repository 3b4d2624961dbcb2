"""What a task yields and reports: good objects whole, bad ones not at all, as the options say."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.formats.base import MAX_REPORTED, may_be_cut
from queue_source.options import parse_reader_options
from queue_source.read.partitions import MIN_PIECE, Piece, PlanStore, cut, whole_pieces
from queue_source.read.task import Beside, Work, read_pieces, read_work
from queue_source.spark.reader import WorkPartition
from shard_store.model import (
    BEGINNING,
    Content,
    ErrorRecord,
    Payload,
    PlanIdentity,
    PublishToken,
    Range,
    Reference,
    end_at,
    position_at,
    shard_key,
)
from shard_store.store import open_store
from support.hostile.typed import one_page
from support.reading import plan_store
from support.sessions import LEAST

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
FAILFAST = {"mode": "FAILFAST"}
IDENTITY = PlanIdentity("files", PublishToken("p", 1), 0, 1, "f" * 64)


def work(*objects: Path, **options: str) -> Work:
    text_only = {} if options.get("fileFormat") == "parquet" else FAILFAST
    parsed = parse_reader_options({**LEAST, "fileFormat": "csv", **text_only, **options})
    ranges = []
    for path in objects:
        size = path.stat().st_size if path.exists() else 0
        content = Content(str(path), str(path), queue="q", message_id="m")
        ranges.append(Range(shard_key("files", str(path)), content, BEGINNING, end_at(size)))
    store = plan_store(parsed) if "store" in options else PlanStore(parsed.store, "never opened")
    return Work(IDENTITY, whole_pieces(ranges), parsed.content, store)


def read(task: Work) -> tuple[list[dict[str, object]], list[ErrorRecord]]:
    reported: list[ErrorRecord] = []

    def report(records: Sequence[ErrorRecord]) -> None:
        reported.extend(records)

    rows = [row for batch in read_pieces(task, SCHEMA, report) for row in batch.to_pylist()]
    return rows, reported


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "good").write_bytes(b"1,x\n")
    return tmp_path / "good"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Good for several batches, and bad at its end."""
    (tmp_path / "bad").write_bytes(b"1,x\n" * 200_000 + b"bad,x\n")
    return tmp_path / "bad"


def test_nothing_is_handed_out_of_an_object_that_is_bad_at_its_end_and_its_neighbours_are_read(
    good: Path, bad: Path
) -> None:
    rows, errors = read(work(bad, good))
    assert rows == [{"a": 1, "b": "x"}]
    (error,) = errors
    assert (error.scope, error.cause, error.subject, error.plan_hash) == (
        "object",
        "corrupt-object",
        str(bad),
        IDENTITY.delivery_hash,
    )
    assert (error.queue, error.message_id) == ("q", "m")


def test_a_missing_object_is_reported_as_missing(good: Path, tmp_path: Path) -> None:
    rows, errors = read(work(tmp_path / "nowhere", good))
    assert rows == [{"a": 1, "b": "x"}]
    assert [error.cause for error in errors] == ["missing-object"]


def test_each_kind_of_bad_object_has_its_own_option(bad: Path, tmp_path: Path) -> None:
    with pytest.raises(BadObject, match="corrupt-object"):
        read(work(bad, onCorruptObject="fail"))
    with pytest.raises(BadObject, match="missing-object"):
        read(work(tmp_path / "nowhere", onMissingObject="fail"))
    _, errors = read(work(tmp_path / "nowhere", onCorruptObject="fail"))
    assert [error.scope for error in errors] == ["object"]


def test_a_skipped_object_is_reported_and_not_quarantined(bad: Path, good: Path) -> None:
    rows, errors = read(work(bad, good, onCorruptObject="skip"))
    assert rows == [{"a": 1, "b": "x"}]
    assert [(error.scope, error.cause) for error in errors] == [("skipped", "corrupt-object")]


def test_a_repeated_task_does_not_read_what_was_found_bad_and_a_first_one_does(
    good: Path, bad: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    task = work(bad, good, store=url, **FAILFAST)

    def rows(*, repeated: bool) -> int:
        return sum(batch.num_rows for batch in read_work(task, SCHEMA, repeated=repeated))

    assert rows(repeated=False) == 1
    bad.write_bytes(b"1,x\n" * 3)  # it was still being written, say
    assert rows(repeated=True) == 1
    assert rows(repeated=False) == 4
    with open_store(url) as store:
        assert store.found_bad(IDENTITY) == {(task.pieces[0].planned.key, BEGINNING)}


def test_a_column_that_an_inferred_schema_lacks_is_said_once_with_its_objects_where_none_is_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Small objects are read one by one for it; a schema that is declared passes its columns by without a word."""
    objects = [tmp_path / f"{number}.json" for number in range(3)]
    for number, path in enumerate(objects):
        path.write_text(json.dumps({"a": number, "undeclared": 1} if number else {"a": number}))
    located = {"schemaLocation": str(tmp_path), "schemaEvolutionMode": "none"}
    for options in ({}, located, located):
        task = work(*objects, fileFormat="json", store=f"sqlite:///{tmp_path}/store.db", **options)
        assert sum(batch.num_rows for batch in read_work(task, SCHEMA, repeated=False)) == 3
    assert caplog.messages == [
        "pipeline p: 2 object(s) of a batch, or parts of them, have a column that is not read: undeclared, as "
        "schemaEvolutionMode is none"
    ]


def test_a_bad_record_is_reported_with_its_place_and_the_others_are_read(good: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed").write_bytes(b"1,x\nbad,y\n2,z\n")
    rows, errors = read(work(tmp_path / "mixed", good, mode="DROPMALFORMED"))
    assert [row["a"] for row in rows] == [1, 2, 1]
    (error,) = errors
    assert (error.scope, error.cause, error.position, error.input) == ("record", "bad-record", position_at(4), b"bad,y")
    assert (error.subject, error.plan_hash) == (str(tmp_path / "mixed"), IDENTITY.delivery_hash)
    assert "column 'a'" in error.detail
    rows, _ = read(work(tmp_path / "mixed", mode="PERMISSIVE"))
    assert [(row["a"], row["b"]) for row in rows] == [(1, "x"), (None, "y"), (2, "z")]


def test_many_bad_records_are_reported_singly_up_to_a_limit_and_then_as_a_number(tmp_path: Path) -> None:
    (tmp_path / "mixed").write_bytes(b"bad,x\n" * 1000)
    rows, errors = read(work(tmp_path / "mixed", mode="DROPMALFORMED"))
    assert rows == []
    assert len(errors) == MAX_REPORTED + 1
    assert (errors[-1].cause, errors[-1].position) == ("bad-records", position_at(6 * 999))
    assert f"{1000 - MAX_REPORTED} more" in errors[-1].detail


def test_ranges_that_tile_an_object_read_each_record_once(tmp_path: Path) -> None:
    lines = [f"{i},{'x' * (i % 7)}y" for i in range(100)]
    for end in ("\n", "\r\n", "\r"):
        path = tmp_path / "o"
        path.write_bytes((end.join(lines) + end).encode())
        size = path.stat().st_size
        whole = work(path)
        for step in (1, 2, 3, 7, 50, size):
            bounds = [*range(0, size, step), size]
            pieces = [
                whole.pieces[0]._replace(
                    start=position_at(a) if a else BEGINNING,
                    end=end_at(b) if b == size else position_at(b),
                )
                for a, b in itertools.pairwise(bounds)
            ]
            rows, errors = read(replace(whole, pieces=pieces))
            assert [row["a"] for row in rows] == list(range(100))
            assert errors == []


@pytest.mark.parametrize("file_format", ["csv", "json", "text"])
def test_pieces_of_an_object_with_a_header_or_a_mark_read_each_record_once(tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "o"
    lines = {"csv": "b,a\ny{0},{0}", "json": '{{"a":{0},"b":"y{0}"}}', "text": "y{0}"}[file_format].split("\n")
    options = {"header": "true"} if file_format == "csv" else {}
    schema = pa.schema([("value", pa.string())]) if file_format == "text" else SCHEMA
    text = "".join([*(f"{line}\n" for line in lines[:-1]), *(lines[-1].format(i) + "\n" for i in range(50))])
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"bad\n")
    size = path.stat().st_size
    task = work(path, fileFormat=file_format, mode="DROPMALFORMED", **options)
    for step in range(1, 40):
        bounds = [*range(0, size, step), size]
        pieces: list[Piece] = []
        for a, b in itertools.pairwise(bounds):
            end = end_at(b) if b == size else position_at(b)
            pieces.append(task.pieces[0]._replace(start=position_at(a) if a else BEGINNING, end=end))
        errors: list[ErrorRecord] = []
        batches = list(read_pieces(replace(task, pieces=pieces), schema, errors.extend))
        found = [row for batch in batches for row in batch.to_pylist()]
        if file_format == "text":
            assert [row["value"] for row in found] == [*(f"y{i}" for i in range(50)), "bad"]
        else:
            assert [(row["a"], row["b"]) for row in found] == [(i, f"y{i}") for i in range(50)]
            assert [error.position for error in errors] == [position_at(size - 4)]


@pytest.mark.parametrize("file_format", ["json", "csv", "text"])
def test_an_object_that_is_bad_behind_its_first_rows_fails_once_and_is_left_out_then(
    file_format: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is published, and its neighbours are: the next attempt holds its rows until it has read its end."""
    monkeypatch.setattr("queue_source.formats.text.blocks.BLOCK_SIZE", 64 << 10)
    late, options = tmp_path / "late", {"fileFormat": file_format, "mode": "PERMISSIVE"}
    schema = pa.schema([("value", pa.string())]) if file_format == "text" else SCHEMA
    line = b'{"a":1,"b":"x"}\n' if file_format == "json" else b"1,x\n"
    good.write_bytes(line)
    late.write_bytes(line * 100_000 + line.replace(b"x", b"marked"))
    module, name = {"json": ("json", "Json"), "csv": ("csv", "Csv"), "text": ("records", "Text")}[file_format]
    named = f"queue_source.formats.text.{module}.{name}Reader.read_quickly"
    quickly = resolve_name(named)

    def refuse_marked(self: object, data: bytes) -> Any:
        if b"marked" in data:
            raise BadObject("too-large-for-memory", "as if")
        return quickly(self, data)

    monkeypatch.setattr(named, refuse_marked)
    task = work(late, good, store=f"sqlite:///{tmp_path}/store.db", **options)
    with pytest.raises(ObjectStoreError, match="the next attempt"):
        list(read_work(task, schema, repeated=False))
    for repeated in (True, False):  # by Spark, and by a query that is started again
        again = replace(task, isolation=None if repeated else Beside(0))
        assert sum(batch.num_rows for batch in read_work(again, schema, repeated=repeated)) == 1
    with task.store.open() as store:
        assert store.found_bad(IDENTITY) == {(task.pieces[0].planned.key, BEGINNING)}


def test_pieces_of_a_bad_object_are_one_error_and_none_is_read_by_a_repeated_task(tmp_path: Path) -> None:
    gone = work(tmp_path / "gone", mode="DROPMALFORMED", store=f"sqlite:///{tmp_path / 'store.db'}")
    planned = gone.pieces[0].planned._replace(end=end_at(3 * MIN_PIECE))
    assert cut(whole_pieces([planned]), 3, 1 << 30, lambda _: True) == whole_pieces([planned])  # of unknown size
    planned = planned._replace(content=planned.content._replace(size=3 * MIN_PIECE))
    pieces = cut(whole_pieces([planned]), 3, 1 << 30, lambda _: True)
    assert len(pieces) == 3
    task = replace(gone, pieces=pieces)
    _, errors = read(task)
    assert {(error.scope, error.position) for error in errors} == {("part", BEGINNING)}
    with task.store.open() as store:
        store.record_errors("files", "p", errors[:1])
    (tmp_path / "gone").write_bytes(b"1,x\n" * (3 * MIN_PIECE // 4))
    assert list(read_work(task, SCHEMA, repeated=True)) == []
    assert sum(batch.num_rows for batch in read_work(task, SCHEMA, repeated=False)) == 3 * MIN_PIECE // 4


@pytest.mark.parametrize("format", ["parquet", "orc", "csv"])
def test_a_whole_object_is_cut_for_several_tasks_only_where_none_of_them_may_find_it_bad_alone(format: str) -> None:
    failing = {"onMissingObject": "fail", "onCorruptObject": "fail", "onForbiddenObject": "fail"}
    for options, expected in (
        ({}, False),
        ({"onCorruptObject": "fail"}, False),
        ({"onMissingObject": "fail"}, False),
        ({"onMissingObject": "fail", "onCorruptObject": "fail"}, False),
        (failing, True),
    ):
        given = {**LEAST, "fileFormat": format, **(FAILFAST if format == "csv" else {}), **options}
        content = parse_reader_options(given).content
        assert may_be_cut("s3://bucket/object", content) is expected
    avro = parse_reader_options({**LEAST, "fileFormat": "avro", **failing}).content
    assert not may_be_cut("o", avro)


def test_the_pieces_of_a_columnar_object_hold_each_of_its_rows_once(tmp_path: Path) -> None:
    rows = 200_000
    table = pa.table({"a": range(rows), "b": [f"{number * 7919:020}" for number in range(rows)]}, SCHEMA)
    pq.write_table(table, tmp_path / "o", row_group_size=5_000, compression="none", use_dictionary=False)
    size = (tmp_path / "o").stat().st_size
    failing = {"onMissingObject": "fail", "onCorruptObject": "fail", "onForbiddenObject": "fail"}
    task = work(tmp_path / "o", fileFormat="parquet", **failing)
    planned = task.pieces[0].planned
    whole = planned._replace(content=planned.content._replace(size=size), end=end_at(size))
    pieces = cut(whole_pieces([whole]), 2, 1 << 20, lambda entry: may_be_cut(entry.content.uri, task.content))
    assert len(pieces) > 1
    found = [read(replace(task, pieces=[piece]))[0] for piece in pieces]
    assert sum(map(bool, found)) > 3  # the last one may hold nothing but the footer
    assert [row["a"] for part in found for row in part] == list(range(rows))


def test_what_decodes_to_far_too_much_is_reported_and_its_neighbours_are_read(tmp_path: Path) -> None:
    for name in ("first", "last"):
        pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / name)
    claimed = one_page(gzip.compress(bytes(8)), 8, values=1, rows=10**9, physical=2)
    (tmp_path / "rows").write_bytes(claimed)
    most = (1 << 31) - 1  # pyarrow's own allocator has no such reserve, whatever this process allocated before
    (tmp_path / "page").write_bytes(one_page(gzip.compress(bytes(8)), most, values=1, physical=2))
    names = "first", "rows", "page", "last"
    task = work(*(tmp_path / name for name in names), fileFormat="parquet", maxDecodeMemory="512m")
    rows, errors = read(task)
    assert rows == [{"a": 1, "b": "x"}] * 2
    assert [(error.scope, error.cause) for error in errors] == [
        ("object", "corrupt-object"), ("object", "too-large-for-memory"),
    ]  # fmt: skip
    assert "maxExpansion" in errors[0].detail
    assert "maxDecodeMemory" in errors[1].detail
    trusted = work(tmp_path / "first", fileFormat="parquet", maxExpansion="5000")
    assert trusted.content.format is not None
    assert trusted.content.format.max_expansion == 5000


def test_a_task_gets_its_work_as_it_was_planned(tmp_path: Path) -> None:
    """It is pickled by Spark, as plain tuples: values of each kind are there again, and of their own classes."""
    content = Content(
        "id", "s3://b/k", 10, "etag", "q", "m", 3, "group", Payload(b"\xff", "key", "tag", (("a", "b"),), 1.5),
        reference=Reference("v", 1, 2, "tag"),
    )  # fmt: skip
    planned = Range(shard_key("files", "id"), content, BEGINNING, end_at(10))
    pieces = [
        Piece(planned, BEGINNING, position_at(4), 7),
        Piece(planned, position_at(4), end_at(10), 7),
        *work(tmp_path / "other").pieces,
    ]
    partition = WorkPartition(replace(work(), pieces=pieces))
    arrived = pickle.loads(pickle.dumps(partition))
    assert arrived == partition
    kinds = [(type(p), type(p.planned), type(p.content), type(p.content.payload)) for p in arrived.work.pieces]
    assert kinds == [(Piece, Range, Content, Payload)] * 2 + [(Piece, Range, Content, type(None))]
    assert isinstance(arrived.work.pieces[0].content.reference, Reference)
