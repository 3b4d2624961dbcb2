"""Local times as instants, in a zone by its name or offset; and dates before 1582-10-15 as ISO 8601 counts them.

Spark before 3.0, Hive and ORC's own writer count days so that 1582-10-15 follows 1582-10-04, and every fourth year
before is a leap year. A day of the same name has another number in the Gregorian calendar of today.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queue_source.common.times import fixed_offset

_SWITCH = -141_427
"""The number of 1582-10-15, the first day that both calendars name alike."""
_DAY = 86_400_000_000
_START_OF_1900 = -2_208_988_800_000_000


def instants(local: pa.Array | pa.Scalar, zone: str) -> pa.Array | pa.Scalar:
    """Convert timestamps without a zone to instants.

    When the clock is put back the earlier one is taken, when it skips the later. `zone` is what `parse_time_zone`
    returned. Older versions of pyarrow know no offsets: these are subtracted here.
    """
    offset = fixed_offset(zone)
    if offset is None:
        return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    unit = local.type.unit
    shifted = pc.subtract_checked(local, pa.scalar(offset, pa.duration(unit)))
    return shifted.cast(pa.timestamp(unit, tz="UTC"))


def gregorian_days(days: pa.Array) -> pa.Array:
    """Convert days since 1970 (int32) of the hybrid calendar to those of the days with the same names."""
    numbers = np.asarray(days.fill_null(0)).astype(np.int64)
    old = numbers < _SWITCH
    if not old.any():
        return days
    numbers[old] = _gregorian(numbers[old])
    return pc.if_else(days.is_valid(), pa.array(numbers).cast(pa.int32()), pa.scalar(None, pa.int32()))


def gregorian_micros(micros: pa.Array, zone: str) -> pa.Array:
    """Convert microseconds since 1970 (int64) in the same way: the time on the zone's clock stays.

    Such writers took the zone's clock of 1900 for that of all earlier times; local mean time is applied here.
    """
    numbers = np.asarray(micros.fill_null(0)).astype(np.int64)
    old = numbers < _START_OF_1900
    if not old.any():
        return micros
    start = pa.scalar(_START_OF_1900, pa.timestamp("us"))
    local = numbers[old] + _START_OF_1900 - instants(start, zone).cast(pa.int64()).as_py()
    days = local // _DAY
    wall_clock = local + (np.where(days < _SWITCH, _gregorian(days), days) - days) * _DAY
    numbers[old] = np.asarray(instants(pa.array(wall_clock, pa.timestamp("us")), zone).cast(pa.int64()))
    return pc.if_else(micros.is_valid(), pa.array(numbers), pa.scalar(None, pa.int64()))


def _gregorian(days: np.ndarray) -> np.ndarray:
    """Convert days of the Julian calendar to those with the same year, month and day in the Gregorian calendar.

    Years begin in March here, so that a leap day is the last of its year. A 29 February of the Julian calendar alone is
    1 March.
    """
    since = days + 719_470  # days since 1 March of the year 0, Julian
    year = (4 * since + 3) // 1461
    of_year = since - (1461 * year) // 4
    gregorian_days_since_1970: np.ndarray = of_year + 365 * year + year // 4 - year // 100 + year // 400 - 719_468
    return gregorian_days_since_1970
