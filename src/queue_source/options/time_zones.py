"""Time zones as Spark names them: `Europe/Berlin`, `UTC`, `+02:00`, `GMT+2`, `PST`. No pyarrow."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queue_source.options.secrets import shown

_OFFSET = re.compile(
    r"(?P<prefix>GMT|UTC|UT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2})"
    r"(?::(?P<minutes>[0-9]{1,2})(?::(?P<seconds>[0-9]{2}))?|(?P<joined>[0-9]{2})(?P<more>[0-9]{2})?)?"
)
_MAXIMUM = timedelta(hours=18)  # as in Java
_NEXT_STEP = "write a name or an offset, as in Europe/Berlin, UTC, GMT+2 or +02:00"
_SHORT_NAMES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Java's `ZoneId.SHORT_IDS`, which Spark reads: BST is Bangladesh there, and IST India."""


@lru_cache(maxsize=1024)
def parse_time_zone(text: str) -> str:
    """The zone's IANA name, or its offset as `+HH:MM` (`+HH:MM:SS` where it has seconds); `UTC` for all that mean UTC.

    Raises ValueError with the next step for what is neither.
    """
    zone = text.strip()
    zone = _SHORT_NAMES.get(zone, zone)
    if zone in ("Z", "UT", "GMT", "UTC"):
        return "UTC"
    found = _OFFSET.fullmatch(zone)
    if found is not None:
        minutes, seconds = int(found["minutes"] or found["joined"] or 0), int(found["seconds"] or found["more"] or 0)
        offset = timedelta(hours=int(found["hours"]), minutes=minutes, seconds=seconds)
        if minutes > 59 or seconds > 59 or offset > _MAXIMUM:
            raise ValueError(f"{shown(text)} is beyond +18:00 or -18:00, or has more than 59 minutes; {_NEXT_STEP}")
        tail = f":{seconds:02}" if seconds else ""
        return f"{found['sign']}{int(found['hours']):02}:{minutes:02}{tail}" if offset else "UTC"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name is a directory of the zone database
        raise ValueError(f"{shown(text)} is not a time zone; {_NEXT_STEP}") from None
    return zone


def machine_time_zone() -> str:
    """The zone of this machine, as Java finds it for `spark.sql.session.timeZone`: `TZ`, or where /etc/localtime leads.

    UTC where neither tells.
    """
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    try:
        return parse_time_zone(name)
    except ValueError:
        return "UTC"


def fixed_offset(zone: str) -> timedelta | None:
    """The offset of a zone `+HH:MM`, as `parse_time_zone` writes it; None for a zone with a name."""
    if zone[:1] not in ("+", "-"):
        return None
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]), seconds=int(zone[7:9] or 0))
    return offset if zone[0] == "+" else -offset
