"""The page on `foreachBatch`: its command gets past an object. Its scripts run in integration/ and tests/engine/."""

from __future__ import annotations

from pathlib import Path

from docs.test_pages import Reader
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import states, until
from support.snippets import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "foreach-batch.md")
OBJECT = "s3://landing/orders/1.parquet"


def test_the_command_of_the_page_gets_past_an_object_that_has_vanished(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(OBJECT, "s3://landing/orders/2.parquet")
    with world.loop(content="reference", fileFormat="") as loop:
        loop.coordinator.plan(0, loop.latest(0))  # and the batch fails
        loop.die()
    (command,) = [block.text for block in PAGE if "quarantine" in block.text and block.language == "bash"]
    Reader(tmp_path).run(command.replace("sqlite:///shop.db", world.store_url))
    with world.loop(content="reference", fileFormat="") as loop, world.store() as store:
        until(lambda: world.depth() == EMPTY and "open" not in states(store), patiently(loop))
        assert states(store) == {"done": 1, "quarantined": 1}
