"""Times as Spark reads them: fractions of a second and zones that are written as offsets."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from queue_source.options import FormatOptions
from support.reading import read_column

INSTANT = pa.timestamp("us", tz="UTC")


def moment(micros: int) -> dt.datetime:
    return dt.datetime(2013, 1, 31, 5, 0, 0, micros, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("pattern", ["yyyy-MM-dd HH:mm:ss.SSSSSS", "yyyy-MM-dd HH:mm[:ss.SSSSSS]"])
@pytest.mark.parametrize(("digits", "micros"), [("5", 500_000), ("250", 250_000), ("000001", 1)])
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_a_fraction_may_have_fewer_digits_than_its_pattern(
    file_format: str, digits: str, micros: int, pattern: str
) -> None:
    options = FormatOptions(file_format, timestamp_format=pattern)
    text = f"2013-01-31 05:00:00.{digits}"
    line = text if file_format == "csv" else f'{{"a": "{text}"}}'
    assert read_column(f"{line}\n{line}\n".encode(), INSTANT, options) == [moment(micros)] * 2


@pytest.mark.parametrize(("zone", "hours"), [("+02:00", 3), ("-05:30", 10.5), ("UTC", 5), ("Europe/Berlin", 4)])
@pytest.mark.parametrize("text", ["2013-01-31 05:00:00", "2013-1-31 05:00:00"])  # a column at a time, and one value
def test_a_time_without_a_zone_is_in_the_zone_of_the_option(text: str, zone: str, hours: float) -> None:
    found = read_column(f"{text}\n".encode(), INSTANT, FormatOptions("csv", timezone=zone))
    midnight = dt.datetime(2013, 1, 31, tzinfo=dt.timezone.utc)
    assert found == [midnight + dt.timedelta(hours=hours)]
