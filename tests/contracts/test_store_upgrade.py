"""Contract: a store of the version before is migrated when its queries have ended, and else nothing is changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from queue_source.commands.main import app
from shard_store.errors import StoreConfigurationError
from shard_store.sql import install as installing
from shard_store.sql.database import Database
from shard_store.sql.schema import READERS_FROM, REVISION, applied, of_pipeline, registered, version
from shard_store.store import open_store
from support.servers.postgres import new_database
from support.store_backends import BACKENDS, MYSQL_URL, Pipeline
from support.store_of_before import BEFORE, take_back


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return new_database(request.getfixturevalue("postgres_url") if request.param == "postgresql" else MYSQL_URL)


def made_before(url: str) -> None:
    """Of a store of this version."""
    open_store(url).close()
    database = Database(url)
    try:
        take_back(database)
    finally:
        database.close()


def stamps(url: str) -> tuple[str, ...]:
    database = Database(url)
    try:
        return tuple(database.read(lambda t: [t.execute(s.select()).scalar_one() for s in (applied, version)]))
    finally:
        database.close()


def migrate(url: str) -> Any:
    return CliRunner().invoke(app, ["migrate", "--store", url])


@pytest.mark.parametrize("left", ["snapshot", "plan", "delivered", "confirmed"])
def test_a_store_is_migrated_when_no_batch_is_unfinished(url: str, left: str) -> None:
    with open_store(url) as store:
        us = Pipeline.start(store, "orders")
        us.deliver("a")
        us.snapshot(*us.open("b").values())
        if left != "snapshot":
            plan = us.plan()
        if left in ("delivered", "confirmed"):
            us.publish(plan)
        if left == "confirmed":
            us.confirm()
    made_before(url)
    result = migrate(url)
    if left in ("snapshot", "plan"):
        assert result.exit_code == 2
        assert "a batch of pipeline 'orders' is not finished; start its query once more" in result.stderr
        assert stamps(url) == (BEFORE, "0007")
        with pytest.raises(StoreConfigurationError, match="cuesqueue migrate"):
            open_store(url)
        return
    assert (result.exit_code, stamps(url)) == (0, (REVISION, READERS_FROM))
    with open_store(url) as store:
        again = Pipeline.start(store, "orders")
        assert again.plan().ranges == ()
        again.deliver("c")


def test_a_store_is_not_migrated_under_a_query_that_runs(url: str) -> None:
    with open_store(url) as store:
        Pipeline.start(store, "orders", driver="process 1")
        Pipeline.start(store, "other", driver="process 2")
        made_before(url)
        result = migrate(url)
        assert (result.exit_code, stamps(url)) == (2, (BEFORE, "0007"))
        assert "'orders', 'other' runs, or was killed a moment ago" in result.stderr
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "orders", "driver": ""}]))  # stopped
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "other", "stale_at": 0}]))  # killed
    assert (migrate(url).exit_code, stamps(url)) == (0, (REVISION, READERS_FROM))


def test_a_store_is_not_migrated_with_a_pipeline_of_a_version_before_0_3(url: str) -> None:
    """That has recorded no options, nor names."""
    with open_store(url) as store:
        Pipeline.start(store, "orders").deliver("a")
        store.database.write(lambda t: t.execute(of_pipeline, [{"of": "orders", "settings": None}]))
    made_before(url)
    result = migrate(url)
    assert (result.exit_code, stamps(url)) == (2, (BEFORE, "0007"))
    assert "pipeline 'orders' was last started by a version before 0.3; start its query once with 0.3" in result.stderr


@pytest.mark.parametrize("revision", ["0012", None], ids=["two stamps", "one stamp"])
def test_the_store_of_a_version_before_0_3_is_refused_and_stays_as_it_is(url: str, revision: str | None) -> None:
    made_before(url)
    database = Database(url)
    try:
        with database.engine.begin() as connection:
            connection.execute(version.update().values(version_num="0007"))
            if revision is None:  # as up to 0007
                applied.drop(connection)
            else:
                connection.execute(applied.update().values(version_num=revision))
        refusal = "a version before 0.3 made the store .*; migrate it with cuesqueue 0.3 first, or name another"
        result = migrate(url)
        assert result.exit_code == 2
        assert re.search(refusal, result.stderr.replace("\n", " "))
        with pytest.raises(StoreConfigurationError, match=refusal):
            open_store(url)
        assert not sa.inspect(database.engine).has_table(registered.name)
        assert sa.inspect(database.engine).has_table(applied.name) is (revision is not None)
    finally:
        database.close()


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
