"""Loading: tasks write the objects of a plan themselves, without rows through Spark; the pieces that they report."""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from queue_source.common.times import machine_time_zone
from queue_source.errors import OptionError
from queue_source.formats.base import check_schema, data_schema, format_of, may_be_cut
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.formats.new_columns import PASSED_BY, say_passed_by
from queue_source.options import ContentOptions, SinkOptions, in_zone
from queue_source.options.content import FormatOptions
from queue_source.read.fixed_rows import PARTS, names_parts
from queue_source.read.isolation import KILLS
from queue_source.read.partitions import Piece, PlanStore, from_tuples, to_tuples, whole_pieces
from queue_source.read.task import Alone, Beside, Work, read_marked
from queue_source.schema.columns import parse_columns
from queue_source.sinks.base import Batch, Sink, check_object_columns, open_target
from queue_source.sinks.new_columns import Values, only_taken, say, taken_columns
from shard_store.errors import ShardStoreError
from shard_store.model import (
    BEGINNING,
    WHOLE,
    Content,
    ErrorRecord,
    Plan,
    PlanIdentity,
    Position,
    Reading,
    ShardKey,
    is_end,
    offset_of,
    position_at,
)

if TYPE_CHECKING:
    from shard_store.store import ShardStore  # executors read without SQL


class LoadedPiece(NamedTuple):
    """What a task has loaded: a range of its plan, by its place, or a part of one. `planned`: shard and whole range."""

    place: int
    start: Position
    end: Position
    uri: str
    planned: tuple[ShardKey, Position, Position]

    @classmethod
    def of(cls, piece: Piece) -> LoadedPiece:
        key, _, start, end = piece.planned[:4]
        return cls(piece.place, piece.start, piece.end, piece.content.uri, (key, start, end))


class _Named(NamedTuple):
    """An object, or a part of one, as a row names it. Of a part: its first byte, and how many it has."""

    uri: str
    etag: str | None
    size: int | None
    version: str | None
    start: int | None = None
    length: int | None = None


def chosen_pieces(planned: Sequence[Piece], rows: Iterable[pa.RecordBatch], options: ContentOptions) -> list[Piece]:
    """Return the pieces that the rows name, each once, in the order of the plan.

    Runs in an executor. Raises OptionError for rows that name something else: they were changed.
    """
    by_object: dict[tuple[str, str | None, int | None], list[Piece]] = {}
    for piece in planned:
        content = piece.content
        by_object.setdefault((content.uri, content.etag, content.size), []).append(piece)
    chosen: dict[tuple[int, Position], Piece] = {}
    for named in itertools.chain.from_iterable(map(_named, rows)):
        for piece in _matching(by_object.get((named.uri, named.etag, named.size), []), named):
            is_all = piece.start == BEGINNING and is_end(piece.end)
            if not is_all and not may_be_cut(piece.content.uri, options):
                raise OptionError(
                    "load",
                    f"reads objects such as {named.uri!r} as a whole by the options of this sink, and the reader has "
                    "cut this one into parts; give both the same options about formats",
                )
            chosen[piece.place, piece.start] = piece
    return [chosen[key] for key in sorted(chosen)]


def check_once(pieces: Iterable[LoadedPiece]) -> None:
    """Raise OptionError where two tasks have loaded the same: the query has repeated rows, and brought them apart."""
    for piece, following in itertools.pairwise(sorted(pieces)):
        if piece.place == following.place and following.start < piece.end:
            raise OptionError(
                "load",
                f"was given {piece.uri!r} by two tasks of a batch: a join, a union or a repartitioning has repeated "
                "its row; nothing of this batch is published: send the rows of the reader to the sink as they are, or "
                "filtered",
            )


def loaded_ranges(pieces: Iterable[LoadedPiece]) -> frozenset[tuple[ShardKey, Position]]:
    """Return the ranges of which the tasks have loaded all parts: the others are left out, at least in part."""
    until: dict[int, Position] = {}
    loaded = set[tuple[ShardKey, Position]]()
    for piece in sorted(pieces):
        key, start, end = piece.planned
        if piece.start == until.get(piece.place, start):
            until[piece.place] = piece.end
            if is_end(piece.end) or piece.end == end:
                loaded.add((key, start))
    return frozenset(loaded)


def _named(rows: pa.RecordBatch) -> Iterator[_Named]:
    columns = [rows.column(name).to_pylist() for name in ("uri", "etag", "size")]
    has_version = "version" in rows.schema.names
    columns.append(rows.column("version").to_pylist() if has_version else [None] * rows.num_rows)
    if names_parts(rows.schema):
        metadata = rows.column(METADATA_COLUMN)
        columns += [metadata.field(PARTS.field(place).name).to_pylist() for place in range(PARTS.num_fields)]
    for values in zip(*columns, strict=True):
        if values[0] is None:
            raise OptionError("load", "was given a row whose column 'uri' is null; leave such rows out of the query")
        yield _Named(*values)


def _matching(pieces: Sequence[Piece], named: _Named) -> list[Piece]:
    """Return the pieces of the object, or the part of one that the row names. Raises OptionError without any."""
    matching = list(pieces)
    if named.version is not None:  # where versions have numbers and no ETag
        matching = [p for p in pieces if p.content.reference is None or p.content.reference.version == named.version]
    if (start := named.start) is not None and named.length is not None:
        until, parts = start + named.length, []
        for piece in matching:
            first, end = offset_of(piece.start), offset_of(piece.end)
            if first <= start and until <= end:
                begins = piece.start if start == first else position_at(start)
                parts.append(piece._replace(start=begins, end=piece.end if until == end else position_at(until)))
        matching = parts
    if not matching:
        raise OptionError(
            "load",
            f"was given {named.uri!r}, which is no object of this batch as it was announced: leave the columns uri, "
            "size, etag and _metadata of the rows as they are, and keep none of them for a later batch, as "
            "aggregations and joins of streams do",
        )
    return matching


@dataclass(frozen=True, slots=True)
class TaskLoaded:
    """What one task has loaded.

    Attributes:
        written: The target's own value; None where no columns are known yet, since no object has any.
        columns: Those of the objects.
        verdicts: The bad objects that the task attempt `reading` has found.
        is_judge: It has, or has left out what an attempt at this task before it had given up after deaths.
        unloaded: What of the objects the target does not get.
        reasons: Why it does not, by column.
        passed_by: How many objects have a column that was not declared, by its path.
    """

    written: Any
    columns: pa.Schema
    pieces: list[LoadedPiece] = field(default_factory=list)
    verdicts: list[ErrorRecord] = field(default_factory=list)
    reading: Reading | None = None
    is_judge: bool = False
    unloaded: Values = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    passed_by: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanToLoad:
    """What the tasks of a batch need to know of its plan: made at planning, and pickled into each of them.

    `packed` are its pieces; `left_out` the places of those that an attempt before has found bad.
    """

    identity: PlanIdentity
    store: PlanStore
    content: ContentOptions
    columns: pa.Schema
    packed: bytes
    left_out: frozenset[int]
    attempt: int
    is_suspected: bool
    is_published: bool

    @classmethod
    def of(cls, plan: Plan, store: PlanStore, content: ContentOptions, columns: pa.Schema) -> PlanToLoad:
        pieces = whole_pieces(plan.whole or plan.ranges)
        packed = zlib.compress(pickle.dumps(to_tuples(pieces), pickle.HIGHEST_PROTOCOL), 1)
        to_read = {(entry.key, entry.start) for entry in plan.ranges}
        left_out = frozenset(p.place for p in pieces if (p.planned.key, p.planned.start) not in to_read)
        return cls(
            plan.identity, store, content, columns, packed, left_out, plan.attempt, plan.suspected, plan.published
        )

    def pieces(self) -> list[Piece]:
        return from_tuples(pickle.loads(zlib.decompress(self.packed)))

    def work(self, pieces: Sequence[Piece], batch: Batch, max_attempts: int) -> Work:
        """Return what a task reads: without what is given up after deaths of attempts at this task."""
        reading = batch.reading
        isolation: Alone | Beside | None = None
        if self.is_suspected:
            isolation = Alone(max_attempts, writes=True)
        elif self.attempt > 1:
            isolation = Beside(0 if reading is None else reading.partition)
        if self.is_suspected and pieces:
            with self.store.open() as store:
                bad = store.found_bad(self.identity)
            pieces = [piece for piece in pieces if (piece.planned.key, piece.planned.start) not in bad]
        content = in_zone(self.content, batch.zone or machine_time_zone())
        repeated = reading is not None and reading.repeated
        return Work(self.identity, pieces, content, self.store, isolation, max_attempts, repeated=repeated)


class LoadingSink(Sink):
    """Loads objects: positions, attempt and what the target shows in one transaction, as the target's sink does."""

    def __init__(self, options: SinkOptions) -> None:
        assert options.load is not None
        self._options, self._load = options, options.load
        self._target = open_target(options)
        self._plan: PlanToLoad | None = None
        self._taken, self._reasons = pa.schema([]), dict[str, str]()

    def check_place(self) -> None:
        self._target.check_place()

    def check_target(self, store: ShardStore) -> None:
        self._target.check_target(store)

    def prepare(self, store: ShardStore, schema: pa.Schema, plans: Sequence[PlanIdentity]) -> None:
        """Find out what is to be read, and in which columns, and prepare the target for them."""
        check_object_columns(schema, "load", "uri")
        (identity,) = plans
        plan, settings = store.plan_to_load(identity)
        # options of a reader cannot change while a part of an object is read; so those that cut it into records cannot
        # either, here; without a format each object is one piece
        own = self._load.cutting if settings.get("fileFormat") else {}
        if name := next((name for name, text in own.items() if settings.get(name, text) != text), None):
            raise OptionError(
                "load" if name == "fileFormat" else name,
                f"is {own[name]!r} for this sink, and {name} is {settings[name]!r} for its reader, which cuts large "
                "objects by it; give both the same",
            )
        allowed = [prefix for prefix in settings["allowedPrefixes"].split(",") if prefix.startswith("file://")]
        storage = replace(self._load.content.storage, local_prefixes=tuple(allowed))  # read no other local objects
        content = replace(self._load.content, storage=storage)
        columns, of_table = self._columns(store, plan, content)
        self._taken = columns
        if columns.names:
            assert content.format is not None
            check_schema(columns, content.format)
            if of_table is not None and content.schema.adds_columns:
                removed, widens = self._target.removed_columns(store), content.schema.widens_types
                self._taken, self._reasons = taken_columns(self._target, of_table, columns, removed, widens=widens)
            try:
                self._target.prepare(store, self._taken, plans)
            except OptionError as error:
                folder = content.schema.schema_location
                if of_table is not None or folder is None or self._load.columns is not None:
                    raise
                raise OptionError(
                    error.option,
                    f"{error.problem}. The columns were inferred, and are kept in {folder}: if they are not those of "
                    "your objects, correct the format and its options, remove that folder, and start again",
                ) from error
        self._plan = PlanToLoad.of(plan, PlanStore.of(self._options.store, store), content, columns)

    def write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, batch: Batch) -> TaskLoaded:
        plan = self._plan
        assert plan is not None
        if batch.plans != (plan.identity,):
            raise ShardStoreError(
                f"pipeline {plan.identity.token.pipeline!r}: another driver has planned this batch meanwhile; only one "
                "query may run under a 'pipeline' name"
            )
        pieces = chosen_pieces(plan.pieces(), batches, plan.content)
        if plan.is_published:
            pieces = []
        to_read = [piece for piece in pieces if piece.place not in plan.left_out]
        work = plan.work(to_read, batch, self._load.max_attempts)
        if not plan.columns.names:  # it reports what cannot be read, without a row of it
            assert work.content.format is not None
            format = replace(work.content.format, mode="DROPMALFORMED")
            work = replace(work, content=replace(work.content, format=format))
        verdicts: list[ErrorRecord] = []
        written: Any = None
        unloaded = Counter[str]()
        PASSED_BY.clear()
        # closed at once: where the target fails, the mark of what was being read is taken back, not left as a death
        with closing(read_marked(work, plan.columns, partial(_report, work, verdicts))) as rows:
            if plan.columns.names:
                taken = only_taken(rows, self._taken, unloaded) if self._reasons else rows
                written = self._target.write(taken, self._taken, batch)
            elif any(batch.num_rows for batch in rows):
                raise _nothing_inferred("")
        is_judge = any(verdict.scope == "object" for verdict in verdicts) or len(work.pieces) < len(to_read)
        loaded = list(map(LoadedPiece.of, pieces))
        about = verdicts, batch.reading, is_judge, dict(unloaded), self._reasons, dict(PASSED_BY)
        return TaskLoaded(written, plan.columns, loaded, *about)

    def published_columns(self, written: Sequence[TaskLoaded]) -> pa.Schema:
        return next((task.columns for task in written), pa.schema([]))

    def commit(
        self, store: ShardStore, batch: Batch, written: Sequence[TaskLoaded], *, row_schema: str, batch_id: int
    ) -> None:
        """Record what the tasks have found bad, then publish: should this attempt die, the next one leaves it out."""
        pieces = [piece for task in written for piece in task.pieces]
        check_once(pieces)
        (identity,) = batch.plans
        batch = replace(batch, plans=(replace(identity, loaded=loaded_ranges(pieces)),))
        if any(task.verdicts or task.is_judge for task in written):
            # with the traces of the only reading whose rows are published (`batches/readings.py`)
            verdicts = [verdict for task in written for verdict in task.verdicts]
            readings = [(task.is_judge, task.reading) for task in written if task.reading is not None]
            judges = [reading for is_judge, reading in readings if is_judge]
            first = next((reading for _, reading in readings if not reading.partition), None)
            store.judge(identity, verdicts, judges, first=first, tasks=len(written))
        say_passed_by(identity.token.pipeline, sum((Counter(task.passed_by) for task in written), Counter[str]()))
        say(identity.token.pipeline, (task.unloaded for task in written), written[0].reasons if written else {})
        if self.published_columns(written).names:
            of_target = [task.written for task in written]
            self._target.commit(store, batch, of_target, row_schema=row_schema, batch_id=batch_id)
        else:  # the target does not exist yet
            store.publish(batch.plans, (), batch_id=batch_id, winners=batch.winners)

    def _columns(self, store: ShardStore, plan: Plan, content: ContentOptions) -> tuple[pa.Schema, pa.Schema | None]:
        """Return the columns to read, and the table's own; none where they are to be inferred, and no object has any.

        A new table gets those of the first batch; names and types of an existing one stay as they are. Raises
        OptionError.
        """
        # here: tasks know their columns
        from queue_source.schema.location import SchemaLocation
        from queue_source.schema.sampling import kept_columns, named_samples

        assert content.format is not None
        if self._load.columns is not None:
            try:
                return parse_columns(self._load.columns), None
            except ValueError as error:
                raise OptionError("schema", str(error)) from error
        location = content.schema.schema_location
        is_fixed = format_of(content.format).fixed_schema is not None
        own = None if is_fixed else self._target.own_columns(store)
        if location is None and own is not None:
            return own, own
        if own is not None:  # what the format has no values for is left to other writers
            own = pa.schema([field for field in own if _may_fill(content.format, field)])

        def inferred(samples: Sequence[Content]) -> tuple[pa.Schema, pa.Schema | None]:
            return kept_columns(content, partial(tuple, samples), [], _nothing_inferred, own), own

        folder = None if location is None else SchemaLocation(location, content.storage)
        is_kept = folder is not None and folder.latest() is not None
        named = named_samples(content.schema)
        if is_fixed or is_kept or named:
            return inferred(named)
        count = content.schema.schema_sample_files
        for start in range(0, len(plan.ranges), count):
            samples = [entry.content for entry in plan.ranges[start : start + count]]
            with suppress(_NothingInferred):  # all of them are empty or bad: the tasks find out which
                return inferred(samples)
        if folder is None or own is None:
            return pa.schema([]), None
        folder.record(own)
        return inferred(())


def _may_fill(format: FormatOptions, field: pa.Field) -> bool:
    try:
        format_of(format).check_columns(data_schema(pa.schema([field]), format))
    except OptionError:
        return False
    return True


class _NothingInferred(OptionError):
    """No sample has columns."""


def _nothing_inferred(tried: str) -> OptionError:
    return _NothingInferred(
        "schema",
        f"is needed: no object of this batch has columns to infer{tried}: declare the columns, as in 'id BIGINT, name "
        "STRING', or name objects in schemaSample",
    )


def _report(work: Work, verdicts: list[ErrorRecord], records: Sequence[ErrorRecord]) -> None:
    """Keep verdicts on objects for the commit, and write all others at once.

    Bad records may be many, and are the same at every attempt. An object that is given up after deaths has to be known
    to the task after this one, should that die too.
    """
    whole = [record for record in records if record.scope in WHOLE]
    verdicts += whole
    if at_once := [record for record in records if record.scope not in WHOLE or record.cause == KILLS]:
        with work.store.open() as store:
            store.report(work.identity, at_once, None)
