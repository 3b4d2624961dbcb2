"""What was announced of a shard after its opening is kept beside the version that is read; changed objects are counted.
Objects that are data files of tables where they are have a table of their own, which cleaning asks.

The marks by which 0.3 had plans take the newest version go: there is no unfinished batch, and a reader that starts
looks at all that is open.
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
TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    _add("cuesqueue_shards", sa.Column("later", TEXT))
    numbers = {
        "cuesqueue_attempts": sa.Column("changed", sa.BigInteger),
        "cuesqueue_receivers": sa.Column("changed", sa.BigInteger, nullable=False, server_default="0"),
    }
    for table, column in numbers.items():
        _add(table, column)
    if not sa.inspect(op.get_bind()).has_table("cuesqueue_registered"):
        op.create_table(
            "cuesqueue_registered",
            sa.Column("uri_key", HASH, primary_key=True),
            sa.Column("registered_at", sa.BigInteger, nullable=False),
            **TABLE,
        )
    shards = sa.table("cuesqueue_shards", *map(sa.column, ("finished_at", "owner", "pending")))
    old = shards.c.finished_at.is_(None), shards.c.pending.in_(("renewed", "seen"))
    op.get_bind().execute(shards.update().where(*old).values(pending=None))


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {existing["name"] for existing in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
