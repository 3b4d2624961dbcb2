"""The commands of the page about getting past an object, run on a store that has one."""

from __future__ import annotations

import json
from pathlib import Path

from docs.test_pages import Reader
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import states, until
from support.snippets import ROOT, blocks

OBJECT = "s3://bucket/orders/1.json"


def test_the_commands_of_the_page_get_past_an_object_and_back_to_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(OBJECT)
    with world.loop() as loop:
        loop.coordinator.plan(0, loop.latest(0))  # and the batch fails
        loop.die()
    find, give_up, reopen, forget = (
        b.text for b in blocks(ROOT / "docs/how-to/skip-an-object.md") if b.language == "bash"
    )
    reader = Reader(tmp_path)
    reader.environment |= {"CUESQUEUE_STORE": world.store_url, "COLUMNS": "200"}
    assert "is not published" in " ".join(reader.run(find.replace("sqlite:///cuesqueue.db", world.store_url)).split())
    reader.run(give_up)
    run_to_the_end(world)
    with world.store() as store:
        assert states(store) == {"quarantined": 1}
    reader.run(reopen)
    run_to_the_end(world)
    with world.store() as store:
        assert states(store) == {"done": 1}
    reader.run(forget)
    shown = reader.run("cuesqueue shards list --json")
    assert json.loads(shown)["shards"] == []


def run_to_the_end(world: World) -> None:
    with world.loop() as loop:
        with world.store() as store:
            until(lambda: world.depth() == EMPTY and "open" not in states(store), patiently(loop))
