"""The scripts of longer pages run with a real Spark and print what the pages show (as in tests/docs/test_pages.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.snippets import ROOT, Block, blocks


def pages_blocks(page: str) -> list[Block]:
    return blocks(ROOT / "docs" / "how-to" / f"{page}.md")


def test_what_the_page_on_messages_shows_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    Reader(tmp_path).follow(pages_blocks("messages"))


@pytest.mark.parametrize("page", ["foreach-batch", "group-by"])
def test_the_first_script_of_the_page_prints_what_it_shows(tmp_path: Path, page: str) -> None:
    Reader(tmp_path).follow(pages_blocks(page)[:3])


def test_the_tests_of_the_page_on_testing_pass(tmp_path: Path) -> None:
    page = pages_blocks("testing")
    (end,) = [place for place, block in enumerate(page) if "cuesqueue prove" in block.text and block.language == "bash"]
    Reader(tmp_path).follow(page[:end])


def test_the_script_of_the_page_on_iceberg_prints_what_it_shows(tmp_path: Path) -> None:
    Reader(tmp_path).follow(pages_blocks("iceberg")[:3])
