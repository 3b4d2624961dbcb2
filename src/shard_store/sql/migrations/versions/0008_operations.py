"""What operators see: when messages were sent, who runs a pipeline, what it has published in each hour.

Only additions that code of revision 0007 does not need: it continues with the tables as they are then.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}
NAME = sa.String(200)
TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    _columns("cuesqueue_shards", sa.Column("sent_at", sa.BigInteger))
    _columns("cuesqueue_snapshots", sa.Column("sent", TEXT))
    _columns(
        "cuesqueue_pipelines",
        sa.Column("host", sa.String(255)),
        sa.Column("spark_version", sa.String(40)),
        sa.Column("cuesqueue_version", sa.String(40)),
        sa.Column("report", TEXT),
        sa.Column("activity", TEXT),
    )
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table("cuesqueue_history"):
        op.create_table(
            "cuesqueue_history",
            sa.Column("pipeline", NAME, primary_key=True),
            sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("source", NAME, nullable=False),
            sa.Column("batches", sa.BigInteger, nullable=False),
            sa.Column("rows", sa.BigInteger),
            sa.Column("bytes", sa.BigInteger),
            *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("objects", "messages", "errors")),
            sa.Column("causes", TEXT, nullable=False),
            sa.Column("lag_p50", sa.BigInteger),
            sa.Column("lag_p99", sa.BigInteger),
            sa.Column("lags", TEXT, nullable=False),
            **TABLE,
        )
    if "cuesqueue_history_hour" not in {index["name"] for index in _indexes("cuesqueue_history")}:
        op.create_index("cuesqueue_history_hour", "cuesqueue_history", ["hour"])


def _indexes(table: str) -> Any:
    return sa.inspect(op.get_bind()).get_indexes(table)


def _columns(table: str, *columns: sa.Column[Any]) -> None:
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in present:
            op.add_column(table, column)
