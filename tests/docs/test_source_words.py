"""The source is written in the words of its field: names are nouns of the domain, sentences idiomatic English."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plain_words import IN_SOURCE, NAMES, modules, names, phrases, prose
from support.snippets import ROOT

SRC = ROOT / "src"
MODULES = modules(SRC)
_OF_AN_ERROR = {("queue_source/formats/new_columns.py", "found")}  # `NewColumns(found=...)`: the name of its attribute


def named(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def test_docstrings_and_comments_avoid_phrases_that_read_like_a_translation() -> None:
    found = [
        f"{named(path)}:{line}: {phrase}"
        for path in MODULES
        for line, text in prose(path.read_text("utf-8"))
        for phrase in phrases(text, IN_SOURCE)
    ]
    assert found == []


def test_names_say_what_a_thing_is() -> None:
    found = [
        f"{named(path)}:{line}: {name}"
        for path in MODULES
        for line, name in names(path.read_text("utf-8"))
        if name.strip("_") in NAMES and (named(path), name) not in _OF_AN_ERROR
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ('"""What nobody reads."""\n', "nobody"),
        ('def f() -> None:\n    """Find what is\n    bad."""\n', "what is bad"),
        ("x = 1  # whoever\n", "whoever"),
        ("# it gives\n# way\nx = 1\n", "gives way"),
    ],
)
def test_a_phrase_is_seen_in_docstrings_and_comments_and_over_lines(source: str, phrase: str) -> None:
    assert [seen for _, text in prose(source) for seen in phrases(text, IN_SOURCE)] == [phrase]


def test_texts_for_users_and_fields_are_not_meant() -> None:
    assert [phrases(text, IN_SOURCE) for _, text in prose('print("nobody")\n')] == []
    assert list(names("class C:\n    found: int\n")) == []
    seen = {name for _, name in names("def f(given, *, one):\n    found = 1\n    (lambda rest: 0)\n")}
    assert seen == {"f", "given", "one", "found", "rest"}
