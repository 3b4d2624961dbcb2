"""An object of Azure is one object however its URI is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from support.coordinator_world import EMPTY, World, assert_published_once, patiently
from support.driver_loop import until

ONE = "abfss://landing@lake.dfs.core.windows.net/"
NAME = "in/100%+of a%20b \u4f60.json"
OLD = (
    "abfs://landing@lake.dfs.core.windows.net/",
    "abfss://landing@lake.blob.core.windows.net/",
    "abfs://landing@lake/",
)
OPTIONS: dict[str, Any] = {"allowedPrefixes": ONE, "source": "files"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def spellings(name: str) -> list[str]:
    """All that a sender may write for one object."""
    web = [f"https://lake.{service}.core.windows.net/landing/{quote(name)}" for service in ("blob", "dfs")]
    return [f"{ONE}{name}", f"wasbs://landing@lake.blob.core.windows.net/{name}", *(old + name for old in OLD), *web]


def settle(world: World, *bodies: str, **options: Any) -> dict[str, Any]:
    if bodies:
        world.publish(*bodies)
    with world.loop(**{**OPTIONS, **options}) as loop:
        until(lambda: world.depth() == EMPTY, patiently(loop))
        return dict(loop.metrics)


def test_one_object_is_published_once_however_its_uri_is_written(world: World) -> None:
    settle(world, *spellings(NAME))
    assert_published_once(world, [f"{ONE}{NAME}"])


@pytest.mark.parametrize(
    "prefix", [*OLD, "https://lake.blob.core.windows.net/landing/", "wasbs://landing@lake/", "abfs://"]
)
def test_a_prefix_may_be_written_in_each_way_too(world: World, prefix: str) -> None:
    settle(world, f"{ONE}{NAME}", allowedPrefixes=prefix)
    assert_published_once(world, [f"{ONE}{NAME}"])


def test_an_event_of_a_container_outside_the_prefixes_is_as_any_foreign_message(world: World) -> None:
    url = "https://lake.blob.core.windows.net/other/a"
    body = [
        {
            "subject": "/blobServices/default/containers/other/blobs/a",
            "eventType": "Microsoft.Storage.BlobCreated",
            "data": {"api": "PutBlob", "url": url, "contentLength": 10, "eTag": "etag-10"},
        }
    ]
    assert settle(world, json.dumps(body), onForeignObject="ignore")["foreign"] == 1
    settle(world, json.dumps(body))
    with world.store() as store:
        [error] = store.database.read(lambda t: t.execute(sa.text("SELECT cause, detail FROM cuesqueue_errors")).all())
    assert error.cause == "outside-prefixes"
    assert "abfss://other@lake" in error.detail
