"""What an operator does to shards: give one up, have it read again, forget it, take it over as read (decision 0064).

Each call is one transaction over up to 1,000 shards, and may be run again: what is as was asked for is left alone. What
changes a shard records who did it and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches.starting import check_name, lock_source, name_without_versions, refuse_half_reset
from shard_store.model import (
    LISTING,
    WITHOUT_MESSAGE,
    Pending,
    ShardKey,
    ShardState,
    end_at,
    shard_key,
)
from shard_store.shards.announcing import Ending, endings, mark_reopened, put_back
from shard_store.shards.changes import Audit, record_changes
from shard_store.shards.ownership import Owner, owners
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import cleanings, pipelines, shards, sources

ADOPTED = "adopted"
"""The queue of shards that another reader has read. They have no owner."""

_UNKNOWN: Mapping[str, None] = dict.fromkeys(("end_seq", "size", "etag", "reference", "later"))


@dataclass(slots=True)
class ShardsChanged:
    """How many shards were changed (with `dry_run`: would be), and how many were so already.

    `refused`: shard id -> why nothing was done to it.
    """

    changed: int = 0
    unchanged: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: ShardsChanged) -> ShardsChanged:
        return ShardsChanged(
            self.changed + other.changed, self.unchanged + other.unchanged, {**self.refused, **other.refused}
        )


def quarantine(
    transaction: Transaction, keys: Sequence[ShardKey], audit: Audit, *, dry_run: bool = False
) -> ShardsChanged:
    """Have open shards given up, unread, by the next plan that holds them: also one that has failed before.

    Not at once: an attempt that is under way may be publishing their rows.
    """
    done = ShardsChanged()
    unfinished: list[Row[Any]] = []
    for row in _rows(transaction, keys, dry_run):
        if row.state == ShardState.DONE.value:
            done.refused[row.shard_id] = _unpublished(row) or "it is published already"
        elif row.state == ShardState.QUARANTINED.value or row.pending == Pending.QUARANTINE.value:
            done.unchanged += 1
        else:
            unfinished.append(row)
    done.changed = len(unfinished)
    if not dry_run:
        flag = shards.update().where(shards.c.finished_at.is_(None)).values(pending=Pending.QUARANTINE.value)
        transaction.change_among(flag, shards.c.shard_key, [row.shard_key for row in unfinished])
        record_changes(
            transaction, "quarantine", audit, [(row, {"pending": Pending.QUARANTINE.value}) for row in unfinished]
        )
    return done


def reopen(
    transaction: Transaction, keys: Sequence[ShardKey], audit: Audit, *, message_uri: str, dry_run: bool = False
) -> ShardsChanged:
    """Put quarantined shards back to where they were found bad, for their pipeline to read without a message.

    Nothing from there on was published, so that the rows come once. What was known of the object is forgotten: it may
    have been repaired. `message_uri` is the URI of a shard whose content is its message, which cannot be read again.

    An open shard that no pipeline works on, since its message is lost, is from now on like one that a listing has
    found: the next reader of its source that starts, or lists, takes it.
    """
    of_owners = owners(transaction, keys, lock=not dry_run)
    rows = _rows(transaction, keys, dry_run)
    ended = endings(transaction, [row for row in rows if row.state == ShardState.QUARANTINED.value])
    done, withdrawn, back, unheld = ShardsChanged(), list[Row[Any]](), list[Row[Any]](), list[Row[Any]]()
    for row in rows:
        problem = ""
        if row.state == ShardState.QUARANTINED.value:
            problem = _cannot_reopen(row, of_owners, ended, message_uri)
            if not problem:
                back.append(row)
        elif row.state == ShardState.DONE.value:
            published = "it is published: reading it again would double its rows"
            problem = f"{_unpublished(row) or published}; see `cuesqueue shards forget`"
        elif row.pending == Pending.QUARANTINE.value:
            withdrawn.append(row)
        elif _is_left(row, of_owners) and not _needs_message(row, message_uri):
            unheld.append(row)
        else:
            done.unchanged += 1
        if problem:
            done.refused[row.shard_id] = problem
    done.changed = len(back) + len(withdrawn) + len(unheld)
    if dry_run:
        return done
    pending = {"pending": Pending.REOPENED.value}
    starts = {ShardKey(row.shard_key): ended[row.shard_key].position for row in back}
    newest = sa.select(pipelines.c.incarnation).where(pipelines.c.pipeline == shards.c.owner).scalar_subquery()
    put_back(transaction, starts, incarnation=newest, **pending, reference=None, later=None)
    mark_reopened(transaction, [error for row in back for error in ended[row.shard_key].errors])
    transaction.change_among(shards.update().values(pending), shards.c.shard_key, [row.shard_key for row in withdrawn])
    as_listed = {"queue": LISTING}
    transaction.change_among(shards.update().values(as_listed), shards.c.shard_key, [row.shard_key for row in unheld])
    after: dict[str, Any] = {**pending, "state": ShardState.OPEN.value, **_UNKNOWN}
    changed: list[tuple[Row[Any], Mapping[str, Any]]] = [(row, pending) for row in withdrawn]
    for row in back:
        facts = {} if row.uri is None else {"size": row.size, "etag": row.etag}
        changed.append((row, {**after, **facts, "position": ended[row.shard_key].position}))
    changed += [(row, as_listed) for row in unheld]
    record_changes(transaction, "reopen", audit, changed)
    return done


def forget(transaction: Transaction, keys: Sequence[ShardKey], audit: Audit, *, dry_run: bool = False) -> ShardsChanged:
    """Delete finished shards: announced again, they are new, and all of their rows are published once more."""
    done = ShardsChanged()
    finished: list[Row[Any]] = []
    for row in _rows(transaction, keys, dry_run):
        if row.finished_at is None:
            done.refused[row.shard_id] = "it is not finished; give it up first with `cuesqueue shards quarantine`"
        else:
            finished.append(row)
    done.changed = len(finished)
    if not dry_run:
        keys = [row.shard_key for row in finished]
        transaction.change_among(shards.delete().where(shards.c.finished_at.is_not(None)), shards.c.shard_key, keys)
        # it is to be read again: until then it must not be deleted or moved
        planned = cleanings.delete().where(cleanings.c.ended_at.is_(None))
        transaction.change_among(planned, cleanings.c.shard_key, keys)
        record_changes(transaction, "forget", audit, [(row, None) for row in finished])
    return done


def adopt(transaction: Transaction, source: str, uris: Sequence[str], origin: str) -> int:
    """Write objects that were read elsewhere down as finished shards of the source; returns how many were not known.

    What is known stays as it is, also what is not finished. `origin` is shown with each shard, in the place of its
    message.
    """
    check_name("source", source)
    transaction.execute(transaction.dialect.insert_if_absent(sources).values(source=source, forgotten_before=0))
    lock_source(transaction, source)
    refuse_half_reset(transaction, source)
    name_without_versions(transaction, source)
    by_key = {shard_key(source, uri): uri for uri in uris}
    known_keys = {row.shard_key for row in _rows(transaction, sorted(by_key), dry_run=True)}
    fixed = {
        "source": source,
        "position": end_at(0),
        "queue": ADOPTED,
        "message_id": origin,
        "receive_count": 0,
        "state": ShardState.DONE.value,
        "opened_at": transaction.now(),
        "finished_at": transaction.now(),
    }
    row_set = transaction.row_set(shard_key=shards.c.shard_key, shard_id=shards.c.shard_id)
    insert = row_set.insert(transaction.dialect.insert_if_absent(shards), fixed)
    new = sorted((key, uri) for key, uri in by_key.items() if key not in known_keys)
    for chunk in chunks(new):
        row_set.execute(transaction.connection, insert, chunk)
    return len(new)


def _rows(transaction: Transaction, keys: Sequence[ShardKey], dry_run: bool) -> list[Row[Any]]:
    query = sa.select(shards) if dry_run else sa.select(shards).with_for_update()
    return list(transaction.select_among(query, shards.c.shard_key, keys))


def _unpublished(row: Row[Any]) -> str:
    """Return what a shard that is done is instead of published, or ""."""
    words = {
        Pending.BEGUN.value: "its batch was begun, and at-most-once allows but one attempt",
        Pending.SKIPPED.value: "it was skipped, and parts of it may be published",
        Pending.LEFT_OUT.value: "its query has left it out (load), and parts of it may be published",
        Pending.GIVEN_UP.value: "its batch was given up (at-most-once), and may have been published",
    }
    return words.get(row.pending, "") if row.state == ShardState.DONE.value else ""


def _needs_message(row: Row[Any], message_uri: str) -> bool:
    return row.uri == message_uri or row.message_group is not None


def _is_left(row: Row[Any], of_owners: Mapping[str, Owner]) -> bool:
    """Return whether an open shard waits for a message, since no pipeline that lives has it."""
    is_held = (
        row.owner in of_owners and of_owners[row.owner].alive and of_owners[row.owner].incarnation == row.incarnation
    )
    return not is_held and row.queue not in WITHOUT_MESSAGE


def _cannot_reopen(
    row: Row[Any], of_owners: Mapping[str, Owner], ended: Mapping[ShardKey, Ending], message_uri: str
) -> str:
    """Return why the shard cannot be opened again, or ""."""
    if _needs_message(row, message_uri):
        return "it is read with its message only: send that again with `cuesqueue errors requeue`"
    if row.shard_key not in ended:
        return (
            "nobody knows which of its rows are published: it was read in parts, or more than once, or its error was "
            "deleted. Look for its rows where they went; if none are there, `cuesqueue shards forget` lets all of it "
            "be read again when it is announced, and any that are there would come twice"
        )
    if row.owner not in of_owners:
        return f"the store does not know its pipeline {row.owner!r} any more: `cuesqueue errors requeue` announces it"
    return ""
