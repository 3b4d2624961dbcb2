"""The commands of the page about errors, run on a store that has some."""

from __future__ import annotations

from pathlib import Path

from docs.test_pages import Reader
from shard_store.model import ErrorRecord
from support.coordinator_world import EMPTY, World, patiently
from support.driver_loop import until
from support.snippets import ROOT, blocks
from support.store_backends import rows


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
    look, objects, messages, forget = (b.text for b in blocks(ROOT / "docs/how-to/errors.md") if b.language == "bash")
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
