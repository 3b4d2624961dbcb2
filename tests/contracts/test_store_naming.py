"""Contract: a source keeps how its queues are called in ids, and a pipeline the options of its last start."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from shard_store.batches.starting import Naming, Started
from shard_store.errors import StoreConfigurationError
from shard_store.sql.schema import sources
from shard_store.store import ShardStore


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


def test_a_source_with_names_of_azure_of_before_0_3_is_refused(store: ShardStore) -> None:
    store.start("s", "p")
    kept = {"queues": {}, "versions": False, "spellings": {"abfss://c@a.dfs.core.windows.net/": ["abfs://c@a/"]}}
    store.database.write(lambda t: t.execute(sources.update().values(naming=json.dumps(kept))))
    with pytest.raises(
        StoreConfigurationError, match=r"source 's' has read objects of Azure by names that a version bef"
    ):
        store.start("s", "p", naming=Naming({"a": "1"}))
    kept["spellings"] = {}
    store.database.write(lambda t: t.execute(sources.update().values(naming=json.dumps(kept))))
    assert store.start("s", "p", naming=Naming({"a": "1"})).token.incarnation == 2


def test_objects_that_are_adopted_into_a_source_with_versions_are_known_by_their_uris(store: ShardStore) -> None:
    """They have no version in their ids, and would be read once more."""
    assert not store.start("s", "p", naming=Naming(versions=True)).names.versionless
    store.adopt("s", ["s3://b/a"], "another reader")
    assert store.start("s", "p", naming=Naming(versions=True)).names.versionless
    store.adopt("s", ["s3://b/b"], "another reader")
    assert store.start("s", "p", naming=Naming(versions=True)).names.versionless
