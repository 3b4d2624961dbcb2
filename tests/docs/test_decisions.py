"""The index of decisions has every one of them by its title, and each decision that is cited exists."""

from __future__ import annotations

import re

from support.snippets import ROOT

FOLDER = ROOT / "docs" / "decisions"
DECISIONS = {path.name: path.read_text("utf-8") for path in FOLDER.glob("[0-9]*.md")}
INDEX = {
    name: title
    for title, name in re.findall(
        r"^- \[(.+?)\]\((\d{4}.+?)\)$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
    )
}
FOLDERS = ("src", "tests", "tools", "integration", "benchmarks")
CODE = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def test_every_decision_is_in_the_index_by_its_title() -> None:
    titles = {name: text.splitlines()[0].removeprefix("# ") for name, text in DECISIONS.items()}
    assert titles == INDEX


def test_every_decision_that_the_code_cites_exists() -> None:
    known = {name[:4] for name in DECISIONS}
    cited = {
        (str(path.relative_to(ROOT)), number)
        for path in CODE
        for number in re.findall(r"[Dd]ecisions?[\s/]+(\d{4})\b", path.read_text("utf-8"))
    }
    assert cited
    assert not [citation for citation in sorted(cited) if citation[1] not in known]
