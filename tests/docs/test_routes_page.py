"""The commands of the page about one queue for many sources, and the options of its reader."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from docs.test_pages import Reader
from queue_source.options import parse_reader_options
from shard_store.store import open_store
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "routes.md")


def test_the_commands_of_the_page_record_for_every_source_and_show_what_waits(tmp_path: Path) -> None:
    (routes,) = [block for block in PAGE if block.file == "routes.json"]
    reader = Reader(tmp_path)
    reader.environment |= {"COLUMNS": "200"}
    (tmp_path / "routes.json").write_text(routes.text)
    receive, show = [block.text for block in PAGE if block.language == "bash"]
    reader.run(receive)
    with open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        assert {waits.source: waits.objects for waits in store.waiting()} == {"orders": 1, "returns": 1, "audit": 2}
    (printed,) = [block.text for block in PAGE if block.language == "text" and "receiver of" in block.text]
    shown = reader.run(show)
    assert printed.strip() in shown.replace(f"{tmp_path}/", "")
    status = json.loads(reader.run(f"{show.strip()} --json"))
    assert [receiver["recorded"] for receiver in status["receivers"]] == [4]


def test_the_reader_of_the_page_takes_what_is_recorded() -> None:
    (script,) = [block.text for block in PAGE if block.language == "python"]
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    given = dict([ast.literal_eval(arg) for arg in call.args] for call in calls if len(call.args) == 2)
    options = parse_reader_options(given)
    assert options.queue.from_store
    assert options.source == "orders"
