"""Receivers record objects for the sources of their routes; what waits for a source is found by an index.

Only additions that older code does not need. It would forget, when it prunes, what is recorded and was not read within
the window: so the first record keeps it out of the store (`READERS_OF_RECORDED`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}
TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
UNOWNED = "owner IS NULL AND finished_at IS NULL"


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table("cuesqueue_receivers"):
        numbers = ("messages", "recorded", "duplicates", "ignored", "unrouted", "malformed")
        op.create_table(
            "cuesqueue_receivers",
            sa.Column("receiver", sa.String(200), primary_key=True),
            sa.Column("queue", TEXT, nullable=False),
            sa.Column("host", sa.String(255), nullable=False),
            sa.Column("started_at", sa.BigInteger, nullable=False),
            sa.Column("worked_at", sa.BigInteger, nullable=False),
            sa.Column("received_at", sa.BigInteger),
            *(sa.Column(name, sa.BigInteger, nullable=False) for name in numbers),
            **TABLE,
        )
    if "cuesqueue_shards_unowned" not in {index["name"] for index in inspector.get_indexes("cuesqueue_shards")}:
        op.create_index(
            "cuesqueue_shards_unowned",
            "cuesqueue_shards",
            ["source", "opened_at"],
            sqlite_where=sa.text(UNOWNED),
            postgresql_where=sa.text(UNOWNED),
        )
