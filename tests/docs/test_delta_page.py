"""The page on Delta Lake: its script runs and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "delta.md")


@pytest.mark.engine
def test_what_the_page_shows_runs_as_it_is(tmp_path: Path) -> None:
    script, command, shown, maintenance = (block for block in PAGE[:5] if "pip install" not in block.text)
    assert script.file == "orders_to_delta.py"
    Reader(tmp_path).follow([script, command, shown, maintenance])
