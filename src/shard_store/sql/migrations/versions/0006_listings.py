"""What is compared with listings: how far a source remembers, listings, certificates, and objects that are cleaned."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}
NAME = sa.String(200)
HASH = sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OPEN = "ended_at IS NULL"


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    _table(
        "cuesqueue_sources",
        sa.Column("source", NAME, primary_key=True),
        *_numbers("forgotten_before"),
        *_numbers("existing_before", "cleaned_until", nullable=True),
    )
    _table(
        "cuesqueue_listings",
        sa.Column("listing_key", HASH, primary_key=True),
        sa.Column("source", NAME, nullable=False),
        sa.Column("prefix", TEXT, nullable=False),
        sa.Column("owner", NAME, nullable=False),
        *_numbers("incarnation", "began_at", "touched_at"),
        *_numbers("ended_at", nullable=True),
        sa.Column("cursor", TEXT),
        *_numbers("objects", "opened", "beyond_memory", "existing", "failures"),
    )
    _table(
        "cuesqueue_certificates",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("source", NAME, nullable=False),
        sa.Column("prefix", TEXT, nullable=False),
        *_numbers("modified_since", nullable=True),
        *_numbers("modified_before"),
        sa.Column("choice", TEXT, nullable=False),
        sa.Column("evidence", TEXT, nullable=False),
        *_numbers("objects", "published", "waiting", "quarantined", "missing", "changed", "beyond_memory"),
        *_numbers("before_beginning", "left_out"),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("unpublished", TEXT, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        *_numbers("written_at"),
    )
    _table(
        "cuesqueue_cleanings",
        sa.Column("shard_key", HASH, primary_key=True),
        sa.Column("source", NAME, nullable=False),
        sa.Column("uri", TEXT, nullable=False),
        *_numbers("size", nullable=True),
        sa.Column("etag", TEXT),
        sa.Column("version", TEXT),
        *_numbers("opened_at", "read_at"),
        sa.Column("action", sa.String(10), nullable=False),
        sa.Column("target", TEXT),
        *_numbers("planned_at", "due_at"),
        sa.Column("attempts", sa.Integer, nullable=False),
        *_numbers("ended_at", nullable=True),
        sa.Column("outcome", sa.String(20)),
        sa.Column("cause", sa.String(40)),
        sa.Column("detail", TEXT),
    )
    _index("cuesqueue_certificates_source", "cuesqueue_certificates", ["source", "written_at"])
    _index("cuesqueue_certificates_written", "cuesqueue_certificates", ["written_at"])
    _index("cuesqueue_cleanings_due", "cuesqueue_cleanings", ["source", "ended_at", "due_at"], OPEN)
    _index("cuesqueue_cleanings_ended", "cuesqueue_cleanings", ["ended_at"])
    _remember()


def _remember() -> None:
    """Record what was forgotten so far: all that ended before the oldest remaining finished shard, since the oldest go
    first; without one, everything up to now.
    """
    op.get_bind().execute(
        sa.text(
            "INSERT INTO cuesqueue_sources (source, forgotten_before) SELECT DISTINCT p.source, COALESCE((SELECT "
            "min(s.finished_at) FROM cuesqueue_shards s WHERE s.source = p.source AND s.finished_at IS NOT NULL), :now)"
            " FROM cuesqueue_pipelines p WHERE NOT EXISTS (SELECT 1 FROM cuesqueue_sources k WHERE k.source = p.source)"
        ),
        {"now": time.time_ns() // 1000},
    )


def _numbers(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=nullable) for name in names]


def _table(name: str, *columns: sa.Column[Any]) -> None:
    if not sa.inspect(op.get_bind()).has_table(name):
        op.create_table(name, *columns, **TABLE)


def _index(name: str, table: str, columns: list[str], only: str | None = None) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        where = None if only is None else sa.text(only)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
