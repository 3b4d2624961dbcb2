"""Two hundred questions of users: each has an answer on a page, under a heading that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.test_pages import anchor
from support.snippets import ROOT

QUESTIONS: list[tuple[str, str]] = re.findall(
    r"^\| (.+\?) \| (\S+) \|$", Path(__file__).with_name("questions.md").read_text("utf-8"), re.MULTILINE
)


def test_there_are_two_hundred_questions_and_each_is_asked_once() -> None:
    assert len({question for question, _ in QUESTIONS}) == len(QUESTIONS) >= 200


@pytest.mark.parametrize("page", sorted({answer.partition("#")[0] for _, answer in QUESTIONS}))
def test_each_answer_is_under_a_heading_of_its_page(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    headings = {*map(anchor, re.findall(r"^#+ (.+)$", text, re.MULTILINE)), *re.findall(r'<a id="([^"]+)">', text)}
    asked = {answer.partition("#")[2] for _, answer in QUESTIONS if answer.partition("#")[0] == page}
    assert asked - headings == set()
