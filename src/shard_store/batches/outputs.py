"""The table in which an output of a micro-batch is recorded, in whichever database its rows are written.

It is made where it is needed, by the user's own engine, so it uses nothing that only some databases know.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from shard_store.sql.schema import Name
from shard_store.sql.schema import outputs as table


def create(engine: Engine) -> None:
    """Make the table where it is not there; several processes may do so at once."""
    if sa.inspect(engine).has_table(table.name):
        return
    try:
        table.create(engine)
    except sa.exc.DBAPIError:
        if not sa.inspect(engine).has_table(table.name):  # else another was faster
            raise


def is_recorded(connection: Connection, delivery_hash: str, output: str) -> bool:
    query = sa.select(sa.func.count()).where(table.c.delivery_hash == delivery_hash, table.c.output == output)
    return bool(connection.execute(query).scalar_one())


def recent(connection: Connection, output: str, owner: str, since: int) -> list[str]:
    """Return the delivery hashes that are recorded of batches with this number and later ones."""
    c = table.c
    query = sa.select(c.delivery_hash).where(c.pipeline == owner, c.output == output, c.batch_id >= since)
    return list(connection.execute(query).scalars())


def owner(pipeline: str, store_id: str) -> str:
    """Return whose outputs these are: pipelines of several stores, perhaps of one name, may write into one database."""
    most = (Name.length or 0) - len(store_id) - 1
    name = pipeline if len(pipeline) <= most else hashlib.sha256(pipeline.encode()).hexdigest()
    return f"{name}@{store_id}"


def record(connection: Connection, delivery_hash: str, output: str, owner: str, batch_id: int) -> None:
    """Record the output in the caller's transaction; raises sqlalchemy.exc.IntegrityError when it is there.

    What is recorded of other batches is not needed any more, whatever their number: a checkpoint may be new. Spark runs
    a batch when those before it are done, and the caller has looked for what the store has lost.
    """
    others = table.c.pipeline == owner, table.c.output == output, table.c.delivery_hash != delivery_hash
    connection.execute(table.delete().where(*others))
    values = {"delivery_hash": delivery_hash, "output": output, "pipeline": owner, "batch_id": batch_id}
    connection.execute(table.insert().values(**values, delivered_at=sa.func.current_timestamp()))
