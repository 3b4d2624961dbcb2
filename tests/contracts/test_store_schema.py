"""Contract: the schema is made once, known by its revision, and the migrations end at the same tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from shard_store.completeness.comparing import ListedShard
from shard_store.errors import StoreConfigurationError
from shard_store.model import shard_key
from shard_store.sql import install as installing
from shard_store.sql.database import Database
from shard_store.sql.schema import (
    REVISION,
    applied,
    attempts,
    errors,
    identity,
    metadata,
    pipelines,
    shard_changes,
    shards,
    version,
)
from shard_store.sql.transaction import Transaction
from shard_store.store import open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support.servers.postgres import new_database
from support.store_backends import MYSQL_URL, PROCESS_BACKENDS, Pipeline
from support.store_processes import Workers

SOURCE = Path(installing.__file__).parents[2]


@pytest.fixture(params=PROCESS_BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return new_database(request.getfixturevalue("postgres_url") if request.param == "postgresql" else MYSQL_URL)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url, patience=5.0)
    yield opened
    opened.close()


def stamp(database: Database, revision: str, readers_from: str | None = None) -> None:
    def write(transaction: Transaction) -> None:
        if sa.inspect(transaction.connection).has_table(applied.name):  # not up to 0007
            transaction.execute(applied.update().values(version_num=revision))
        transaction.execute(version.update().values(version_num=readers_from or revision))

    database.write(write)


def tables(database: Database) -> set[str]:
    return set(database.read(lambda c: sa.inspect(c.connection).get_table_names()))


def test_an_empty_database_is_made_a_store_and_stamped(url: str, database: Database) -> None:
    assert installing.installed(database) is None
    open_store(url).close()
    assert installing.installed(database) == REVISION
    assert tables(database) == {*metadata.tables, version.name, applied.name}


def test_several_processes_may_open_an_empty_database_at_once(url: str) -> None:
    with Workers([["create", url]] * 6) as workers:
        assert workers.ask("go") == [1] * 6


def test_several_processes_that_make_a_store_at_once_agree_on_its_id(url: str) -> None:
    with Workers([["identify", url]] * 6) as workers:
        found = workers.ask("go")
    assert len(set(found)) == 1
    with open_store(url) as store:
        assert found[0] == store.store_id()


def test_each_store_has_an_id_of_its_own_that_stays(url: str, database: Database, tmp_path: Path) -> None:
    with open_store(url) as store:
        first = store.store_id()
    with open_store(url, create=False) as store:
        assert store.store_id() == first
    with open_store(f"sqlite:///{tmp_path / 'another.db'}") as another:
        assert another.store_id() != first
    assert len(first) == 32


def test_a_store_whose_id_was_deleted_says_so(url: str, database: Database) -> None:
    with open_store(url) as store:
        database.write(lambda t: t.execute(identity.delete()))
        with pytest.raises(StoreConfigurationError, match=r"its table cuesqueue_store is empty.*'storeUrl'"):
            store.store_id()


@pytest.mark.parametrize("made", ["the whole table", "a table without its row"])
def test_a_store_of_an_earlier_revision_gets_one_id_at_its_migration(url: str, database: Database, made: str) -> None:
    """Also where a process died in the middle of it, and the migration runs twice."""
    install(database, "0002" if made == "the whole table" else "0003")
    if made != "the whole table":
        database.write(lambda t: t.execute(identity.delete()))
        stamp(database, "0002")
    installing.migrate(database)
    with open_store(url) as store:
        first = store.store_id()
        stamp(database, "0002")
        installing.migrate(database)
        assert store.store_id() == first


def test_a_package_in_an_archive_migrates_a_store(url: str, database: Database, tmp_path: Path) -> None:
    """As executors and drivers get it with `--py-files`: Alembic reads files, of which an archive has none."""
    install(database, "0001")
    archive = Path(shutil.make_archive(str(tmp_path / "code"), "zip", SOURCE, "shard_store"))
    script = (
        "import sys, shard_store.sql.install as i; from shard_store.sql.database import Database;"
        "assert '.zip' in i.__file__; d = Database(sys.argv[1]); print(*i.migrate(d)); d.close()"
    )
    isolated = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {script}", url]
    done = subprocess.run(isolated, cwd=tmp_path, env=_without_us(), capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0001", REVISION], done.stderr
    with open_store(url) as store:
        assert store.store_id()


def _without_us() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_tables_of_the_code_are_those_of_the_migrations(database: Database) -> None:
    assert installing.migrate(database) == (None, REVISION)

    def differences(t: Transaction) -> list[object]:
        def is_ours(name: str | None, kind: str, _parents: object) -> bool:
            return kind != "table" or name != version.name

        options = {"version_table": applied.name, "compare_type": True, "include_name": is_ours}
        context = MigrationContext.configure(t.connection, opts=options)
        return list(compare_metadata(context, metadata))

    assert database.read(differences) == []


def test_a_store_that_the_code_made_and_one_that_was_migrated_are_the_same(url: str, database: Database) -> None:
    def reflected() -> dict[str, object]:
        inspector = sa.inspect(database.engine)
        return {
            name: (
                [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)],
                inspector.get_pk_constraint(name)["constrained_columns"],
                sorted((str(i["name"]), tuple(i["column_names"])) for i in inspector.get_indexes(name)),
            )
            for name in tables(database) - {version.name, applied.name}
        }

    installing.migrate(database)
    migrated = reflected()
    with database.engine.begin() as connection:
        metadata.drop_all(connection)
        version.drop(connection)
        applied.drop(connection)
    open_store(url).close()
    assert reflected() == migrated


def test_a_migrated_store_works_and_migrating_it_again_changes_nothing(url: str, database: Database) -> None:
    installing.migrate(database)
    with open_store(url) as store:
        Pipeline.start(store).deliver("a")
    assert installing.migrate(database) == (REVISION, REVISION)
    with open_store(url) as store:
        assert Pipeline.start(store).look("a")


def test_a_store_of_the_first_revision_keeps_its_times_and_loses_its_old_snapshots_to_pruning(
    url: str, database: Database
) -> None:
    install(database, "0001")

    def first_revision(transaction: Transaction) -> None:
        for statement in (
            "snapshots (pipeline, seq, chunk, incarnation, moves, contents, created_at) "
            "VALUES ('p', 1, 0, 1, '[]', '[]', 77)",
            "pipelines (pipeline, source, incarnation, driver, last_seq, confirmed_seq, semantics, begun_seq, "
            "heartbeat_at, stale_at, plan_after, created_at) "
            "VALUES ('p', 's', 1, '', 2, 2, 'exactly-once', 2, 1, 1, 1, 1)",
            "attempts (delivery_hash, lead_hash, source, pipeline, incarnation, start_seq, end_seq, kind, shards, "
            "lost, errors, splits, published_at) VALUES ('h', 'h', 's', 'p', 1, 0, 1, 'attempt-nil', 1, 0, 0, 0, 99)",
        ):
            transaction.connection.exec_driver_sql(f"INSERT INTO cuesqueue_{statement}")

    database.write(first_revision)
    assert installing.migrate(database) == ("0001", REVISION)
    with open_store(url) as store:
        assert database.read(lambda t: t.execute(sa.select(attempts.c.snapshot_at)).scalars().all()) == [77]
        assert store.prune(RetentionPolicy(timedelta(days=40_000))).snapshots == 1


def test_an_older_schema_is_refused_with_the_command_to_run(url: str, database: Database) -> None:
    open_store(url).close()
    stamp(database, "0001")
    with pytest.raises(StoreConfigurationError, match=rf"0001, older than .* {REVISION}; .*: cuesqueue migrate "):
        open_store(url)


def install(database: Database, revision: str) -> None:
    """As an earlier version has left its store."""
    settings = Config()
    settings.set_main_option("script_location", "shard_store.sql:migrations")

    def upgrade(transaction: Transaction) -> None:
        settings.attributes["connection"] = transaction.connection
        command.upgrade(settings, revision)
        installing._stamp(transaction, version, revision)
        if revision <= "0007":  # up to then Alembic knew of that table, and of no other
            applied.drop(transaction.connection)

    database.write(upgrade)


def test_a_store_of_the_first_schema_keeps_its_shards_and_loses_the_marks_of_reads(
    url: str, database: Database
) -> None:
    install(database, "0001")
    us = shard_key("s", "a")
    with database.engine.begin() as connection:
        texts = dict.fromkeys(("shard_id", "queue", "message_id"), "a")
        numbers = dict.fromkeys(("receive_count", "opened_at"), 1)
        row = {"shard_key": us, "source": "s", "position": "", "state": "open", **texts, **numbers}
        connection.execute(shards.insert().values(**row))
        connection.execute(sa.text("INSERT INTO cuesqueue_reads VALUES ('plan', :shard, '', 2, 1)"), {"shard": us})
    with pytest.raises(StoreConfigurationError, match="0001, older than"):
        open_store(url)
    assert installing.migrate(database) == ("0001", REVISION)
    assert tables(database) == {*metadata.tables, version.name, applied.name}
    with open_store(url) as store:
        assert set(store.look([us])) == {us}
        assert Pipeline.start(store).deliver("b")


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_migration_that_died_between_two_tables_goes_on(url: str, database: Database, done: int) -> None:
    """Where a database commits changes of tables one by one."""
    install(database, "0001")
    steps = (
        "ALTER TABLE cuesqueue_attempts ADD COLUMN snapshot_at BIGINT",
        "ALTER TABLE cuesqueue_pipelines ADD COLUMN remembered BIGINT",
        "DROP TABLE cuesqueue_reads",
    )
    with database.engine.begin() as connection:
        for step in steps[:done]:
            connection.exec_driver_sql(step)
    assert installing.migrate(database) == ("0001", REVISION)
    assert tables(database) == {*metadata.tables, version.name, applied.name}
    with open_store(url) as store:
        assert Pipeline.start(store).deliver("a")


@pytest.mark.parametrize("done", [1, 2, 3, 4, 5])
def test_a_migration_from_the_second_schema_that_died_on_its_way_goes_on(
    url: str, database: Database, done: int
) -> None:
    install(database, "0002")
    steps = (
        "ALTER TABLE cuesqueue_shards ADD COLUMN sequence VARCHAR(64)",
        "ALTER TABLE cuesqueue_shards ADD COLUMN pending VARCHAR(12)",
        "ALTER TABLE cuesqueue_errors ADD COLUMN reopened_at BIGINT",
        "CREATE INDEX cuesqueue_errors_shard ON cuesqueue_errors (shard_key)",
    )
    with database.engine.begin() as connection:
        for step in steps[:done]:
            connection.exec_driver_sql(step)
        if done > len(steps):
            shard_changes.create(connection)
    assert installing.migrate(database) == ("0002", REVISION)
    assert tables(database) == {*metadata.tables, version.name, applied.name}
    with open_store(url) as store:
        assert Pipeline.start(store).deliver("a")


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_store_of_the_second_schema_gets_its_indexes_and_knows_its_newest_attempts(
    url: str, database: Database, done: int
) -> None:
    """Also where the migration died between two of its steps."""
    install(database, "0002")
    steps = (
        "ALTER TABLE cuesqueue_pipelines ADD COLUMN published_at BIGINT",
        "CREATE INDEX cuesqueue_splits_pipeline ON cuesqueue_splits (pipeline)",
        "CREATE INDEX cuesqueue_read_marks_began ON cuesqueue_read_marks (began_at)",
    )
    row = "VALUES ('{0}', '{0}', 's', 'p', 1, 0, 1, 'attempt-nil', 1, 0, 0, 0, {1})"
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO cuesqueue_pipelines (pipeline, source, incarnation, driver, last_seq, confirmed_seq, "
            "semantics, begun_seq, heartbeat_at, stale_at, created_at) "
            "VALUES ('p', 's', 1, '', 2, 2, 'exactly-once', 2, 1, 1, 1)"
        )
        for digest, at in (("old", 7), ("new", 8)):
            connection.exec_driver_sql(
                "INSERT INTO cuesqueue_attempts (delivery_hash, lead_hash, source, pipeline, incarnation, start_seq, "
                f"end_seq, kind, shards, lost, errors, splits, published_at) {row.format(digest, at)}"
            )
        for step in steps[:done]:
            connection.exec_driver_sql(step)
    assert installing.migrate(database) == ("0002", REVISION)
    with open_store(url) as store:
        assert store.prune(RetentionPolicy(timedelta(days=30), pipelines=timedelta(days=40_000))).attempts == 1
        left = database.read(lambda t: t.execute(sa.select(attempts.c.delivery_hash)).scalars().all())
        assert left == ["new"]


@pytest.mark.parametrize("died", [False, True])
def test_a_store_of_the_sixth_schema_has_objects_of_which_nothing_more_is_known(
    url: str, database: Database, died: bool
) -> None:
    """Also where the migration died before it was stamped."""
    install(database, "0006")
    with database.engine.begin() as connection:
        texts = dict.fromkeys(("shard_id", "queue", "message_id"), "a")
        numbers = dict.fromkeys(("receive_count", "opened_at"), 1)
        row = {"shard_key": shard_key("s", "a"), "source": "s", "position": "", "state": "open", **texts, **numbers}
        connection.execute(shards.insert().values(**row))
        if died:
            connection.exec_driver_sql("ALTER TABLE cuesqueue_shards ADD COLUMN reference TEXT")
    assert installing.migrate(database) == ("0006", REVISION)
    with open_store(url) as store:
        (shard,) = store.look([shard_key("s", "a")]).values()
        assert shard.content.reference is None


@pytest.mark.parametrize("died", [False, True])
def test_a_store_of_the_ninth_schema_knows_again_what_was_skipped(url: str, database: Database, died: bool) -> None:
    """By the error of the plan that ended it; one that was forgotten and read again since is published."""
    install(database, "0009")
    attempt: dict[str, Any] = {"lead_hash": "h", "delivery_hash": "h", "source": "s", "pipeline": "p"}
    attempt["kind"] = "attempt-output"
    attempt |= dict.fromkeys(("incarnation", "start_seq", "shards", "lost", "errors", "splits", "published_at"), 1)
    with database.engine.begin() as connection:
        connection.execute(attempts.insert().values(**attempt, end_seq=7))
        for name, end_seq, scope in (("skipped", 7, "skipped"), ("again", 8, "skipped"), ("good", 7, "record")):
            texts = dict.fromkeys(("shard_id", "queue", "message_id"), name)
            row = {"shard_key": shard_key("s", name), "source": "s", "position": "~", "state": "done", "owner": "p"}
            numbers = dict.fromkeys(("receive_count", "opened_at", "finished_at"), 1)
            connection.execute(shards.insert().values(**row, **texts, **numbers, end_seq=end_seq))
            error = dict.fromkeys(("cause", "detail", "subject", "position", "queue", "message_id"), name)
            error |= {"source": "s", "pipeline": "p", "scope": scope, "delivery_hash": "h"}
            key = shard_key("s", name)
            connection.execute(errors.insert().values(error_key=key, shard_key=key, occurred_at=1, **error))
        if died:
            connection.exec_driver_sql("ALTER TABLE cuesqueue_certificates ADD COLUMN skipped BIGINT")
    assert installing.migrate(database) == ("0009", REVISION)
    with open_store(url) as store:
        listed = [ListedShard(name, None, None, 0) for name in ("skipped", "again", "good")]
        found = [finding.category.value for finding in store.compare("s", listed)]
        assert found == ["skipped", "published", "published"]


def test_a_migration_that_died_before_it_was_stamped_goes_on(url: str, database: Database) -> None:
    open_store(url).close()
    stamp(database, "0001")
    assert installing.migrate(database) == ("0001", REVISION)
    open_store(url).close()


def test_a_newer_schema_is_refused_by_opening_and_by_migrating(url: str, database: Database) -> None:
    open_store(url).close()
    stamp(database, "9999")
    for use in (lambda: open_store(url), lambda: installing.migrate(database)):
        with pytest.raises(StoreConfigurationError, match=r"9999, which this version .* does not know: a newer"):
            use()


def test_tables_without_a_revision_are_refused_where_none_can_be_half_made(url: str, database: Database) -> None:
    with database.engine.begin() as connection:
        pipelines.create(connection)
    if database.dialect.transactional_ddl:
        with pytest.raises(StoreConfigurationError, match="its cuesqueue tables have no revision"):
            open_store(url)
        assert tables(database) == {pipelines.name}
    else:  # a process may have died between two tables: the next one completes them
        open_store(url).close()
        assert installing.installed(database) == REVISION


def test_a_store_that_has_to_be_there_is_not_created(url: str, database: Database) -> None:
    with pytest.raises(StoreConfigurationError, match=r"there is no (such file|store in it)"):
        open_store(url, create=False)
    file = database.file()
    assert file is None or not file.exists()
    open_store(url).close()
    open_store(url, create=False).close()


def test_opening_a_store_that_is_there_takes_one_statement_of_ours(url: str) -> None:
    open_store(url).close()
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        open_store(url).close()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    ours = [statement for statement in seen if "cuesqueue" in statement]
    assert len(ours) == 1
    assert ours[0].startswith(f"SELECT {applied.name}.version_num")


def test_the_code_is_at_the_newest_revision_and_each_has_one_before_it() -> None:
    settings = Config()
    settings.set_main_option("script_location", "shard_store.sql:migrations")
    scripts = ScriptDirectory.from_config(settings)
    assert scripts.get_heads() == [REVISION]
    assert {script.revision for script in scripts.walk_revisions()} == installing._revisions()


def test_the_wheel_holds_the_migrations() -> None:
    folder = Path(installing.__file__).parent / "migrations"
    revisions = {
        "0001_initial.py",
        "0002_snapshots_and_marks.py",
        "0003_store_id.py",
        "0004_announced_again.py",
        "0005_indexes_of_a_year.py",
        "0006_listings.py",
        "0007_references.py",
        "0008_operations.py",
        "0009_moves.py",
        "0010_what_went_back.py",
        "0011_unpublished.py",
        "0012_naming.py",
        "0013_receivers.py",
        "0014_versions.py",
    }
    assert {path.name for path in (folder / "versions").glob("[0-9]*.py")} == revisions
    settings = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"src/shard_store"' in settings  # the wheel takes the whole folder, migrations included
