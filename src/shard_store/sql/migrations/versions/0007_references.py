"""Shards keep what their announcement said beside their content, for rows of `content=reference`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    # also where it was done before: MySQL commits it by itself, and the process may die before the stamp
    if "reference" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("cuesqueue_shards")}:
        op.add_column("cuesqueue_shards", sa.Column("reference", TEXT))
