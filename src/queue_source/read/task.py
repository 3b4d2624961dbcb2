"""Executor side: the rows of one partition, and what happens to objects that are bad (design.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from queue_source.errors import BadObject, ObjectStoreError, SchemaChanged
from queue_source.formats.bad_records import BadRecords
from queue_source.formats.base import Part
from queue_source.formats.batches import gathered
from queue_source.formats.metadata import ObjectMetadata
from queue_source.formats.new_columns import NewColumns
from queue_source.messages import kept_message
from queue_source.options import ContentOptions, SecretUrl
from queue_source.options.file_format import FormatOptions
from queue_source.read.combined import SMALL, TOGETHER, may_be_joined, read_together
from queue_source.read.message_records import Message, parsed_messages
from queue_source.read.message_rows import message_batches
from queue_source.read.objects import BATCH_ROWS, ExpectedObject, read_object
from queue_source.read.partitions import PieceOf
from queue_source.schema.evolution import schema_changed
from shard_store.failpoints import reach
from shard_store.model import BEGINNING, ErrorRecord, PlanIdentity, Position, Range, is_end, offset_of, position_at


@dataclass(frozen=True, slots=True)
class Work:
    """What one task reads: pickled on the driver, so it holds all that an executor needs and no connection."""

    identity: PlanIdentity
    ranges: Sequence[Range]
    content: ContentOptions
    store: SecretUrl
    piece_of: PieceOf = field(default_factory=dict)
    max_attempts: int | None = None  # set: the plan failed before, and what kills its reader is looked for

    def planned_start(self, entry: Range) -> Position:
        """Where the range of the plan begins that an entry is, or is a piece of."""
        return self.piece_of.get((entry.key, entry.start), entry.start)


Report = Callable[[Sequence[ErrorRecord]], None]


def read_work(work: Work, schema: pa.Schema, *, repeated: bool) -> Iterator[pa.RecordBatch]:
    """All rows of the task's objects. May run more than once for one plan: it writes nothing but errors, which are
    idempotent. Raises what Spark should retry (ObjectStoreError), or BadObject where the options say `fail`.

    `repeated`: the task may have run before. What it found bad then stays bad, even if it could be read by now: the
    error is written, and the shard is quarantined with the plan, so none of its rows may go out.
    """
    if work.content.format is None:
        yield from message_batches(_messages(work), schema)
        return
    if repeated:
        work = _without_bad(work)
    if work.max_attempts is None:
        yield from gathered(read_ranges(work, schema, partial(_record, work)))
    else:
        yield from _read_in_isolation(work, schema, work.max_attempts)


def _read_in_isolation(work: Work, schema: pa.Schema, max_attempts: int) -> Iterator[pa.RecordBatch]:
    """Each range is marked in the store before it is read: a mark that stays behind tells what killed the reader.

    So does one of a read that ended with an error that nobody knows, which would fail this plan for ever.
    """
    from shard_store.store import open_store

    for entry in work.ranges:
        with open_store(work.store.reveal()) as store:
            killed = store.begin_read(work.identity, entry)
        if killed >= max_attempts:
            _record(work, [_poison(entry, work, killed)])
            continue
        alone = replace(work, ranges=[entry])
        try:
            yield from read_ranges(alone, schema, partial(_record, alone))
        except (ObjectStoreError, BadObject, SchemaChanged, GeneratorExit):
            # known errors; or what takes the rows has failed
            _ended(work, entry)
            raise
        _ended(work, entry)


def _ended(work: Work, entry: Range) -> None:
    from shard_store.store import open_store

    with open_store(work.store.reveal()) as store:
        store.end_read(work.identity, entry)


def _messages(work: Work) -> list[Message]:
    """Their bodies came with the plan: nothing is read."""
    return [
        (entry.content.payload, _metadata(entry, work.identity))
        for entry in work.ranges
        if entry.content.payload is not None  # always, or the plan would not hold it
    ]


def read_ranges(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    """As `read_work`, with errors given to `report`. No row of an object leaves that may turn out bad as a whole.

    Raises SchemaChanged for columns that the schema lacks, where the options ask for it.
    """
    read = _read_messages if work.content.content == "message" else _read_objects
    try:
        yield from read(work, schema, report)
    except NewColumns as noticed:
        contents = {entry.key: entry.content for entry in work.ranges}  # each once, though pieces follow each other
        raise schema_changed(noticed, schema, work.content, list(contents.values())) from None


def _read_objects(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    format = work.content.format
    assert format is not None
    for group in _groups(work.ranges, may_be_joined(schema, format)):
        if len(group) == 1:
            yield from _read_range(work, group[0], schema, format, report)
            continue
        for entry in group:
            reach("object-read", entry.content.shard_id)
        for found in read_together([_announced(entry) for entry in group], schema, format, work.content.storage):
            if isinstance(found, int):
                yield from _read_range(work, group[found], schema, format, report)
            else:
                yield from (batch for batch in found.to_batches(max_chunksize=BATCH_ROWS) if batch.num_rows)


def _groups(ranges: Sequence[Range], may_join: bool) -> Iterator[list[Range]]:
    """The ranges in their order, neighbours together that are whole small objects."""
    group: list[Range] = []
    size = 0
    for entry in ranges:
        whole = entry.start == BEGINNING and is_end(entry.end)
        known = entry.content.size
        if not (may_join and whole and known is not None and known <= SMALL):
            if group:
                yield group
            yield [entry]
            group, size = [], 0
            continue
        if group and size + known > TOGETHER:
            yield group
            group, size = [], 0
        group.append(entry)
        size += known
    if group:
        yield group


def _announced(entry: Range) -> tuple[str, ExpectedObject]:
    return entry.content.uri, ExpectedObject(entry.content.size, entry.content.etag)


def _read_range(
    work: Work, entry: Range, schema: pa.Schema, format: FormatOptions, report: Report
) -> Iterator[pa.RecordBatch]:
    problems = BadRecords(format.mode)
    reach("object-read", entry.content.shard_id)
    try:
        uri, expected = _announced(entry)
        yield from read_object(
            uri,
            schema,
            format,
            problems,
            storage=work.content.storage,
            expected=expected,
            metadata=_metadata(entry, work.identity),
            part=_part(entry),
        )
    except BadObject as error:
        _tell(entry, work, error, report)
    if problems.count:
        report(_bad_records(entry, work.identity, problems))


def _read_messages(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    format = work.content.format
    assert format is not None

    def finished(place: int, problems: BadRecords, error: BadObject | None) -> None:
        entry = work.ranges[place]
        if error is not None:
            _tell(entry, work, error, report)
        if problems.count:
            report(_bad_records(entry, work.identity, problems))

    return parsed_messages(_messages(work), schema, format, finished)


def _tell(entry: Range, work: Work, error: BadObject, report: Report) -> None:
    """A bad object (or message) goes the way that the options say. Raises it where they say `fail`."""
    policy = work.content.on_missing_object
    if error.cause != "missing-object":
        policy = work.content.on_corrupt_object
    if policy == "fail":
        raise error
    report([_error(entry, work, error, skipped=policy == "skip")])


def _part(entry: Range) -> Part:
    """A range's positions as bytes of its object."""
    return Part(offset_of(entry.start), None if is_end(entry.end) else offset_of(entry.end))


def _bad_records(entry: Range, identity: PlanIdentity, problems: BadRecords) -> list[ErrorRecord]:
    """The first ones, each at its position; and how many more there are, at the position of the last."""

    def told(cause: str, offset: int, detail: str, record: bytes | None = None, size: int | None = None) -> ErrorRecord:
        return ErrorRecord(
            scope="record",
            cause=cause,
            detail=detail,
            subject=entry.content.shard_id,
            plan_hash=identity.delivery_hash,
            position=position_at(offset),
            queue=entry.content.queue,
            message_id=entry.content.message_id,
            input=record,
            input_size=size,
        )

    records = [told("bad-record", bad.offset, bad.reason, bad.record, bad.size) for bad in problems.reported]
    if problems.omitted:
        detail = f"{problems.omitted} more bad records, the last of them at byte {problems.last}"
        records.append(told("bad-records", problems.last, detail))
    return records


def _record(work: Work, records: Sequence[ErrorRecord]) -> None:
    """Write errors where they happen; they become final with their plan. One short connection: errors are rare."""
    from shard_store.store import open_store  # executors that meet no error need no SQL

    with open_store(work.store.reveal()) as store:
        store.record_errors(work.identity.source, work.identity.token.pipeline, records)


def _without_bad(work: Work) -> Work:
    from shard_store.store import open_store

    with open_store(work.store.reveal()) as store:
        bad = store.found_bad(work.identity)
    return replace(work, ranges=[r for r in work.ranges if (r.key, work.planned_start(r)) not in bad])


def _error(entry: Range, work: Work, error: BadObject, *, skipped: bool) -> ErrorRecord:
    """Scope `object` quarantines the shard when its plan is published; `skipped` ones count as done.

    All pieces of a range say it at one position, so that it is one error, and a repeated plan knows its range again.
    """
    payload = entry.content.payload
    told = {} if payload is None else kept_message(payload.value, payload.tag, payload.headers, entry.content.group)
    return ErrorRecord(
        scope="skipped" if skipped else "object",
        cause=error.cause,
        detail=error.detail,
        subject=entry.content.shard_id,
        plan_hash=work.identity.delivery_hash,
        position=work.planned_start(entry),
        queue=entry.content.queue,
        message_id=entry.content.message_id,
        **told,
    )


def _poison(entry: Range, work: Work, killed: int) -> ErrorRecord:
    detail = (
        f"{killed} readers died or failed in a way nobody knows while they read this object alone (memory, a crash of "
        "native code, a bug); read it with more memory, or report it; 'maxAttempts' says how many are let die"
    )
    return _error(entry, work, BadObject("kills-its-reader", detail), skipped=False)


def _metadata(entry: Range, identity: PlanIdentity) -> ObjectMetadata:
    content = entry.content
    return ObjectMetadata(
        shard_id=content.shard_id,
        message_id=content.message_id,
        queue=content.queue,
        receive_count=content.receive_count,
        delivery_hash=identity.delivery_hash,
    )
