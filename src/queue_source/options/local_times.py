"""Timestamps as Spark's file sources read them in `modifiedAfter`: with their own zone, or in one that is given."""

from __future__ import annotations

import re
from datetime import datetime, timezone, tzinfo
from zoneinfo import ZoneInfo

from queue_source.options.time_zones import fixed_offset, parse_time_zone

_TIMESTAMP = re.compile(
    r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[T ](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:[.](?P<fraction>[0-9]{0,9}))?)?"
    r"(?P<zone> ?[A-Za-z+-].*)?)?)?)?"
)


def parse_local_time(text: str) -> datetime:
    """The time; without a zone (naive) if the text has none. Raises ValueError, whose text may be empty.

    Digits beyond microseconds are cut off.
    """
    found = _TIMESTAMP.fullmatch(text.strip())
    if found is None:
        raise ValueError
    year, month, day = (int(found[name] or 1) for name in ("year", "month", "day"))
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    micros = int((found["fraction"] or "").ljust(6, "0")[:6])
    local = datetime(year, month, day, hour, minute, second, micros)
    return local if found["zone"] is None else instant(local, parse_time_zone(found["zone"]))


def instant(time: datetime, zone: str) -> datetime:
    """A time without a zone is in `zone`, as `parse_time_zone` returned it; one with a zone stays what it is.

    When the clock is put back it is the earlier of two, when it skips an hour it is in the next one: as in Java.
    """
    if time.tzinfo is not None:
        return time
    offset = fixed_offset(zone)
    there: tzinfo = ZoneInfo(zone) if offset is None else timezone(offset)
    try:
        return time.replace(tzinfo=there).astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("beyond the years 1 to 9999") from None
