"""The page on exactly once names every place at which a process may be killed; prior designs name what there is."""

from __future__ import annotations

import re

from shard_store.failpoints import POINTS
from shard_store.model import Semantics
from support.snippets import ROOT
from support.sweep_sinks import COLUMNS, READ_TWICE, SWEPT, reaching

EXPLANATION = (ROOT / "docs" / "explanation" / "exactly-once.md").read_text("utf-8")
PRIOR = (ROOT / "docs" / "prior-designs.md").read_text("utf-8")
PRIOR_TESTS = (ROOT / "tests" / "docs" / "prior_designs.md").read_text("utf-8")


def test_the_page_says_of_every_point_what_the_restart_does_in_the_order_of_the_code() -> None:
    rows = re.findall(r"^(\d+)\. `([\w-]+)`: (.+)$", EXPLANATION, re.MULTILINE)
    assert [(int(number), name) for number, name, _ in rows] == list(enumerate(POINTS, 1))
    assert all(re.fullmatch(r"[^→]+ → [^→]+", states) for _, _, states in rows)


def test_the_picture_has_every_point() -> None:
    picture = (ROOT / "docs" / "images" / "micro-batch.svg").read_text("utf-8")
    notes = re.findall(r'class="point"[^>]*>(\d+) ([\w-]+)<', picture)
    assert [(int(number), name) for number, name in notes] == list(enumerate(POINTS, 1))


def test_the_first_page_says_at_how_many_points_tests_kill() -> None:
    assert f"each of {len(POINTS)} points" in (ROOT / "docs" / "index.md").read_text("utf-8")


def test_the_sweep_has_as_many_cells_as_the_page_says() -> None:
    failures, columns = 3, [*COLUMNS, *READ_TWICE]
    cells = sum(columns.count(column) for point in SWEPT for column in reaching(point))
    wanted = len(SWEPT), len(COLUMNS), failures * cells, failures * (len(SWEPT) * len(columns) - cells)
    told = r"of the (\d+) points, in each\s+of (\d+) columns.*\s(\d+)\s+combinations are run; the other (\d+) cannot"
    found = re.search(told, EXPLANATION, re.DOTALL)
    assert found
    assert tuple(map(int, found.groups())) == wanted


def test_every_semantics_has_its_section() -> None:
    assert re.findall(r"^### (.+)$", EXPLANATION, re.MULTILINE) == [semantics.value for semantics in Semantics]


FILES = [path for folder in ("src", "tests", "integration") for path in sorted((ROOT / folder).rglob("*.py"))]


def rows_of(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.+\|$", page, re.MULTILINE)]


def entries_of(page: str) -> list[tuple[str, str]]:
    """Heading and answer; those that belong to the heading before begin with `- ` in the list of tests."""
    found = re.findall(r"^( {4})?- \*\*(.+?)\*\*: (.+)$", page, re.MULTILINE)
    assert len(found) == len(re.findall(r"^ *- ", page, re.MULTILINE))
    return [("- " * bool(deeper) + heading, here) for deeper, heading, here in found]


ENTRIES, WHERE = entries_of(PRIOR), [row for row in rows_of(PRIOR_TESTS) if row[0] not in ("heading", "---")]


def test_the_files_that_prior_designs_name_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", PRIOR_TESTS)
    assert named
    assert not [name for name in named if not any(str(path).endswith(f"/{name}") for path in FILES)]


def test_the_tests_that_prior_designs_name_exist() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in FILES if path.name.startswith("test_"))
    named = re.findall(r"`(test_\w+?)(?:\.\.\.)?`", PRIOR_TESTS)
    assert named
    assert not [name for name in named if f"def {name}{'' if name.endswith('_') else '('}" not in tests]


def test_what_prior_designs_name_of_a_module_stands_in_it() -> None:
    """Such as `pruning.win_interval`, in the column of modules."""
    named = [found for _, modules, _ in WHERE for found in re.findall(r"`(\w+)\.(?!py`)(\w+)`", modules)]
    assert named
    defined = {
        (path.stem, name)
        for path in FILES
        for name in re.findall(r"^(?: {4})?(?:def|class) (\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert not set(named) - defined


def test_every_heading_of_prior_designs_is_answered_or_said_why_not() -> None:
    assert len(ENTRIES) > 75
    listed = [heading for heading, *_ in WHERE]
    assert len(set(listed)) == len(listed)
    answered = {heading for heading, module, test in WHERE if module and test}
    for heading, here in ENTRIES:
        assert heading, here
        assert (heading in answered and here) or re.match(r"not taken, because \w+", here), heading


def test_the_list_of_where_prior_designs_are_answered_has_no_other_headings() -> None:
    assert not {heading for heading, *_ in WHERE} - {heading for heading, _ in ENTRIES}
