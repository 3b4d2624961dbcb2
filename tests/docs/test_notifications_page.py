"""The page of notification forms: each form stands there, and each example announces what the page says."""

from __future__ import annotations

import re

import pytest

from queue_source.announcements.parser import FORMATS, JsonPaths, parse_notification
from support.snippets import ROOT, blocks

PAGE = ROOT / "docs" / "reference" / "notifications.md"
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))
EXAMPLES = dict(zip(SECTIONS, (block.text for block in blocks(PAGE) if block.language == "json"), strict=True))


def test_every_form_has_its_entry_and_its_section() -> None:
    assert set(SECTIONS) == set(FORMATS)
    assert set(re.findall(r"^- \[`(\w+)`\]\(#\1\)", PAGE.read_text("utf-8"), re.MULTILINE)) == set(FORMATS)


@pytest.mark.parametrize("form", FORMATS)
def test_the_example_of_a_form_announces_what_stands_below_it(form: str) -> None:
    below = SECTIONS[form].partition("announces `")[2]
    promised = re.findall(r"`(\w+://[^`]+)`", "`" + below.partition(".\n")[0].partition(". ")[0] + "`")
    paths = JsonPaths(bucket="bucket", key="files.path")
    for format in (form, "auto") if form != "json" else (form,):
        found = parse_notification(EXAMPLES[form].encode(), None, format, paths)
        assert [notice.uri for notice in found.objects] == promised
