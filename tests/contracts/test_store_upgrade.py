"""Contract: a store grows under running queries: readers of the schema before go on, and start again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shard_store.errors import StoreConfigurationError
from shard_store.model import ErrorRecord, PublishToken, shard_key
from shard_store.shards.recording import Receipts
from shard_store.sql import install as installing
from shard_store.sql.database import Database
from shard_store.sql.schema import READERS_FROM, REVISION, applied, of_pipeline, version
from shard_store.store import open_store
from support import old_reader
from support.servers.postgres import new_database
from support.store_backends import MYSQL_URL, PROCESS_BACKENDS, Pipeline, content, rows

ARCHIVES = Path(__file__).resolve().parents[1] / "data" / "readers"


class OldReader:
    """A process with the code of an earlier schema."""

    def __init__(self, archive: Path, url: str) -> None:
        command = [sys.executable, "-P", old_reader.__file__, str(archive), url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ""}
        )
        self.revision = self._answer()[1]

    def ask(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise AssertionError("the reader of the earlier schema has died")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(params=PROCESS_BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return new_database(request.getfixturevalue("postgres_url") if request.param == "postgresql" else MYSQL_URL)


@pytest.fixture(params=sorted(ARCHIVES.glob("*.zip")), ids=lambda archive: archive.stem)
def old(request: pytest.FixtureRequest, url: str) -> Iterator[OldReader]:
    """It has made the store."""
    reader = OldReader(request.param, url)
    yield reader
    reader.close()


def migrate(url: str) -> tuple[str | None, str]:
    database = Database(url)
    try:
        return installing.migrate(database)
    finally:
        database.close()


def test_a_reader_of_the_schema_before_goes_on_and_starts_again_while_the_store_grows(url: str, old: OldReader) -> None:
    assert old.ask("a") == ["attempt-output", "done"]
    with pytest.raises(
        StoreConfigurationError, match=rf"{old.revision}, older than this version's {REVISION}; run: cuesqueue"
    ):
        open_store(url)  # the store first, then the readers, one after the other
    assert migrate(url) == (old.revision, REVISION)
    assert old.ask("b") == ["attempt-output", "done"]
    assert old.ask("start") == [2, 2]
    assert old.ask("c") == ["attempt-output", "done"]
    assert old.ask("bad") == "recorded"
    with open_store(url) as store:
        us = Pipeline.start(store, "new")
        us.deliver("d")
        assert {row["shard_id"]: row["state"] for row in rows(store, "shards")} == dict.fromkeys("abcd", "done")
        found = {one.pipeline: one for one in store.status()}
        assert found["old"].total.batches == (0 if old.revision < "0008" else 3)  # code before 0008 counts nothing
        assert found["new"].total.batches == 1
    assert old.ask("e") == ["attempt-output", "done"]


def test_a_pipeline_goes_from_the_old_code_to_the_new_and_back_with_nothing_twice(url: str, old: OldReader) -> None:
    assert old.ask("a") == ["attempt-output", "done"]
    migrate(url)
    with open_store(url) as store:
        us = Pipeline.start(store, "old")
        us.deliver("b")
        us.planned("c")  # the old code has to plan what the new one has written
    assert old.ask("start")[1] == 3
    with open_store(url) as store:
        again = Pipeline.start(store, "old")
        assert [r.content.shard_id for r in again.plan().ranges] == ["c"]


def test_an_unfinished_batch_keeps_the_hash_that_the_old_code_gave_it_when_a_shard_was_lost(
    url: str, old: OldReader
) -> None:
    """The old code hashed what was left of the batch: outputs and errors are recorded under that."""
    whole = old.ask("plan a b")
    migrate(url)
    with open_store(url) as store:
        other = Pipeline.start(store, "other")
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "old", "stale_at": 0}]))
        assert store.acquire(other.token, {shard_key("s", "b"): PublishToken("old", 1)})
        less = old.ask("start again")
        assert less != whole
        store.record_errors("s", "old", [ErrorRecord("object", "missing-object", "", "a", less)])
        us = Pipeline.start(store, "old")
        plan = us.plan()
        assert (plan.identity.delivery_hash, plan.attempt, plan.ranges) == (less, 3, ())
        assert us.publish(plan).quarantined == 1


@pytest.mark.parametrize("archive", sorted(ARCHIVES.glob("*.zip")), ids=lambda archive: archive.stem)
def test_a_new_store_serves_readers_of_the_schema_before(url: str, archive: Path) -> None:
    open_store(url).close()
    reader = OldReader(archive, url)
    try:
        assert reader.ask("a") == ["attempt-output", "done"]
    finally:
        reader.close()


def test_this_code_uses_a_newer_store_that_says_it_can(url: str) -> None:
    open_store(url).close()
    database = Database(url)
    try:
        database.write(lambda t: t.execute(applied.update().values(version_num="9999")))
        with open_store(url, create=False) as store:
            assert Pipeline.start(store).deliver("a")
        database.write(lambda t: t.execute(version.update().values(version_num="9998")))
        with pytest.raises(StoreConfigurationError, match="9999, which this version"):
            open_store(url)
    finally:
        database.close()


def test_a_migration_leaves_readers_from_where_the_code_says(url: str, old: OldReader) -> None:
    migrate(url)
    database = Database(url)
    try:
        assert database.read(lambda t: t.execute(version.select()).scalar_one()) == READERS_FROM
        assert database.read(lambda t: t.execute(applied.select()).scalar_one()) == REVISION
    finally:
        database.close()


def test_a_receiver_does_not_begin_beside_a_reader_that_would_prune_what_it_records(url: str, old: OldReader) -> None:
    assert old.ask("a") == ["attempt-output", "done"]
    migrate(url)
    with open_store(url) as store:
        with pytest.raises(
            StoreConfigurationError, match=r"pipeline 'old' runs on .* older cuesqueue.*start it with this"
        ):
            store.start_receiver("r", "queue", "host", ["t"])
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "old", "stale_at": 0}]))  # it has ended
        store.start_receiver("r", "queue", "host", ["t"])
        assert old.ask("start") == [2, 1]  # nothing is recorded: it may begin again
        with pytest.raises(StoreConfigurationError, match="'old' runs"):
            store.record("r", {"t": [content("x")]}, Receipts(1))
        assert [row["shard_id"] for row in rows(store, "shards")] == ["a"]
        Pipeline.start(store, "old")
        store.record("r", {"t": [content("x")]}, Receipts(1))


@pytest.mark.parametrize("archive", sorted(ARCHIVES.glob("*.zip")), ids=lambda archive: archive.stem)
def test_code_from_before_receivers_does_not_open_a_store_in_which_one_has_recorded(url: str, archive: Path) -> None:
    with open_store(url) as store:
        store.start_receiver("r", "queue", "host", ["t"])
        store.record("r", {}, Receipts(1))
        OldReader(archive, url).close()
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "old", "stale_at": 0}]))
        store.record("r", {"t": [content("x")]}, Receipts(1), seen=1)
    with pytest.raises(AssertionError, match="has died"):
        OldReader(archive, url)
    migrate(url)
    with pytest.raises(AssertionError, match="has died"):
        OldReader(archive, url)


def test_a_store_that_is_made_while_it_is_looked_at_is_not_taken_for_an_old_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two looks of a process that opens it another one has made it."""
    database = Database(url)
    read = installing._read_stamp
    looked: list[str] = []

    def look(transaction: Any, table: Any) -> str | None:
        found = read(transaction, table)
        if not looked:
            looked.append(table.name)
            open_store(url).close()
        return found

    try:
        monkeypatch.setattr(installing, "_read_stamp", look)
        found = installing.installed(database)
        assert looked
        assert found in (None, REVISION)
    finally:
        database.close()


def test_each_revision_is_a_transaction_of_its_own_so_that_readers_wait_for_none_that_reads_many_rows(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OldReader(ARCHIVES / "schema-0009.zip", url).close()
    write, seen = Database.write, list[str | None]()

    def watched(database: Database, work: Any) -> Any:
        result = write(database, work)
        seen.append(installing.installed(database))
        return result

    monkeypatch.setattr(Database, "write", watched)
    assert migrate(url) == ("0009", REVISION)
    assert seen == sorted(revision for revision in installing._revisions() if revision > "0009")
    assert migrate(url) == (REVISION, REVISION)
