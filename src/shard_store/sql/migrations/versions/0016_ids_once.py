"""On SQLite no id of a data file, a change or a certificate is given a second time, as on all other databases.

Nothing else differs, so code from 0015 on uses the tables as before.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

TABLES = ("cuesqueue_splits", "cuesqueue_shard_changes", "cuesqueue_certificates")


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    for table in TABLES:  # SQLite has no other way than a copy of the table
        with op.batch_alter_table(table, recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
