"""Run by Alembic, inside the connection and transaction that `install.migrate` made.

`versions/` has a file for each revision of the schema, `NNNN_what_it_does.py`. A released one is never changed.
"""

from __future__ import annotations

from alembic import context

from shard_store.sql.schema import applied, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=applied.name,
    transactional_ddl=False,  # the caller's transaction is around everything, where the database has that
)
context.run_migrations()
