"""The rows of one partition, and the handling of bad objects. Runs in executors."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import pyarrow as pa

from queue_source.errors import BadObject
from queue_source.formats.base import BadRecords, Part, format_of, neighbours
from queue_source.formats.metadata import ObjectMetadata
from queue_source.formats.new_columns import PASSED_BY, NewColumns, say_passed_by
from queue_source.options import ContentOptions
from queue_source.options.content import FormatOptions
from queue_source.read.combined import SMALL, TOGETHER, may_be_joined, parsed_messages, read_together
from queue_source.read.fixed_rows import check_begun, fixed_rows
from queue_source.read.isolation import (
    KILLS,
    Marks,
    bad_object,
    bad_records,
    fatal_object,
    interval_of,
    read_alone,
    read_tried,
)
from queue_source.read.objects import (
    BATCH_ROWS,
    ExpectedObject,
    Opener,
    Refusals,
    check_unchanged,
    gathered,
    read_object,
)
from queue_source.read.partitions import Piece, PlanStore
from queue_source.schema.location import schema_changed
from queue_source.storage.fetching import Fetcher, Requested
from queue_source.storage.open_files import ObjectFile, ObjectVersion
from shard_store.failpoints import reach
from shard_store.model import (
    BEGINNING,
    ErrorRecord,
    Met,
    Payload,
    PlanIdentity,
    Position,
    Reading,
    ReadMark,
    ShardKey,
    is_end,
    offset_of,
)

logger = logging.getLogger("cuesqueue")


@dataclass(frozen=True, slots=True)
class Beside:
    """One of several tasks of a plan that has failed before: its read is marked under its number."""

    task: int


@dataclass(frozen=True, slots=True)
class Alone:
    """The only task of a plan that has an object suspected of ending its readers' processes.

    `writes`: the rows are written in the same process.
    """

    max_attempts: int
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """How this task counts the reads of its plan in the store; the plan has so many `tasks`.

    `first`: it is the plan's first one, and records that it begins. `replaced`: the plan before, whose traces are
    removed.
    """

    first: bool
    tasks: int
    replaced: str | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What one task reads. Pickled on the driver, so it holds all that an executor needs and no connection."""

    identity: PlanIdentity
    pieces: Sequence[Piece]
    content: ContentOptions
    store: PlanStore
    isolation: Beside | Alone | None = None  # None: the first attempt at the plan, which marks nothing
    max_attempts: int = 3  # at an object that its store refuses, or that is replaced while it is read
    trace: Trace | None = None  # None: the reads of the plan are not counted
    meets: bool = False  # it records the versions of objects whose sizes the plan does not know
    usual_size: int = 0  # bytes that such an object is taken to have
    repeated: bool = False  # the task may have run before, and failed at an object that is bad behind its first rows

    def is_unmet(self, piece: Piece) -> bool:
        return self.meets and piece.content.size is None


Report = Callable[[Sequence[ErrorRecord]], None]


def read_work(
    work: Work, schema: pa.Schema, *, repeated: bool, reading: Reading | None = None
) -> Iterator[pa.RecordBatch]:
    """Read all rows of the task's objects.

    May run more than once for one plan: it writes only errors, which are idempotent, marks of its reads, traces, and
    the versions that it is the first to meet.
    Raises what Spark should retry (ObjectStoreError), or BadObject where the options say `fail`.

    `repeated`: the task may have run before. What it reported as bad then stays bad, even if it is readable now: the
    error is written, and the shard is quarantined with the plan, so none of its rows may be returned. `reading`: this
    task attempt; None: unknown.

    Raises StoreConfigurationError, before anything is read, where the plan's store cannot be used from here, and
    OptionError where the plan was begun with another `content`: nothing of it is left out.
    """
    work.store.check()
    check_begun(work.content, [piece.content for piece in work.pieces])
    logger.debug("the task has %d piece(s) of objects or messages to read", len(work.pieces))
    if (fixed := fixed_rows(work.content)) is not None:
        rows = []
        for piece in work.pieces:  # each row stands for an object, or a part of one, or a message
            metadata = _metadata(piece, work.identity)
            if work.content.format is not None and piece.content.size is not None:
                metadata = replace(metadata, file_block_start=offset_of(piece.start), file_block_length=piece.size)
            rows.append((piece.content, metadata))
        yield from fixed.batches(rows, schema)
        return
    if work.trace is None or not work.pieces:
        reading = None
    work = replace(work, repeated=repeated)
    if repeated or isinstance(work.isolation, Alone):
        if reading is not None:
            bad = _begin(work, reading._replace(repeated=True))
        else:
            with work.store.open() as store:
                bad = store.found_bad(work.identity)
        good = [piece for piece in work.pieces if (piece.planned.key, piece.planned.start) not in bad]
        work = replace(work, pieces=good)
    elif reading is not None and work.trace is not None and work.trace.first:
        _begin(work, reading)
    PASSED_BY.clear()
    yield from read_marked(work, schema, partial(_record, work, reading))
    say_passed_by(work.identity.token.pipeline, PASSED_BY)


def _begin(work: Work, reading: Reading) -> set[tuple[ShardKey, Position]]:
    assert work.trace is not None
    with work.store.kept() as store:
        return store.begin_reading(work.identity, reading, **asdict(work.trace))


def read_marked(work: Work, schema: pa.Schema, report: Report) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows, under marks where the plan has failed before; `report` gets the errors."""

    def read(pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        return gathered(read_pieces(replace(work, pieces=pieces), schema, report))

    def give_up(piece: Piece, killed: int) -> None:
        report([fatal_object(piece, work.identity, killed)])

    def attempt(pieces: Sequence[Piece]) -> None:
        """Read without rows and reports: those of the second reading count."""
        for _ in read_pieces(replace(work, pieces=pieces), schema, lambda records: None):
            pass

    marks = Marks(work.identity, work.store)
    if isinstance(work.isolation, Alone) and work.isolation.writes:
        yield from read_tried(marks, work.pieces, work.isolation.max_attempts, attempt, read, give_up)
    elif isinstance(work.isolation, Alone):
        yield from read_alone(marks, work.pieces, work.isolation.max_attempts, read, give_up)
    elif isinstance(work.isolation, Beside) and work.pieces:
        # a remaining mark makes these pieces suspects of the next attempt
        with marks.during(ReadMark(*interval_of(work.pieces), work.isolation.task)):
            yield from read(work.pieces)
    else:
        yield from read(work.pieces)


def read_pieces(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the pieces; `report` gets the errors. No row of a possibly bad object is returned.

    Raises SchemaChanged for columns that the schema lacks, where the options ask for it.
    """
    read = _read_objects if work.content.kind.is_announced else _read_messages
    try:
        yield from read(work, schema, report)
    except NewColumns as noticed:
        contents = {
            piece.planned.key: piece.content for piece in work.pieces
        }  # each once, although its pieces follow each other
        raise schema_changed(noticed, schema, work.content, list(contents.values())) from None


def _read_objects(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    format = work.content.format
    assert format is not None
    fails = work.content.on_forbidden_object == "fail"
    refusals = Refusals(work.content.storage, work.max_attempts, partial(_others, work), fails=fails)
    joins = may_be_joined(schema, format) and not format.tells_new_columns

    def is_small(piece: Piece) -> bool:
        size = piece.content.size
        return joins and piece.start == BEGINNING and is_end(piece.end) and size is not None and size <= SMALL

    def in_groups(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
        """Yield neighbours that are whole small objects in one group, and each other piece alone."""
        for small, some in itertools.groupby(pieces, key=is_small):
            if small:
                yield from neighbours([(piece, piece.content.size or 0) for piece in some], TOGETHER)
            else:
                yield from ([piece] for piece in some)

    at_end = format_of(format).has_footer
    requested = [Requested(p.content.uri, p.content.size, None if at_end else offset_of(p.start)) for p in work.pieces]
    ahead = {"requests": work.content.max_concurrent_requests, "ahead": work.content.read_ahead_bytes}
    ahead["usual"] = work.usual_size
    first = 0
    with Fetcher(requested, work.content.storage, **ahead) as fetcher:
        for group in itertools.chain.from_iterable(map(in_groups, _met_ahead(work, fetcher))):
            openers = [partial(fetcher.open, place) for place in range(first, first + len(group))]
            if len(group) == 1:
                yield from _read_piece(work, group[0], openers[0], schema, format, report, refusals)
            else:
                for piece in group:
                    reach("object-read", piece.content.shard_id)
                for result in read_together([_expected(piece) for piece in group], openers, schema, format):
                    if isinstance(result, int):
                        yield from _read_piece(work, group[result], openers[result], schema, format, report, refusals)
                    else:
                        yield from (batch for batch in result.to_batches(max_chunksize=BATCH_ROWS) if batch.num_rows)
            fetcher.leave(range(first, first := first + len(group)))
    if fetcher.retries:
        logger.info("sent %d request(s) for objects again", fetcher.retries)
        with work.store.open() as store:
            store.count_object_retries(work.identity.token.pipeline, fetcher.retries)


def _met_ahead(work: Work, fetcher: Fetcher) -> Iterator[Sequence[Piece]]:
    """Yield the pieces in their order, as many at a time as are known by size and version.

    What the plan does not know, the answers say that are there, of all objects that are asked for at a time: recorded
    in one transaction, before any row of these objects goes out.
    """
    pieces, place = list(work.pieces), 0
    while place < len(pieces):
        if work.is_unmet(pieces[place]):
            arrived = {p: _met(version) for p, version in fetcher.arrived(place).items() if work.is_unmet(pieces[p])}
            versions = _meet(work, {pieces[p].planned.key: met for p, met in arrived.items()})
            for p, met in arrived.items():
                pieces[p] = pieces[p].as_met(first := versions[pieces[p].planned.key])
                if first != met:  # another task was faster: what that has met may be there now
                    fetcher.leave([p])
        end = next((p for p in range(place + 1, len(pieces)) if work.is_unmet(pieces[p])), len(pieces))
        yield pieces[place:end]
        place = end


def _met(version: ObjectVersion) -> Met:
    return Met(version.stored_size, version.identifies())


def _meet(work: Work, met: Mapping[ShardKey, Met]) -> Mapping[ShardKey, Met]:
    """Return the versions in which all attempts at the plan read these objects: those that were met first."""
    if not met:
        return met
    with work.store.kept() as store:
        return store.meet(work.identity, met)


@contextmanager
def _opened_first(work: Work, piece: Piece, opener: Opener) -> Iterator[ObjectFile]:
    """Open an object of which no answer was there in time, and meet it."""
    with opener() as file:
        key = piece.planned.key
        check_unchanged(file.uri, file, ExpectedObject(*_meet(work, {key: _met(file.version)})[key]))
        yield file


def _expected(piece: Piece) -> ExpectedObject:
    return ExpectedObject(piece.content.size, piece.content.etag)


def _read_piece(
    work: Work,
    piece: Piece,
    opener: Opener,
    schema: pa.Schema,
    format: FormatOptions,
    report: Report,
    refusals: Refusals,
) -> Iterator[pa.RecordBatch]:
    reach("object-read", piece.content.shard_id)
    uri, expected = piece.content.uri, _expected(piece)
    problems = BadRecords(format.mode)

    def read() -> Iterator[pa.RecordBatch]:
        nonlocal problems
        problems = BadRecords(format.mode)  # those of the last try
        return read_object(
            uri,
            schema,
            format,
            problems,
            storage=work.content.storage,
            expected=expected,
            metadata=_metadata(piece, work.identity),
            part=Part(offset_of(piece.start), None if is_end(piece.end) else offset_of(piece.end)),
            opener=partial(_opened_first, work, piece, opener) if work.is_unmet(piece) else opener,
            held=work.repeated or work.isolation is not None,
        )

    try:
        yield from refusals.read(uri, read)
    except BadObject as error:
        _report_bad(piece, work, error, report)
        return
    if problems.count:
        report(bad_records(piece, work.identity, problems))


def _read_messages(work: Work, schema: pa.Schema, report: Report) -> Iterator[pa.RecordBatch]:
    format = work.content.format
    assert format is not None

    def finished(place: int, problems: BadRecords, error: BadObject | None) -> None:
        piece = work.pieces[place]
        if error is not None:
            _report_bad(piece, work, error, report)
        elif problems.count:
            report(bad_records(piece, work.identity, problems))

    # their bodies came with the plan: nothing is read
    messages = [(piece.content.payload or Payload(b"", ""), _metadata(piece, work.identity)) for piece in work.pieces]
    return parsed_messages(messages, schema, format, finished)


def _report_bad(piece: Piece, work: Work, error: BadObject, report: Report) -> None:
    """Report a bad object (or message) as the options say, or raise it where they say `fail`."""
    policies = {
        "missing-object": work.content.on_missing_object,
        "forbidden-object": work.content.on_forbidden_object,
    }
    policy = policies.get(error.cause, work.content.on_corrupt_object)
    if policy == "fail":
        raise error
    report([bad_object(piece, work.identity, error, skipped=policy == "skip")])


def _record(work: Work, reading: Reading | None, records: Sequence[ErrorRecord]) -> None:
    """Write errors where they happen; they become final with their plan. One short connection: errors are rare.

    The reader logs them then, each once: the log lines of an attempt are for debugging.
    """
    for record in records:
        logger.debug("found a bad %s: cause=%s shard=%s", record.scope, record.cause, record.subject)
    if not work.content.kind.is_announced and all(record.cause != KILLS for record in records):
        reading = None  # every reader of a message's bytes gets the same result
    with work.store.open() as store:
        store.report(work.identity, records, reading, 0 if work.trace is None else work.trace.tasks)


def _others(work: Work) -> list[str]:
    """Return objects that may be readable where one of this task is refused: first those that were, then any."""
    with work.store.open() as store:
        published, others = store.known_objects(work.identity)
    others = list({*others, *(piece.content.uri for piece in work.pieces)})
    random.shuffle(others)  # the next attempt tries others, where they are many
    return [*published, *others]


def _metadata(piece: Piece, identity: PlanIdentity) -> ObjectMetadata:
    content = piece.content
    return ObjectMetadata(
        shard_id=content.shard_id,
        message_id=content.message_id,
        queue=content.queue,
        receive_count=content.receive_count,
        delivery_hash=identity.delivery_hash,
    )
