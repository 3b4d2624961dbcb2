"""The types of option values: how each is read from text, and how the documentation names it; secrets are one.

Every `parse` raises ValueError with a message that shows the value (redacted) and the next step.
"""

from __future__ import annotations

import codecs
import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from queue_source.common.columns import parse_fields, parse_partitioning
from queue_source.common.globs import name_matcher, path_glob
from queue_source.common.local_paths import absolute_path, check_file
from queue_source.common.times import parse_duration, parse_local_time, parse_pattern, parse_time_zone
from queue_source.errors import MalformedNotification
from queue_source.queues.urls import NAMES_CODE, names_code
from queue_source.tags import parse_filters
from queue_source.uris import climbs, plain_prefix, plain_uri
from shard_store.model import STORE
from shard_store.redaction import HIDDEN, quote, redact_url

# Values that must not be shown: they print as `***`, and only `reveal()` returns them. Such a value may be a reference,
# `env:NAME` or `file:PATH`: it travels as it is written, and each process that needs the secret looks it up, so neither
# Spark's plan nor the pickled data for executors holds it. No subclass of `str`: a secret that is joined, formatted or
# written as JSON by mistake is then a type error or three stars, and never a leak.

_REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)
_LARGEST = 64 * 1024
_ALONE = "write a file that holds the secret alone, on all machines"


def is_reference(text: str) -> bool:
    """Tell whether the text is a reference to a secret, and not the secret itself."""
    return _REFERENCE.fullmatch(text) is not None


def revealed(text: str) -> str:
    """Return the text, or what it refers to in this process. Raises ValueError, whose text shows no part of it."""
    reference = _REFERENCE.fullmatch(text)
    if reference is None:
        return text
    kind, name = reference.groups()
    if kind == "env":
        value = os.environ.get(name, "")
        where = f"the environment variable {name!r} is not set in a process of the driver or an executor"
    else:
        where = f"the file {name!r} is empty"
        try:
            with Path(check_file(name)).open("rb") as file:
                content = file.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                raise ValueError(f"the file {name!r} is too large for a secret; {_ALONE}")
            value = content.decode().rstrip("\r\n")
        except OSError as error:
            raise ValueError(f"the file {name!r} cannot be read: {error.strerror}; {_ALONE}") from None
        except UnicodeDecodeError:
            raise ValueError(f"the file {name!r} is not text; {_ALONE}") from None
    if not value:
        raise ValueError(f"{where}; write the secret there on all machines")
    return value


class Secret:
    """A secret text. `reveal()` is the only way to it; `str`, `repr` and formats give `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret, for the library that needs it. Never put it into a message.

        Raises ValueError for a reference that leads to nothing here.
        """
        return revealed(self._value)

    def as_given(self) -> str:
        """Return what was written: the secret, or the reference to it."""
        return self._value

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._value))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return type(self), (self._value,)


class Literal(Secret):
    """A text that is not shown, and is never a reference: `file:///lake` names a folder."""

    __slots__ = ()

    def reveal(self) -> str:
        return self._value


def is_url(text: str) -> bool:
    """Tell whether a text begins like a URL."""
    return re.match(r"[A-Za-z][\w+.\-]*://", text) is not None


class SecretUrl(Secret):
    """A URL that may hold a password: `str()` is the URL without it, for people; `reveal()` the one to connect with."""

    __slots__ = ()

    def __str__(self) -> str:
        return redact_url(self._value)

    def reveal(self) -> str:
        url = revealed(self._value)
        if url != self._value and not is_url(url):  # the content of a file that is no URL is in no message
            raise ValueError(f"{self._value!r} leads to something that is no URL; write one there, as in scheme://...")
        return url


# types

MAX_NAME = 200
_NOTHING: Mapping[str, str] = MappingProxyType({})
_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# ASCII only: `\d` would let other scripts' digits through.
_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])(?:i?b)?|(b))?")


@dataclass(frozen=True, slots=True)
class OptionType:
    """One type of value. `values` is what the reference page says of valid texts; its head explains the words."""

    name: str
    values: str
    parse: Callable[[str], Any]


def _explained(parse: Callable[[str], Any], form: str) -> Callable[[str], Any]:
    """Return the parser with errors of this form, where `{text}` is the value and `{error}` what is wrong with it."""

    def parse_or_explain(text: str) -> Any:
        try:
            return parse(text.strip())
        except (ValueError, LookupError, MalformedNotification) as error:
            raise ValueError(form.format(text=quote(text), error=error)) from None

    return parse_or_explain


def choice(*names: str, also: Mapping[str, str] = _NOTHING, refused: Mapping[str, str] = _NOTHING) -> OptionType:
    """Make the type of one of `names`, in any case.

    Args:
        names: The values.
        also: Other words for some of them.
        refused: Values elsewhere, and not here, each with what to do instead; "" where there is nothing.
    """
    names_by_word = {**{name.lower(): name for name in names}, **also}
    elsewhere = {name.lower(): instead for name, instead in refused.items()}

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word in names_by_word:
            return names_by_word[word]
        allowed = f"write {names[0]}" if len(names) == 1 else f"write one of {', '.join(names)}"
        if word in elsewhere:
            raise ValueError(f"{quote(text)} is not supported; {elsewhere[word] or allowed}")
        close = difflib.get_close_matches(word, names_by_word, n=1)
        hint = f"did you mean {names_by_word[close[0]]!r}? " if close else ""
        raise ValueError(f"{quote(text)} is not a value of this option; {hint}{allowed}")

    others = "".join(f" (or `{word}`)" for word in also)
    return OptionType("choice", ", ".join(f"`{name}`" for name in names) + others, parse)


def number(minimum: int, maximum: int = 2**31 - 1) -> OptionType:
    """Make the type of a whole number from `minimum` to `maximum`."""

    def parse(text: str) -> int:
        clean = text.strip()
        if not re.fullmatch(r"[0-9]{1,18}", clean) or not minimum <= int(clean) <= maximum:
            raise ValueError(
                f"{quote(text)} is not a whole number from {minimum} to {maximum}; write one, as in {minimum}"
            )
        return int(clean)

    return OptionType("number", f"a whole number from {minimum} to {maximum}", parse)


def parse_size(text: str) -> int:
    """Parse a number of bytes: `128m`, `1g`, `10kb`, or plain bytes, as in Spark. Units are powers of 1,024.

    Raises ValueError with the next step in its message.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or len(match.group(1)) > 18:
        raise ValueError(
            f"{quote(text)} is not a size; write a whole number of bytes or with a unit, as in 10kb, 128m or 1g"
        )
    return int(match.group(1)) * _SIZE_UNITS[match.group(2) or ""]


def _checked(parse: Callable[[str], Any], is_right: Callable[[Any], object], form: str) -> Callable[[str], Any]:
    """Return the parser with an error of this form, where `{text}` is the value, for values that are not right."""

    def parse_and_check(text: str) -> Any:
        if not is_right(value := parse(text)):
            raise ValueError(form.format(text=quote(text)))
        return value

    return parse_and_check


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def check_name(text: str) -> str:
    """Check a source's or pipeline's name: it becomes part of tokens, paths and lists, without their separators."""
    if not text.strip():
        raise ValueError("a name must not be empty; write one, as in orders")
    if text != text.strip():
        raise ValueError(f"{quote(text)} begins or ends with a space; leave it out")
    if len(text) > MAX_NAME:
        raise ValueError(f"{quote(text)} has {len(text)} characters; write a name of at most {MAX_NAME} characters")
    bad = next((c for c in text if c in "/," or not c.isprintable()), None)
    if bad is not None:
        raise ValueError(f"{quote(text)} contains {bad!r}; leave out '/', ',' and control characters")
    return text


def _character(values: str, *, may_be_empty: bool) -> OptionType:
    def parse(text: str) -> str:
        character = "\t" if text == r"\t" else text
        is_single = len(character) == 1 and character.isascii() and character not in "\r\n\0"
        if not is_single and not (may_be_empty and not character):
            raise ValueError(f"{quote(text)} is not one ASCII character; write {values.replace('`', '')}")
        return character

    return OptionType("character", values, parse)


def _time(text: str) -> datetime:
    """Parse a time; without an offset it is UTC. Python before 3.11 reads no Z."""
    time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _prefixes(text: str) -> tuple[str, ...]:
    prefixes = tuple(part.strip() for part in text.split(","))
    if not all(prefixes):
        raise ValueError(
            f"{quote(text)} has an empty prefix, which would allow everything; write prefixes separated by commas, "
            "as in s3://landing/, file:///data/in/"
        )
    plain_prefixes = tuple(dict.fromkeys(map(plain_prefix, prefixes)))
    # no object that is read begins with it
    if climbing := next((prefix for prefix in plain_prefixes if climbs(prefix)), None):
        raise ValueError(f"{quote(climbing)} {_CLIMBS}")
    return plain_prefixes


def _rewrites(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a prefix and what it becomes, the longest first."""
    form = 'write a JSON object of prefixes, as in {"s3://landing/": "file:///mnt/landing/"}'
    try:
        rewrites = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{quote(text)} is not JSON ({error}); {form}") from None
    if not isinstance(rewrites, dict) or not all(isinstance(value, str) for value in rewrites.values()):
        raise ValueError(f"{quote(text)} is not an object of texts; {form}")
    if not all(rewrites):
        raise ValueError(f"{quote(text)} has an empty prefix, which would rewrite everything; {form}")
    targets = {prefix: _prefixes(target) for prefix, target in rewrites.items()}
    if two := next((prefix for prefix, target in targets.items() if len(target) > 1), None):
        raise ValueError(f"{quote(rewrites[two])} has a comma, and a prefix becomes one other; {form}")
    for prefix, target in rewrites.items():
        if prefix.endswith("/") != target.endswith("/"):
            raise ValueError(f"{quote(prefix)} and {quote(target)} must both end with '/', or neither; {form}")
    pairs = []
    for prefix, (target,) in targets.items():
        if "://" in prefix:
            prefix = plain_prefix(prefix)
        elif "/" not in prefix:
            prefix = f"{prefix}/"
        if prefix.endswith("/") != target.endswith("/"):  # a bucket alone has its slash, and so what stands for it
            prefix, target = f"{prefix.removesuffix('/')}/", f"{target.removesuffix('/')}/"
        pairs.append((prefix, target))
    return tuple(sorted(pairs, key=lambda pair: -len(pair[0].partition("://")[2] or pair[0])))


_CLIMBS = "has a segment '.' or '..'; write the path that it stands for"


def _folder(text: str) -> str:
    """Parse a prefix that stands for the objects below it."""
    prefix = plain_prefix(text.strip())
    if climbs(prefix):
        raise ValueError(f"{quote(text)} {_CLIMBS}")
    return prefix if prefix.endswith("/") else f"{prefix}/"


_QUEUE_URL = re.compile(r"(?:env|file):\S|[A-Za-z][\w+.\-]*://\S")
# Only where a new URL begins: tags, hosts and passwords may hold commas too.
_NEXT_QUEUE_URL = re.compile(rf",\s*(?={_QUEUE_URL.pattern})")


def split_queue_urls(text: str) -> tuple[SecretUrl, ...]:
    """Split a comma-separated list of queue URLs; a comma within a URL stays in it."""
    urls = [url.strip() for url in _NEXT_QUEUE_URL.split(text)]
    for url in urls:
        if names_code(url) and not is_reference(url):
            raise ValueError(f"{quote(url)} {NAMES_CODE}")
        if not _QUEUE_URL.match(url):
            raise ValueError(
                f"{quote(url)} is not a queue's URL; write scheme://..., as in sql+sqlite:///jobs.db?queue=files"
            )
    return tuple(SecretUrl(url) for url in urls)


def _queues(text: str) -> tuple[SecretUrl, ...]:
    """Parse the queues of a reader: their URLs, or the word that stands for what is recorded in the store."""
    words = [word.strip() for word in text.split(",")]
    if STORE not in words:
        return split_queue_urls(text)
    if len(words) > 1:
        raise ValueError(f"{STORE} is read alone: a receiver records what these queues announce; leave them out here")
    return (SecretUrl(STORE),)


def queue_url(text: str) -> SecretUrl:
    """Parse the URL of one queue."""
    urls = split_queue_urls(text)
    if len(urls) > 1:
        raise ValueError(f"{quote(text)} names {len(urls)} queues; write the URL of one")
    return urls[0]


def _shares(text: str) -> str:
    word = "".join(text.split()).lower()
    if word in ("greedy", "round-robin"):
        return word
    if re.fullmatch(r"percentage:[0-9]{1,3}(,[0-9]{1,3})*", word):
        numbers = [int(number) for number in word.partition(":")[2].split(",")]
        if sum(numbers) == 100 and 0 not in numbers:
            return word
        raise ValueError(f"{quote(text)} does not add up to 100, or has a 0; write one number a queue, as in 70,30")
    raise ValueError(f"{quote(text)} is not a way to share; write round-robin, greedy or percentage:70,30")


def _encoding(text: str) -> str:
    "a".encode(text)  # Python also has codecs for other things than text, such as hex
    return codecs.lookup(text).name


def _given_text(text: str) -> str:
    if not text.strip():
        raise ValueError("the value is empty; write one, or leave the option out")
    return text.strip()


def _of_given(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: parse(_given_text(text))


# fmt: off
DURATION = OptionType("duration", "duration", _checked(parse_duration, bool,
    "{text} is not more than zero; write a longer duration, as in 1s"))
WAIT = OptionType("duration", "duration or `0s`", parse_duration)
SIZE = OptionType("size", "size", _checked(parse_size, bool,
    "{text} is not more than zero; write a larger size, as in 1m"))
MEMORY = OptionType("size", "size from `64m` on", _checked(parse_size, lambda size: size >= 64 << 20,
    "{text} is too little for most objects; write 64m or more"))
BOOLEAN = OptionType("boolean", "`true`, `false`", _explained(lambda text: {"true": True, "false": False}[text.lower()],
    "{text} is neither true nor false; write true or false"))
NAME = OptionType("name", "name", check_name)
PIPELINES = OptionType("names", "names, separated by commas", _checked(
    lambda text: tuple(check_name(name.strip()) for name in text.split(",")),
    lambda names: len(set(names)) == len(names),
    "{text} has a name twice; write each pipeline once, as in orders, payments"))
SEPARATOR = _character(r"one ASCII character, `\t` for a tab", may_be_empty=False)
CHARACTER = _character("one ASCII character, or nothing", may_be_empty=True)
TIME_ZONE = OptionType("time zone", "name, or offset as `+02:00`", parse_time_zone)
DATE_PATTERN = OptionType("date pattern", "pattern of numbers", _explained(
    lambda text: text if parse_pattern(text) else "", "{text} {error}"))
FOLDER = OptionType("folder", "the URI of a folder", _folder)
CLEAN_SOURCE = choice("off", "delete", "move", also={"archive": "move"})
PREFIXES = OptionType("prefixes", "prefixes, separated by commas", _prefixes)
REWRITES = OptionType("rewrites", "a JSON object: prefix of a URI -> what it becomes", _rewrites)
QUEUE_URLS = OptionType("queue URLs", "URLs, separated by commas", _queues)
QUEUE_URL = OptionType("queue URL", "URL of one queue", queue_url)
STORE_URL = OptionType("database URL", "SQLAlchemy URL", _checked(
    lambda text: SecretUrl(text.strip()), lambda url: is_url(url.as_given()) or is_reference(url.as_given()),
    "{text} is not a database URL; write an SQLAlchemy URL, as in sqlite:///cuesqueue.db or "
    "postgresql+psycopg://user:password@host/database"))
GLOB = OptionType("glob", "glob with `*`, `?`, `[a-z]`, `{a,b}`", _of_given(_explained(name_matcher,
    "{text} {error}; write a glob of names, as in *.csv")))
PATH_GLOB = OptionType("path glob", "the same", _of_given(_explained(path_glob,
    "{text} {error}; write a glob of URIs, as in s3://landing/**/*.csv")))
TAG_FILTER = OptionType("tag filter", "filters; `*` is one word, `#` any number", _explained(parse_filters,
    "{error}; write words separated by '.', as in orders.*.eu or orders.#"))
SHARES = OptionType("shares", "`round-robin`, `greedy`, or `percentage:70,30` with one number a queue", _shares)
COLUMNS = OptionType("columns", "columns in Spark's DDL", _explained(
    _checked(lambda text: parse_fields(text) and text, bool, "there are no columns"),
    "{error}; write columns with their types, as in id BIGINT, tags.key STRING"))
URIS = OptionType("URIs", "URIs of objects, separated by commas", _explained(
    lambda text: tuple(dict.fromkeys(plain_uri(part.strip()) for part in text.split(","))),
    "{text}: {error}; write URIs of objects, as in s3://landing/sample.json"))
FIELD_PATH = OptionType("keys", "names of keys, separated by dots", _checked(
    str.strip, lambda path: all(path.split(".")), "{text} has an empty name; write Records, or detail.items"))
DOMAINS = OptionType("domains", "names of domains, separated by commas", _checked(
    lambda text: _parts(text.lower()),
    lambda domains: all(re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", domain) for domain in domains),
    "{text} is not a domain, or several; write what follows the account, as in dfs.core.windows.net"))
TIME = OptionType("time", "an ISO time; UTC without an offset", _explained(_time,
    "{text} is not a time; write one as in 2026-11-20, 2026-11-20T08:30Z or 2026-11-20T09:30:00+01:00"))
TIMESTAMP = OptionType("timestamp", "`yyyy-MM-ddTHH:mm:ss`, with or without a zone", _explained(parse_local_time,
    "{text} is not a timestamp ({error}); write yyyy-MM-ddTHH:mm:ss, best with its zone, as in 2026-11-20T08:30:00Z or "
    "2026-11-20T09:30:00+01:00"))
DELIVERY_HASH = OptionType("delivery hash", "a `delivery_hash` of the view `attempts`", _checked(
    lambda text: text.strip().lower(), re.compile(r"[0-9a-f]{64}").fullmatch,
    "{text} is not a delivery hash, which has 64 hexadecimal digits; see view 'attempts'"))
PATH = OptionType("path", "an absolute path, or a URI", absolute_path)
FILE = OptionType("path", "a path on all machines that need it", _of_given(check_file))
NAMES = OptionType("names", "names of columns, separated by commas", _checked(
    _parts, lambda names: all(names) and len(set(names)) == len(names),
    "{text} has an empty name, or a name twice; write names separated by commas, as in day,country"))
TABLE = OptionType("table", "a namespace and a name, separated by a dot", _checked(
    str.strip, lambda name: "." in name and all(p and p == p.strip() and p.isprintable() for p in name.split(".")),
    "{text} is not the name of a table in a namespace; write both, as in db.events"))
PARTITIONING = OptionType("partitioning", "columns, and `year`, `month`, `day`, `hour`, `bucket(N, ...)`, "
    "`truncate(N, ...)` of columns, separated by commas", parse_partitioning)
ENCODING = OptionType("character set", "the name of a character set", _explained(_encoding,
    "{text} is not a known character set; write one, as in UTF-8"))
TEXT = OptionType("text", "text", str)
LINE_END = OptionType("line end", "text", _checked(str, bool,
    "the value is empty; write what ends a record, or leave the option out"))
NON_EMPTY = OptionType("text", "text", _given_text)
SECRET = OptionType("secret", "secret", _of_given(Secret))
# fmt: on
