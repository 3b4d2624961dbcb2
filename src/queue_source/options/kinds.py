"""The kinds of option values: how each is read from text, and how the documentation names it.

Every `parse` raises ValueError with a message that shows the value (redacted) and the next step.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from queue_source.errors import MalformedNotification
from queue_source.options.globs import name_matcher
from queue_source.options.partitioning import parse_partitioning
from queue_source.options.secrets import Secret, SecretUrl, shown
from queue_source.options.units import parse_duration, parse_size
from queue_source.tags import parse_filters
from queue_source.uris import plain_prefix, plain_uri

LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value. `values` is what the documentation says may be written."""

    name: str
    values: str
    parse: Callable[[str], Any]


def choice(*names: str, refused: Sequence[str] = ()) -> Kind:
    """One of `names`, in any case; `refused` are words that elsewhere are values of the option, and not here."""
    known = {name.lower(): name for name in names}
    elsewhere = {name.lower() for name in refused}

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word in known:
            return known[word]
        allowed = f"write {names[0]}" if len(names) == 1 else f"write one of {', '.join(names)}"
        if word in elsewhere:
            raise ValueError(f"{shown(text)} is not supported; {allowed}")
        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {known[close[0]]!r}? " if close else ""
        raise ValueError(f"{shown(text)} is not a value of this option; {hint}{allowed}")

    return Kind("choice", ", ".join(f"`{name}`" for name in names), parse)


def number(least: int, most: int = 2**31 - 1) -> Kind:
    """A whole number from `least` to `most`."""

    def parse(text: str) -> int:
        clean = text.strip()
        if not re.fullmatch(r"[0-9]{1,18}", clean) or not least <= int(clean) <= most:
            raise ValueError(f"{shown(text)} is not a whole number from {least} to {most}; write one, as in {least}")
        return int(clean)

    return Kind("number", f"a whole number from {least} to {most}", parse)


def _positive_duration(text: str) -> timedelta:
    if not (duration := parse_duration(text)):
        raise ValueError(f"{shown(text)} is no time at all; write more than zero, as in 1s")
    return duration


def _positive_size(text: str) -> int:
    if not (size := parse_size(text)):
        raise ValueError(f"{shown(text)} is no size at all; write more than zero, as in 1m")
    return size


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"{shown(text)} is neither true nor false; write true or false")
    return word == "true"


def check_name(text: str) -> str:
    """A source's or pipeline's name: it becomes part of tokens, paths and lists, so what parts those is refused."""
    if not text.strip():
        raise ValueError("a name must not be empty; write one, as in orders")
    if text != text.strip():
        raise ValueError(f"{shown(text)} begins or ends with a space; leave it out")
    if len(text) > LONGEST_NAME:
        raise ValueError(f"{shown(text)} has {len(text)} characters; write a name of at most {LONGEST_NAME} characters")
    bad = next((c for c in text if c in "/," or not c.isprintable()), None)
    if bad is not None:
        raise ValueError(f"{shown(text)} contains {bad!r}; leave out '/', ',' and control characters")
    return text


def _check_names(text: str) -> tuple[str, ...]:
    names = tuple(check_name(name.strip()) for name in text.split(","))
    if len(set(names)) < len(names):
        raise ValueError(f"{shown(text)} holds a name twice; write each pipeline once, as in orders, payments")
    return names


def _character(*, may_be_empty: bool) -> Kind:
    values = "one character" + (", or nothing for none" if may_be_empty else r", `\t` for a tab")

    def parse(text: str) -> str:
        character = "\t" if text == r"\t" else text
        if character in ("\n", "\r") or len(character) > 1 or (not character and not may_be_empty):
            raise ValueError(f"{shown(text)} is not one character; write {values.replace('`', '')}")
        return character

    return Kind("character", values, parse)


def _time_zone(text: str) -> str:
    zone = text.strip()
    offset = re.fullmatch(r"[+-]([0-9]{2}):([0-9]{2})", zone)
    if offset and int(offset.group(1)) <= 18 and int(offset.group(2)) < 60:
        return zone
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name is a directory of the zone database
        raise ValueError(
            f"{shown(text)} is not a time zone; write an IANA name or an offset, as in Europe/Berlin, UTC or +02:00"
        ) from None
    return zone


def _time(text: str) -> datetime:
    """A time without an offset is UTC; Python before 3.11 reads no Z."""
    try:
        time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ValueError(
            f"{shown(text)} is not a time; write one as in 2026-11-20, 2026-11-20T08:30Z or 2026-11-20T09:30:00+01:00"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _delivery_hash(text: str) -> str:
    digest = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"{shown(text)} is not a delivery hash, which has 64 hexadecimal digits; see view 'attempts'")
    return digest


def _prefixes(text: str) -> tuple[str, ...]:
    prefixes = tuple(part.strip() for part in text.split(","))
    if not all(prefixes):
        raise ValueError(
            f"{shown(text)} holds an empty prefix, which would allow everything; write prefixes parted by commas, "
            "as in s3://landing/, file:///data/in/"
        )
    return tuple(dict.fromkeys(map(plain_prefix, prefixes)))


_QUEUE_URL = re.compile(r"[A-Za-z][\w+.\-]*://\S|[A-Za-z_]\w*(?:\.\w+)+:[A-Za-z_]")
# Only where a new URL (`scheme://` or `package.module:factory`) begins: tags, hosts and passwords may hold commas too.
_NEXT_QUEUE_URL = re.compile(rf",\s*(?={_QUEUE_URL.pattern})")


def split_queue_urls(text: str) -> tuple[SecretUrl, ...]:
    """The queue URLs of a comma-separated list; a comma within a URL stays in it."""
    urls = [url.strip() for url in _NEXT_QUEUE_URL.split(text)]
    for url in urls:
        if not _QUEUE_URL.match(url):
            raise ValueError(
                f"{shown(url)} is not a queue's URL; write scheme://..., as in sql+sqlite:///jobs.db?queue=files"
            )
    return tuple(SecretUrl(url) for url in urls)


def _queue_url(text: str) -> SecretUrl:
    urls = split_queue_urls(text)
    if len(urls) > 1:
        raise ValueError(f"{shown(text)} names {len(urls)} queues; write the URL of one")
    return urls[0]


def _glob(text: str) -> re.Pattern[str]:
    try:
        return name_matcher(_given_text(text))
    except ValueError as error:
        raise ValueError(f"{shown(text)} {error}; write a glob of names, as in *.csv") from None


def _tag_filter(text: str) -> tuple[str, ...]:
    try:
        return parse_filters(text)
    except ValueError as error:
        raise ValueError(f"{error}; write words parted by '.', as in orders.*.eu or orders.#") from None


def _uris(text: str) -> tuple[str, ...]:
    uris = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    try:
        return tuple(map(plain_uri, uris))
    except MalformedNotification as error:
        raise ValueError(f"{shown(text)}: {error}; write URIs of objects, as in s3://landing/sample.json") from None


def _columns(text: str) -> str:
    from queue_source.schema.ddl import parse_fields

    try:
        if not parse_fields(text):
            raise ValueError("there are no columns")
    except ValueError as error:
        raise ValueError(f"{error}; write columns with their types, as in id BIGINT, tags.key STRING") from None
    return text


def _shares(text: str) -> str:
    word = "".join(text.split()).lower()
    if word in ("greedy", "round-robin"):
        return word
    if re.fullmatch(r"percentage:[0-9]{1,3}(,[0-9]{1,3})*", word):
        numbers = [int(number) for number in word.partition(":")[2].split(",")]
        if sum(numbers) == 100 and 0 not in numbers:
            return word
        raise ValueError(f"{shown(text)} does not add up to 100, or holds a 0; write one number a queue, as in 70,30")
    raise ValueError(f"{shown(text)} is no way to share; write round-robin, greedy or percentage:70,30")


def _store_url(text: str) -> SecretUrl:
    if not re.match(r"[A-Za-z][\w+.\-]*://", text.strip()):
        raise ValueError(
            f"{shown(text)} is not a database URL; write an SQLAlchemy URL, as in sqlite:///cuesqueue.db or "
            "postgresql+psycopg://user:password@host/database"
        )
    return SecretUrl(text.strip())


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(
            f"{shown(text)} holds an empty name or one twice; write names parted by commas, as in day,country"
        )
    return names


def _encoding(text: str) -> str:
    try:
        return codecs.lookup(text.strip()).name
    except (LookupError, ValueError):
        raise ValueError(f"{shown(text)} is no character set that is known here; write one, as in UTF-8") from None


def _text(text: str) -> str:
    return text


def _given_text(text: str) -> str:
    if not text.strip():
        raise ValueError("the value is empty; write one, or leave the option out")
    return text.strip()


def _secret(text: str) -> Secret:
    if not text.strip():
        raise ValueError("the value is empty; write one, or leave the option out")
    return Secret(text.strip())


def _table_name(text: str) -> str:
    parts = text.strip().split(".")
    if len(parts) < 2 or not all(part and part == part.strip() and part.isprintable() for part in parts):
        raise ValueError(f"{shown(text)} is not the name of a table in a namespace; write both, as in db.events")
    return ".".join(parts)


DURATION = Kind("duration", "a duration: `500ms`, `90s`, `5m`, `2h`, `15 days`", _positive_duration)
WAIT = Kind("duration", "a duration, which may be `0s`", parse_duration)
SIZE = Kind("size", "a size: `10kb`, `128m`, `1g`, or plain bytes", _positive_size)
BOOLEAN = Kind("boolean", "`true`, `false`", _boolean)
NAME = Kind("name", f"at most {LONGEST_NAME} characters, without `/`, `,` and control characters", check_name)
PIPELINES = Kind("names", f"names parted by commas, each of at most {LONGEST_NAME} characters", _check_names)
SEPARATOR = _character(may_be_empty=False)
CHARACTER = _character(may_be_empty=True)
TIME_ZONE = Kind("time zone", "an IANA name, or an offset such as `+02:00`", _time_zone)
PREFIXES = Kind("prefixes", "prefixes of URIs, parted by commas", _prefixes)
QUEUE_URLS = Kind("queue URLs", "URLs, parted by commas", split_queue_urls)
QUEUE_URL = Kind("queue URL", "the URL of one queue", _queue_url)
STORE_URL = Kind("database URL", "an SQLAlchemy URL", _store_url)
GLOB = Kind("glob", "a glob: `*`, `?`, `[a-z]`, `{a,b}`", _glob)
TAG_FILTER = Kind("tag filter", "filters parted by commas; `*` is one word, `#` zero or more", _tag_filter)
SHARES = Kind("shares", "`round-robin`, `greedy`, or `percentage:70,30` with one number a queue", _shares)
COLUMNS = Kind("columns", "columns with types, as Spark's DDL has them", _columns)
URIS = Kind("URIs", "URIs of objects, parted by commas", _uris)
TIME = Kind("time", "an ISO time; UTC without an offset", _time)
DELIVERY_HASH = Kind("delivery hash", "a `delivery_hash` of the view `attempts`", _delivery_hash)
NAMES = Kind("names", "names of columns, parted by commas", _names)
TABLE = Kind("table", "a namespace and a name, parted by a dot", _table_name)
PARTITIONING = Kind(
    "partitioning",
    "columns, and `year`, `month`, `day`, `hour`, `bucket(N, ...)`, `truncate(N, ...)` of columns, parted by commas",
    parse_partitioning,
)
ENCODING = Kind("character set", "the name of a character set", _encoding)
TEXT = Kind("text", "any text", _text)
GIVEN_TEXT = Kind("text", "any text that is not empty", _given_text)
SECRET = Kind("secret", "a secret; never shown", _secret)
