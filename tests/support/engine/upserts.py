"""A user's `foreachBatch` with two outputs: rows into a log of their own, and totals in the store's PostgreSQL.

Neither is idempotent: whatever is delivered twice is counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import DataFrame
from sqlalchemy.dialects.postgresql import insert

from queue_source.foreach_batch import delivery
from support.engine.world import Row

_metadata = sa.MetaData()
LOG = sa.Table("rows", _metadata, sa.Column("id", sa.BigInteger), sa.Column("name", sa.Text))
TOTALS = sa.Table(
    "totals", _metadata, sa.Column("name", sa.String(100), primary_key=True), sa.Column("rows", sa.BigInteger)
)


def upserting(store: str, pipeline: str, log: Path) -> Callable[[DataFrame, int], None]:
    warehouse = sa.create_engine(f"sqlite:///{log}")
    LOG.create(warehouse, checkfirst=True)

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = [(row.id, row.name) for row in frame.select("id", "name").collect()]
        with delivery(store, pipeline, batch_id) as batch:
            with batch.output(f"log of {pipeline}", warehouse) as out:
                if rows and not out.already:
                    out.connection.execute(LOG.insert(), [{"id": i, "name": n} for i, n in rows])
            if rows and not batch.already:
                upsert = insert(TOTALS)
                upsert = upsert.on_conflict_do_update(
                    index_elements=[TOTALS.c.name], set_={"rows": TOTALS.c.rows + upsert.excluded.rows}
                )
                batch.connection.execute(upsert, [{"name": n, "rows": c} for n, c in totals_of(rows).items()])

    return take


def totals_of(rows: list[Row]) -> dict[str, int]:
    """Rows by the first word of their name."""
    return dict(Counter(name.split()[-1] for _, name in rows))
