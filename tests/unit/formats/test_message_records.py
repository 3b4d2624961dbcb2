"""Messages that hold records: read together where they can be, each by itself where not, with the same rows."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords
from queue_source.formats.metadata import ObjectMetadata
from queue_source.formats.text import json as json_format
from queue_source.options.content import FormatOptions
from queue_source.read import combined
from queue_source.read.combined import parsed_messages
from shard_store.model import Payload

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("_metadata", pa.struct([("message_id", pa.string())]))])
Verdicts = dict[int, tuple[int, str | None]]


def read(
    bodies: list[bytes], options: FormatOptions, schema: pa.Schema = SCHEMA
) -> tuple[list[dict[str, Any]], Verdicts]:
    reported: Verdicts = {}

    def finished(place: int, problems: BadRecords, error: BadObject | None) -> None:
        assert place not in reported
        reported[place] = (problems.count, None if error is None else error.cause)

    messages = [(Payload(body, str(at)), ObjectMetadata(message_id=str(at))) for at, body in enumerate(bodies)]
    batches = list(parsed_messages(messages, schema, options, finished))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return [row for batch in batches for row in batch.to_pylist()], reported


def tar_of(content: bytes) -> bytes:
    with io.BytesIO() as out, tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        archive.close()
        return out.getvalue()


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["_metadata"]["message_id"] for row in rows]


def test_records_of_many_messages_keep_their_order_and_their_message() -> None:
    rows, reported = read([json.dumps({"a": at, "b": "x"}).encode() for at in range(1000)], FormatOptions("json"))
    assert [row["a"] for row in rows] == list(range(1000))
    assert ids(rows) == [str(at) for at in range(1000)]
    assert not reported


@pytest.mark.parametrize(
    ("body", "expected", "bad"),
    [
        (b'{\n "a": 5\n}', [5], 0),  # a document over several lines
        (b'{"a": 5}\n{"a": 6}\n', [5, 6], 0),
        (b'[{"a": 5},\n {"a": 6}]', [5, 6], 0),
        (b'{"a": 5}{"a": 6}', [5, 6], 0),
        (b'{"a": 5}{"a": "x"} {"a": 6}', [5, None, 6], 1),
        (b'{"a": "x"}', [None], 1),
        (b'\xef\xbb\xbf{"a": 5}', [5], 0),
        (gzip.compress(b'{"a": 5}', mtime=0), [5], 0),
        (gzip.compress(b'{\n "a": 5\n}', mtime=0), [5], 0),
        (gzip.compress(b'[{"a": 5},\n {"a": 6}]', mtime=0), [5, 6], 0),
        (b"", [], 0),
        (b" ", [], 0),
    ],
)
def test_an_unusual_body_harms_no_other_one(body: bytes, expected: list[int | None], bad: int) -> None:
    others = [b'{"a": 1}'] * 20
    rows, reported = read([*others, body, *others], FormatOptions("json"))
    assert [row["a"] for row in rows] == [1] * 20 + expected + [1] * 20
    assert reported == ({20: (bad, None)} if bad else {})
    assert ids(rows) == [*map(str, range(20)), *["20"] * len(expected), *map(str, range(21, 41))]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"\xff", "corrupt-object"),
        (b"Hello, this is no order", "corrupt-object"),
        (b'{"a": 5', "corrupt-object"),
        (b"x\ny\n", "corrupt-object"),
        (b'{"order": 5, "type": "OrderPaid"}', "wrong-columns"),
        (b'{"order": 5}\n{"order": 6}\n', "wrong-columns"),
        (b'[\n{"order": 5},\n{"order": 6}]', "wrong-columns"),
    ],
)
def test_a_message_of_another_kind_is_bad_and_no_row_of_nulls(body: bytes, cause: str) -> None:
    """Nothing but the message holds it: it is quarantined with its body, not acknowledged away."""
    others = [b'{"a": 1}'] * 20
    for larger in (body, body + b" " * (70 << 10)):
        rows, reported = read([*others, larger, *others], FormatOptions("json"))
        assert [row["a"] for row in rows] == [1] * 40
        assert reported == {20: (reported[20][0], cause)}
        rows, reported = read([*others, larger, *others], FormatOptions("json", multi_line=True))
        assert [row["a"] for row in rows] == [1] * 40
        assert reported[20][1] in (cause, "corrupt-object"), "two documents are no document"
    kept = pa.schema([*SCHEMA, ("_corrupt_record", pa.string())])
    if cause == "corrupt-object":
        rows, reported = read([body], FormatOptions("json"), kept)
        assert rows, "who asks for the text of bad records has it"
        assert reported[0][1] is None
    rescued = FormatOptions("json", rescued_data_column="_rescued_data")
    rows, reported = read([body], rescued, pa.schema([*SCHEMA, ("_rescued_data", pa.string())]))
    assert bool(rows) == (cause == "wrong-columns")


def test_a_document_in_another_character_set_may_have_several_lines() -> None:
    body = '[{"a": 5},\n {"a": 6}]'.encode("utf-16")
    assert [row["a"] for row in read([body], FormatOptions("json", encoding="UTF-16"))[0]] == [5, 6]


def test_csv_in_a_message_has_a_value_or_is_bad() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64())])
    rows, reported = read([b"1,2", b"no csv", b",", b"x,2"], FormatOptions("csv"), schema)
    assert [(row["a"], row["b"]) for row in rows] == [(1, 2), (None, None), (None, 2)]
    assert reported == {1: (1, "corrupt-object"), 3: (1, None)}


def test_of_a_message_more_of_its_bad_records_is_kept_than_of_an_object() -> None:
    kept = BadRecords("PERMISSIVE", of_message=True), BadRecords("PERMISSIVE")
    for problems in kept:
        for offset in range(2000):
            problems.add(offset, "bad", b"x" * 100_000)
    assert [(len(p.reported), len(p.reported[0].record), p.count) for p in kept] == [
        (1000, 100_000, 2000),
        (20, 65_536, 2000),
    ]


def test_no_body_leans_on_its_neighbours() -> None:
    bodies = [b'{"a": 1}{"a": 2}', b'{"a":', b"3}", b'{"b": "x}', b'{y"}', b'{"a": 4}']
    rows, reported = read(bodies, FormatOptions("json"))
    assert [row["a"] for row in rows] == [1, 2, 4]
    assert reported == dict.fromkeys((1, 2, 3, 4), (1, "corrupt-object"))


def test_failfast_makes_a_message_bad_and_drop_leaves_its_record_out() -> None:
    bodies = [b'{"a": 1}', b'{"a": 2}\nno\n', b'{"a": 3}'] * 3
    rows, reported = read(bodies, FormatOptions("json", mode="FAILFAST"))
    assert [row["a"] for row in rows] == [1, 3] * 3
    assert reported == dict.fromkeys((1, 4, 7), (0, "corrupt-object"))
    rows, reported = read(bodies, FormatOptions("json", mode="DROPMALFORMED"))
    assert [row["a"] for row in rows] == [1, 2, 3] * 3
    assert reported == dict.fromkeys((1, 4, 7), (1, None))


def test_csv_and_text_are_read_together_too() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows, reported = read([b"1,x", b'2,"y,z"', b"", b"3,a\n4,b", b"5"] * 2, FormatOptions("csv"), schema)
    assert [row["a"] for row in rows] == [1, 2, 3, 4, 5] * 2
    assert reported == {4: (1, None), 9: (1, None)}
    rows, _ = read([b"a,b\n1,x", b"b,a\ny,2"] * 4, FormatOptions("csv", header=True), schema)
    assert [(row["a"], row["b"]) for row in rows] == [(1, "x"), (2, "y")] * 4
    lines = pa.schema([("value", pa.string())])
    rows, reported = read([b"one", b"two\nlines", b"", b"\xff"] * 3, FormatOptions("text"), lines)
    assert [row["value"] for row in rows] == ["one", "two", "lines", "\ufffd"] * 3
    whole, _ = read([b"one", b"two\nlines"] * 3, FormatOptions("text", whole_text=True), lines)
    assert [row["value"] for row in whole] == ["one", "two\nlines"] * 3


def test_files_in_messages_are_read_by_their_format() -> None:
    sink = io.BytesIO()
    fields = [{"name": "a", "type": "long"}]
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [{"a": 1}, {"a": 2}])
    rows, reported = read([sink.getvalue(), b"Obj", sink.getvalue()], FormatOptions("avro"))
    assert [row["a"] for row in rows] == [1, 2, 1, 2]
    assert reported == {1: (0, "corrupt-object")}
    assert ids(rows) == ["0", "0", "2", "2"]


@pytest.mark.parametrize("format", ["text", "csv"])
@pytest.mark.parametrize(
    "body", [b"PK\x03\x04xyz", tar_of(b"x"), b"BZh91AY&SYxyz", b'\x04"M\x18xyz'], ids=["zip", "tar", "bz2", "lz4"]
)
def test_a_message_that_is_packed_is_bad_among_any_number_of_others(format: str, body: bytes) -> None:
    schema = pa.schema([("value", pa.string()), SCHEMA.field("_metadata")])
    alone = read([body], FormatOptions(format), schema)
    assert alone[0] == []
    rows, reported = read([b"x"] * 20 + [body] + [b"x"] * 20, FormatOptions(format), schema)
    assert ids(rows) == [str(at) for at in range(41) if at != 20]
    assert reported == {20: alone[1][0]}


_BODIES = st.lists(
    st.sampled_from(
        [
            b'{"a": 1}', b'{"a":\n 1}', b'{"b": "x\ny"}', b'{"a": 1}\n{"a": 2}', b'{"b": "x", "c": 1}', b"{}", b"[]",
            b'{"a": 1}\n', b"{", b"", b"null", b'{"a":"}{"}', b'{"a": "no number"}',
            b'{"a": 1}{"b": "x"}', b'{"a": 1} {"a": 2} x', b'{"a": 1}}{"a": 2}',
        ]
    ),
    max_size=30,
)  # fmt: skip


@given(_BODIES, st.sampled_from(["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]), st.booleans(), st.sampled_from([0, 1000]))
@settings(deadline=None, max_examples=60)
def test_together_or_alone_the_rows_are_the_same(bodies: list[bytes], mode: str, rescues: bool, small: int) -> None:
    schema = pa.schema([*SCHEMA, ("_rescued_data", pa.string())]) if rescues else SCHEMA
    options = FormatOptions("json", mode=mode, rescued_data_column="_rescued_data" if rescues else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combined, "_ALONE", 1)
        together = read(bodies, options, schema)
        patch.setattr(combined, "_ALONE", 1000)
        patch.setattr(json_format, "_SMALL", small)
        assert read(bodies, options, schema) == together
