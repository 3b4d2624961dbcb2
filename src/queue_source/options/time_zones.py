"""Time zones as Spark names them: `Europe/Berlin`, `UTC`, `+02:00`, `GMT+2`. No pyarrow."""

from __future__ import annotations

import re
from datetime import timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queue_source.options.secrets import shown

_OFFSET = re.compile(
    r"(?:GMT|UTC|UT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2})(?::(?P<minutes>[0-9]{1,2})|(?P<joined>[0-9]{2}))?"
)
_MAXIMUM = timedelta(hours=18)  # as in Java
_NEXT_STEP = "write a name or an offset, as in Europe/Berlin, UTC, GMT+2 or +02:00"


def parse_time_zone(text: str) -> str:
    """The zone's IANA name, or its offset as `+HH:MM`; `UTC` for all that mean UTC.

    Raises ValueError with the next step for what is neither.
    """
    zone = text.strip()
    if zone in ("Z", "UT", "GMT", "UTC"):
        return "UTC"
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        minutes = int(found["minutes"] or found["joined"] or 0)
        offset = timedelta(hours=int(found["hours"]), minutes=minutes)
        if minutes > 59 or offset > _MAXIMUM:
            raise ValueError(f"{shown(text)} is beyond +18:00 or -18:00, or has more than 59 minutes; {_NEXT_STEP}")
        return f"{found['sign']}{int(found['hours']):02}:{minutes:02}" if offset else "UTC"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name is a directory of the zone database
        raise ValueError(f"{shown(text)} is not a time zone; {_NEXT_STEP}") from None
    return zone


def fixed_offset(zone: str) -> timedelta | None:
    """The offset of a zone `+HH:MM`, as `parse_time_zone` writes it; None for a zone with a name."""
    if zone[:1] not in ("+", "-"):
        return None
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
    return offset if zone[0] == "+" else -offset
