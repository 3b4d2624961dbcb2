"""From the calendar that was in use to the one that ISO 8601 counts with: dates before 1582-10-15 in old files.

Spark before 3.0, Hive and ORC's own writer count days so that 1582-10-15 follows 1582-10-04, and every fourth year
before is a leap year. What is the same day by its name has another number in the Gregorian calendar of today.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SWITCH = -141_427
"""The number of 1582-10-15, the first day that both calendars name alike."""
_DAY = 86_400_000_000


def gregorian_days(days: pa.Array) -> pa.Array:
    """Days since 1970 (int32) of the hybrid calendar as those of the days with the same names."""
    numbers = np.asarray(days.fill_null(0)).astype(np.int64)
    old = numbers < _SWITCH
    if not old.any():
        return days
    numbers[old] = _gregorian(numbers[old])
    return pc.if_else(days.is_valid(), pa.array(numbers).cast(pa.int32()), pa.scalar(None, pa.int32()))


def gregorian_micros(micros: pa.Array) -> pa.Array:
    """Microseconds since 1970 (int64), in no zone or in UTC, in the same way: the time of the day stays."""
    numbers = np.asarray(micros.fill_null(0)).astype(np.int64)
    days = numbers // _DAY
    old = days < _SWITCH
    if not old.any():
        return micros
    numbers[old] += (_gregorian(days[old]) - days[old]) * _DAY
    return pc.if_else(micros.is_valid(), pa.array(numbers), pa.scalar(None, pa.int64()))


def _gregorian(days: np.ndarray) -> np.ndarray:
    """The days of the Julian calendar as those with the same year, month and day in the Gregorian calendar.

    Years begin in March here, so that a leap day is the last of its year. What was 29 February only by the Julian
    calendar is 1 March.
    """
    since = days + 719_470  # days since 1 March of the year 0, Julian
    year = (4 * since + 3) // 1461
    of_year = since - (1461 * year) // 4
    return of_year + 365 * year + year // 4 - year // 100 + year // 400 - 719_468
