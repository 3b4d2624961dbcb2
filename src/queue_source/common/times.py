"""Times as Spark and users write them: durations (`90s`), time zones, timestamps, and patterns of dates. No pyarrow."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shard_store.redaction import quote

# durations: a whole number and a unit

_DURATION_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "days": timedelta(days=1),
    "weeks": timedelta(weeks=1),
}
_DURATION_WORDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "days"),
    **dict.fromkeys(("w", "week", "weeks"), "weeks"),
}
# ASCII only: `\d` would let other scripts' digits through.
_DURATION = re.compile(r"([0-9]+)\s*([a-z]+)")
_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def parse_duration(text: str) -> timedelta:
    """Parse a duration of one whole number and one unit. A bare number is refused: its unit would be a guess.

    Raises ValueError with the next step in its message.
    """
    clean = text.strip().lower()
    if _DIGITS.fullmatch(clean):
        raise ValueError(f"{quote(text)} has no unit; write {clean}s for seconds, {clean}m for minutes or {clean}ms")
    match = _DURATION.fullmatch(clean)
    word = _DURATION_WORDS.get(match.group(2)) if match else None
    if match is None or word is None:
        raise ValueError(
            f"{quote(text)} is not a duration; write a whole number and a unit, as in 500ms, 90s, 5m, 2h or 15 days"
        )
    try:
        return int(match.group(1)) * _DURATION_UNITS[word]
    except (OverflowError, ValueError):  # ValueError: Python refuses to read thousands of digits
        raise ValueError(f"{quote(text)} is too long a duration; write less than a million days") from None


def format_duration(duration: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads as this duration (to the millisecond)."""
    for word in ("days", "h", "m", "s"):
        count, remainder = divmod(duration, _DURATION_UNITS[word])
        if count and not remainder:
            return {"1 days": "1 day"}.get(f"{count} days", f"{count} days") if word == "days" else f"{count}{word}"
    milliseconds = duration // _DURATION_UNITS["ms"]
    return f"{milliseconds}ms" if milliseconds else "0s"


# time zones as Spark names them: `Europe/Berlin`, `UTC`, `+02:00`, `GMT+2`, `PST`

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
    """Return the zone's IANA name, or its offset as `+HH:MM` (or `+HH:MM:SS`); `UTC` for all that mean UTC.

    Raises ValueError with the next step for other texts.
    """
    zone = text.strip()
    zone = _SHORT_NAMES.get(zone, zone)
    if zone in ("Z", "UT", "GMT", "UTC"):
        return "UTC"
    parts = _OFFSET.fullmatch(zone)
    if parts is not None:
        minutes, seconds = int(parts["minutes"] or parts["joined"] or 0), int(parts["seconds"] or parts["more"] or 0)
        offset = timedelta(hours=int(parts["hours"]), minutes=minutes, seconds=seconds)
        if minutes > 59 or seconds > 59 or offset > _MAXIMUM:
            raise ValueError(f"{quote(text)} is beyond +18:00 or -18:00, or has more than 59 minutes; {_NEXT_STEP}")
        tail = f":{seconds:02}" if seconds else ""
        return f"{parts['sign']}{int(parts['hours']):02}:{minutes:02}{tail}" if offset else "UTC"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name is a directory of the zone database
        raise ValueError(f"{quote(text)} is not a time zone; {_NEXT_STEP}") from None
    return zone


def machine_time_zone() -> str:
    """Return the zone of this machine, as Java determines `spark.sql.session.timeZone`: `TZ`, or /etc/localtime.

    UTC where both are missing.
    """
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    try:
        return parse_time_zone(name)
    except ValueError:
        return "UTC"


def fixed_offset(zone: str) -> timedelta | None:
    """Return the offset of a zone `+HH:MM`, as `parse_time_zone` writes it; None for a zone with a name."""
    if zone[:1] not in ("+", "-"):
        return None
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]), seconds=int(zone[7:9] or 0))
    return offset if zone[0] == "+" else -offset


def clock_of(zone: str) -> tzinfo:
    """Return what tells the offsets of a zone, as `parse_time_zone` returned it, also behind its last listed change."""
    offset = fixed_offset(zone)
    return ZoneInfo(zone) if offset is None else timezone(offset)


# timestamps as Spark's file sources read them in `modifiedAfter`: with their own zone, or in a default one

_TIMESTAMP = re.compile(
    r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[T ](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:[.](?P<fraction>[0-9]{0,9}))?)?"
    r"(?P<zone> ?[A-Za-z+-].*)?)?)?)?"
)


def parse_local_time(text: str) -> datetime:
    """Parse a time; without a zone (naive) if the text has none. Raises ValueError.

    Digits beyond microseconds are cut off.
    """
    parts = _TIMESTAMP.fullmatch(text.strip())
    if parts is None:
        raise ValueError("it has another form")
    year, month, day = (int(parts[name] or 1) for name in ("year", "month", "day"))
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    micros = int((parts["fraction"] or "").ljust(6, "0")[:6])
    local = datetime(year, month, day, hour, minute, second, micros)
    return local if parts["zone"] is None else instant(local, parse_time_zone(parts["zone"]))


def instant(time: datetime, zone: str) -> datetime:
    """Return the instant of a time, in `zone` (as `parse_time_zone` returned it) unless it has a zone itself.

    When the clock is put back it is the earlier of two, when it skips an hour it is in the next one: as in Java.
    """
    if time.tzinfo is not None:
        return time
    try:
        return time.replace(tzinfo=clock_of(zone)).astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("beyond the years 1 to 9999") from None


# patterns of dates and timestamps (`dd.MM.yyyy`), read as regular expressions. Only patterns of numbers: names of
# months, weekdays and halves of a day are refused when the query starts.

_FIELDS = {
    "yyyy": ("year", "[0-9]{4}"), "uuuu": ("year", "[0-9]{4}"),
    "MM": ("month", "[0-9]{2}"), "M": ("month", "[0-9]{1,2}"),
    "dd": ("day", "[0-9]{2}"), "d": ("day", "[0-9]{1,2}"),
    "HH": ("hour", "[0-9]{2}"), "H": ("hour", "[0-9]{1,2}"),
    "mm": ("minute", "[0-9]{2}"), "m": ("minute", "[0-9]{1,2}"),
    "ss": ("second", "[0-9]{2}"), "s": ("second", "[0-9]{1,2}"),
    # as in Spark, which reads fewer digits than there are letters
    **{"S" * count: ("fraction", f"[0-9]{{1,{count}}}") for count in range(1, 10)},
    "XXX": ("zone", "(?:Z|[+-][0-9]{2}:[0-9]{2})"), "XX": ("zone", "(?:Z|[+-][0-9]{4})"),
    "X": ("zone", "(?:Z|[+-][0-9]{2}(?:[0-9]{2})?)"),
    "xxx": ("zone", "[+-][0-9]{2}:[0-9]{2}"), "xx": ("zone", "[+-][0-9]{4}"), "Z": ("zone", "[+-][0-9]{4}"),
}  # fmt: skip
_TOKEN = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<open>\[)|(?P<close>\])|(?P<other>[^A-Za-z'\[\]]+)"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as a regular expression, and which of its groups is which part of a moment.

    `simple`: no part is optional, and the day is whole.
    """

    expression: str
    groups: dict[str, int]
    simple: bool


@lru_cache(maxsize=64)
def parse_pattern(text: str) -> Pattern:
    """Parse a pattern. Raises ValueError with the next step."""
    expression: list[str] = []
    groups: dict[str, int] = {}
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError("has a quote that is not closed; write two quotes for one")
        place = token.end()
        if token["quoted"] is not None:
            expression.append(re.escape(token["quoted"].replace("''", "'") or "'"))
        elif token["open"]:
            expression.append("(?:")
        elif token["close"]:
            expression.append(")?")
        elif token["other"]:
            expression.append(re.escape(token["other"]))
        else:
            part, numbers = _FIELDS.get(token["letters"], ("", ""))
            if not part or part in groups:
                raise ValueError(
                    f"has the letters {token['letters']!r}, which are not supported; write yyyy, M, MM, d, dd, H, HH, "
                    "m, mm, s, ss, S (to nine), X, XX, XXX, xx, xxx and Z, each part once, and text in quotes; or read "
                    "the column as STRING and parse it in the query"
                )
            groups[part] = len(groups) + 1
            expression.append(f"({numbers})")
    if "year" not in groups:
        raise ValueError("has no year; write one, as in yyyy-MM-dd")
    joined = "".join(expression)
    try:
        re.compile(joined)
    except re.error as error:
        raise ValueError(f"is not a pattern: {error}; write one, as in yyyy-MM-dd") from None
    return Pattern(f"^{joined}$", groups, "(?:" not in expression and {"month", "day"} <= groups.keys())
