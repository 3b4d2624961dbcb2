"""Each decision has a heading with its number, which its anchor names; cited decisions and invariants exist."""

from __future__ import annotations

import re

from support.snippets import ROOT

PAGE = (ROOT / "docs" / "decisions.md").read_text("utf-8")
DECISIONS = re.findall(r"^## (\d{4}): \S", PAGE, re.MULTILINE)
FOLDERS = ("src", "tests", "tools", "integration", "benchmarks")
CODE = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def test_every_decision_has_its_number_once_and_an_anchor_of_it_before_its_heading() -> None:
    assert len(set(DECISIONS)) == len(DECISIONS) == len(re.findall("^## ", PAGE, re.MULTILINE))
    assert re.findall(r'^<a id="(\d{4})"></a>\n\n## \1: ', PAGE, re.MULTILINE) == DECISIONS


def test_every_decision_that_the_code_cites_exists() -> None:
    cited = {
        (str(path.relative_to(ROOT)), number)
        for path in CODE
        for number in re.findall(r"[Dd]ecisions?[\s/]+(\d{4})\b", path.read_text("utf-8"))
    }
    assert cited
    assert not [citation for citation in sorted(cited) if citation[1] not in DECISIONS]


def test_every_invariant_that_the_code_cites_is_in_the_design() -> None:
    design = (ROOT / "docs" / "design.md").read_text("utf-8").partition("## Invariants")[2].partition("\n## ")[0]
    invariants = set(re.findall(r"^(\d+)\. ", design, re.MULTILINE))
    cited = {
        (str(path.relative_to(ROOT)), number)
        for path in CODE
        for numbers in re.findall(r"\binvariants? ((?:\d+(?:, | and )?)+)", path.read_text("utf-8"))
        for number in re.findall(r"\d+", numbers)
    }
    assert cited
    assert not [citation for citation in sorted(cited) if citation[1] not in invariants]
