"""The page on Iceberg: its script for registering runs; that for rows is run in integration/."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "iceberg.md")


@pytest.mark.engine
def test_what_the_page_shows_runs_as_it_is(tmp_path: Path) -> None:
    (start,) = [place for place, block in enumerate(PAGE) if block.file == "register.py"]
    script, command, shown = PAGE[start : start + 3]
    Reader(tmp_path).follow([script, command, shown])
