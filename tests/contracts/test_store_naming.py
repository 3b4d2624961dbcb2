"""Contract: a source keeps how its queues are called in ids, and a pipeline the options of its last start."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shard_store.batches.starting import Started
from shard_store.errors import StoreConfigurationError
from shard_store.model import Content
from shard_store.shards.sources import Naming
from shard_store.sql.schema import pipelines
from shard_store.store import ShardStore
from support.store_backends import Pipeline


def letters(name: str) -> str:
    """Names that differ in their size of letters look like one queue's."""
    return name.lower()


def names(store: ShardStore, queues: Mapping[str, str], source: str = "s", pipeline: str = "p") -> Mapping[str, str]:
    return store.start(source, pipeline, naming=Naming(queues, letters)).names.queues


def test_a_queue_keeps_the_name_by_which_its_source_met_it(store: ShardStore) -> None:
    assert names(store, {"a": "1", "b": "2"}) == {"a": "a", "b": "b"}
    assert names(store, {"other": "1", "b": "2"}, pipeline="q") == {"other": "a", "b": "b"}
    assert names(store, {"other": "1"}, source="another", pipeline="r") == {"other": "other"}


def test_two_queues_never_share_a_name(store: ShardStore) -> None:
    assert names(store, {"a": "1"}) == {"a": "a"}
    assert names(store, {"a": "2"}) == {"a": "2"}
    assert names(store, {"a": "1"}) == {"a": "a"}


def test_a_queue_that_was_known_by_its_text_keeps_its_name_when_it_gets_an_identity(store: ShardStore) -> None:
    assert names(store, {"Jobs": "jobs"}) == {"Jobs": "Jobs"}
    assert names(store, {"Jobs": "1"}) == {"Jobs": "Jobs"}
    assert names(store, {"Jobs": "2"}) == {"Jobs": "2"}  # another one in its place


@pytest.mark.parametrize("finished", [False, True])
def test_a_queue_that_was_read_before_names_were_kept_has_the_name_of_its_shards(
    store: ShardStore, finished: bool
) -> None:
    us = Pipeline.start(store)
    [shard] = us.store.open_shards(us.token, "s", [Content("Jobs#1", "message:", 5, queue="Jobs")]).values()
    if finished:
        us.snapshot(shard)
        us.publish(us.plan())
    assert names(store, {"jobs": "1", "others": "2"}) == {"jobs": "Jobs", "others": "others"}


def test_a_source_whose_ids_have_versions_goes_on_so_and_knows_of_those_without(store: ShardStore) -> None:
    store.start("s", "p", naming=Naming(versions=True))
    store.start("s", "q", naming=Naming({"a": "1"}))
    with pytest.raises(StoreConfigurationError, match=r"'allowOverwrites': source 's' was read with true"):
        store.start("s", "q", naming=Naming(versions=False))
    assert not store.start("another", "r", naming=Naming(versions=False)).names.versionless
    for _ in range(2):
        assert store.start("another", "r", naming=Naming(versions=True)).names.versionless


def test_a_start_that_is_refused_has_changed_nothing(store: ShardStore) -> None:
    first = store.start("s", "p", settings={"content": "object"})

    def refuse(started: Started) -> None:
        assert started.settings == {"content": "object"}
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        store.start("s", "p", naming=Naming({"a": "1"}), settings={"content": "message"}, check=refuse)
    store.heartbeat(first.token, 60.0)
    again = store.start("s", "p", settings={"content": "object"})
    assert (again.token.incarnation, again.settings) == (2, {"content": "object"})


def test_options_of_a_start_by_older_code_are_unknown(store: ShardStore) -> None:
    """It leaves those of the start before it where they are."""
    store.start("s", "p", settings={"content": "object"})
    with store.database.engine.begin() as connection:
        connection.execute(pipelines.update().values(incarnation=pipelines.c.incarnation + 1))
    assert store.start("s", "p", settings={"content": "object"}).settings is None
    assert store.start("s", "p").settings == {"content": "object"}
