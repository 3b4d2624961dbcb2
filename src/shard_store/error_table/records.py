"""Recording errors: what could not be processed, with its cause; written where it happens, final with its plan.

A range that one attempt at a plan found bad is bad for that plan: no later attempt reads it (decision 0064). Otherwise
a sink that takes only the first attempt would miss rows of a shard that counts as published. For a target with a commit
of its own, its mark says which objects are not among the rows of its batch (`verdicts_of`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shard_store.model import (
    OF_UNKNOWN_VERSION,
    WHOLE,
    ErrorRecord,
    Move,
    PlanIdentity,
    Position,
    ShardKey,
    end_at,
    shard_key,
)
from shard_store.shards.activity import Amounts, count
from shard_store.shards.ownership import fence
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import attempts, errors, shards

_LARGE = 1 << 20  # bytes that every database takes


def record(transaction: Transaction, source: str, pipeline: str, records: Sequence[ErrorRecord]) -> None:
    """Write errors where they happen, also in executors; the same error twice is one.

    Those of a plan become final when it is published; what a late attempt reports of a published plan is dropped. Not
    so rows: a batch without new input, which has the plan before it, may still reject some.
    """
    hashes = {r.plan_hash for r in records if r.plan_hash}
    if hashes:
        final = sa.select(attempts.c.delivery_hash).where(attempts.c.delivery_hash.in_(hashes))
        published = set(transaction.execute(final).scalars())
        records = [r for r in records if r.plan_hash not in published or r.scope == "row"]
    rows = {r["error_key"]: r for r in (_row(source, record) for record in records)}
    # bad messages are final at once, and count when they are first written; other errors count with their plan
    messages = [key for key, row in rows.items() if row["scope"] == "message"]
    recorded = transaction.select_among(sa.select(errors.c.error_key), errors.c.error_key, messages)
    if fresh := set(messages) - {bytes(key) for (key,) in recorded}:
        count(transaction, pipeline, Amounts(errors=Counter(rows[key]["cause"] for key in fresh)))
    # of an input that the database does not take, the beginning is kept; the row says how long the whole is
    large = [row for row in rows.values() if len(row["input"] or b"") > _LARGE]
    if large and (most := transaction.largest_value()) is not None:
        for row in large:
            row["input"] = row["input"][:most]
    fixed = {"source": source, "pipeline": pipeline, "occurred_at": transaction.now()}
    insert = transaction.dialect.insert_if_absent(errors).values(**fixed)
    for chunk in chunks(sorted(rows)):  # in the order of keys: two executors do not deadlock
        transaction.execute(insert, [rows[key] for key in chunk])
    # messages that were sent again after an error, and are bad again under the same id, are errors again
    anew = {"requeued_at": None, "delivered_at": None, "delivered_to": None, "occurred_at": transaction.now()}
    again = errors.update().where(errors.c.requeued_at.is_not(None)).values(**anew)
    transaction.change_among(again, errors.c.error_key, messages)


def reject(transaction: Transaction, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
    """Write rows of the running plan that the user's function rejected; raises PipelineTakenOver when replaced."""
    fence(transaction, identity.token)
    record(transaction, identity.source, identity.token.pipeline, records)


def found_bad(transaction: Transaction, identity: PlanIdentity) -> set[tuple[ShardKey, Position]]:
    """Return the ranges of the plan, by key and start, that an attempt found bad as wholes: none is read again."""
    whole = errors.c.delivery_hash == identity.delivery_hash, errors.c.scope.in_(WHOLE)
    rows = transaction.execute(sa.select(errors.c.shard_key, errors.c.position).where(*whole))
    return {(ShardKey(key), Position(start)) for key, start in rows}


def forget_left_out(transaction: Transaction, plan_hash: str, left_out: Sequence[Move], moves: Sequence[Move]) -> None:
    """Remove what attempts at a plan have reported of ranges that it has lost: their new readers judge them."""
    kept = {move.key for move in moves}
    places: dict[ShardKey, list[Move]] = {}
    for move in left_out:
        places.setdefault(move.key, []).append(move)

    def is_left_out(key: ShardKey, position: Position) -> bool:
        return key not in kept or any(move.start <= position < move.end for move in places[key])

    query = sa.select(errors.c.error_key, errors.c.shard_key, errors.c.position).where(
        errors.c.delivery_hash == plan_hash
    )
    of_keys = transaction.select_among(query, errors.c.shard_key, places)
    gone = [error_key for error_key, key, position in of_keys if is_left_out(ShardKey(key), Position(position))]
    transaction.change_among(errors.delete(), errors.c.error_key, gone)


_done = attempts.alias("done")  # so that queries over attempts may use it
FINAL = sa.or_(errors.c.delivery_hash == "", sa.exists().where(_done.c.delivery_hash == errors.c.delivery_hash))
"""Its plan is published, or no plan is concerned: before, the attempt may still be repeated, and the error with it."""


def error_state(final: sa.ColumnElement[bool] = FINAL) -> sa.ColumnElement[str]:
    """Return the state, as SQL: `pending`, `recorded`, `delivered` to the error queue, or `requeued` by hand.

    `reopened`: its object is read again, since it was announced again or an operator asked for it.
    """
    return sa.case(
        (errors.c.requeued_at.is_not(None), "requeued"),
        (errors.c.reopened_at.is_not(None), "reopened"),
        (errors.c.delivered_at.is_not(None), "delivered"),
        (final, "recorded"),
        else_="pending",
    )


def error_key(source: str, r: ErrorRecord) -> bytes:
    """Return what an error is known by, also to readers of the error queue: the same for every attempt at its plan."""
    queue = (r.origin or r.queue) if r.scope == "message" else ""
    parts = [source, r.scope, r.plan_hash, queue, r.subject, r.position]
    if r.scope == "row":
        parts += [hashlib.sha256(r.input or b"").hexdigest(), r.occurrence]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def _row(source: str, r: ErrorRecord) -> dict[str, Any]:
    message = None
    if r.scope == "message" or r.tag or r.headers or r.group:
        message = json.dumps([r.tag, dict(r.headers), r.group], ensure_ascii=False)
    whole = None if r.input is None else len(r.input)
    return {
        "error_key": error_key(source, r),
        "scope": r.scope,
        "cause": r.cause,
        "detail": r.detail,
        "subject": r.subject,
        "shard_key": None if r.scope == "message" or not r.subject else shard_key(source, r.subject),
        "delivery_hash": r.plan_hash,
        "position": r.position,
        "queue": r.queue,
        "message_id": r.message_id,
        "message": message,
        "input": r.input,
        "input_size": whole if r.input_size is None else r.input_size,
    }


logger = logging.getLogger("cuesqueue")

_NAMED = 1_000
"""Verdicts that a mark names one by one; where there are more, it has a bit for each of the batch's shards."""
_MET, _BITS = "met", "bits"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Which objects of a batch are bad or left out, with scope and cause: what a target's mark says of its rows.

    `met`: the digest of the versions in which tasks have met the others whose sizes the plans did not know: the
    delivery hash does not have them. `is_whole`: of what is not here, the rows are there.
    """

    bad: Mapping[ShardKey, tuple[str, str]]
    met: str | None = None
    is_whole: bool = True

    def as_text(self, of_batch: Iterable[ShardKey]) -> str:
        """Return the text for a mark. `of_batch`: all shards of its snapshots, the same for every attempt."""
        said: dict[str, object] = {} if self.met is None else {_MET: (self.met, "")}
        if len(self.bad) <= _NAMED:
            return json.dumps({**said, **{_short(key): found for key, found in self.bad.items()}}, sort_keys=True)
        places = {key: place for place, key in enumerate(sorted(set(of_batch)))}
        bits: dict[tuple[str, str], bytearray] = {}
        for key, found in self.bad.items():
            if (place := places.get(key)) is not None:
                of_kind = bits.setdefault(found, bytearray(len(places) // 8 + 1))
                of_kind[place // 8] |= 1 << place % 8
        said[_BITS] = [(*kind, base64.b64encode(zlib.compress(data)).decode()) for kind, data in sorted(bits.items())]
        return json.dumps(said, sort_keys=True)

    @classmethod
    def of(cls, text: str, of_batch: Iterable[ShardKey]) -> Verdicts:
        """Read the text of a mark. Version 0.4.0 has cut it behind 1,001 of them, without a word."""
        said = json.loads(text)
        met, bits = said.pop(_MET, (None, ""))[0], said.pop(_BITS, None)
        keys = sorted(set(of_batch))
        if bits is None:
            bad = {key: tuple(said[_short(key)]) for key in keys if _short(key) in said}
            return cls(bad, met, is_whole=len(said) <= _NAMED)
        bad = {}
        for scope, cause, data in bits:
            of_kind = zlib.decompress(base64.b64decode(data))
            bad |= {key: (scope, cause) for place, key in enumerate(keys) if of_kind[place // 8] >> place % 8 & 1}
        return cls(bad, met)


def verdicts_of(
    transaction: Transaction, plans: Sequence[PlanIdentity], moves: Sequence[Move], of_batch: Iterable[ShardKey]
) -> str:
    """Return the verdicts on the objects of a batch, as text for a target's mark."""
    c = errors.c
    query = sa.select(c.shard_key, c.scope, c.cause).where(
        c.delivery_hash.in_([plan.delivery_hash for plan in plans]), c.scope.in_(WHOLE)
    )
    bad = {ShardKey(bytes(key)): (scope, cause) for key, scope, cause in transaction.execute(query)}
    return Verdicts(bad, _met(transaction, moves, bad)[1]).as_text(of_batch)


def _met(
    transaction: Transaction, moves: Sequence[Move], bad: Collection[ShardKey]
) -> tuple[list[ShardKey], str | None]:
    """Return the shards whose plan knew no size (or that they are empty), without bad ones, and the digest, if any."""
    unsized = [move.key for move in moves if move.end == end_at(0) and move.key not in bad]
    c = shards.c
    rows = transaction.select_among(sa.select(c.shard_key, c.size, c.etag), c.shard_key, unsized)
    versions = sorted((_short(key), size, etag) for key, size, etag in rows)
    return unsized, hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16] if versions else None


def compare_met(transaction: Transaction, moves: Sequence[Move], marked: Verdicts) -> None:
    """Forget the versions that this attempt has met, where they are not those of the rows that the target has.

    A restored store has lost them, and an object was replaced since: nothing tells which one.
    """
    unsized, digest = _met(transaction, moves, marked.bad)
    if digest is not None and marked.met != digest:
        unknown = shards.update().values(size=None, etag=OF_UNKNOWN_VERSION)
        transaction.change_among(unknown, shards.c.shard_key, unsized)


def judge_as(transaction: Transaction, identity: PlanIdentity, moves: Sequence[Move], marked: Verdicts) -> None:
    """Let the verdicts of that attempt count whose rows the target has: no others are true of these rows.

    A later attempt may have found other bytes under a name, and a restored store may have lost the verdict.
    """
    own = errors.c.delivery_hash == identity.delivery_hash, errors.c.scope.in_(WHOLE)
    recorded = transaction.execute(sa.select(errors.c.error_key, errors.c.shard_key).where(*own)).all()
    untrue = [key for key, of_shard in recorded if marked.is_whole and bytes(of_shard) not in marked.bad]
    if untrue:
        transaction.change_among(errors.delete(), errors.c.error_key, untrue)
        logger.warning(
            "pipeline %s: %d object(s) that this attempt has found bad are published: the rows of an attempt before "
            "it are in the target",
            identity.token,
            len(untrue),
        )
    judged = {bytes(of_shard) for _, of_shard in recorded}
    lost = {move.key: move.start for move in moves if move.key in marked.bad and bytes(move.key) not in judged}
    query = sa.select(shards.c.shard_key, shards.c.shard_id, shards.c.queue, shards.c.message_id)
    records = []
    for row in transaction.select_among(query, shards.c.shard_key, lost):
        scope, cause = marked.bad[ShardKey(bytes(row.shard_key))]
        records.append(
            ErrorRecord(
                scope=scope,
                cause=cause,
                detail="an attempt before has found it so: its rows are not in the target, which has the batch",
                subject=row.shard_id,
                plan_hash=identity.delivery_hash,
                position=lost[ShardKey(bytes(row.shard_key))],
                queue=row.queue,
                message_id=row.message_id,
            )
        )
    record(transaction, identity.source, identity.token.pipeline, records)


def _short(key: bytes) -> str:
    return bytes(key).hex()[:16]
