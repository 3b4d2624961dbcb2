"""Small objects are read together: the same rows and errors as one by one, in the same order."""

from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.options import parse_reader_options
from queue_source.read import combined as together
from queue_source.read import task as reading
from queue_source.read.objects import MIN_ROWS, gathered
from queue_source.read.partitions import PlanStore, whole_pieces
from queue_source.read.task import Work, read_pieces
from shard_store.model import (
    BEGINNING,
    Content,
    ErrorRecord,
    PlanIdentity,
    PublishToken,
    Range,
    end_at,
    shard_key,
)
from support.sessions import LEAST

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
CORRUPT = SCHEMA.append(pa.field("_corrupt_record", pa.string()))
RESCUED = SCHEMA.append(pa.field("_rescued", pa.string()))
TEXT = pa.schema([("value", pa.string())])
IDENTITY = PlanIdentity("files", PublishToken("p", 1), 0, 1, "f" * 64)

CSV = [
    b"1,x\n2,y\n", b"3,z", b"", b"\n\n", b"\xef\xbb\xbf4,bom\n", b"5,crlf\r\n6,w\r\n", b"7,cr\r8,cr\r", b"bad,x\n9,y\n",
    b'10,"quoted, one"\n', b'11,"open\n', b"12,\xff\n", b"13\n", b"14,x,y\n", gzip.compress(b"15,packed\n"),
    b"0x10,h\n", b"16,\n", b",\n", b"   \n17,s\n", b"18,\\\\back\n", b"PK\3\4archive\n", gzip.compress(b"PK\5\6\n"),
]  # fmt: skip
WITH_HEADER = [
    b"a,b\n1,x\n", b"a,b\n2,y", b"b,a\nz,3\n", b"a,b\n", b"a,b", b"", b"A,B\n4,case\n", b"c,d\n5,6\n",
    b"a,b,c\n7,x,y\n", b"\xef\xbb\xbfa,b\n8,bom\n", b"a,b\r\n9,crlf\r\n", b"\n", b'"a","b"\n10,q\n',
    b"a,b\nbad,x\n11,y\n",
]  # fmt: skip
JSON = [
    b'{"a":1,"b":"x"}\n{"a":2}\n', b'{"b":"y"}', b"", b"\n", b'\xef\xbb\xbf{"a":3}\n', b"{}\n", b'{"c":4}\n',
    b'{"a":"5"}\n{"a":6}\n', b"null\n", b"[]\n", b'{"a":7', b'"b":8}\n', b'{"a":9}\r\n', b'{"b":10}\n', b'{"a":1.5}\n',
    gzip.compress(b'{"a":11}\n'), b'{"a":12,"b":"\xff"}\n', b'{"a":13}{"a":14}\n', b'[{"a":15},{"a":16}]\n',
    b"PK\3\4\n", b'{"A":17,"B":"other case"}\n', b'{"A":18,"a":19}\n', b'{"a":20,"B":"x","c":1}',
]  # fmt: skip
LINES = [
    b"one\ntwo",
    b"",
    b"\n",
    b"three\r\n",
    b"four\rfive\r",
    b"six\n\n",
    b"\xff\n",
    b"\xef\xbb\xbfbom\n",
    b"\nseven",
    b"PK\3\4\n",
]

KINDS = {
    "csv": ("csv", CSV, SCHEMA, {}),
    "csv with a header": ("csv", WITH_HEADER, SCHEMA, {"header": "true"}),
    "csv that drops": ("csv", CSV, SCHEMA, {"mode": "DROPMALFORMED"}),
    "csv that fails": ("csv", CSV, SCHEMA, {"mode": "FAILFAST"}),
    "csv with lineSep": ("csv", [d.replace(b"\n", b"|") for d in CSV], SCHEMA, {"lineSep": "|"}),
    "csv with rescued data": (
        "csv", WITH_HEADER, RESCUED, {"header": "true", "rescuedDataColumn": "_rescued"},
    ),
    "json": ("json", JSON, SCHEMA, {}),
    "json with the corrupt record": ("json", JSON, CORRUPT, {}),
    "json with rescued data": ("json", JSON, RESCUED, {"rescuedDataColumn": "_rescued"}),
    "json with maps": ("json", JSON, pa.schema([("a", pa.map_(pa.string(), pa.string())), ("b", pa.string())]), {}),
    "json that fails": ("json", JSON, SCHEMA, {"mode": "FAILFAST"}),
    "text": ("text", LINES, TEXT, {}),
    "text with lineSep": ("text", [*LINES, b"a,b", b"c,\n", b",d"], TEXT, {"lineSep": ","}),
    "text with a lineSep that overlaps itself": (
        "text", [b"a|", b"b||", b"c|||d", b"|", b"e|||", b"||f"], TEXT, {"lineSep": "||"},
    ),
}  # fmt: skip


def objects(folder: Path, contents: list[bytes]) -> list[Range]:
    """One of them is missing, and another has changed since it was announced."""
    ranges = []
    for number, data in enumerate(contents):
        path = folder / f"{number:03}"
        path.write_bytes(data)
        ranges.append(announced(path, len(data)))
    gone = folder / "gone"
    ranges.insert(len(ranges) // 2, announced(gone, 5))
    changed = folder / "changed"
    changed.write_bytes(contents[0])
    ranges.insert(len(ranges) // 3, announced(changed, len(contents[0]) + 1))
    return ranges


def announced(path: Path, size: int) -> Range:
    content = Content(str(path), str(path), size=size, queue="q", message_id="m")
    return Range(shard_key("files", str(path)), content, BEGINNING, end_at(size))


def read(ranges: list[Range], format: str, schema: pa.Schema, options: dict[str, str]) -> tuple[object, object]:
    parsed = parse_reader_options({**LEAST, "fileFormat": format, **options})
    reported: list[ErrorRecord] = []
    work = Work(IDENTITY, whole_pieces(ranges), parsed.content, PlanStore(parsed.store, "never opened"))
    rows = [row for batch in read_pieces(work, schema, reported.extend) for row in batch.to_pylist()]
    return rows, reported


@pytest.mark.parametrize("kind", KINDS)
def test_objects_that_are_read_together_give_what_each_gives_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    format, contents, schema, options = KINDS[kind]
    shuffled = random.Random(kind).sample(contents, len(contents))
    for name, some in (("all", contents), ("shuffled", shuffled), ("good", [contents[0]] * 9)):
        folder = tmp_path / name
        folder.mkdir()
        ranges = objects(folder, some)
        together_read = read(ranges, format, schema, options)
        with monkeypatch.context() as alone:
            alone.setattr(reading, "SMALL", -1)
            assert together_read == read(ranges, format, schema, options)


@pytest.mark.parametrize("most", [40, pytest.param(None, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_two_objects_that_are_read_together_do_not_run_into_each_other(
    kind: str, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    format, contents, schema, options = KINDS[kind]
    paths = [tmp_path / f"{number:03}" for number in range(len(contents))]
    for path, data in zip(paths, contents, strict=True):
        path.write_bytes(data)
    whole = [announced(path, len(data)) for path, data in zip(paths, contents, strict=True)]
    pairs = list(itertools.permutations(whole, 2))
    for pair in pairs if most is None else random.Random(kind).sample(pairs, min(most, len(pairs))):
        together_read = read(list(pair), format, schema, options)
        with monkeypatch.context() as alone:
            alone.setattr(reading, "SMALL", -1)
            assert together_read == read(list(pair), format, schema, options)


def test_good_small_objects_are_parsed_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = []
    for number in range(50):
        path = tmp_path / f"{number}"
        path.write_bytes(b"%d,x\n" % number)
        ranges.append(announced(path, path.stat().st_size))
    monkeypatch.setattr(reading, "read_object", None)
    rows, errors = read(ranges, "csv", SCHEMA, {})
    assert rows == [{"a": number, "b": "x"} for number in range(50)]
    assert errors == []


def test_rows_that_tell_where_they_come_from_are_read_object_by_object() -> None:
    format = parse_reader_options({**LEAST, "fileFormat": "csv", "partitionColumns": "b"}).content.format
    assert format is not None
    assert not together.may_be_joined(SCHEMA, format)


def test_small_batches_are_put_together_in_order_and_large_ones_pass() -> None:
    def batch(first: int, rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"a": list(range(first, first + rows))})

    large = batch(100, MIN_ROWS)
    found = list(gathered(iter([batch(0, 3), batch(3, 4), large, large, batch(7, 1), batch(8, 1)])))
    assert [b.num_rows for b in found] == [7 + MIN_ROWS, MIN_ROWS, 2]
    assert found[1] is large
    values = [value for b in found for value in b.column(0).to_pylist()]
    assert values == [*range(7), *range(100, 100 + MIN_ROWS), *range(100, 100 + MIN_ROWS), 7, 8]
