"""The page for users of Auto Loader: each name that it has for an option is taken, or refused with what to set."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from queue_source.errors import OptionError
from queue_source.options.places import READER
from queue_source.options.values import MEANINGLESS, given_texts
from support.snippets import ROOT

PAGE = (ROOT / "docs" / "how-to" / "from-auto-loader.md").read_text("utf-8")


def _names() -> Iterator[tuple[str, list[str]]]:
    """Each name with `cloudFiles.`, and the options that stand beside it."""
    for left, right in re.findall(r"^\| (`cloudFiles\..+?) \| (.+) \|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`(?:cloudFiles\.)?([\w.]+)`", left):
            yield f"cloudFiles.{name}", [name] if "the same" in right else re.findall(r"`([\w.]+)`", right)


@pytest.mark.parametrize(("name", "options"), [one for one in _names() if one[0] not in MEANINGLESS])
def test_a_name_of_auto_loader_is_taken_or_refused_with_the_option_that_the_page_shows(
    name: str, options: list[str]
) -> None:
    assert _taken_or_refused(name)[:1] == options[:1] or options[0] in _taken_or_refused(name)[0]


def _taken_or_refused(name: str) -> list[str]:
    """The option that is meant, or what the refusal says."""
    try:
        return list(given_texts(READER, {name: "x"}))
    except OptionError as error:
        return [error.problem.partition("is unknown")[0]]


def test_the_page_has_names_enough() -> None:
    assert len(list(_names())) > 15
