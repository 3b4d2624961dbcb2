"""Globs of whole URIs: each part between slashes is a glob of a name, and `**` stands for any number of parts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from queue_source.options.globs import name_matcher
from queue_source.uris import plain_prefix

_ANY = "**"


class PathGlob(NamedTuple):
    """`parts` of the glob, None for `**`."""

    parts: tuple[re.Pattern[str] | None, ...]

    def matches(self, uri: str) -> bool:
        """Whether all of the URI matches; in steps of at most parts times parts."""
        return _matches(self.parts, uri.split("/"))


def path_glob(text: str) -> PathGlob:
    """A glob such as `s3://landing/**/2026-*/*.csv`, `/data/in/*.json` or `**/*.csv`. Raises ValueError."""
    if "://" in text or text.startswith("/"):
        text = plain_prefix(text)
    elif not text.startswith(f"{_ANY}/"):
        raise ValueError(f"begins with no scheme://bucket/, no slash and no {_ANY}/")
    return PathGlob(tuple(None if part == _ANY else name_matcher(part) for part in text.split("/")))


def _matches(parts: Sequence[re.Pattern[str] | None], names: Sequence[str]) -> bool:
    """As for tags: the last `**` that was met takes one name more whenever what follows it does not fit."""
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
