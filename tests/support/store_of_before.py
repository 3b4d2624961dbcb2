"""A store as version 0.3 has left it, of one that this version has made: without what its migrations bring."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from shard_store.sql.database import Database
from shard_store.sql.schema import applied, registered, splits, version

BEFORE = "0013"
COLUMNS = {"cuesqueue_shards": "later", "cuesqueue_attempts": "changed", "cuesqueue_receivers": "changed"}
"""Of migration 0014."""
OF_FILES = {
    "cuesqueue_splits": ("compacted_at", "joined", "first_id", "first_at", "replaced_by", "replaced_at"),
    "cuesqueue_pipelines": ("data_files", "data_bytes"),
}
"""Of migration 0015."""
OF_TARGETS = {"cuesqueue_pipelines": ("target",)}
"""Of migration 0017."""
_OF_FILES = ("cuesqueue_splits_compacted", "cuesqueue_splits_replaced")


def _without_autoincrement(connection: Connection, table: str) -> None:
    """Make the table of SQLite anew, as it was before."""
    named = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type = 'index'"
    made, *indexes = connection.exec_driver_sql(named, (table,)).scalars()
    connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO before")
    for index in indexes:
        connection.exec_driver_sql(f"DROP INDEX {index.split()[2]}")
    for statement in (made.replace(" AUTOINCREMENT", ""), f"INSERT INTO {table} SELECT * FROM before", *indexes):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("DROP TABLE before")


def take_back(database: Database) -> None:
    with database.engine.begin() as connection:
        registered.drop(connection)
        for index in splits.indexes:
            if index.name in _OF_FILES:
                index.drop(connection)
        later = (*OF_FILES.items(), *OF_TARGETS.items())
        every = [*COLUMNS.items(), *((table, column) for table, names in later for column in names)]
        if database.dialect.one_writer:  # migration 0016
            for serial in ("cuesqueue_splits", "cuesqueue_shard_changes", "cuesqueue_certificates"):
                _without_autoincrement(connection, serial)
        for table, column in every:
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute(applied.update().values(version_num=BEFORE))
        connection.execute(version.update().values(version_num="0007"))
