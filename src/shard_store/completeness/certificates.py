"""Certificates: "of the N objects under PREFIX last modified before T, p are published, ..."; and comparing two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.completeness.comparing import COUNTED, UNPUBLISHED, Category
from shard_store.errors import StoreConfigurationError
from shard_store.notebooks import NotebookTable
from shard_store.sql.database import Transaction
from shard_store.sql.schema import certificates

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


def write(transaction: Transaction, scope: Scope, evidence: str, tally: Tally, actor: str) -> int:
    """Write a certificate; returns its id."""
    c = scope
    insert = certificates.insert().values(
        source=c.source,
        prefix=c.prefix,
        modified_since=c.modified_since,
        modified_before=c.modified_before,
        choice=c.choice,
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


def latest(transaction: Transaction, *, limit: int) -> tuple[Certificate, ...]:
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
    surplus = {name: _without(uris, those[name]) for name, uris in these.items()}
    return {name: uris for name, uris in surplus.items() if uris}


def _without(uris: Iterable[str], others: Iterable[str]) -> list[str]:
    excluded = set(others)
    return [uri for uri in uris if uri not in excluded]


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
