"""Objects that are data files of tables where they are: a table of their own, which cleaning asks.

Only an addition: older code goes on without it, and cleans what it cleaned before.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}
HASH = sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")


def upgrade() -> None:
    # also where it was done before: MySQL commits each step, and the process may die after it
    if not sa.inspect(op.get_bind()).has_table("cuesqueue_registered"):
        op.create_table(
            "cuesqueue_registered",
            sa.Column("uri_key", HASH, primary_key=True),
            sa.Column("registered_at", sa.BigInteger, nullable=False),
            **TABLE,
        )
