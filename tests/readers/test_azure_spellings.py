"""An object of Azure is one object however its URI is written; what older code read by another name stays read."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import queue_source.storage.buckets as buckets
from queue_source import uris
from queue_source.commands.main import app
from queue_source.coordinator.ending import cleaning as cleaner
from queue_source.options.connections import AzureOptions, StorageOptions
from queue_source.storage.buckets import Bucket
from readers.test_routes import receive
from shard_store.model import shard_key
from shard_store.sql.schema import pipelines, shards, sources
from shard_store.upkeep import cleaning as planning
from support.buckets import MemoryStore
from support.coordinator_world import EMPTY, World, assert_published_once, patiently
from support.driver_loop import published, states, until
from support.servers.azure import KEY, azure_server

ONE = "abfss://landing@lake.dfs.core.windows.net/"
NAME = "in/100%+of a%20b \u4f60.json"
OLD = (
    "abfs://landing@lake.dfs.core.windows.net/",
    "abfss://landing@lake.blob.core.windows.net/",
    "abfs://landing@lake/",
)
OPTIONS: dict[str, Any] = {"allowedPrefixes": ONE, "source": "files"}


@dataclass
class Containers(MemoryStore):
    """Real containers in place of the object store in memory."""

    storage: StorageOptions = field(default_factory=StorageOptions)

    def open(self, prefix: str) -> Bucket:
        return buckets.open_bucket(prefix, self.storage)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def spellings(name: str) -> list[str]:
    """All that a sender may write for one object."""
    web = [f"https://lake.{service}.core.windows.net/landing/{quote(name)}" for service in ("blob", "dfs")]
    return [f"{ONE}{name}", f"wasbs://landing@lake.blob.core.windows.net/{name}", *(old + name for old in OLD), *web]


def event(name: str, etag: str = "etag-10") -> str:
    body = {
        "subject": f"/blobServices/default/containers/landing/blobs/{name}",
        "eventType": "Microsoft.Storage.BlobCreated",
        "data": {"api": "PutBlob", "url": spellings(name)[-2], "contentLength": 10, "eTag": etag},
    }
    return base64.b64encode(json.dumps([body]).encode()).decode()


def settle(world: World, *bodies: str, **options: Any) -> dict[str, Any]:
    if bodies:
        world.publish(*bodies)
    with world.loop(**{**OPTIONS, **options}) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        return dict(loop.metrics)


def spell_as_older_code_did(world: World, beginning: str) -> None:
    """The store as a version before 0.3 leaves it that was told of all objects by URIs with this beginning."""
    with world.store() as store, store.database.engine.begin() as connection:
        for row in connection.execute(sa.select(shards.c.shard_key, shards.c.shard_id)).all():
            own = row.shard_id.replace(ONE, beginning)
            this = shards.update().where(shards.c.shard_key == row.shard_key)
            connection.execute(this.values(shard_key=shard_key("files", own), shard_id=own, uri=None))
        connection.execute(sa.update(sources).values(naming=None))
        connection.execute(sa.update(pipelines).values(settings=None))


def test_one_object_is_published_once_however_its_uri_is_written(world: World) -> None:
    settle(world, *spellings(NAME))
    assert_published_once(world, [f"{ONE}{NAME}"])


@pytest.mark.parametrize(
    "prefix", [*OLD, "https://lake.blob.core.windows.net/landing/", "wasbs://landing@lake/", "abfs://"]
)
def test_a_prefix_may_be_written_in_each_way_too(world: World, prefix: str) -> None:
    settle(world, f"{ONE}{NAME}", allowedPrefixes=prefix)
    assert_published_once(world, [f"{ONE}{NAME}"])


@pytest.mark.parametrize("old", OLD)
def test_what_was_read_by_another_name_is_not_read_again_when_it_is_announced_by_todays(world: World, old: str) -> None:
    settle(world, f"{ONE}{NAME}", f"{ONE}b")
    spell_as_older_code_did(world, old)
    settle(world, *spellings(NAME), f"{ONE}c")
    with world.store() as store:
        assert states(store) == {"done": 3}
        assert set(published(store).values()) == {1}
        names = {row.shard_id for row in store.database.read(lambda t: t.execute(sa.select(shards.c.shard_id)).all())}
    assert names == {f"{old}{NAME}", f"{old}b", f"{ONE}c"}


@pytest.mark.parametrize(
    "old",
    [
        "https://lake.blob.core.windows.net/landing/",
        "https://Lake.dfs.core.windows.net/landing/",
        "wasbs://landing@lake.blob.core.windows.net/",
    ],
)
@pytest.mark.parametrize("kept_open", [True, False])
def test_a_reference_by_any_other_url_is_not_announced_again_after_the_upgrade(
    world: World, monkeypatch: pytest.MonkeyPatch, old: str, kept_open: bool
) -> None:
    """References are read by nobody here: so older code took each URL there is, also those that it could not read."""
    name = quote(NAME) if old.startswith("https") else NAME
    references: dict[str, Any] = {"content": "reference", "allowedPrefixes": old, "source": "files", "fileFormat": ""}
    with monkeypatch.context() as older:
        older.setattr(uris, "azure_uri", lambda uri: None)
        world.publish(f"{old}{name}", f"{old}b")
        with world.loop(**references) as loop:
            if kept_open:
                until(lambda: len(loop.coordinator.plan(0, loop.latest(0)).ranges) == 2, lambda: None)
                loop.die_without_leases()
            else:
                until(lambda: world.depth() == EMPTY, patiently(loop))
    with world.store() as store, store.database.engine.begin() as connection:
        [naming] = connection.execute(sa.select(sources.c.naming)).scalars()
        kept = json.loads(naming)
        kept.pop("spellings", None)
        connection.execute(sa.update(sources).values(naming=json.dumps(kept)))
    settle(world, f"{old}{name}", f"{ONE}b", f"{ONE}c", **references)
    with world.store() as store:
        assert states(store) == {"done": 3}
        assert set(published(store).values()) == {1}


def test_a_source_without_objects_of_azure_is_not_searched_for_them(world: World) -> None:
    """Reading all ids of millions of shards would be felt at the first start after an upgrade."""
    settle(world, "s3://b/a", allowedPrefixes="s3://b/")
    with world.store() as store, store.database.engine.begin() as connection:
        [naming] = connection.execute(sa.select(sources.c.naming)).scalars()
        assert "spellings" not in json.loads(naming)
    settle(world, f"{ONE}a")
    with world.store() as store, store.database.engine.begin() as connection:
        [naming] = connection.execute(sa.select(sources.c.naming)).scalars()
        assert json.loads(naming)["spellings"] == {}


def test_a_source_with_several_names_of_a_container_knows_its_objects_by_all_of_them(world: World) -> None:
    settle(world, f"{ONE}a")
    spell_as_older_code_did(world, OLD[0])
    with world.store() as store, store.database.engine.begin() as connection:
        [row] = connection.execute(sa.select(shards)).mappings().all()
        for own in (f"{OLD[1]}b", f"{ONE}c"):
            connection.execute(shards.insert().values({**row, "shard_key": shard_key("files", own), "shard_id": own}))
    settle(world, *(f"{ONE}{name}" for name in "abcd"))
    with world.store() as store:
        assert states(store) == {"done": 4}


def test_a_listing_finds_what_was_read_by_another_name(world: World) -> None:
    names = [f"{ONE}{name}" for name in ("a", "b", NAME)]
    settle(world, *names)
    spell_as_older_code_did(world, OLD[0])
    world.bucket.put(*names, f"{ONE}new", age=7200)
    with world.loop(**OPTIONS, backfillPrefixes=ONE, backfillGrace="0s") as loop:
        loop.drain()
        assert loop.metrics["backfilled"] == 1
    with world.store() as store:
        assert states(store) == {"done": 4}
        assert set(published(store).values()) == {1}


def test_what_was_read_by_another_name_is_not_read_again_when_versions_come_to_be_told_apart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the URI that it had, without a version; another version of it is new."""

    def text(name: str, etag: str = "etag-10") -> str:
        return base64.b64decode(event(name, etag)).decode()

    settle(world, text("a"), text("b"))
    spell_as_older_code_did(world, OLD[0])
    settle(world, text("a"), allowOverwrites="true")
    with world.store() as store:
        assert states(store) == {"done": 2}
    world.bucket.put(f"{ONE}b", etag="etag-10", age=7200)
    with world.loop(**OPTIONS, allowOverwrites="true", backfillPrefixes=ONE, backfillGrace="0s") as loop:
        loop.drain()
        assert loop.metrics["backfilled"] == 0
    monkeypatch.setattr(buckets, "open_bucket", lambda prefix, storage: world.bucket.open(prefix))
    asked = ["reconcile", ONE, "--store", world.store_url, "--source", "files", "--option", "allowOverwrites=true"]
    [found] = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["prefixes"]
    assert (found["published"], found["missing"]) == (1, 0), found
    settle(world, text("a", "etag-11"), allowOverwrites="true")
    with world.store() as store:
        assert states(store) == {"done": 3}
        assert set(published(store).values()) == {1}


def test_reconcile_finds_it_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(world, f"{ONE}a")
    spell_as_older_code_did(world, OLD[0])
    settle(world)
    world.bucket.put(f"{ONE}a", f"{ONE}new", age=7200)
    monkeypatch.setattr(buckets, "open_bucket", lambda prefix, storage: world.bucket.open(prefix))
    done = CliRunner().invoke(app, ["reconcile", ONE, "--store", world.store_url, "--source", "files", "--json"])
    report = json.loads(done.stdout)
    [found] = report["prefixes"]
    assert (found["objects"], found["published"], found["missing"]) == (2, 1, 1), found


def test_what_is_unfinished_by_another_name_is_finished_after_the_upgrade(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older code is this one without the names of Azure."""
    with monkeypatch.context() as older:
        older.setattr(uris, "azure_uri", lambda uri: None)
        world.publish(f"{OLD[0]}a", f"{OLD[0]}b")
        with world.loop(**{**OPTIONS, "allowedPrefixes": OLD[0]}) as loop:
            until(lambda: len(loop.coordinator.plan(0, loop.latest(0)).ranges) == 2, lambda: None)
            loop.die_without_leases()
    with world.store() as store, store.database.engine.begin() as connection:
        [naming] = connection.execute(sa.select(sources.c.naming)).scalars()
        kept = json.loads(naming)
        kept.pop("spellings", None)
        connection.execute(sa.update(sources).values(naming=json.dumps(kept)))
    settle(world, f"{ONE}a")
    with world.store() as store:
        assert published(store) == {f"{OLD[0]}a": 1, f"{OLD[0]}b": 1}


def test_what_was_read_by_another_name_is_cleaned_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has its earlier URI; the options have today's, and the blob is one."""
    monkeypatch.setattr(planning, "SETTLED", timedelta(0))
    monkeypatch.setattr(cleaner, "_EVERY", 0.05)
    cleaning = {"cleanSource": "delete", "cleanSource.retentionDuration": "1ms"}
    with azure_server() as server:
        storage = StorageOptions(azure=AzureOptions(account_key=KEY, endpoint=server.url))
        world = World(tmp_path, Containers(storage=storage))
        for name in ("a", "not-announced"):
            server.write(f"lake/landing/{name}", b"ten bytes\n")
        settle(world, f"{ONE}a")
        spell_as_older_code_did(world, OLD[0])
        with world.loop(**{**OPTIONS, **cleaning}) as loop:
            until(lambda: loop.metrics["cleaned"] == 1, patiently(loop))
        assert list(server.blobs) == ["lake/landing/not-announced"]


@pytest.mark.parametrize("started", [False, True])
def test_a_receiver_records_what_its_source_has_by_another_name_under_that(
    world: World, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    """Also where no reader of the source has started since the upgrade."""
    settle(world, f"{ONE}a")
    spell_as_older_code_did(world, OLD[0])
    with monkeypatch.context() as older:
        older.setattr(uris, "azure_uri", lambda uri: None)
        world.publish(f"{OLD[0]}b")
        with world.loop(**{**OPTIONS, "allowedPrefixes": OLD[0]}) as loop:
            until(lambda: len(loop.coordinator.plan(0, loop.latest(0)).ranges) == 1, lambda: None)
            loop.die_without_leases()
    with world.store() as store, store.database.engine.begin() as connection:
        connection.execute(sa.update(sources).values(naming=None))
    if started:
        settle(world, f"{ONE}d")
    world.publish(*(f"{ONE}{name}" for name in "abc"))
    receive(world, {"files": ONE})
    given = {**OPTIONS, "queueUrl": "store", "pipeline": "another", "fullPathGlobFilter": f"{ONE}*"}
    with world.loop(checkpoint="another", **given) as loop:

        def is_read() -> bool:
            with world.store() as store:
                return states(store) == {"done": 3 + started}

        until(is_read, patiently(loop))
    with world.store() as store:
        assert states(store) == {"done": 3 + started}
        assert set(published(store).values()) == {1}


def test_an_event_of_a_container_outside_the_prefixes_is_as_any_foreign_message(world: World) -> None:
    body = json.loads(base64.b64decode(event("a")))
    body[0]["data"]["url"] = "https://lake.blob.core.windows.net/other/a"
    assert settle(world, json.dumps(body), onForeignObject="ignore")["foreign"] == 1
    settle(world, json.dumps(body))
    with world.store() as store:
        [error] = store.database.read(lambda t: t.execute(sa.text("SELECT cause, detail FROM cuesqueue_errors")).all())
    assert error.cause == "outside-prefixes"
    assert "abfss://other@lake" in error.detail
