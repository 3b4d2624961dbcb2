"""A store has an id, by which a task recognises the store of its plan. One that was made before gets one now."""

from __future__ import annotations

import time
import uuid
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
    if not sa.inspect(op.get_bind()).has_table("cuesqueue_store"):
        op.create_table(
            "cuesqueue_store",
            sa.Column("one", sa.SmallInteger, autoincrement=False, nullable=False),
            sa.Column("store_id", sa.String(32), nullable=False),
            sa.Column("created_at", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("one"),
            **TABLE,
        )
    # no other process does this at the same time: a migration holds the lock of the schema
    if op.get_bind().execute(sa.text("SELECT 1 FROM cuesqueue_store")).first() is None:
        values = {"id": uuid.uuid4().hex, "now": time.time_ns() // 1000}
        op.get_bind().execute(sa.text("INSERT INTO cuesqueue_store VALUES (1, :id, :now)"), values)
