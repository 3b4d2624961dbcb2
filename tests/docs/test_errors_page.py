"""The commands of the page about errors, run on a store that has some, and on one with an object in the way."""

from __future__ import annotations

import json
from pathlib import Path

from docs.test_pages import Reader
from shard_store.model import ErrorRecord
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import states, until
from support.snippets import ROOT, blocks
from support.store_backends import rows

PAGE = blocks(ROOT / "docs/how-to/errors.md")
OBJECT = "s3://bucket/orders/1.json"


def command(part: str) -> str:
    return next(block.text for block in PAGE if block.language == "bash" and part in block.text)


def test_the_commands_of_the_page_find_requeue_and_drop(tmp_path: Path) -> None:
    world = World(tmp_path)
    bad = "s3://bucket/orders/1.json"
    world.publish("no notification", bad)
    with world.loop() as loop:
        plan = loop.coordinator.plan(0, loop.latest(0))
        error = ErrorRecord("object", "missing-object", "", bad, plan.identity.delivery_hash, queue=world.queue_url)
        with world.store() as store:
            store.record_errors("files", "files", [error])
            store.publish([plan.identity], [])
        loop.latest(1)
        until(lambda: world.depth() == EMPTY, patiently(loop))
    look, objects, messages, forget = map(
        command, ("errors list", "--scope object --match", "malformed", "errors drop")
    )
    reader = Reader(tmp_path)
    reader.environment["CUESQUEUE_STORE"] = world.store_url
    look = look.replace("sqlite:///cuesqueue.db", world.store_url)
    with world.store() as store:
        ids = {row["scope"]: row["error_id"] for row in rows(store, "errors")}
    printed = reader.run(look.replace("show ID", f"show {ids['message'][:12]}"))
    assert "no notification" in printed
    assert ids["object"] in printed
    reader.run(objects)
    assert world.depth().ready == 1
    reader.run(messages)
    assert world.depth().ready == 2
    with world.store() as store:
        assert {row["state"] for row in rows(store, "errors")} == {"requeued"}
        reader.run(forget)
        assert rows(store, "errors") == []


def test_the_commands_of_the_page_get_past_an_object_and_back_to_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish(OBJECT)
    with world.loop() as loop:
        loop.coordinator.plan(0, loop.latest(0))  # and the batch fails
        loop.die()
    find, give_up, reopen, forget = map(command, ("shards show", "shards quarantine", "shards reopen", "shards forget"))
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
