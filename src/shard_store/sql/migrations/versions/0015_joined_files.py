"""Data files can be joined: what replaced which, and how many files each pipeline has.

Code before would show the rows of replaced files once more, and does not count files.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SPLITS, PIPELINES = "cuesqueue_splits", "cuesqueue_pipelines"
COLUMNS = {
    SPLITS: ("compacted_at", "joined", "first_id", "first_at", "replaced_by", "replaced_at"),
    PIPELINES: ("data_files", "data_bytes"),
}
INDEXES = {"cuesqueue_splits_compacted": "compacted_at", "cuesqueue_splits_replaced": "replaced_by"}


def upgrade() -> None:
    # each step also where it was done before: MySQL commits them one by one, and the process may die between two
    inspector = sa.inspect(op.get_bind())
    for table, columns in COLUMNS.items():
        existing = {column["name"] for column in inspector.get_columns(table)}
        for name in columns:
            if name not in existing:
                op.add_column(table, sa.Column(name, sa.BigInteger))
    indexes = {index["name"] for index in inspector.get_indexes(SPLITS)}
    for index, name in INDEXES.items():
        if index not in indexes:
            where = sa.text(f"{name} IS NOT NULL")
            op.create_index(index, SPLITS, [name], sqlite_where=where, postgresql_where=where)
    splits = sa.table(SPLITS, sa.column("pipeline"), sa.column("bytes"))
    pipelines = sa.table(PIPELINES, *map(sa.column, ("pipeline", *COLUMNS[PIPELINES])))
    own = splits.c.pipeline == pipelines.c.pipeline
    files = sa.select(sa.func.nullif(sa.func.count(), 0)).where(own).scalar_subquery()
    size = sa.select(sa.func.sum(splits.c.bytes)).where(own).scalar_subquery()
    op.get_bind().execute(pipelines.update().values(data_files=files, data_bytes=size))
