"""Routes: which sources an object is for, by its place and its message's tag. Read from a file of JSON. Pure.

[
  {"prefix": "s3://landing/orders/", "source": "orders"},
  {"prefix": "s3://landing/orders/", "tag": "eu.#", "source": "orders-eu"}
]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from queue_source.errors import OptionError
from queue_source.options import types
from queue_source.tags import EVERYTHING, check_filter, matches
from shard_store.redaction import quote

_FIELDS = ("prefix", "tag", "source")
_FORM = 'write {"prefix": "s3://landing/orders/", "source": "orders"}, with "tag" beside "prefix" or in its place'


@dataclass(frozen=True, slots=True)
class Route:
    """Objects whose URI begins with `prefix`, announced by a message whose tag matches, are for `source`."""

    prefix: str
    tag: str
    source: str

    def __str__(self) -> str:
        tag = "" if self.tag == EVERYTHING else f" with tag {self.tag!r}"
        return f"{self.prefix!r}{tag} to {self.source!r}"


class Routes:
    """All routes of a file. An object goes to the sources of all that match it.

    Found by the beginning of its URI, once for each length of a prefix: so 200 routes cost as much as a few.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_prefix: dict[str, list[Route]] = {}
        for route in routes:
            self._by_prefix.setdefault(route.prefix, []).append(route)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        self.sources = tuple(sorted({route.source for of_prefix in self._by_prefix.values() for route in of_prefix}))

    def __len__(self) -> int:
        return sum(map(len, self._by_prefix.values()))

    def sources_of(self, uri: str, tag: str) -> tuple[str, ...]:
        """Return the sources that the object is for, each once; none if no route takes it."""
        names: dict[str, None] = {}
        for length in self._lengths:
            for route in self._by_prefix.get(uri[:length], ()):
                if route.tag == EVERYTHING or matches(route.tag, tag):
                    names[route.source] = None
        return tuple(names)


def read_routes(path: str) -> Routes:
    """Read a file of routes. Raises OptionError, which names the entry that is wrong."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise OptionError("routes", f"the file {path!r} cannot be read: {error}") from None
    try:
        return Routes(parse_routes(text))
    except ValueError as error:
        raise OptionError("routes", f"{path}: {error}") from None


def parse_routes(text: str) -> list[Route]:
    """Parse the text of a file of routes. Raises ValueError, which names the entry that is wrong."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"it holds no list of routes; {_FORM}, one in each line, between [ and ]")
    routes: list[Route] = []
    for number, entry in enumerate(entries, 1):
        try:
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                raise ValueError(f"{quote(json.dumps(entry))} is no route; {_FORM}")
            if unknown := next((name for name in entry if name not in _FIELDS), None):
                raise ValueError(f"{quote(unknown)} is not known; a route has {', '.join(_FIELDS)}")
            if "source" not in entry or not ("prefix" in entry or "tag" in entry):
                raise ValueError(f"{quote(json.dumps(entry))} says not enough; {_FORM}")
            tag = check_filter(entry.get("tag", EVERYTHING))
            prefix = _prefix(entry["prefix"]) if "prefix" in entry else ""
            routes.append(Route(prefix, tag, types.check_name(entry["source"])))
        except ValueError as error:
            raise ValueError(f"route {number}: {error}") from None
    _refuse_useless(routes)
    return routes


def _prefix(text: str) -> str:
    """Return the prefix in the one form of URIs; whatever no URI of an object begins with is refused."""
    if "," in text:
        raise ValueError(f"{quote(text)} has a comma; write one route for each prefix")
    (prefix,) = types.PREFIXES.parse(text)
    if any(character < " " for character in prefix):
        raise ValueError(f"{quote(text)} has a control character, so it matches no object")
    return str(prefix)


def _refuse_useless(routes: Sequence[Route]) -> None:
    """Refuse a route that no object needs: it is there twice, or another of its source takes all that it would take."""
    numbers: dict[Route, int] = {}
    for number, route in enumerate(routes, 1):
        if first := numbers.setdefault(route, number) * (numbers[route] != number):
            raise ValueError(f"routes {first} and {number} are the same, {route}; leave one out")
    by_source: dict[str, list[Route]] = {}
    for route in routes:
        by_source.setdefault(route.source, []).append(route)
    for of_source in by_source.values():
        for route in of_source:
            for wider in of_source:
                covers = route.prefix.startswith(wider.prefix) and wider.tag in (EVERYTHING, route.tag)
                if wider is not route and covers:
                    raise ValueError(
                        f"route {numbers[route]}, {route}, takes nothing that route {numbers[wider]}, {wider}, would "
                        "not take; leave it out"
                    )
