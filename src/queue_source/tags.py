"""Tag filters, exactly as RabbitMQ's topic exchanges match them: the one matcher of the project.

A tag is words separated by `.`; the empty tag has no words. In a filter `*` matches exactly one word and `#` for any
number of them, also none; both only as whole words, and everything is case-sensitive. As in RabbitMQ a word may be
empty: `a..b` has three.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

LONGEST = 255
"""Bytes of a tag or a filter: AMQP's limit for a routing key."""

EVERYTHING = "#"


def matches(tag_filter: str, tag: str) -> bool:
    """Tell whether a message with this tag passes the filter, in a time of at most their lengths multiplied."""
    return _matches(_words(tag_filter), _words(tag))


def matches_any(filters: Iterable[str], tag: str) -> bool:
    """Tell whether the tag passes one of the filters, as with several bindings of one pool."""
    return any(matches(tag_filter, tag) for tag_filter in filters)


def check_filter(tag_filter: str) -> str:
    """Return the filter; raise ValueError for an invalid one."""
    if not tag_filter:
        raise ValueError("the tag filter '' matches no message; write '#' for all of them")
    return _check_length("tag filter", tag_filter)


def check_tag(tag: str) -> str:
    """Return the tag; raise ValueError for one that RabbitMQ could not carry."""
    return _check_length("tag", tag)


def parse_filters(text: str) -> tuple[str, ...]:
    """Parse filters separated by commas, as in a queue's URL; each once."""
    return tuple(dict.fromkeys(check_filter(part.strip()) for part in text.split(",")))


def _check_length(what: str, text: str) -> str:
    if len(text.encode()) > LONGEST:  # UnicodeEncodeError, a ValueError, for lone surrogates
        raise ValueError(f"the {what} {text[:50]!r}... is longer than {LONGEST} bytes")
    return text


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def _matches(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Match from left to right; at a mismatch the last `#` takes one word more (those before it need not change)."""
    at = word = 0
    last: int | None = None  # place of the last # in the pattern,
    taken = 0  # and the word up to which it takes
    while word < len(words):
        if at < len(pattern) and pattern[at] == "#":
            last, taken = at, word
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", words[word]):
            at += 1
            word += 1
        elif last is None:
            return False
        else:
            taken += 1
            at, word = last + 1, taken
    return all(part == "#" for part in pattern[at:])
