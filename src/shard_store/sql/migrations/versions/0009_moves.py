"""Sources that were moved to another store, or came from one: see `moving.py`.

Only additions that older code does not need, as long as no source is moved out of the store.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("cuesqueue_sources")}
    for column in (
        sa.Column("moves", sa.BigInteger),
        sa.Column("moved_to", TEXT),
        sa.Column("moved_to_id", sa.String(32)),
        sa.Column("import_id", sa.String(100)),
    ):
        if column.name not in present:
            op.add_column("cuesqueue_sources", column)
