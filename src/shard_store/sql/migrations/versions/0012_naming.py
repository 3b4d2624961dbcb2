"""Sources keep how their shards are named, and pipelines the options that their unfinished work depends on.

Only columns that older code leaves alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    for table, name in (("cuesqueue_sources", "naming"), ("cuesqueue_pipelines", "settings")):
        if name not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}:
            op.add_column(table, sa.Column(name, TEXT))
