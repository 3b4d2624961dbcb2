"""The columns of a pipeline's row, so that a store that went back in time, or is another one, is noticed.

Only additions that older code does not need.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("cuesqueue_pipelines")}
    for column in (
        sa.Column("sink", sa.String(12)),
        sa.Column("sink_incarnation", sa.BigInteger),
        sa.Column("changes", sa.BigInteger),
        sa.Column("stores", TEXT),
    ):
        if column.name not in present:
            op.add_column("cuesqueue_pipelines", column)
