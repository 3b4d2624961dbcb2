"""The page on loading: its script prints what it shows, and its command goes on where the script has stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import Reader
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "load.md")


@pytest.mark.engine
def test_what_the_page_shows_runs_as_it_is(tmp_path: Path) -> None:
    script, command, printed, program, *_ = PAGE
    assert script.file == "load_orders.py"
    reader = Reader(tmp_path)
    reader.follow([script, command, printed])
    (tmp_path / "landing" / "later.json").write_text('{"id": 4, "total": 38.0}')
    reader.run("cuesqueue send 'sql+sqlite:///jobs.db?queue=orders' \"$PWD/landing/later.json\"")
    told = reader.run(program.text)
    assert "objects  │ 1" in told
    assert "rows     │ 1" in told
