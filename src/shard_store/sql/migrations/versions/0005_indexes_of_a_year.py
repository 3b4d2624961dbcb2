"""Indexes for what a year leaves behind: no statement of a running pipeline or of pruning reads a whole table.

And a pipeline has the time of its newest attempt, which pruning leaves.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_UNSENT = "delivered_at IS NULL AND requeued_at IS NULL"
_UNFINISHED = "finished_at IS NULL"


def upgrade() -> None:
    if "published_at" not in {c["name"] for c in sa.inspect(op.get_bind()).get_columns("cuesqueue_pipelines")}:
        op.add_column("cuesqueue_pipelines", sa.Column("published_at", sa.BigInteger))
    op.execute(
        "UPDATE cuesqueue_pipelines SET published_at = (SELECT max(a.published_at) FROM cuesqueue_attempts a WHERE "
        "a.pipeline = cuesqueue_pipelines.pipeline) WHERE published_at IS NULL"
    )
    _make("cuesqueue_splits_pipeline", "cuesqueue_splits", ["pipeline"])
    _make("cuesqueue_splits_published", "cuesqueue_splits", ["published_at"])
    _make("cuesqueue_read_marks_began", "cuesqueue_read_marks", ["began_at"])
    unsent = ["pipeline", "delivered_at", "requeued_at", "occurred_at"]
    _make("cuesqueue_errors_unsent", "cuesqueue_errors", unsent, _UNSENT)
    _drop("cuesqueue_errors_undelivered", "cuesqueue_errors")
    unfinished = ["owner", "finished_at", "opened_at"]
    _make("cuesqueue_shards_unfinished", "cuesqueue_shards", unfinished, _UNFINISHED)
    _drop("cuesqueue_shards_open", "cuesqueue_shards")


# each step also where it was done before: MySQL commits them one by one, and the process may die between two
def _make(name: str, table: str, columns: list[str], only: str | None = None) -> None:
    if name not in _index_names(table):
        where = None if only is None else sa.text(only)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _drop(name: str, table: str) -> None:
    if name in _index_names(table):
        op.drop_index(name, table)


def _index_names(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
