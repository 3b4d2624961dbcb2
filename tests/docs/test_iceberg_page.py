"""The page on Iceberg: its script runs and prints what it shows, and its options for registering are options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.test_pages import Reader
from queue_source.options import parse_reader_options, parse_sink_options
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "iceberg.md")


@pytest.mark.engine
def test_what_the_page_shows_runs_as_it_is(tmp_path: Path) -> None:
    script, command, shown = PAGE[:3]
    assert script.file == "orders_to_iceberg.py"
    Reader(tmp_path).follow([script, command, shown])


def test_the_options_for_registering_are_taken() -> None:
    """What registering does is tested in tests/engine/test_iceberg_register.py."""
    (code,) = [block.text for block in PAGE if '"register"' in block.text]
    of_reader, of_sink = (
        dict(re.findall(r'\.option\("(\w+)", "([^"]+)"\)', part)) for part in code.split("writeStream")
    )
    del of_sink["checkpointLocation"]
    assert parse_reader_options({**of_reader, "storeUrl": "sqlite:////tmp/page.db"}).source == "orders"
    parse_sink_options({**of_sink, "storeUrl": "sqlite:////tmp/page.db"})
