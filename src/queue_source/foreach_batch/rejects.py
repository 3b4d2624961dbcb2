"""Rows that a query's own function rejects: recorded as errors of the running batch, and sent as all errors are.

def each_batch(rows, batch_id):
    bad = rows.where("amount < 0")
    reject_rows(bad, store="sqlite:///cuesqueue.db", pipeline="orders", batch_id=batch_id, reason="negative amount")
    ...
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from queue_source.foreach_batch.delivery import check_cause, store_of_reader
from queue_source.spark.process import driver_identity
from shard_store.model import ErrorRecord, PlanIdentity
from shard_store.store import ShardStore

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_METADATA = "_metadata"


class _Row(NamedTuple):
    input: bytes
    reason: str
    shard_id: str = ""
    message_id: str = ""
    queue: str = ""


def reject_rows(
    rows: Any,
    *,
    store: str | ShardStore,
    pipeline: str,
    reason: str = "",
    reason_column: str | None = None,
    cause: str = "rejected-row",
    batch_id: int | None = None,
    connection: Connection | None = None,
) -> int:
    """Record rows of the current micro-batch as errors (scope `row`), before it is delivered.

    They become final, and go to the error queue, when the micro-batch is published; if it is repeated, they are written
    once (known by the plan, `batch_id`, their content and number). Objects and messages are named if the rows have
    `_metadata`.

    Args:
        rows: A DataFrame (collected on the driver), or an iterable of mappings, text or bytes.
        store: The reader's `storeUrl`, or an open store. A relative path counts from the same folder as the reader's.
        pipeline: The reader's `pipeline`.
        reason: Why the rows are rejected.
        reason_column: A column that says why; where it is null, `reason` does.
        cause: One word of at most 40 characters by which the errors can be found.
        batch_id: The number that Spark hands to the function; it tells micro-batches of stateful queries without new
            input apart.
        connection: A transaction in the store's database that the errors become part of. Without it they are written at
            once.

    Returns:
        How many rows there are.

    Raises:
        ValueError: `cause` is empty or too long, or has a character that cannot be printed.
        PipelineTakenOver: Another driver runs the pipeline by now.

    Process:
        Driver, inside the function of `foreachBatch`.
    """
    check_cause(cause)
    rejected = list(_of_frame(rows, reason, reason_column) if hasattr(rows, "selectExpr") else _of_values(rows, reason))
    if not rejected:
        return 0
    driver = driver_identity() or None
    with ExitStack() as stack:
        if not isinstance(store, ShardStore):
            store = stack.enter_context(store_of_reader(store))
        if connection is None:
            identity = store.current_plan(pipeline, driver)
            store.reject(identity, list(_records(identity, cause, batch_id, rejected)))
        else:
            identity = store.current_plan_inside(connection, pipeline, driver)
            store.reject_inside(connection, identity, list(_records(identity, cause, batch_id, rejected)))
    return len(rejected)


def _records(
    identity: PlanIdentity, cause: str, batch_id: int | None, rejected: Iterable[_Row]
) -> Iterator[ErrorRecord]:
    seen: Counter[tuple[str, bytes]] = Counter()
    for row in rejected:
        occurrence = f"{batch_id} {cause} {seen[row.shard_id, row.input]}"
        seen[row.shard_id, row.input] += 1
        yield ErrorRecord(
            scope="row",
            cause=cause,
            detail=row.reason,
            subject=row.shard_id,
            plan_hash=identity.delivery_hash,
            queue=row.queue,
            message_id=row.message_id,
            input=row.input,
            occurrence=occurrence,
        )


def _of_frame(frame: Any, reason: str, reason_column: str | None) -> Iterator[_Row]:
    """Read the rows of a DataFrame as JSON, which Spark writes, since it knows its types."""
    kept = [_quoted(name) for name in frame.columns if name not in (_METADATA, reason_column)]
    whole = f"to_json(struct({', '.join(kept)}), map('ignoreNullFields', 'false'))" if kept else "'{}'"
    why = f"CAST({_quoted(reason_column)} AS STRING)" if reason_column else "CAST(NULL AS STRING)"
    metadata_fields = frame.schema[_METADATA].dataType.names if _METADATA in frame.columns else ()
    origin = [
        f"{_METADATA}.{name}" if name in metadata_fields else "''" for name in ("shard_id", "message_id", "queue")
    ]
    for text, why_not, *ids in frame.selectExpr(whole, why, *origin).toLocalIterator():
        yield _Row(text.encode("utf-8", "surrogatepass"), why_not or reason, *(name or "" for name in ids))


def _of_values(rows: Iterable[Mapping[str, object] | str | bytes], reason: str) -> Iterator[_Row]:
    for row in rows:
        if isinstance(row, bytes):
            yield _Row(row, reason)
        else:
            text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False, default=str)
            yield _Row(text.encode("utf-8", "surrogatepass"), reason)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
