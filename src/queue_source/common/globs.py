"""Globs as Hadoop reads them, of names and of whole URIs; and names that Spark's file sources do not read. Pure.

A glob of names is matched against the last part of a path. In a glob of URIs each part between slashes is a glob of a
name, and `**` stands for any number of parts.

Names come from senders of messages, so matching takes a time of at most the lengths of glob and name multiplied: what
follows a `*` is looked for once, from left to right, and never again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from queue_source.uris import plain_prefix

_STAR = "*"
_MOST = 1_000
_ANY = "**"
_AZURE_ANYWHERE = re.compile(r"(?:abfs|wasb)s?:(?=//[^/@]*(?:/|\Z))", re.IGNORECASE)
_AZURE_SCHEMES = "{abfs,abfss,wasb,wasbs}:"


class _Branches(NamedTuple):
    """What a part of a glob may mean: each is a list of `_STAR` and of expressions for one character."""

    meanings: list[list[str]]
    end: int


def name_matcher(glob: str) -> re.Pattern[str]:
    """Compile a glob of a whole name: `*`, `?`, `[abc]`, `[^a-c]`, `{csv,json}`, and a backslash before literals.

    Raises ValueError for a glob that is not closed.
    """
    number = count()
    try:
        return re.compile("|".join(_expression(parts, number) for parts in _parse(glob, 0, 0).meanings), re.DOTALL)
    except re.error as error:
        raise ValueError(f"is no glob: {error}") from None


def _expression(parts: list[str], number: count[int]) -> str:
    """Return the regular expression of a branch.

    Each `*` but the last ends at the first match of what follows it: a group that is matched once, and then equal.
    """
    expressions = [""]
    for part in parts:
        if part == _STAR:
            expressions.append("")
        else:
            expressions[-1] += part
    first, *others = expressions
    if not others:
        return f"(?:{first})"
    *middle, last = others
    once = "".join(
        f"(?=(?P<g{at}>.*?{text}))(?P=g{at})" for at, text in zip(number, filter(None, middle), strict=False)
    )
    return f"(?:{first}{once}.*{last})"


def _parse(glob: str, place: int, depth: int) -> _Branches:
    """Parse from `place` to the end, or at a depth to the `}` that closes it."""
    done: list[list[str]] = []
    now: list[list[str]] = [[]]
    while place < len(glob):
        character = glob[place]
        place += 1
        if character == "{":
            inner = _parse(glob, place, depth + 1)
            now, place = [[*meaning, *more] for meaning in now for more in inner.meanings], inner.end
            if len(now) + len(done) > _MOST:
                raise ValueError(f"means more than {_MOST} globs, with all choices of its braces")
            continue
        if character == "}" and depth:
            return _Branches(done + now, place)
        if character == "," and depth:
            done, now = done + now, [[]]
            continue
        piece, place = _piece(glob, character, place)
        for meaning in now:
            meaning.append(piece)
    if depth:
        raise ValueError("has a '{' that is not closed")
    return _Branches(now, place)


def _piece(glob: str, character: str, place: int) -> tuple[str, int]:
    """Return one character of a name, or `_STAR`; and the place after it."""
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


# globs of URIs


class PathGlob(NamedTuple):
    """`parts` of the glob, None for `**`."""

    parts: tuple[re.Pattern[str] | None, ...]

    def matches(self, uri: str) -> bool:
        """Tell whether all of the URI matches; in steps of at most parts times parts.

        As for tags: the last `**` that was met takes one name more whenever what follows it does not fit.
        """
        parts, names = self.parts, uri.split("/")
        at = place = 0
        after_any: tuple[int, int] | None = None
        while place < len(names):
            if at < len(parts) and parts[at] is None:
                at += 1
                after_any = at, place
            elif at < len(parts) and (part := parts[at]) is not None and part.fullmatch(names[place]):
                at, place = at + 1, place + 1
            elif after_any is not None:
                at, place = after_any[0], after_any[1] + 1
                after_any = at, place
            else:
                return False
        return all(part is None for part in parts[at:])


def path_glob(text: str) -> PathGlob:
    """Compile a glob such as `s3://landing/**/2026-*/*.csv`, `/data/in/*.json` or `**/*.csv`. Raises ValueError."""
    if "://" in text or text.startswith("/"):
        plain = plain_prefix(text)
        if plain.startswith("abfss://") and text[:4].lower() == "http":  # what would begin a query is of the glob
            plain = plain_prefix(text.replace("?", "%3F").replace("#", "%23"))
        # a glob of any container and account has not become the one form of Azure's URIs
        text = _AZURE_ANYWHERE.sub(_AZURE_SCHEMES, plain, count=1)
    elif not text.startswith(f"{_ANY}/"):
        raise ValueError(f"begins with no scheme://bucket/, no slash and no {_ANY}/")
    return PathGlob(tuple(None if part == _ANY else name_matcher(part) for part in text.split("/")))


_FOLDERS_OF_METADATA = ("_metadata", "_common_metadata")  # Spark lists names that begin with these
_COPYING = "._COPYING_"


def is_hidden(uri: str, prefixes: Iterable[str]) -> bool:
    """Tell whether a name below each prefix that allows the URI is hidden.

    Names within a prefix are never hidden: a prefix `s3://lake/_staging/` asks for its content.
    """
    for prefix in prefixes:
        path = uri[len(prefix) :] if prefix.endswith("/") else f"~{uri[len(prefix) :]}"
        if path[:1] not in ("_", ".") and "/_" not in path and "/." not in path and _COPYING not in path:
            return False  # nearly all, and listings check a million
        *folders, name = path.split("/")
        hidden = [folder for folder in folders if not folder.startswith(_FOLDERS_OF_METADATA)]
        if not any(_begins_hidden(part) or part.endswith(_COPYING) for part in (*hidden, name)):
            return False
    return True


def _begins_hidden(name: str) -> bool:
    if name in (".", ".."):  # no names: a climbing path is refused, not left out
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
