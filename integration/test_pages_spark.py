"""The scripts of longer pages run with a real Spark and print what the pages show (as in tests/docs/test_pages.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cuesqueue
from docs.test_pages import Reader
from support.snippets import ROOT, Block, blocks


def pages_blocks(page: str) -> list[Block]:
    return blocks(ROOT / "docs" / "how-to" / f"{page}.md")


def test_the_page_on_messages_reads_them_and_sends_rows(tmp_path: Path) -> None:
    script, command, shown, sends = pages_blocks("messages")
    reader = Reader(tmp_path)
    reader.follow([script, command, shown])
    again = tmp_path / "again"  # a folder of its own, as the index says
    again.mkdir()
    text = script.text.partition("query = (")[0] + sends.text.replace(".start()", ".trigger(availableNow=True).start()")
    (again / "send.py").write_text(text + "query.awaitTermination()\n", "utf-8")
    reader.run("cd again && python send.py 2>../errors.log")
    with cuesqueue.open_queue(f"sql+sqlite:///{again}/cuesqueue.db?queue=large-orders") as queue:
        sent = [(message.tag, json.loads(message.body)) for message in queue.receive(10, lease=30, wait=1)]
    assert sorted(sent, key=str) == [("shop.large", {"id": 2, "from": name}) for name in ("orders", "returns")]


@pytest.mark.parametrize("page", ["foreach-batch", "group-by"])
def test_the_first_script_of_the_page_prints_what_it_shows(tmp_path: Path, page: str) -> None:
    Reader(tmp_path).follow(pages_blocks(page)[:3])


def test_closed_windows_are_published_by_the_script_that_the_page_on_group_by_has_for_them(tmp_path: Path) -> None:
    reader, (script, command, _, closed, *_) = Reader(tmp_path), pages_blocks("group-by")
    (tmp_path / "by_hour.py").write_text(script.text.partition("def upsert")[0] + closed.text, "utf-8")
    printed = reader.run(command.text)
    assert [line for line in printed.splitlines() if "2026-" in line] == [
        "|2026-01-03 10:00|     2|",
        "|2026-01-03 11:00|     1|",
    ]


def test_the_tests_of_the_page_on_testing_pass(tmp_path: Path) -> None:
    page = pages_blocks("testing")
    (end,) = [place for place, block in enumerate(page) if "cuesqueue prove" in block.text and block.language == "bash"]
    Reader(tmp_path).follow(page[:end])
