"""What the store keeps of a source: how its shards are named.

What can be written in several ways has one name in a source. A queue has the name by which the source met it first,
however it is written since: so ids stay as they are, also those that older code has made, and makes as long as it runs
beside this (decision 0066).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from shard_store.errors import StoreConfigurationError
from shard_store.model import ShardKey, shard_key
from shard_store.sql.schema import pipelines, shards, sources
from shard_store.sql.transaction import Transaction

_RECENT = 10_000
"""Shards of a source that are asked for the queue's name of before: more than a reader leaves unacknowledged."""


_AZURE = ("abfs%://%", "wasb%://%", "http%://%")
"""Of objects of Azure that code before 0.3 could announce, however their URIs were written."""
_TODAY = "abfss://"
_AT_ONCE = 10_000  # ids that are in memory
_SAFE = ("/", "/#", "/#!$&'()*+,;=:@")  # what senders leave as it is in the URL of an object


def _unchanged(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True)
class Naming:
    """What a reader is about to name.

    Attributes:
        queues: Name as it is configured now -> identity, which is the same however the queue is written.
        alike: Makes one text of all names that look like one queue's: for names that were used before identities were.
        versions: Whether the ids of objects have their versions; None where there are no objects.
        plain: Makes one text of all that the beginning of an object's URI can be, up to the slash behind its container;
            ValueError for what is none. None where no object has more than one.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    alike: Callable[[str], str] = _unchanged
    versions: bool | None = None
    plain: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What the source has settled.

    Attributes:
        queues: What each queue is called in ids of messages and of errors, by the name that it is configured with.
        versionless: Ids have versions, but the source has also read objects by ids that had none.
        had_versions: Ids had versions already when the source was started before, by code that records it.
        respelled: The source has objects of Azure by ids that are spelled otherwise today: see `kept_ids`.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    versionless: bool = False
    had_versions: bool = False
    respelled: bool = False


def settle_names(transaction: Transaction, source: str, naming: Naming) -> Names:
    """Write down how the source names its queues and objects from now on. The caller has locked the source's row.

    Raises StoreConfigurationError where ids of objects had versions, and shall have none.
    """
    text = transaction.execute(sa.select(sources.c.naming).where(sources.c.source == source)).scalar_one()
    kept: dict[str, Any] = json.loads(text or "{}")
    names: dict[str, str] = dict(kept.get("queues", {}))
    before = kept.get("versions")
    if naming.versions is not None:
        if before and not naming.versions:
            raise _versions_are_lost(source)
        if naming.versions and not before:
            kept["versionless"] = before is not None or _has_read(transaction, source)
        kept["versions"] = naming.versions
        if "spellings" not in kept and naming.plain is not None:
            kept["spellings"] = _other_spellings(transaction, source, naming.plain)
    unnamed = {name: identity for name, identity in naming.queues.items() if identity not in names}
    if unnamed:
        used = _recent_queues(transaction, source)
        for name, identity in unnamed.items():
            # what looks like this queue is this one, known by its text until it had an identity of its own
            taken = [kept_name for other, kept_name in names.items() if other != naming.alike(name)]
            names[identity] = _choose(name, identity, used, taken, naming.alike)
        kept["queues"] = names
    if (settled := json.dumps(kept, ensure_ascii=False)) != (text or "{}"):
        transaction.execute(sources.update().where(sources.c.source == source).values(naming=settled))
    named = {name: names[identity] for name, identity in naming.queues.items()}
    versionless = bool(naming.versions) and kept.get("versionless", False)
    return Names(named, versionless, bool(before), bool(kept.get("spellings")))


def kept_ids(transaction: Transaction, source: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the ids by which the source has objects already, where those are spelled otherwise: today's id -> its own.

    Code before 0.3 took a URI of Azure as it was written, and the same object has more than one.
    """
    of_azure = [shard_id for shard_id in ids if shard_id.startswith(_TODAY)]
    others = spellings(transaction, source) if of_azure else {}
    candidates: dict[ShardKey, tuple[str, str]] = {}
    for shard_id in of_azure if others else ():
        for own in respelled(shard_id, others):
            candidates[shard_key(source, own)] = (shard_id, own)
    query = sa.select(shards.c.shard_key)
    present = transaction.select_among(query, shards.c.shard_key, candidates) if candidates else ()
    return dict(candidates[ShardKey(bytes(row.shard_key))] for row in present)


def note_spellings(transaction: Transaction, names: Collection[str], plain: Callable[[str], str]) -> None:
    """Write down how these sources have spelled objects of Azure, as far as none of their readers has done so."""
    query = sa.select(sources.c.source, sources.c.naming).with_for_update()
    for row in list(transaction.select_among(query, sources.c.source, names)):
        kept = json.loads(row.naming or "{}")
        if "spellings" not in kept:
            kept["spellings"] = _other_spellings(transaction, row.source, plain)
            text = json.dumps(kept, ensure_ascii=False)
            transaction.execute(sources.update().where(sources.c.source == row.source).values(naming=text))


def spellings(transaction: Transaction, source: str) -> dict[str, list[str]]:
    """Return today's beginnings of ids -> how the source has also spelled them."""
    text = transaction.execute(sa.select(sources.c.naming).where(sources.c.source == source)).scalar_one_or_none()
    others: dict[str, list[str]] = json.loads(text or "{}").get("spellings", {})
    return others


def respelled(shard_id: str, others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids that the same object may have in a source with these `spellings`."""
    beginning = _beginning(shard_id)
    key = shard_id[len(beginning) :]
    ids: dict[str, None] = {}
    for other in others.get(beginning, ()):
        ids[other + key] = None
        if other.startswith("http"):  # the URL of a service, whose keys are encoded
            ids |= dict.fromkeys(other + quote(key, safe, errors="surrogatepass") for safe in _SAFE)
    return list(ids)


def _other_spellings(transaction: Transaction, source: str, plain: Callable[[str], str]) -> dict[str, list[str]]:
    """Return today's beginnings of ids -> those of the source's shards, where they differ. Reads all its ids, once."""
    of_azure = sa.or_(*(shards.c.shard_id.like(form) for form in _AZURE))
    query = sa.select(shards.c.shard_id).where(shards.c.source == source, of_azure)
    ids = transaction.execute(query.execution_options(yield_per=_AT_ONCE)).scalars()
    others: dict[str, list[str]] = {}
    for beginning in sorted({_beginning(shard_id) for shard_id in ids}):
        with suppress(ValueError):  # it is no object of Azure
            if (today := plain(beginning)) != beginning:
                others.setdefault(today, []).append(beginning)
    return others


def _beginning(shard_id: str) -> str:
    """Return the id up to the slash behind its container, which the URL of a service has after the host."""
    place = shard_id.find("/", shard_id.find("://") + 3)
    if shard_id.startswith("http"):
        place = shard_id.find("/", place + 1)
    return shard_id[: place + 1]


def _versions_are_lost(source: str) -> StoreConfigurationError:
    return StoreConfigurationError(
        f"option 'allowOverwrites': source {source!r} was read with true, and knows its objects by names that false "
        "would not find: whatever is announced again would be read again; leave it at true, or run the query so until "
        "nothing is left (trigger availableNow) and then name another 'source'"
    )


def _has_read(transaction: Transaction, source: str) -> bool:
    """Return whether there are finished shards, which code that recorded nothing may have named in either way."""
    finished = (
        sa.select(shards.c.shard_key).where(shards.c.source == source, shards.c.finished_at.is_not(None)).limit(1)
    )
    return transaction.execute(finished).first() is not None


def _choose(name: str, identity: str, used: Sequence[str], taken: Collection[str], alike: Callable[[str], str]) -> str:
    """Return the name by which the source knows the queue, else the configured one; never that of another queue."""
    likeness = alike(name)
    before = [other for other in used if other == name] + [other for other in used if alike(other) == likeness]
    return next((candidate for candidate in (*before, name) if candidate not in taken), identity)


def _recent_queues(transaction: Transaction, source: str) -> list[str]:
    """Return the names of queues in the youngest shards of the source, the last used first."""
    owners = sa.select(pipelines.c.pipeline).where(pipelines.c.source == source)
    unfinished = sa.select(shards.c.queue, shards.c.opened_at.label("at"))
    unfinished = unfinished.where(shards.c.owner.in_(owners), shards.c.finished_at.is_(None)).limit(_RECENT)
    finished = sa.select(shards.c.queue, shards.c.finished_at.label("at"))
    finished = finished.where(shards.c.source == source, shards.c.finished_at.is_not(None))
    finished = finished.order_by(shards.c.finished_at.desc()).limit(_RECENT)
    last: dict[str, int] = {}
    for youngest in (unfinished.subquery(), finished.subquery()):
        grouped = sa.select(youngest.c.queue, sa.func.max(youngest.c.at)).group_by(youngest.c.queue)
        for queue, at in transaction.execute(grouped):
            last[queue] = max(at, last.get(queue, 0))
    return sorted(last, key=last.__getitem__, reverse=True)


def lock_source(transaction: Transaction, source: str) -> None:
    """Lock the source's row, if it is there, before that of any of its pipelines, as all do that lock both.

    Raises StoreConfigurationError for a source that version 0.3 has moved to another store (`cuesqueue export`).
    """
    this = sa.select(sources.c.moved_to).where(sources.c.source == source).with_for_update()
    place = transaction.execute(this).scalar_one_or_none()
    if place is not None:
        raise StoreConfigurationError(
            f"source {source!r} was moved from {transaction.database} to the store {place} by version 0.3; name that "
            "one in 'storeUrl', and keep the checkpoint"
        )


def moved_sources(transaction: Transaction) -> list[str]:
    """Return the sources that version 0.3 has moved to another store: what they have published since is known there."""
    return list(transaction.execute(sa.select(sources.c.source).where(sources.c.moved_to.is_not(None))).scalars())
