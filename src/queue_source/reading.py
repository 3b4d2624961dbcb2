"""Executor side: the rows of one partition, and what happens to objects that are bad (design.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from queue_source.content.message_rows import message_batches
from queue_source.content.metadata import ObjectMetadata
from queue_source.content.objects import ExpectedObject, load_object
from queue_source.errors import BadObject
from queue_source.options import ContentOptions, SecretUrl
from shard_store.model import ErrorRecord, PlanIdentity, Range


@dataclass(frozen=True, slots=True)
class Work:
    """What one task reads: pickled on the driver, so it holds all that an executor needs and no connection."""

    identity: PlanIdentity
    ranges: Sequence[Range]
    content: ContentOptions
    store: SecretUrl


Report = Callable[[Sequence[ErrorRecord]], None]


def read_work(work: Work, schema: pa.Schema, *, repeated: bool) -> Iterator[pa.RecordBatch]:
    """All rows of the task's objects. May run more than once for one plan: it writes nothing but errors, which are
    idempotent. Raises what Spark should retry (ObjectStoreError), or BadObject where the options say `fail`.

    `repeated`: the task may have run before. What it found bad then stays bad, even if it could be read by now: the
    error is written, and the shard is quarantined with the plan, so none of its rows may go out.
    """
    if work.content.format is None:
        yield from _messages(work, schema)
        return
    if repeated:
        work = _without_bad(work)
    yield from read_ranges(work, schema, partial(_record, work))


def _messages(work: Work, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Their bodies came with the plan: nothing is read."""
    messages = [
        (entry.content.payload, _metadata(entry, work.identity))
        for entry in work.ranges
        if entry.content.payload is not None  # always, or the plan would not hold it
    ]
    return message_batches(messages, schema)


def read_ranges(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    """As `read_work`, with errors given to `report`. An object is read whole before its first row leaves."""
    format = work.content.format
    assert format is not None
    for entry in work.ranges:
        try:
            batches = load_object(
                entry.content.uri,
                schema,
                format,
                storage=work.content.storage,
                expected=ExpectedObject(entry.content.size, entry.content.etag),
                metadata=_metadata(entry, work.identity),
            )
        except BadObject as error:
            policy = work.content.on_missing_object
            if error.cause != "missing-object":
                policy = work.content.on_corrupt_object
            if policy == "fail":
                raise
            report([_error(entry, work.identity, error, skipped=policy == "skip")])
            continue
        yield from batches


def _record(work: Work, records: Sequence[ErrorRecord]) -> None:
    """Write errors where they happen; they become final with their plan. One short connection: errors are rare."""
    from shard_store.store import open_store  # executors that meet no error need no SQL

    with open_store(work.store.reveal()) as store:
        store.record_errors(work.identity.source, work.identity.token.pipeline, records)


def _without_bad(work: Work) -> Work:
    from shard_store.store import open_store

    with open_store(work.store.reveal()) as store:
        bad = store.found_bad(work.identity)
    return replace(work, ranges=[r for r in work.ranges if (r.key, r.start) not in bad])


def _error(entry: Range, identity: PlanIdentity, error: BadObject, *, skipped: bool) -> ErrorRecord:
    """Scope `object` quarantines the shard when its plan is published; `skipped` ones count as done."""
    return ErrorRecord(
        scope="skipped" if skipped else "object",
        cause=error.cause,
        detail=error.detail,
        subject=entry.content.shard_id,
        plan_hash=identity.delivery_hash,
        position=entry.start,
        queue=entry.content.queue,
        message_id=entry.content.message_id,
    )


def _metadata(entry: Range, identity: PlanIdentity) -> ObjectMetadata:
    content = entry.content
    return ObjectMetadata(
        shard_id=content.shard_id,
        message_id=content.message_id,
        queue=content.queue,
        receive_count=content.receive_count,
        delivery_hash=identity.delivery_hash,
    )
