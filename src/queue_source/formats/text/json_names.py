"""Names of JSON objects that differ from the declared ones in case alone.

Where objects are decoded, `NameMatcher` says which name stands for which column. Where pyarrow parses lines, it takes
names as they are written: `Spellings` looks for others in the text, at little cost, and rewrites them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queue_source.formats.types import fields_of, inner_types
from queue_source.options.content import FormatOptions

_NONE: dict[str, str] = {}
_COLON = r'"[ \t\r\n]*:'
_ESCAPED_NAME = rf'\\.(?:[^"\\]|\\.)*{_COLON}'
_NAME = re.compile(rf'"([^"\\]*)(?={_COLON})')
_ODD = re.compile(r'["\\\x00-\x1f]')
_LARGEST_PATTERN = 8_000  # characters: of longer ones RE2 does not keep what it has found out
_LAST_WITH_CASE = 0x1E944
_LIKE_ASCII = {"k": "\u212a", "s": "\u017f"}


@lru_cache(maxsize=1 << 14)
def folded(name: str) -> str:
    """Return the name in one case, a character for each: `ß` and `SS` differ."""
    if name.isascii():
        return name.lower()
    return "".join(fold if len(fold := character.casefold()) == 1 else character for character in name)


class NameMatcher:
    """Finds the names of an object that stand for declared ones: those that no other stands for."""

    def __init__(self, names: Iterable[str], options: FormatOptions) -> None:
        self._names = frozenset(names)
        self._exactly = options.reader_case_sensitive
        self._rescues = options.rescued_data_column is not None
        self._declared: dict[str, list[str]] = {}
        for name in sorted(self._names):
            self._declared.setdefault(folded(name), []).append(name)

    def match(self, value: Mapping[str, Any]) -> tuple[Mapping[str, str], str | None]:
        """Return declared names to the names of the object that differ from them, and what is wrong with the names."""
        if value.keys() <= self._names:
            return _NONE, None
        candidates: dict[tuple[str, ...], list[str]] = {}
        for name in value:
            declared = () if name in self._names else self._declared.get(folded(name), ())
            if any(column not in value for column in declared):
                candidates.setdefault(tuple(declared), []).append(name)
        matches, wrong = {}, None
        for columns, names in candidates.items():
            if len(columns) == len(names) == 1 and not self._exactly:
                matches[columns[0]] = names[0]
            elif not self._rescues:
                why = "readerCaseSensitive is true" if self._exactly else "it is not known which one is meant"
                listed = " or ".join(map(repr, columns))
                wrong = f"column {listed}: it is there as {' and '.join(map(repr, names))}, and {why}"
        return matches, wrong

    def any_in(self, names: Iterable[str]) -> bool:
        """Tell whether any of an object's names stands for a declared one."""
        names = set(names)
        return not self._names.isdisjoint(names) or (
            not self._exactly and any(folded(name) in self._declared for name in names)
        )


class Spellings:
    """All spellings of the names in a schema, at any depth, as a text of JSON may have them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._declared = _by_fold(names)
        self._names = frozenset(names)

    def may_differ(self, text: bytes) -> bool:
        """Tell whether any name of the text may be one in another case; False only where that is certain."""
        buffer = pa.py_buffer(text)
        offsets = pa.array([0, buffer.size], pa.int64()).buffers()[1]
        array = pa.LargeStringArray.from_buffers(1, offsets, buffer)
        return any(pc.match_substring_regex(array, pattern)[0].as_py() for pattern in self._patterns)

    def rewrite(self, text: bytes) -> bytes | None:
        """Write the declared names for their other spellings; None where that takes more than a look at the text."""
        decoded = text.decode("utf-8")
        if None in self._declared.values() or re.search(_ESCAPED_NAME, decoded):
            return None

        @cache
        def spell(name: str) -> str:
            return f'"{name if name in self._names else self._declared.get(folded(name), name)}'

        return _NAME.sub(lambda match: spell(match[1]), decoded).encode("utf-8")

    @cached_property
    def _patterns(self) -> list[str]:
        """Patterns of RE2, which takes no longer for many names than for one."""
        patterns, names = [_ESCAPED_NAME], list[str]()
        for name in sorted(self._names):
            other = "" if _ODD.search(name) else _other_spellings(name)  # an odd one is escaped where it is written
            if sum(map(len, names)) + len(other) > _LARGEST_PATTERN:
                patterns, names = [*patterns, f'"(?:{"|".join(names)}){_COLON}'], []
            names += [other] if other else []
        if names:
            patterns[0] += f'|"(?:{"|".join(names)}){_COLON}'
        return patterns


@lru_cache(maxsize=16)
def spellings_of(schema: pa.Schema) -> Spellings:
    return Spellings(set(_names_in(pa.struct(list(schema)))))


def _names_in(kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        yield from (field.name for field in fields_of(kind))
    for inner in inner_types(kind):
        yield from _names_in(inner)


def _by_fold(names: Iterable[str]) -> dict[str, str | None]:
    """Return names by their form in one case; None where several have it."""
    declared: dict[str, str | None] = {}
    for name in names:
        fold = folded(name)
        declared[fold] = None if fold in declared else name
    return declared


def _other_spellings(name: str) -> str:
    """Return a pattern of all spellings of a name but its own; "" where it has no others."""
    others = behind = ""
    for character in reversed(name):
        variants: Iterable[str] = {character.lower(), character.upper(), *_LIKE_ASCII.get(character.lower(), "")}
        if not character.isascii():
            variants = _other_letters().get(folded(character), ())
        wrong = "".join(variant for variant in variants if variant != character)
        ways = [f"[{wrong}](?i:{re.escape(behind)})"] * bool(wrong) + [f"{re.escape(character)}{others}"] * bool(others)
        others = f"(?:{'|'.join(ways)})" if ways else ""
        behind = character + behind
    return others


@cache
def _other_letters() -> dict[str, list[str]]:
    variants: dict[str, list[str]] = {}
    for character in map(chr, range(128, _LAST_WITH_CASE)):
        if len(fold := character.casefold()) == 1 and fold != character:
            variants.setdefault(fold, [fold]).append(character)
    return variants
