"""Spark's `pathGlobFilter`: a glob as Hadoop reads it, matched against the last part of a path. Pure."""

from __future__ import annotations

import re


def name_matcher(glob: str) -> re.Pattern[str]:
    """The whole name has to match: `*`, `?`, `[abc]`, `[^a-c]`, `{csv,json}`, and a backslash before what is literal.

    Raises ValueError for a glob that is not closed.
    """
    out: list[str] = []
    depth = place = 0
    while place < len(glob):
        character = glob[place]
        place += 1
        if character == "\\":
            if place == len(glob):
                raise ValueError("ends with a backslash")
            out.append(re.escape(glob[place]))
            place += 1
        elif character == "*":
            out.append(".*")
        elif character == "?":
            out.append(".")
        elif character == "{":
            out.append("(?:")
            depth += 1
        elif character == "}" and depth:
            out.append(")")
            depth -= 1
        elif character == "," and depth:
            out.append("|")
        elif character == "[":
            end = glob.find("]", place + 2 if glob[place : place + 1] in ("^", "!") else place + 1)
            if end < 0:
                raise ValueError("has a '[' that is not closed")
            inside = glob[place:end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[^{inside[1:]}]" if inside[0] in "^!" else f"[{inside}]")
            place = end + 1
        else:
            out.append(re.escape(character))
    if depth:
        raise ValueError("has a '{' that is not closed")
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise ValueError(f"is no glob: {error}") from None
