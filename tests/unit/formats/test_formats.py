from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pyarrow as pa
import pytest

from queue_source.errors import OptionError
from queue_source.formats.base import check_schema, data_schema
from queue_source.options.content import FormatOptions

NESTED = pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.timestamp("us"))))])


def test_the_defaults_are_those_of_spark() -> None:
    options = FormatOptions("csv")
    assert (options.header, options.sep, options.quote, options.escape) == (False, ",", '"', "\\")
    assert (options.null_value, options.empty_value, options.timezone) == (
        "",
        "",
        None,
    )  # the zone: that of the session


def test_options_are_frozen_and_picklable() -> None:
    options = FormatOptions("json", timezone="Europe/Berlin")
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(FrozenInstanceError):
        options.sep = ";"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("file_format", "kind"),
    [
        ("csv", NESTED),
        ("csv", pa.list_(pa.int64())),
        ("json", pa.map_(pa.int64(), pa.string())),
        ("json", pa.list_(pa.struct([("d", pa.duration("us"))]))),
        ("parquet", pa.timestamp("ns")),
        ("parquet", pa.month_day_nano_interval()),
        ("csv", pa.uint8()),
    ],
)
def test_a_type_that_the_format_cannot_fill_is_refused_on_the_driver(file_format: str, kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match="column 'bad'"):
        check_schema(pa.schema([("good", pa.int64()), ("bad", kind)]), FormatOptions(file_format))


def test_nested_types_are_accepted_where_the_format_has_them() -> None:
    for file_format in ("json", "parquet"):
        check_schema(pa.schema([("a", NESTED)]), FormatOptions(file_format))


def test_a_column_declared_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="'a' is declared twice"):
        check_schema(pa.schema([("a", pa.int64()), ("a", pa.int64())]), FormatOptions("csv"))


def test_metadata_is_no_column_of_the_object() -> None:
    schema = pa.schema([("_metadata", pa.struct([("queue", pa.string())])), ("a", pa.int64())])
    check_schema(schema, FormatOptions("csv"))
    assert data_schema(schema, FormatOptions("csv")) == pa.schema([("a", pa.int64())])
