"""`cuesqueue migrate`: bring the store's tables to this version's schema, or make them."""

from __future__ import annotations

from queue_source.commands.output import Json, Store, print_result


def migrate(store: Store, as_json: Json = False) -> None:
    """Bring the store's tables to this version's schema; in an empty database, create them.

    Stop the queries that use the store first. Running it again changes nothing.
    """
    from shard_store.sql.database import Database
    from shard_store.sql.install import migrate as migrate_tables

    database = Database(store)
    try:
        before, after = migrate_tables(database)
    finally:
        database.close()
    print_result({"from": before, "to": after, "changed": before != after}, as_json, title="schema of the store")
