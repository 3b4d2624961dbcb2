"""A pipeline's target is kept: who takes its shards over looks there for its last batch.

Code before does not know the column, and needs nothing of it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

PIPELINES = "cuesqueue_pipelines"


def upgrade() -> None:
    # also where it was done before: MySQL commits each step, and the process may die behind it
    existing = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(PIPELINES)}
    if "target" not in existing:
        text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
        op.add_column(PIPELINES, sa.Column("target", text))
