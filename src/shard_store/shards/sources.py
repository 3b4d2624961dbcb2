"""What the store keeps of a source: how its shards are named.

What can be written in several ways has one name in a source. A queue has the name by which the source met it first,
however it is written since: so ids stay as they are (decision 0066).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from shard_store.errors import StoreConfigurationError
from shard_store.sql.database import Transaction
from shard_store.sql.schema import shards, sources


def _unchanged(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True)
class Naming:
    """What a reader is about to name.

    Attributes:
        queues: Name as it is configured now -> identity, which is the same however the queue is written.
        alike: Makes one text of all names that look like one queue's: by it a queue is known that has no identity.
        versions: Whether the ids of objects have their versions; None where there are no objects.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    alike: Callable[[str], str] = _unchanged
    versions: bool | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What the source has settled.

    Attributes:
        queues: What each queue is called in ids of messages and of errors, by the name that it is configured with.
        versionless: Ids have versions, but the source has also read objects by ids that had none.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    versionless: bool = False


def settle_names(transaction: Transaction, source: str, naming: Naming) -> Names:
    """Write down how the source names its queues and objects from now on. The caller has locked the source's row.

    Raises StoreConfigurationError where ids of objects had versions, and shall have none.
    """
    text = transaction.execute(sa.select(sources.c.naming).where(sources.c.source == source)).scalar_one()
    kept: dict[str, Any] = json.loads(text or "{}")
    if kept.get("spellings"):
        raise StoreConfigurationError(
            f"source {source!r} has read objects of Azure by names that a version before 0.3 has given them, and that "
            "no version knows any more: begin with another 'source', for which all that is announced is new"
        )
    before = kept.get("versions")
    if naming.versions is not None:
        if before and not naming.versions:
            raise StoreConfigurationError(
                f"option 'allowOverwrites': source {source!r} was read with true, and knows its objects by names that "
                "false would not find: whatever is announced again would be read again; leave it at true, or run the "
                "query so until nothing is left (trigger availableNow) and then name another 'source'"
            )
        if naming.versions and not before:
            kept["versionless"] = before is not None or _has_finished(transaction, source)
        kept["versions"] = naming.versions
    names: dict[str, str] = kept.get("queues", {})
    for name, identity in naming.queues.items():
        if identity not in names:
            by_text = naming.alike(name)
            others = [kept_name for other, kept_name in names.items() if other != by_text]
            chosen = names.get(by_text, name)
            kept["queues"] = names = {**names, identity: identity if chosen in others else chosen}
    if (settled := json.dumps(kept, ensure_ascii=False)) != (text or "{}"):
        transaction.execute(sources.update().where(sources.c.source == source).values(naming=settled))
    named = {name: names[identity] for name, identity in naming.queues.items()}
    return Names(named, bool(naming.versions) and kept.get("versionless", False))


def _has_finished(transaction: Transaction, source: str) -> bool:
    """Return whether there are finished shards of before the first reader: adopted ones, whose ids have no versions."""
    finished = sa.select(shards.c.shard_key).where(shards.c.source == source, shards.c.finished_at.is_not(None))
    return transaction.execute(finished.limit(1)).first() is not None


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
