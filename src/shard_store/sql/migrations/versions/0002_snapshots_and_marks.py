"""Snapshots go once their plan is confirmed; reads are marked by task and place in the plan, no longer by object.

An attempt keeps when its last snapshot was written (`processed_time` of the view `files_state`), a pipeline for how
long a start asks for what was delivered. Old snapshots are removed by the next pruning, marks of running plans now.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    _add_time("cuesqueue_attempts", "snapshot_at")
    _add_time("cuesqueue_pipelines", "remembered")
    op.execute(
        "UPDATE cuesqueue_attempts SET snapshot_at = (SELECT s.created_at FROM cuesqueue_snapshots s WHERE "
        "s.pipeline = cuesqueue_attempts.pipeline AND s.seq = cuesqueue_attempts.end_seq AND s.chunk = 0) "
        "WHERE snapshot_at IS NULL"
    )
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


def _add_time(table: str, column: str) -> None:
    if column not in {present["name"] for present in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, sa.Column(column, sa.BigInteger))
