"""Contract: the schema is made once, known by its revision, and the migrations end at the same tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from shard_store.errors import StoreConfigurationError
from shard_store.sql import install as installing
from shard_store.sql.database import Database, Transaction
from shard_store.sql.schema import (
    REVISION,
    applied,
    identity,
    metadata,
    pipelines,
    registered,
    splits,
    version,
)
from shard_store.store import open_store
from support.kept_checkpoints import ARCHIVES, unpack
from support.servers.postgres import new_database
from support.store_backends import BACKENDS, MYSQL_URL, Pipeline
from support.store_of_before import BEFORE, COLUMNS, take_back
from support.store_processes import Workers

SOURCE = Path(installing.__file__).parents[2]


@pytest.fixture(params=BACKENDS)
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


def test_a_package_in_an_archive_migrates_a_store(url: str, database: Database, tmp_path: Path) -> None:
    """As executors and drivers get it with `--py-files`: Alembic reads files, of which an archive has none."""
    made_before(url, database)
    archive = Path(shutil.make_archive(str(tmp_path / "code"), "zip", SOURCE, "shard_store"))
    script = (
        "import sys, shard_store.sql.install as i; from shard_store.sql.database import Database;"
        "assert '.zip' in i.__file__; d = Database(sys.argv[1]); print(*i.migrate(d)); d.close()"
    )
    isolated = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {script}", url]
    done = subprocess.run(isolated, cwd=tmp_path, env=_without_us(), capture_output=True, text=True, check=False)
    assert done.stdout.split() == [BEFORE, REVISION], done.stderr
    with open_store(url) as store:
        assert store.store_id()


def _without_us() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def made_before(url: str, database: Database) -> None:
    open_store(url).close()
    take_back(database)


def test_the_tables_of_the_code_are_those_of_the_migrations(url: str, database: Database) -> None:
    made_before(url, database)
    assert installing.migrate(database) == (BEFORE, REVISION)

    def differences(t: Transaction) -> list[object]:
        def is_ours(name: str | None, kind: str, _parents: object) -> bool:
            return kind != "table" or name != version.name

        options = {"version_table": applied.name, "compare_type": True, "include_name": is_ours}
        context = MigrationContext.configure(t.connection, opts=options)
        return list(compare_metadata(context, metadata))

    assert database.read(differences) == []


def reflected(database: Database) -> dict[str, object]:
    inspector = sa.inspect(database.engine)
    ids_once = set[str]()
    if database.dialect.one_writer:
        made = "SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%'"
        ids_once = set(database.read(lambda t: t.connection.exec_driver_sql(made).scalars().all()))

    def parts_of_table(index: Any) -> list[str]:
        return [str(where) for name, where in index.get("dialect_options", {}).items() if name.endswith("_where")]

    return {
        name: (
            sorted((c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)),
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted((str(i["name"]), tuple(i["column_names"])) for i in inspector.get_indexes(name)),
            sorted((str(i["name"]), parts_of_table(i)) for i in inspector.get_indexes(name)),
            name in ids_once,
        )
        for name in tables(database) - {version.name, applied.name}
    }


def test_a_store_that_the_code_made_and_one_that_was_migrated_are_the_same(url: str, database: Database) -> None:
    made_before(url, database)
    installing.migrate(database)
    migrated = reflected(database)
    with database.engine.begin() as connection:
        metadata.drop_all(connection)
        version.drop(connection)
        applied.drop(connection)
    assert installing.migrate(database) == (None, REVISION)
    assert reflected(database) == migrated


def test_the_store_of_before_is_made_here_as_0_3_has_made_it(tmp_path: Path) -> None:
    kept = unpack(ARCHIVES[0], tmp_path / "kept").folder / "store.db"
    made = tmp_path / "made.db"
    databases = [Database(f"sqlite:///{file}") for file in (kept, made)]
    try:
        made_before(f"sqlite:///{made}", databases[1])
        assert reflected(databases[0]) == reflected(databases[1])
        assert [installing.installed(database) for database in databases] == [BEFORE, BEFORE]
    finally:
        for database in databases:
            database.close()


def test_a_migrated_store_works_and_migrating_it_again_changes_nothing(url: str, database: Database) -> None:
    made_before(url, database)
    installing.migrate(database)
    with open_store(url) as store:
        Pipeline.start(store).deliver("a")
    assert installing.migrate(database) == (REVISION, REVISION)
    with open_store(url) as store:
        assert Pipeline.start(store).look("a")


def test_an_older_schema_is_refused_with_the_command_to_run(url: str, database: Database) -> None:
    made_before(url, database)
    with pytest.raises(StoreConfigurationError, match=rf"{BEFORE}, older than .* {REVISION}; .*: cuesqueue migrate "):
        open_store(url)


@pytest.mark.parametrize("done", [1, 2, 3, 4, 5])
def test_a_migration_that_died_between_two_steps_goes_on(url: str, database: Database, done: int) -> None:
    """Where a database commits changes of tables one by one; after the last one it was not stamped."""
    made_before(url, database)
    with database.engine.begin() as connection:
        for table, column in list(COLUMNS.items())[:done]:
            kind = "TEXT" if column == "later" else "BIGINT"
            rest = " NOT NULL DEFAULT 0" if table == "cuesqueue_receivers" else ""
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column} {kind}{rest}")
        if done > len(COLUMNS):
            registered.create(connection)
        if done > len(COLUMNS) + 1:
            connection.exec_driver_sql("ALTER TABLE cuesqueue_splits ADD COLUMN replaced_by BIGINT")
            (index,) = [index for index in splits.indexes if index.name == "cuesqueue_splits_replaced"]
            index.create(connection)
    assert installing.migrate(database) == (BEFORE, REVISION)
    with open_store(url) as store:
        assert Pipeline.start(store).deliver("a")


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
        "0013_version_0_3.py", "0014_versions.py", "0015_joined_files.py", "0016_ids_once.py", "0017_targets.py",
    }  # fmt: skip
    assert {path.name for path in (folder / "versions").glob("[0-9]*.py")} == revisions
    settings = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"src/shard_store"' in settings  # the wheel takes the whole folder, migrations included
