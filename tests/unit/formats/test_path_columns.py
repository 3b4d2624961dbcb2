from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.errors import BadObject, OptionError
from queue_source.formats.base import check_schema
from queue_source.options.content import FormatOptions
from support.reading import load_object

SCHEMA = pa.schema([("day", pa.date32()), ("a", pa.int64()), ("s", pa.string()), ("n", pa.int32())])
META = pa.schema([*SCHEMA, ("_metadata", pa.struct([("file_size", pa.int64())]))])


def written(folder: Path, path: str, data: bytes = b'{"a":1,"n":99}\n{"a":2}\n') -> str:
    target = folder / path / "o"
    target.parent.mkdir(parents=True)
    target.write_bytes(data)
    return str(target)


@pytest.mark.parametrize("schema", [SCHEMA, META])
@pytest.mark.parametrize(
    ("path", "day", "s", "n"),
    [
        ("day=2020-01-02/n=7/s=a%20b%2Fc", dt.date(2020, 1, 2), "a b/c", 7),
        ("s=x/x/day=2020-01-02/n=-1/y", dt.date(2020, 1, 2), "x", -1),
        ("day=__HIVE_DEFAULT_PARTITION__/n=0/s=", None, "", 0),
    ],
)
def test_values_of_the_path_are_columns_and_win_over_the_content(
    tmp_path: Path, schema: pa.Schema, path: str, day: dt.date | None, s: str, n: int
) -> None:
    options = FormatOptions("json", partition_columns=("day", "s", "n"))
    check_schema(schema, options)
    (batch,) = load_object(written(tmp_path, path), schema, options)
    assert batch.schema.equals(schema)
    assert [(row["day"], row["a"], row["s"], row["n"]) for row in batch.to_pylist()] == [(day, 1, s, n), (day, 2, s, n)]


@pytest.mark.parametrize("path", ["day=2020-01-02/n=7", "day=bad/n=7/s=x", "day=2020-01-02/n=99999999999/s=x"])
def test_a_path_without_a_value_or_with_another_is_a_bad_object(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadObject, match="wrong-columns"):
        load_object(written(tmp_path, path), SCHEMA, FormatOptions("json", partition_columns=("day", "s", "n")))


def test_columns_that_cannot_come_from_a_path_are_refused() -> None:
    with pytest.raises(OptionError, match="no column 'x'"):
        check_schema(SCHEMA, FormatOptions("json", partition_columns=("x",)))
    nested = pa.schema([("a", pa.list_(pa.int64()))])
    with pytest.raises(OptionError, match="cannot come from a path"):
        check_schema(nested, FormatOptions("json", partition_columns=("a",)))
