"""The page on registering: its script runs and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "iceberg-register.md")


@pytest.mark.engine
def test_what_the_page_shows_runs_as_it_is(tmp_path: Path) -> None:
    script, command, shown = (block for block in PAGE if "pip install" not in block.text)
    assert script.file == "register.py"
    Reader(tmp_path).follow([script, command, shown])
