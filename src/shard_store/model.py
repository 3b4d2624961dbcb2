"""The values that the shard store takes and returns: frozen, without I/O. `docs/design.md` has the words.

Those that come by the thousand are named tuples: making a frozen dataclass takes four times as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import NamedTuple, NewType

Position = NewType("Position", str)
"""Progress in a shard. Text order is logical order: BEGINNING < 20 digits < `~` and 20 digits (the end)."""

ShardKey = NewType("ShardKey", bytes)
"""SHA-256 of (source, shard id): 32 bytes, because ids may be longer than any database's key."""

BEGINNING = Position("")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)
"""`duration // MICROSECOND` is a duration as the store keeps it."""
_DIGITS = 20


def position_at(offset: int) -> Position:
    """Return the position `offset` units (bytes of an object, in every format) into a shard."""
    return Position(str(offset).zfill(_DIGITS))


def end_at(offset: int) -> Position:
    """Return the end (EOF) of a shard of `offset` units. Greater than every position that is not an end."""
    return Position("~" + str(offset).zfill(_DIGITS))


def offset_of(position: Position) -> int:
    """Return the units before a position, also before an end; the inverse of `position_at` and `end_at`."""
    return int(position.lstrip("~")) if position else 0


def is_end(position: Position) -> bool:
    return position.startswith("~")


def micros(time: datetime) -> int:
    """Return an aware time as the store keeps it: microseconds since 1970 UTC."""
    return (time - EPOCH) // MICROSECOND


def time_of(micros: int) -> datetime:
    """Return what the store keeps as an aware time in UTC; the inverse of `micros`."""
    return EPOCH + micros * MICROSECOND


def iso_time(micros: int | None) -> str | None:
    """Format what the store keeps as ISO 8601 in UTC."""
    return None if micros is None else time_of(micros).isoformat(timespec="milliseconds")


def shard_key(source: str, shard_id: str) -> ShardKey:
    """Return the key of a shard; sources do not share shards."""
    return ShardKey(hashlib.sha256(f"{source}\0{shard_id}".encode("utf-8", "surrogatepass")).digest())


LISTING = "listing"
"""The queue that contents come from which a listing has found: no message will ever come for them."""

STORE = "store"
"""The queue that contents come from which a receiver has recorded for their source: their messages are acknowledged."""

WITHOUT_MESSAGE = (LISTING, STORE)
"""Of their contents no message is in a reader's hands: any pipeline of the source may take what has no owner."""


SINK = "cuesqueue"
"""`format("cuesqueue")`: Spark plans it for each batch."""

DELIVERY = "delivery"
"""`delivery`, in a function of the user's, which may return without it: an empty batch often does."""

OTHER = "other"
"""A process without any connection to ours."""


class ShardState(str, Enum):
    OPEN = "open"  # not at the end: it has to be processed
    DONE = "done"  # at EOF, and published unless it is marked: see batches/positions.py
    QUARANTINED = "quarantined"  # given up with a cause in the errors table


class Pending(str, Enum):
    """What an operator asks of an open shard; of one that is done, why it is not published."""

    QUARANTINE = "quarantine"  # the next plan with it is to give it up
    REOPENED = "reopened"  # its reader is to look at it again: it was put back, or is not to be given up
    BEGUN = "begun"  # with at-most-once: its batch was begun, and is not published yet
    SKIPPED = "skipped"  # it was bad, at least in part, and the options say that it is to be skipped
    GIVEN_UP = "given-up"  # it is unknown whether its batch was published: at-most-once, or the very first batch
    LEFT_OUT = "left-out"  # the query has filtered its reference, at least of a part, and `load` has not read it


class AttemptKind(str, Enum):
    """What a delivered plan brought: rows, none, or errors only."""

    OUTPUT = "attempt-output"
    NIL = "attempt-nil"
    ERROR = "attempt-error"


@dataclass(frozen=True, slots=True)
class PublishToken:
    """Who may publish a shard: one start of one pipeline. Written `pipeline/incarnation`."""

    pipeline: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a reader runs, and with which versions; None: not known."""

    host: str | None = None
    spark: str | None = None
    cuesqueue: str | None = None

    def columns(self) -> dict[str, str | None]:
        def cut(text: str | None, length: int) -> str | None:
            return None if text is None else text[:length]

        return {
            "host": cut(self.host, 255),
            "spark_version": cut(self.spark, 40),
            "cuesqueue_version": cut(self.cuesqueue, 40),
        }


class Payload(NamedTuple):
    """A message that is itself the content (`content=message`). `sent_at` is seconds since 1970, None if unknown.

    `key` is the message key: the message's id, and how often it was republished.
    """

    value: bytes
    key: str
    tag: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    sent_at: float | None = None


class Reference(NamedTuple):
    """What else is known of an object when it is announced, for rows of `content=reference`; None where nothing is.

    Times are microseconds since 1970 UTC: of the object's last change, and of the event that its notification reports.
    `version` is the bucket's, `tag` the message's.
    """

    version: str | None = None
    modified: int | None = None
    event_time: int | None = None
    tag: str | None = None


class Content(NamedTuple):
    """What a shard is made of, as announced: enough to read it later without the message.

    `shard_id` identifies the content; `uri` says where it is read from (they differ when versions are part of the
    identity). `size` in bytes and `etag` are None when they were not announced. `group`: contents of one group of a
    queue are processed in order, in one partition. `payload` is kept by snapshots alone, not by the shard table.

    `sequence` orders the announced versions of the content (text of one kind, greater is newer), None where nothing
    says so. `named`: its message has an id of its own; equal messages without one share an id. `announced`: size and
    ETag as they were announced, where a look-up has filled in what they lacked; what it saw may be old by now. These
    are for opening: snapshots do not keep them. `reference` is kept by both, and is None where objects are read.
    `sent_at`: when its message was sent, in microseconds since 1970 UTC; else the time of the event that the message
    reports; None: unknown. A snapshot keeps it with the moves, and gives it back with no range.
    """

    shard_id: str
    uri: str
    size: int | None = None
    etag: str | None = None
    queue: str = ""
    message_id: str = ""
    receive_count: int = 1
    group: str | None = None
    payload: Payload | None = None
    sequence: str | None = None
    named: bool = True
    reference: Reference | None = None
    sent_at: int | None = None
    announced: tuple[int | None, str | None] | None = None


class Shard(NamedTuple):
    """One row of the shard table as its reader saw it, with whether its owner's heartbeats have stopped.

    `reopened`: it had ended until the call that returns it, which took a new announcement of it. `changed`: that call
    took the announcement of a version which is not read, since rows of another one are published.
    """

    key: ShardKey
    content: Content
    position: Position
    state: ShardState
    token: PublishToken | None
    stale: bool
    reopened: bool = False
    changed: bool = False


class Range(NamedTuple):
    """One entry of a snapshot or plan: `content` from `start` (inclusive) to `end` (exclusive)."""

    key: ShardKey
    content: Content
    start: Position
    end: Position


class Move(NamedTuple):
    """A range without its content: all that publishing needs to know of it."""

    key: ShardKey
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The durable list of ranges that one offset of a pipeline stands for (invariant 3)."""

    seq: int
    ranges: tuple[Range, ...]


ALONE = -1
"""In the place of a task's number: nothing else of the plan is read at the same time."""


class ReadMark(NamedTuple):
    """What a task reads, or was reading when it died: the places from `first` up to, and without, `end` of its plan.

    `task` is the number of the task among those of the plan, or ALONE. `unended`: how many reads of it never ended, as
    far as the next read can tell.
    """

    first: int
    end: int
    task: int
    unended: int = 0


class Reading(NamedTuple):
    """A task attempt that reads a plan, by the numbers that Spark gives it. `repeated`: an attempt may precede it."""

    stage: int
    partition: int
    task: int
    repeated: bool = False


OF_UNKNOWN_VERSION = "unknown"
"""In place of an ETag: what is published is of some version, and nothing is known to be the same."""


class Met(NamedTuple):
    """The version in which a task has met an object: its size in bytes, and its ETag where its store has one."""

    size: int
    etag: str | None


@dataclass(frozen=True, slots=True)
class PlanIdentity:
    """What names one plan everywhere: small enough to travel with commit messages through the executors."""

    source: str
    token: PublishToken
    start_seq: int
    end_seq: int
    delivery_hash: str
    unplanned_seq: int = field(default=0, compare=False)
    """For a sink: the snapshot up to which its micro-batch goes, should Spark have asked for no plan of it; else 0."""
    loaded: frozenset[tuple[ShardKey, Position]] | None = field(default=None, compare=False)
    """For a sink with `load`, at its commit: the beginnings of the ranges that it has read. None: another sink, whose
    rows are those of the query."""


def by_pipeline(identities: Iterable[PlanIdentity]) -> tuple[PlanIdentity, ...]:
    """Return the plans of one micro-batch in the order of their pipelines' names, in which all that is made of them is.

    A query may name its pipelines in another order after a restart.
    """
    return tuple(sorted(identities, key=lambda identity: identity.token.pipeline))


def hash_of_batch(identities: Iterable[PlanIdentity]) -> str:
    """Return the delivery hash of the micro-batch to which these plans bring input."""
    return joined_hash([identity.delivery_hash for identity in by_pipeline(identities)])


def joined_hash(hashes: Sequence[str]) -> str:
    """Return the hash of a batch whose plans have these, in the order of their pipelines' names."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\0".join(hashes).encode()).hexdigest()


class Noted(NamedTuple):
    """What a reader notes for the sinks of its driver: the plan that it has made for the micro-batch that runs."""

    incarnation: int
    """The reader's."""
    delivery_hash: str
    """Empty: it has made none, since there is no new input, or Spark has not asked for a plan of it."""
    new_seq: int
    """The offset of the new input, if there is any; else 0. 0 also where Spark repeats a batch of its log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The snapshots of one micro-batch: what is to be read (`ranges`), what was lost to others meanwhile (`lost`).

    What an earlier attempt at the same plan found bad belongs to it and is not read again: it is in `whole`, in which
    the place of a range is the same at every attempt, and not in `ranges`. `published` is true when an earlier attempt
    has already delivered this plan: `ranges` is then what it delivered, as far as the plan is the last one; else
    nothing. `attempt` counts how often the plan was made: each time but the first says that the one before it failed.
    `suspected`: a task of an earlier attempt has left the mark of its read behind. `replaced`: the hash of the
    pipeline's plan before this one. `direct`: its readers bring its rows to our sink, as in a batch of this incarnation
    before.
    """

    identity: PlanIdentity
    ranges: tuple[Range, ...]
    lost: tuple[Range, ...] = ()
    published: bool = False
    attempt: int = field(default=1, compare=False)  # the same plan, however often
    whole: tuple[Range, ...] = field(default=(), compare=False)
    suspected: bool = field(default=False, compare=False)
    replaced: str | None = field(default=None, compare=False)
    direct: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Split:
    """A data file that becomes visible by being published. `path` is relative to nothing: a whole URI or path."""

    path: str
    rows: int
    size: int


def split_key(path: str) -> bytes:
    """Return the key of a split's name, the last part of its path: a folder may be named in several ways."""
    return hashlib.sha256(path.rpartition("/")[2].encode("utf-8", "surrogatepass")).digest()


def uri_key(uri: str) -> bytes:
    """Return the key of an object, whatever source it is of."""
    return hashlib.sha256(uri.encode("utf-8", "surrogatepass")).digest()


QUARANTINING = ("object", "part")
"""Scopes of errors with which a shard ends in quarantine."""

WHOLE = (*QUARANTINING, "skipped")
"""Scopes of errors that concern a range as a whole."""


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """One entry of the error table. Unique by (plan hash or "", shard or message, position): writing it twice is one.

    `scope`: "message" (a message that was not understood), "object" (the shard is quarantined when its plan is
    published), "part" (so is this one, and other tasks may have published what they read of it), "skipped" (an object
    that counts as done), "record" (one record of an object; the object goes on) or "row" (the user's function rejected
    it; equal ones of a plan differ in `occurrence`). `cause` is a short fixed word (`malformed-message`,
    `outside-prefixes`, `missing-object` ...), `detail` the sentence for a human, `input` the bytes that could not be
    processed as far as they are known; where they are the beginning only, `input_size` says of how many. `tag`,
    `headers` and `group` are those of a message, for publishing it again. `origin`: the name of its queue that stays
    (`naming`), "" where that is `queue`.
    """

    scope: str
    cause: str
    detail: str
    subject: str  # shard id, or the message id for scope "message"
    plan_hash: str = ""
    position: Position = BEGINNING
    queue: str = ""
    message_id: str = ""
    input: bytes | None = None
    input_size: int | None = None  # None: `input` is whole
    tag: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    group: str | None = None
    occurrence: str = ""
    origin: str = ""


def delivery_hash(source: str, pipeline: str, ranges: Iterable[Range], seqs: tuple[int, int]) -> str:
    """Return the SHA-256 of the canonical form of a plan: the same at every attempt, never seen again after.

    `seqs`: the plan holds the snapshots after the first and up to the second, as they were written. Spark's own offsets
    are no part of the hash: after a lost checkpoint the same snapshots are planned from offset 0. Without the seqs a
    shard that is read again later (announced after it was pruned, or put back after quarantine) would bring back the
    hash of a plan that was delivered long ago; without the versions, so would a snapshot that a restored store writes
    once more about an object which is another one by now.
    """
    digest = hashlib.sha256()
    for name in (source, pipeline):
        digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(f"{seqs[0]} {seqs[1]}\0".encode())
    moves = []
    for key, content, start, end in ranges:
        version = None if content.reference is None else content.reference.version
        # ASCII, whatever a bucket calls an ETag
        moves.append((key, start, end, f"{content.size} {content.etag!a} {version!a}"))
    moves.sort()
    digest.update(b"".join([key + f"\0{start}\0{end}\0{version}\0".encode() for key, start, end, version in moves]))
    return digest.hexdigest()


class Semantics(str, Enum):
    """The delivery semantics: what is remembered of each announcement, and when it counts as done.

    | | shard rows | a shard is final | a plan that is made again holds |
    |---|---|---|---|
    | exactly-once | yes | with the publication, or the confirm | the same, less what passed to others |
    | at-least-once | no | its message is acknowledged at the confirm | the same |
    | at-most-once | yes | with its snapshot, before Spark sees the offset | nothing: it was begun |

    A pipeline's row holds its semantics, so that every process which locks it (reader, sink) reads them there.

    The code asks the questions below, and never for a name.
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"

    @property
    def keeps_shards(self) -> bool:
        """Return whether announcements become rows of the shard table: else nothing tells one from its repetition."""
        return self is not Semantics.AT_LEAST_ONCE

    @property
    def final_at_snapshot(self) -> bool:
        """Return whether shards are final with their snapshot: what is begun is never read again."""
        return self is Semantics.AT_MOST_ONCE

    @property
    def final_at_delivery(self) -> bool:
        """Return whether shards advance in the transaction that delivers their plan."""
        return self is Semantics.EXACTLY_ONCE
