"""Spark's `pathGlobFilter`: a glob as Hadoop reads it, matched against the last part of a path. Pure.

Names come from whoever sends messages, so matching takes a time of at most the lengths of glob and name multiplied:
what follows a `*` is looked for once, from left to right, and never again.
"""

from __future__ import annotations

import re
from itertools import count
from typing import NamedTuple

_STAR = "*"
_MOST = 1_000


class _Branches(NamedTuple):
    """What a part of a glob may mean: each is a list of `_STAR` and of expressions for one character."""

    meanings: list[list[str]]
    end: int


def name_matcher(glob: str) -> re.Pattern[str]:
    """The whole name has to match: `*`, `?`, `[abc]`, `[^a-c]`, `{csv,json}`, and a backslash before what is literal.

    Raises ValueError for a glob that is not closed.
    """
    number = count()
    try:
        return re.compile("|".join(_expression(parts, number) for parts in _parse(glob, 0, 0).meanings), re.DOTALL)
    except re.error as error:
        raise ValueError(f"is no glob: {error}") from None


def _expression(parts: list[str], number: count[int]) -> str:
    """Each `*` but the last ends where what follows it is found first: a group that is matched once, and then equal."""
    first, *others = _between_stars(parts)
    if not others:
        return f"(?:{first})"
    *middle, last = others
    once = "".join(
        f"(?=(?P<g{at}>.*?{text}))(?P=g{at})" for at, text in zip(number, filter(None, middle), strict=False)
    )
    return f"(?:{first}{once}.*{last})"


def _between_stars(parts: list[str]) -> list[str]:
    found = [""]
    for part in parts:
        if part == _STAR:
            found.append("")
        else:
            found[-1] += part
    return found


def _parse(glob: str, place: int, depth: int) -> _Branches:
    """From `place` to the end, or at a depth to the `}` that closes it."""
    done: list[list[str]] = []
    now: list[list[str]] = [[]]
    while place < len(glob):
        character = glob[place]
        place += 1
        if character == "{":
            inner = _parse(glob, place, depth + 1)
            now, place = [[*one, *more] for one in now for more in inner.meanings], inner.end
            if len(now) + len(done) > _MOST:
                raise ValueError(f"means more than {_MOST} globs, with all choices of its braces")
            continue
        if character == "}" and depth:
            return _Branches(done + now, place)
        if character == "," and depth:
            done, now = done + now, [[]]
            continue
        piece, place = _piece(glob, character, place)
        for one in now:
            one.append(piece)
    if depth:
        raise ValueError("has a '{' that is not closed")
    return _Branches(now, place)


def _piece(glob: str, character: str, place: int) -> tuple[str, int]:
    """One character of a name, or `_STAR`; and where the glob goes on."""
    if character == "*":
        return _STAR, place
    if character == "?":
        return ".", place
    if character == "\\":
        if place == len(glob):
            raise ValueError("ends with a backslash")
        return re.escape(glob[place]), place + 1
    if character != "[":
        return re.escape(character), place
    end = glob.find("]", place + 2 if glob[place : place + 1] in ("^", "!") else place + 1)
    if end < 0:
        raise ValueError("has a '[' that is not closed")
    inside = glob[place:end].replace("\\", "\\\\").replace("[", "\\[")
    return f"[^{inside[1:]}]" if inside[0] in "^!" else f"[{inside}]", end + 1
