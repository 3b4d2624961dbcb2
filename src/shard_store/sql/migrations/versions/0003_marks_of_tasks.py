"""Reads are marked by task and place in the plan, no longer by object. The marks of running plans are dropped."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    op.execute("DROP TABLE IF EXISTS cuesqueue_reads")
    if sa.inspect(op.get_bind()).has_table("cuesqueue_read_marks"):
        return
    op.create_table(
        "cuesqueue_read_marks",
        sa.Column("delivery_hash", sa.String(64), nullable=False),
        sa.Column("task", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("first_place", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("end_place", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("unended", sa.Integer, nullable=False),
        sa.Column("began_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("delivery_hash", "task", "first_place", "end_place"),
        **TABLE,
    )
