"""Recording errors: what could not be processed, with its cause; written where it happens, final with its plan.

A range that one attempt at a plan found bad is bad for that plan: no later attempt reads it (decision 0010). Otherwise
a sink that takes only the first attempt would miss rows of a shard that counts as published.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from shard_store.model import WHOLE, ErrorRecord, Move, PlanIdentity, Position, ShardKey, shard_key
from shard_store.shards.activity import Amounts, count
from shard_store.shards.ownership import fence
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import attempts, errors

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
    _count_messages(transaction, pipeline, rows)
    _shorten(transaction, rows.values())
    fixed = {"source": source, "pipeline": pipeline, "occurred_at": transaction.now()}
    insert = transaction.dialect.insert_if_absent(errors).values(**fixed)
    for chunk in chunks(sorted(rows)):  # in the order of keys: two executors do not deadlock
        transaction.execute(insert, [rows[key] for key in chunk])
    _bring_back(transaction, [key for key, row in rows.items() if row["scope"] == "message"])


def _count_messages(transaction: Transaction, pipeline: str, rows: Mapping[bytes, dict[str, Any]]) -> None:
    """Count bad messages, which are final at once, when they are first written; other errors count with their plan."""
    messages = [key for key, row in rows.items() if row["scope"] == "message"]
    recorded = transaction.select_among(sa.select(errors.c.error_key), errors.c.error_key, messages)
    if fresh := set(messages) - {bytes(key) for (key,) in recorded}:
        count(transaction, pipeline, Amounts(errors=Counter(rows[key]["cause"] for key in fresh)))


def _shorten(transaction: Transaction, rows: Collection[dict[str, Any]]) -> None:
    """Keep the beginning of an input that the database does not take; the row says how long the whole is."""
    large = [row for row in rows if len(row["input"] or b"") > _LARGE]
    if large and (most := transaction.largest_value()) is not None:
        for row in large:
            row["input"] = row["input"][:most]


def reject(transaction: Transaction, identity: PlanIdentity, records: Sequence[ErrorRecord]) -> None:
    """Write rows of the running plan that the user's function rejected; raises PipelineTakenOver when replaced."""
    fence(transaction, identity.token)
    record(transaction, identity.source, identity.token.pipeline, records)


def _bring_back(transaction: Transaction, keys: Sequence[bytes]) -> None:
    """Turn into errors again messages that were sent again after an error, and are bad again under the same id."""
    fresh = {"requeued_at": None, "delivered_at": None, "delivered_to": None, "occurred_at": transaction.now()}
    again = errors.update().where(errors.c.requeued_at.is_not(None)).values(**fresh)
    transaction.change_among(again, errors.c.error_key, keys)


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
