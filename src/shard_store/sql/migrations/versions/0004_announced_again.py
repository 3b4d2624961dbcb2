"""Shards keep which version was announced and what the next plan has to know; changes by people are recorded."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}
HASH = sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    _add("cuesqueue_shards", sa.Column("sequence", sa.String(64)))
    _add("cuesqueue_shards", sa.Column("pending", sa.String(12)))
    _add("cuesqueue_errors", sa.Column("reopened_at", sa.BigInteger))
    _index("cuesqueue_errors_shard", "cuesqueue_errors", "shard_key")
    if not sa.inspect(op.get_bind()).has_table("cuesqueue_shard_changes"):
        op.create_table(
            "cuesqueue_shard_changes",
            sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
            sa.Column("shard_key", HASH, nullable=False),
            sa.Column("source", sa.String(200), nullable=False),
            sa.Column("shard_id", TEXT, nullable=False),
            sa.Column("action", sa.String(20), nullable=False),
            sa.Column("actor", TEXT, nullable=False),
            sa.Column("reason", TEXT, nullable=False),
            sa.Column("message_id", TEXT),
            sa.Column("before", TEXT, nullable=False),
            sa.Column("after", TEXT),
            sa.Column("changed_at", sa.BigInteger, nullable=False),
            **TABLE,
        )
    _index("cuesqueue_shard_changes_shard", "cuesqueue_shard_changes", "shard_key")
    _index("cuesqueue_shard_changes_changed", "cuesqueue_shard_changes", "changed_at")


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {present["name"] for present in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _index(name: str, table: str, column: str) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, [column])
