"""What became of the objects of a listing: each page compared with the shards of a source in one statement.

Three clocks meet here: the object store's (when an object was modified), the database's (when its shard ended, and up
to when such ends may be forgotten), and the host's, which has no say.

A certificate keeps the result: "of the N objects under PREFIX last modified before T, p are published, ...".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.starting import refuse_half_reset, refuse_half_reset_of
from shard_store.completeness.listing import SURE, earliest, latest
from shard_store.errors import StoreConfigurationError
from shard_store.model import Pending, Semantics, ShardKey, ShardState, shard_key
from shard_store.notebooks import NotebookTable
from shard_store.sql.database import Transaction
from shard_store.sql.schema import certificates, pipelines, shard_changes, shards, sources

HOUR = 3_600_000_000


class Category(str, Enum):
    """What became of an object. The values are columns of certificates, and words of reports."""

    PUBLISHED = "published"
    WAITING = "waiting"  # announced, and not published yet
    QUARANTINED = "quarantined"
    SKIPPED = "skipped"  # bad, at least in part, and the options say that such an object is left out
    GIVEN_UP = "given_up"  # it is unknown whether its batch was published: at-most-once, or the very first batch
    MISSING = "missing"  # never announced, as far as the store remembers, and it would remember
    CHANGED = "changed"  # published, and another object by now
    BEYOND_MEMORY = "beyond_memory"  # unknown, and so old that the store may have forgotten it
    BEFORE_BEGINNING = "before_beginning"  # unknown, and there before the first start (includeExistingFiles)
    LEFT_OUT = "left_out"  # by the reader's own options, or its query's filter before `load`; not among the objects


COUNTED = tuple(category for category in Category if category is not Category.LEFT_OUT)
"""Each object of a certificate is in one of these."""

UNPUBLISHED = (
    Category.MISSING,
    Category.QUARANTINED,
    Category.GIVEN_UP,
    Category.SKIPPED,
    Category.WAITING,
    Category.CHANGED,
)
"""With an object in one of these nothing is complete; the worst first."""

UNPUBLISHED_BY_MARK = {
    Pending.BEGUN.value: Category.WAITING,
    Pending.SKIPPED.value: Category.SKIPPED,
    Pending.GIVEN_UP.value: Category.GIVEN_UP,
    Pending.LEFT_OUT.value: Category.LEFT_OUT,
}
"""What a shard that is done is instead of published."""


class Clocks(NamedTuple):
    """Microseconds: how far the object store's clock is ahead of the database's, and how well that is known."""

    ahead: int = 0
    accuracy: int = HOUR  # not measured


UNMEASURED = Clocks()
MEASURED = 60_000_000
"""The accuracy of a difference that was measured, where the time of an object is in whole seconds."""


class ListedShard(NamedTuple):
    """An object as it is compared. `modified`: microseconds since 1970, by the object store's clock.

    `uri`, where the id has a version too: under this id it was read before the reader had `allowOverwrites`.
    `appeared`: of a local file, when it got its name or its content at the latest (see `listing.Found`).
    """

    shard_id: str
    size: int | None
    etag: str | None
    modified: int
    uri: str | None = None
    appeared: int | None = None


class Finding(NamedTuple):
    """`pipeline`: the one that has the shard, or published it; None: none has it, or it is unknown.

    `is_unread`: it is changed, and was read as zero bytes: an announcement of what it is now opens it again.
    """

    category: Category
    pipeline: str | None = None
    is_unread: bool = False


class Memory(NamedTuple):
    """How far back a source remembers: `sources` in the schema."""

    forgotten_before: int = 0
    existing_before: int | None = None


def database_time(transaction: Transaction) -> int:
    """Return the microseconds since 1970 by the database's clock."""
    return int(transaction.execute(sa.select(transaction.now())).scalar_one())


def source_of(transaction: Transaction, name: str | None) -> str:
    """Return the source of this name, or the only one. Raises StoreConfigurationError.

    A name that is misspelt would make every object a missing one, and so would a source that keeps no shards.
    """
    rows = transaction.execute(sa.select(pipelines.c.source, pipelines.c.semantics)).all()
    routed = transaction.execute(sa.select(sources.c.source).where(sources.c.moved_to.is_(None))).scalars()
    names = sorted({row.source for row in rows} | set(routed))
    if name is None and len(names) == 1:
        (name,) = names
    if name is None or name not in names:
        some = ", ".join(names[:10]) or "none, since no query has started yet"
        problem = "has several sources, so name one" if name is None else f"has no source {name[:100]!r}"
        problem = problem if names or name is not None else "has no source yet"
        raise StoreConfigurationError(f"option 'source': the store {transaction.database!r} {problem}; it has: {some}")
    if (kept := [Semantics(row.semantics).keeps_shards for row in rows if row.source == name]) and not any(kept):
        raise StoreConfigurationError(
            f"option 'source': the pipelines of {name!r} run with deliverySemantics=at-least-once, of which the store "
            "does not remember what was read; nothing can be compared with a listing"
        )
    refuse_half_reset(transaction, name)
    return name


class StoredShard(NamedTuple):
    """A shard as it is compared. `compare` selects the columns of these names, in this order."""

    shard_key: bytes | None
    state: str
    size: int | None
    etag: str | None
    finished_at: int
    owner: str | None
    pending: str | None


def compare(
    transaction: Transaction, source: str, listed: Sequence[ListedShard], clocks: Clocks = UNMEASURED
) -> list[Finding]:
    """Return what became of each object of a page, in their order; up to 1,000, and half as many with a `uri`.

    One statement, which sees the shards and how far the source remembers at the same moment: else what pruning removes
    in between would be called missing. Raises StoreConfigurationError while the source is being reset: half of what it
    has read is forgotten, and the other half would be called published.
    """
    keys = [shard_key(source, entry.shard_id) for entry in listed]
    plain_keys = {entry: shard_key(source, entry.uri) for entry in listed if entry.uri is not None}
    columns = [shards.c[name] for name in StoredShard._fields]
    of_shards = sa.select(*columns).where(transaction.among(shards.c.shard_key, sorted({*keys, *plain_keys.values()})))
    # the row of the source has what it remembers, and its reset, in the places of size, the time of its end, and ETag
    in_place = {"state": sa.literal(""), "size": sources.c.forgotten_before, "finished_at": sources.c.existing_before}
    in_place["etag"] = sources.c.naming
    of_source = sa.select(*(in_place.get(name, sa.null()) for name in StoredShard._fields))
    union = sa.union_all(of_shards, of_source.where(sources.c.source == source))
    rows: dict[ShardKey | None, StoredShard] = {}
    for stored in map(StoredShard._make, transaction.execute(union)):
        rows[None if stored.shard_key is None else ShardKey(bytes(stored.shard_key))] = stored
    of_own = rows.pop(None, None)
    refuse_half_reset_of(None if of_own is None else of_own.etag, source)
    remembered = Memory() if of_own is None else Memory(of_own.size or 0, of_own.finished_at)
    return [
        judge(entry, rows.get(key), rows.get(plain_keys.get(entry, key)), remembered, clocks)
        for entry, key in zip(listed, keys, strict=True)
    ]


def judge(
    entry: ListedShard,
    row: StoredShard | None,
    plain: StoredShard | None,
    remembered: Memory,
    clocks: Clocks = UNMEASURED,
) -> Finding:
    """Return what became of an object, whose shard is `row`; `plain` is the one that has its URI alone as its id."""
    if row is not None:
        return _judge_stored(entry, row, clocks)
    if plain is not None and _judge_stored(entry, plain, clocks._replace(accuracy=0)).category is Category.PUBLISHED:
        return Finding(Category.PUBLISHED, plain.owner)
    last = latest(entry.modified, entry.appeared) - clocks.ahead
    if remembered.existing_before is not None and last < remembered.existing_before:
        return Finding(Category.BEFORE_BEGINNING)
    first = earliest(entry.modified, entry.appeared) - clocks.ahead
    if remembered.forgotten_before and first <= remembered.forgotten_before + SURE:
        return Finding(Category.BEYOND_MEMORY)
    return Finding(Category.MISSING)


def _judge_stored(entry: ListedShard, row: StoredShard, clocks: Clocks) -> Finding:
    if row.state == ShardState.QUARANTINED.value:
        return Finding(Category.QUARANTINED, row.owner)
    if row.state != ShardState.DONE.value:
        return Finding(Category.WAITING, row.owner)
    if row.pending in UNPUBLISHED_BY_MARK:
        return Finding(UNPUBLISHED_BY_MARK[row.pending], row.owner)
    if entry.etag is not None and row.etag is not None:
        changed = entry.etag != row.etag
    else:
        other_size = entry.size is not None and row.size is not None and entry.size != row.size
        changed = other_size or entry.modified - clocks.ahead > row.finished_at + clocks.accuracy
    if not changed:
        return Finding(Category.PUBLISHED, row.owner)
    return Finding(Category.CHANGED, row.owner, is_unread=row.size == 0 and entry.size != 0)


KEPT = 1000
"""URIs of each kind of unpublished objects that a certificate keeps."""

LONGEST = 1 << 20
"""Characters of all of them: names may be long, and a certificate is one row."""

EMPTY = "empty"

_COUNTS = tuple(category.value for category in Category)


@dataclass
class Tally:
    """What became of the objects of one prefix. Memory is bounded, however many there are.

    Attributes:
        counts: Category -> number of objects.
        unpublished: Category -> the first URIs of it, up to `KEPT`.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    unpublished: dict[str, list[str]] = field(default_factory=lambda: {c.value: [] for c in UNPUBLISHED})
    _sum: int = 0
    _room: int = LONGEST

    def add(self, uri: str, size: int | None, etag: str | None, category: Category) -> None:
        name = category.value
        self.counts[name] += 1
        if category is Category.LEFT_OUT:
            return
        text = f"{uri}\0{'' if size is None else size}\0{etag or ''}\0{name}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        self._sum += int.from_bytes(digest, "big")
        kept = self.unpublished.get(name)
        if kept is not None and len(kept) < KEPT and len(uri) <= self._room:
            kept.append(uri)
            self._room -= len(uri)

    @property
    def objects(self) -> int:
        return sum(self.counts[category.value] for category in COUNTED)

    @property
    def digest(self) -> str:
        """Return the digest of all objects and what became of each, whatever their order."""
        return f"{self._sum % 2**256:064x}"


def verdict(counts: Mapping[str, int]) -> str:
    """Return `complete`, `incomplete`, or `unknown`: nothing is known to be unpublished, but the store has forgotten.

    `empty`: of no objects nothing can be said.
    """
    if not any(counts[category.value] for category in COUNTED):
        return EMPTY
    if any(counts[category.value] for category in UNPUBLISHED):
        return "incomplete"
    return "unknown" if counts[Category.BEYOND_MEMORY.value] else "complete"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a certificate is about: two with the same scope can be compared.

    `choice`: the reader's options that choose among the objects, as JSON. Times are microseconds since 1970 by the
    object store's clock.
    """

    source: str
    prefix: str
    modified_since: int | None
    modified_before: int
    choice: str


@dataclass(frozen=True, slots=True)
class Certificate(NotebookTable):
    id: int
    scope: Scope
    evidence: str
    objects: int
    counts: Mapping[str, int]
    digest: str
    unpublished: Mapping[str, Sequence[str]]
    actor: str
    written_at: int

    @property
    def verdict(self) -> str:
        return verdict(self.counts)


def write(
    transaction: Transaction, scope: Scope, evidence: str, tally: Tally, actor: str, since: int | None = None
) -> int:
    """Write a certificate; returns its id.

    Raises StoreConfigurationError while the source is being reset, and where anything of it was forgotten `since` the
    comparison began (by the database's clock): it may have been counted as published before.
    """
    refuse_half_reset(transaction, scope.source)
    forgotten = shard_changes.c.source == scope.source, shard_changes.c.after.is_(None)
    recent = sa.select(shard_changes.c.id).where(*forgotten, shard_changes.c.changed_at >= (since or 0)).limit(1)
    if since is not None and transaction.execute(recent).first() is not None:
        raise StoreConfigurationError(
            f"objects of source {scope.source!r} were forgotten (`cuesqueue reset`, or `shards forget`) while they "
            "were compared, so no certificate was written; compare them once more"
        )
    insert = certificates.insert().values(
        **asdict(scope),
        evidence=evidence,
        objects=tally.objects,
        **tally.counts,
        digest=tally.digest,
        unpublished=json.dumps({name: uris for name, uris in tally.unpublished.items() if uris}),
        actor=actor,
        written_at=transaction.now(),
    )
    (number,) = transaction.execute(insert).inserted_primary_key or (0,)
    return int(number)


def find(transaction: Transaction, number: int) -> Certificate:
    """Return the certificate with this id. Raises StoreConfigurationError."""
    row = transaction.execute(sa.select(certificates).where(certificates.c.id == number)).one_or_none()
    if row is None:
        raise StoreConfigurationError(
            f"the store {transaction.database!r} has no certificate {number}; see the view 'completeness'"
        )
    return _certificate(row)


def newest(transaction: Transaction, scope: Scope) -> Certificate | None:
    """Return the last certificate of this scope."""
    c = certificates.c
    rows = transaction.execute(
        sa.select(certificates)
        .where(
            c.source == scope.source,
            c.modified_before == scope.modified_before,
            c.modified_since.is_(None) if scope.modified_since is None else c.modified_since == scope.modified_since,
        )
        .order_by(c.id.desc())  # and not by its time: a clock may have been wrong
    )
    return next((certificate for certificate in map(_certificate, rows) if certificate.scope == scope), None)


def last_ones(transaction: Transaction, *, limit: int) -> tuple[Certificate, ...]:
    """Return the last certificates of all sources, the newest first, without the URIs of what is not published."""
    columns = [column for column in certificates.c if column.name != "unpublished"]
    query: sa.Select[Any] = sa.select(*columns, sa.literal("{}").label("unpublished"))
    rows = transaction.execute(query.order_by(certificates.c.id.desc()).limit(limit))
    return tuple(_certificate(row) for row in rows)


@dataclass(frozen=True, slots=True)
class Difference:
    """What is another now than when a certificate was written.

    Attributes:
        counts: Of `objects` and the categories: what it was, and what it is, where that differs.
        appeared: Category -> URIs that are in it now and were not; `gone`: that were in it and are not any more. As
            far as they are kept: `whole` says whether that is all of them.
        same: Each object is what it was, and what became of it.
    """

    same: bool
    counts: Mapping[str, tuple[int, int]]
    appeared: Mapping[str, Sequence[str]]
    gone: Mapping[str, Sequence[str]]
    whole: bool


def since(earlier: Certificate, now: Tally) -> Difference:
    """Compare what was certified with what is found now."""
    then = {"objects": earlier.objects, **earlier.counts}
    current = {"objects": now.objects, **now.counts}
    counts = {name: (then[name], number) for name, number in current.items() if then[name] != number}
    before = {name: earlier.unpublished.get(name, ()) for name in now.unpublished}
    whole = all(
        len(before[name]) == then[name] and len(kept) == current[name] for name, kept in now.unpublished.items()
    )
    return Difference(
        same=earlier.digest == now.digest and not counts,
        counts=counts,
        appeared=_others(now.unpublished, before),
        gone=_others(before, now.unpublished),
        whole=whole,
    )


def _others(these: Mapping[str, Sequence[str]], those: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    excluded = {name: set(uris) for name, uris in those.items()}
    surplus = {name: [uri for uri in uris if uri not in excluded[name]] for name, uris in these.items()}
    return {name: uris for name, uris in surplus.items() if uris}


def _certificate(row: Row[Any]) -> Certificate:
    scope = Scope(row.source, row.prefix, row.modified_since, row.modified_before, row.choice)
    counts = {name: getattr(row, name) or 0 for name in _COUNTS}  # an earlier version knows fewer of them
    return Certificate(
        id=row.id,
        scope=scope,
        evidence=row.evidence,
        objects=row.objects,
        counts=counts,
        digest=row.digest,
        unpublished=json.loads(row.unpublished),
        actor=row.actor,
        written_at=row.written_at,
    )
