"""A batch in the log of a table: its application transactions, and the commit itself (docs/decisions/0081)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from queue_source.errors import OptionError
from queue_source.sinks.base import Batch
from queue_source.sinks.delta.files import DataFile
from queue_source.sinks.delta.tables import OpenTable, is_conflict
from shard_store.batches.publishing import Published
from shard_store.model import PlanIdentity
from shard_store.redaction import redact_text

_PROGRESS, _DELIVERY = "cuesqueue", "cuesqueue-delivery"
_HASH, _ATTEMPT = "cuesqueue.delivery-hash", "cuesqueue.attempt"
_BITS = 60
"""Of the delivery hash: a version is a number of 64 bits with a sign."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What identifies a batch in the table.

    Attributes:
        versions: Application id -> version: of each pipeline the seq at which its plan ends.
        delivery: The id of the first pipeline whose version is made of the delivery hash of its newest batch.
        properties: What people and `is_ours` read in the history of the table.
    """

    versions: Mapping[str, int]
    progress: str
    delivery: str
    delivery_hash: str
    properties: Mapping[str, str]


def marks_of(store_id: str, batch: Batch, published: Published, batch_id: int, attempt: str) -> Marks:
    """Return the marks of a batch. `attempt` is unlike those of all others, also of this batch."""
    plans, first = batch.plans, batch.plans[0]
    progress = {_id(_PROGRESS, store_id, plan): plan.end_seq for plan in plans}
    delivery = _id(_DELIVERY, store_id, first)
    values: dict[str, Sequence[object]] = {
        "cuesqueue.source": [plan.source for plan in plans],
        "cuesqueue.pipeline": [plan.token.pipeline for plan in plans],
        "cuesqueue.start-seq": [plan.start_seq for plan in plans],
        "cuesqueue.end-seq": [plan.end_seq for plan in plans],
        "cuesqueue.batch-id": [batch_id],
        _HASH: [published.delivery_hash],
        _ATTEMPT: [attempt],
    }
    return Marks(
        {**progress, delivery: _number(published.delivery_hash)},
        _id(_PROGRESS, store_id, first),
        delivery,
        published.delivery_hash,
        {name: ",".join(map(str, value)) for name, value in values.items()},
    )


def _id(kind: str, store_id: str, plan: PlanIdentity) -> str:
    return f"{kind}/{store_id}/{plan.source}/{plan.token.pipeline}"


def _number(digest: str) -> int:
    return int(digest, 16) >> (len(digest) * 4 - _BITS)


def is_delivered(table: OpenTable, marks: Marks) -> bool:
    """Tell whether an attempt at the batch is in the table, although the store does not have it.

    The newest batch of the pipeline decides. Where the table has later ones, the store was put back by more than one,
    and the history of the table is searched.
    """
    if table.handle.transaction_version(marks.delivery) == marks.versions[marks.delivery]:
        return True
    newest = table.handle.transaction_version(marks.progress)
    if newest is None or newest <= marks.versions[marks.progress]:
        return False
    return any(commit.get(_HASH) == marks.delivery_hash for commit in _history(table))


def is_ours(table: OpenTable, marks: Marks) -> bool:
    """Tell whether the newest commit of the batch is of this very attempt."""
    newest = next((commit for commit in _history(table) if commit.get(_HASH) == marks.delivery_hash), {})
    return bool(newest.get(_ATTEMPT) == marks.properties[_ATTEMPT])


def _history(table: OpenTable) -> Iterator[dict[str, Any]]:
    """Yield what commits tell of themselves, the newest first."""
    yield from table.handle.history(_RECENT)
    yield from table.handle.history()[_RECENT:]


_RECENT = 20


def append(table: OpenTable, files: Sequence[DataFile], marks: Marks) -> None:
    """Append the files in one commit, on exactly the version that was checked; else raise CommitFailedError."""
    before = table.handle.version()
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, file.partition, file.modified, data_change=True, stats=file.statistics)
        for file in files
    ]
    properties = CommitProperties(
        custom_metadata=dict(marks.properties),
        max_commit_retries=0,  # each try begins with a look at the newest version: it may have the batch already
        app_transactions=[Transaction(name, version) for name, version in marks.versions.items()],
    )
    try:
        table.handle.create_write_transaction(
            actions,
            mode="append",
            schema=table.handle.schema(),
            partition_by=list(table.partition_by),
            commit_properties=properties,
        )
    except Exception as error:  # of any kind: `is_conflict` tells whether to try again
        if is_conflict(error) or "Unsupported table features" not in str(error):
            raise
        raise OptionError(
            "delta", f"names {table.uri}, which deltalake cannot write to: {redact_text(str(error))}"
        ) from error
    table.handle.update_incremental()
    table.sync_log(before)
