"""Small data files are joined: one takes the place of many, in one transaction, and views show the same rows.

The rows of the replaced files stay in the table, with the id of the file in their place, until vacuum: so a query that
began before, and views of the past, read what they would have read (`views.DataFiles`): a reader's moment is the newest
id, and a file counts up to it, until the file in its place does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from shard_store.failpoints import reach
from shard_store.model import Split, split_key
from shard_store.operators.views import by_key
from shard_store.shards.activity import locked_now
from shard_store.sql.database import ROWS_PER_STATEMENT, Database, Transaction
from shard_store.sql.schema import of_pipeline, pipelines, splits


class CurrentFile(NamedTuple):
    """A data file that views show now."""

    path: str
    rows: int
    size: int
    source: str


def pipelines_with_files(transaction: Transaction) -> list[str]:
    """Return the pipelines that have data files now."""
    query = sa.select(pipelines.c.pipeline).where(pipelines.c.data_files > 0).order_by(pipelines.c.pipeline)
    return list(transaction.execute(query).scalars())


def small_files(database: Database, pipeline: str, smaller_than: int) -> Iterator[CurrentFile]:
    """Yield the pipeline's files with fewer bytes, in the order in which they were published; memory holds a page.

    None that is published, or joined, after the first was asked for.
    """
    c = splits.c
    newest = database.read(lambda t: t.execute(sa.select(sa.func.max(c.id))).scalar_one()) or 0
    query = sa.select(c.path, c.rows, c.bytes, c.source).where(
        c.pipeline == pipeline, c.bytes < smaller_than, c.rows > 0, c.id <= newest, c.replaced_by.is_(None)
    )
    for page in by_key(database, query, c.id):
        yield from (CurrentFile(*row) for row in page)


def replace(transaction: Transaction, pipeline: str, files: Sequence[CurrentFile], joined: Split) -> bool:
    """Show a file, which has the rows of `files`, in their place.

    Returns False, and changes nothing, where one of them has been replaced or pruned meanwhile. It holds the lock with
    which the pipeline publishes, and leaves the pipeline to its reader.

    Files are known by their names, of which none comes twice: in a store that was put back, their ids may be those of
    others by now.
    """
    row, c = locked_now(transaction, pipeline), splits.c
    if row is None:
        return False
    name_key = split_key(joined.path)
    if transaction.execute(sa.select(c.id).where(c.name_key == name_key)).first() is not None:
        return True  # the commit of the try before has arrived
    names = [split_key(file.path) for file in files]
    columns = c.id, c.source, c.bytes, c.delivery_hash, c.published_at, c.compacted_at, c.first_id, c.first_at
    current = sa.select(*columns).where(c.pipeline == pipeline, c.replaced_by.is_(None)).with_for_update()
    replaced = list(transaction.select_among(current, c.name_key, names))
    if len(replaced) < len(files):
        return False
    hashes = {file.delivery_hash for file in replaced}
    # not before what it has in it, though the clock went back
    now = max(row.now, *(file.compacted_at or file.published_at for file in replaced))
    insert = splits.insert().values(
        delivery_hash=hashes.pop() if len(hashes) == 1 else "",
        source=replaced[0].source,
        pipeline=pipeline,
        path=joined.path,
        name_key=name_key,
        rows=joined.rows,
        bytes=joined.size,
        published_at=max(file.published_at for file in replaced),
        compacted_at=now,
        joined=len(replaced),
        first_id=min(file.first_id or file.id for file in replaced),
        first_at=min(file.first_at or file.published_at for file in replaced),
    )
    (number,) = transaction.execute(insert).inserted_primary_key or (0,)
    change = splits.update().values(replaced_by=number, replaced_at=now)
    transaction.change_among(change, c.id, [file.id for file in replaced])
    size = row.data_bytes + joined.size - sum(file.bytes for file in replaced)
    counts = {"data_files": row.data_files + 1 - len(replaced), "data_bytes": size}
    transaction.execute(of_pipeline, [{"of": pipeline, **counts}])
    reach("files-replaced")
    return True


def forget_replaced(transaction: Transaction, before: int) -> int:
    """Delete up to 1,000 rows of files that were replaced before a time, the first ones first; return how many.

    From then on the files are like those that nothing has published, and the past before is refused.
    """
    c = splits.c
    old = sa.select(c.id).where(c.replaced_by.is_not(None), c.replaced_at < before)
    ids = transaction.execute(old.order_by(c.replaced_by).limit(ROWS_PER_STATEMENT)).scalars().all()
    transaction.change_among(splits.delete(), c.id, ids)
    return len(ids)
