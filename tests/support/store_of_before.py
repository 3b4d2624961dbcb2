"""A store as version 0.3 has left it, of one that this version has made: without what migration 0014 brings."""

from __future__ import annotations

from shard_store.sql.database import Database
from shard_store.sql.schema import applied, registered, version

BEFORE = "0013"
COLUMNS = {"cuesqueue_shards": "later", "cuesqueue_attempts": "changed", "cuesqueue_receivers": "changed"}


def take_back(database: Database) -> None:
    with database.engine.begin() as connection:
        registered.drop(connection)
        for table, column in COLUMNS.items():
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute(applied.update().values(version_num=BEFORE))
        connection.execute(version.update().values(version_num="0007"))
