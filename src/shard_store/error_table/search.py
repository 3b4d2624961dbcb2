"""Searching the error table: errors as values, selected by what people know of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from shard_store.error_table.records import error_state
from shard_store.model import MICROSECOND, Position, ShardKey, is_end, iso_time, offset_of
from shard_store.sql.database import Database, Transaction
from shard_store.sql.schema import attempts, errors

PAGE = 200
"""Errors in memory at once: each may hold a few megabytes of input."""


@dataclass(frozen=True, slots=True)
class StoredError:
    """One error. Times are microseconds since 1970 UTC; `seqs` are those of its plan, once that is published.

    `input` may be the beginning only of `input_size` bytes; `tag`, `headers` and `group` are a message's own.
    """

    key: bytes
    state: str
    scope: str
    cause: str
    detail: str
    source: str
    pipeline: str
    subject: str
    shard_key: ShardKey | None
    delivery_hash: str
    seqs: tuple[int, int] | None
    position: Position
    queue: str
    message_id: str
    tag: str
    headers: Mapping[str, str]
    group: str | None
    input: bytes | None
    input_size: int | None
    occurred_at: int
    delivered_at: int | None
    delivered_to: str | None
    requeued_at: int | None
    reopened_at: int | None

    @property
    def whole(self) -> bool:
        """Return whether `input` is all that there was."""
        return self.input is not None and len(self.input) == self.input_size

    def as_dict(self) -> dict[str, Any]:
        """Return its fields as JSON values; `error_id` is the same however often it is sent.

        `input` is text, or else `input_base64`, and holds the first bytes of `input_bytes`.
        """
        is_message = self.scope == "message"
        fields: dict[str, Any] = {
            "error_id": self.key.hex(),
            "scope": self.scope,
            "cause": self.cause,
            "detail": self.detail,
            "source": self.source,
            "pipeline": self.pipeline,
            "plan": None if self.seqs is None else {"start_seq": self.seqs[0], "end_seq": self.seqs[1]},
            "delivery_hash": self.delivery_hash or None,
            "shard_id": None if is_message else self.subject or None,
            "position": None if is_message or is_end(self.position) else offset_of(self.position),
            "queue": self.queue,
            "message_id": self.message_id,
            "occurred_at": iso_time(self.occurred_at),
        }
        if is_message or self.tag or self.headers or self.group:
            fields |= {"tag": self.tag, "headers": dict(self.headers), "group": self.group}
        if self.input is not None:
            try:
                fields["input"] = self.input.decode()
            except UnicodeDecodeError:
                fields["input_base64"] = base64.b64encode(self.input).decode("ascii")
            fields["input_bytes"] = self.input_size
        return fields


@dataclass(frozen=True, slots=True)
class Criteria:
    """What to search for: every criterion that is given has to hold. Without any, all errors are found.

    `ids` are hexadecimal, or the first digits of it; `matching` must match the whole id of the shard or
    message). `older_than` and `since` count back from the database's clock. `words`: column (`scope`, `cause`) ->
    allowed values.
    """

    ids: Sequence[str] = ()
    matching: re.Pattern[str] | None = None
    states: Sequence[str] = ()
    source: str | None = None
    pipeline: str | None = None
    older_than: timedelta | None = None
    since: timedelta | None = None
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def conditions(self, now: sa.ColumnElement[int]) -> list[sa.ColumnElement[bool]]:
        """Return the criteria as SQL over the error table; all but `matching`, which no two databases read alike."""
        conditions: list[sa.ColumnElement[bool]] = []
        if self.ids:
            conditions.append(begins_with(errors.c.error_key, self.ids))
        if self.states:
            conditions.append(error_state().in_(self.states))
        if self.source is not None:
            conditions.append(errors.c.source == self.source)
        if self.pipeline is not None:
            conditions.append(errors.c.pipeline == self.pipeline)
        if self.older_than is not None:
            conditions.append(errors.c.occurred_at < now - self.older_than // MICROSECOND)
        if self.since is not None:
            conditions.append(errors.c.occurred_at >= now - self.since // MICROSECOND)
        return conditions + [errors.c[name].in_(values) for name, values in self.words.items() if values]

    def matches(self, text: str) -> bool:
        return self.matching is None or self.matching.fullmatch(text) is not None


def pages(
    database: Database, criteria: Criteria, *, limit: int | None = None, max_input: int | None = None
) -> Iterator[list[StoredError]]:
    """Yield the errors, oldest first, each with up to `max_input` bytes of its input."""
    remaining = limit
    after: sa.ColumnElement[bool] = sa.true()

    def next_page(transaction: Transaction) -> list[StoredError]:
        query = selected(max_input).where(*criteria.conditions(transaction.now()), after)
        return read(transaction, query.order_by(errors.c.occurred_at, errors.c.error_key).limit(PAGE))

    while remaining is None or remaining > 0:
        page = database.read(next_page)
        chosen = [error for error in page if criteria.matches(error.subject)][:remaining]
        if chosen:
            yield chosen
        if len(page) < PAGE:
            return
        remaining = None if remaining is None else remaining - len(chosen)
        last = page[-1]
        same = sa.and_(errors.c.occurred_at == last.occurred_at, errors.c.error_key > last.key)
        after = sa.or_(errors.c.occurred_at > last.occurred_at, same)


def newest(database: Database, criteria: Criteria, limit: int) -> list[StoredError]:
    """Return the newest errors, the last one first, without their input; `matching` is not looked at."""

    def look(transaction: Transaction) -> list[StoredError]:
        query = selected(0).where(*criteria.conditions(transaction.now()))
        return read(transaction, query.order_by(errors.c.occurred_at.desc(), errors.c.error_key).limit(limit))

    return database.read(look)


def of_plans(transaction: Transaction, hashes: Sequence[str], limit: int) -> tuple[dict[str, int], list[StoredError]]:
    """Return how many errors of each cause these plans have, and the first ones, without their input."""
    these = errors.c.delivery_hash.in_(hashes)
    counted = sa.select(errors.c.cause, sa.func.count()).where(these).group_by(errors.c.cause)
    causes: dict[str, int] = {row[0]: row[1] for row in transaction.execute(counted)}
    first = selected(0).where(these).order_by(errors.c.occurred_at, errors.c.error_key).limit(limit)
    return causes, read(transaction, first) if causes and limit else []


def selected(max_input: int | None = None) -> sa.Select[Any]:
    """Return the query that `read` reads, with up to `max_input` bytes of each input."""
    columns = [column for column in errors.columns if column.name not in ("error_key", "input")]
    input_column: sa.ColumnElement[Any] = errors.c.input
    if max_input is not None:
        input_column = sa.func.substr(errors.c.input, 1, max_input, type_=errors.c.input.type)
    plan = attempts.c.start_seq, attempts.c.end_seq
    named = errors.c.error_key.label("key"), input_column.label("input"), error_state().label("state")
    return sa.select(*columns, *named, *plan).select_from(
        errors.outerjoin(attempts, attempts.c.delivery_hash == errors.c.delivery_hash)
    )


def read(transaction: Transaction, query: sa.Select[Any]) -> list[StoredError]:
    stored = []
    for row in transaction.execute(query):
        values = dict(row._mapping)
        message, start, end = (values.pop(name) for name in ("message", "start_seq", "end_seq"))
        tag, headers, group = ("", {}, None) if message is None else json.loads(message)
        if row.input_size is not None:  # SQLite's substr makes NULL of no bytes
            values["input"] = row.input or b""
        seqs = None if start is None else (start, end)
        stored.append(StoredError(**values, seqs=seqs, tag=tag, headers=headers, group=group))
    return stored


def begins_with(key: sa.ColumnElement[Any], some: Iterable[str]) -> sa.ColumnElement[bool]:
    """Return the condition of keys of 32 bytes whose hexadecimal form begins with one of `some`.

    Whole ones are one set: SQLite takes no more than a thousand conditions, and programs name as many as they found.
    """
    ends = [tuple(bytes.fromhex(digits.ljust(64, filler)) for filler in "0f") for digits in some]
    whole = [first for first, last in ends if first == last]
    return sa.or_(key.in_(whole), *(key.between(first, last) for first, last in ends if first != last))
