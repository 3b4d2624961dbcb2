"""The scripts of longer pages run with a real Spark and print what the pages show (as in tests/docs/test_pages.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.snippets import ROOT, blocks


@pytest.mark.parametrize("page", ["foreach-batch", "messages", "testing"])
def test_what_the_page_shows_runs_and_prints_what_it_shows(tmp_path: Path, page: str) -> None:
    Reader(tmp_path).follow(blocks(ROOT / "docs" / "how-to" / f"{page}.md"))


def test_the_script_of_the_page_on_iceberg_prints_what_it_shows(tmp_path: Path) -> None:
    script, *shown = (
        block for block in blocks(ROOT / "docs" / "how-to" / "iceberg.md") if "pip install" not in block.text
    )
    Reader(tmp_path).follow([script, *shown[:2]])
