"""The index of decisions has every one of them by its title, and says what overtook which, as their pages do."""

from __future__ import annotations

import re

from support.snippets import ROOT

FOLDER = ROOT / "docs" / "decisions"
DECISIONS = {path.name: path.read_text("utf-8") for path in FOLDER.glob("[0-9]*.md")}
LINES = re.findall(r"^- \[(.+?)\]\((\d{4}.+?)\)(.*)$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
INDEX = {name: (title, after) for title, name, after in LINES}


def overtaken_by(text: str) -> set[str]:
    return set(re.findall(r"\[(\d{4})\]\(", text))


def test_every_decision_is_in_the_index_by_its_title() -> None:
    titles = {name: text.splitlines()[0].removeprefix("# ") for name, text in DECISIONS.items()}
    assert {name: title for name, (title, _) in INDEX.items()} == titles


def test_what_is_overtaken_says_by_which_in_the_index_and_on_its_page() -> None:
    for name, text in DECISIONS.items():
        _, *notes = re.split("Overtaken in part:|replaced by", text.partition("## Question")[0])
        assert overtaken_by(INDEX[name][1]) == overtaken_by("".join(notes)), name
