from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.errors import OptionError
from queue_source.formats.metadata import METADATA_FIELDS, ObjectMetadata, check_metadata_field, metadata_column
from queue_source.options.content import FormatOptions
from queue_source.storage.files import stat_object
from support.reading import load_object

ALL = pa.struct(
    [
        ("file_path", pa.string()),
        ("file_name", pa.string()),
        ("file_size", pa.int64()),
        ("file_block_start", pa.int64()),
        ("file_block_length", pa.int64()),
        ("file_modification_time", pa.timestamp("us", tz="UTC")),
        ("shard_id", pa.string()),
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("receive_count", pa.int32()),
        ("delivery_hash", pa.string()),
        ("archive_member", pa.string()),
    ]
)
NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


def test_every_field_that_is_declared_is_filled() -> None:
    values = ObjectMetadata("s3://b/a b", "a b", 7, 0, 7, NOON, "shard", "message", "queue", 3, "hash", "a.csv")
    check_metadata_field(pa.schema([("_metadata", ALL)]))
    column = metadata_column(ALL, [values], 2)
    assert column.type == ALL
    row = dict(
        zip(
            METADATA_FIELDS,
            ("s3://b/a b", "a b", 7, 0, 7, NOON, "shard", "message", "queue", 3, "hash", "a.csv"),
            strict=True,
        )
    )
    assert column.to_pylist() == [row, row]


def test_only_the_declared_fields_are_there_in_their_order_and_unknown_values_are_null() -> None:
    declared = pa.struct([("queue", pa.string()), ("file_size", pa.int64())])
    column = metadata_column(declared, [ObjectMetadata(file_size=5)], 1)
    assert column.type == declared
    assert column.to_pylist() == [{"queue": None, "file_size": 5}]
    assert len(metadata_column(declared, [ObjectMetadata()], 0)) == 0


@pytest.mark.parametrize(
    ("declared", "names"),
    [
        (pa.struct([("file_path", pa.string()), ("file_pth", pa.string())]), "_metadata.file_pth is unknown"),
        (pa.struct([("file_size", pa.string())]), "_metadata.file_size is int64, not string"),
        (pa.struct([("file_modification_time", pa.timestamp("us"))]), "file_modification_time is timestamp"),
        (pa.struct([]), "must be a struct"),
        (pa.string(), "must be a struct"),
    ],
)
def test_a_declared_struct_that_cannot_be_filled_is_refused_by_field(declared: pa.DataType, names: str) -> None:
    with pytest.raises(OptionError, match=names):
        check_metadata_field(pa.schema([("_metadata", declared)]))


def test_a_schema_without_metadata_passes() -> None:
    check_metadata_field(pa.schema([("a", pa.struct([("file_pth", pa.string())]))]))


def test_the_reader_fills_what_the_object_tells_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_bytes(b"1\n2\n")
    uri = f"file://{tmp_path}/a b.csv"
    schema = pa.schema([("_metadata", ALL), ("n", pa.int64())])
    given = ObjectMetadata(shard_id="the shard", queue="q", receive_count=2)
    (batch,) = load_object(uri, schema, FormatOptions("csv"), metadata=given)
    assert batch.schema == schema
    assert batch.column("n").to_pylist() == [1, 2]
    stat = stat_object(uri)
    assert (
        batch.column("_metadata").to_pylist()
        == [
            {
                "file_path": uri,
                "file_name": "a b.csv",
                "file_size": 4,
                "file_block_start": 0,
                "file_block_length": 4,
                "file_modification_time": stat.modified
                and stat.modified.replace(microsecond=stat.modified.microsecond),
                "shard_id": "the shard",
                "message_id": None,
                "queue": "q",
                "receive_count": 2,
                "delivery_hash": None,
                "archive_member": None,
            }
        ]
        * 2
    )


@pytest.mark.parametrize(
    ("file_format", "content"), [("csv", b"1,x\n\n2,y\n"), ("json", b'{"a":1}\n\n{"b":2}'), ("json", b"{}\n{}\n")]
)
def test_a_schema_of_metadata_alone_still_has_every_row(tmp_path: Path, file_format: str, content: bytes) -> None:
    (tmp_path / "o").write_bytes(content)
    schema = pa.schema([("_metadata", pa.struct([("file_name", pa.string())]))])
    for header in (False, True) if file_format == "csv" else (False,):
        batches = load_object(f"{tmp_path}/o", schema, FormatOptions(file_format, header=header))
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert rows == [{"_metadata": {"file_name": "o"}}] * (1 if header else 2)


def test_a_schema_of_metadata_alone_reads_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "o")
    schema = pa.schema([("_metadata", pa.struct([("file_name", pa.string())]))])
    assert sum(batch.num_rows for batch in load_object(f"{tmp_path}/o", schema, FormatOptions("parquet"))) == 3
