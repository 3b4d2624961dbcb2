"""The operators' work on single shards: show them, give them up, have them read again, forget them.

Used by the commands `cuesqueue shards ...`, and by programs. Decision 0040 explains what keeps exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from queue_source.admin.audit import audit
from queue_source.messages import MESSAGE_URI
from shard_store.model import ShardKey
from shard_store.operators import shards
from shard_store.operators.repair import ShardsChanged
from shard_store.operators.shards import FoundShard, ShardCriteria, ShardStory
from shard_store.store import ShardStore

_Change = Callable[[Sequence[ShardKey]], ShardsChanged]


def find_shards(store: ShardStore, criteria: ShardCriteria, *, limit: int | None = None) -> Iterator[FoundShard]:
    """The shards that fit, in the order of their keys.

    Args:
        store: The store, as `open_store` returns it.
        criteria: Which shards.
        limit: Maximum number of shards; None for all.

    Returns:
        An iterator, which reads up to 1,000 shards at a time.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any.
    """
    for page in store.find_shards(criteria, limit=limit):
        yield from page


def shard_stories(store: ShardStore, criteria: ShardCriteria, *, limit: int | None = None) -> Iterator[ShardStory]:
    """What the store remembers of each shard that fits: announced, planned, found bad, published, changed by whom.

    A forgotten or pruned shard is found by its whole id, as far as the record of changes goes.

    Args:
        store: The store, as `open_store` returns it.
        criteria: Which shards.
        limit: Maximum number of shards; None for all.

    Returns:
        An iterator, which reads one story at a time.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any.
    """
    present_keys = [shard.key for shard in find_shards(store, criteria, limit=limit)]
    yield from map(store.shard_story, present_keys)
    gone = set(store.database.read(criteria.keys)).difference(present_keys)
    for story in map(store.shard_story, store.remembered_shards(gone)):
        if story.shard is None:
            yield story


def quarantine_shards(
    store: ShardStore, criteria: ShardCriteria, *, reason: str, limit: int | None = None, dry_run: bool = False
) -> ShardsChanged:
    """Get streams past these objects: the next plan that holds one of them gives it up, unread.

    Also a plan that has failed before. What an attempt is just publishing may still be published. Each becomes an error
    with the cause `quarantined-by-hand`.

    Args:
        store: The store, as `open_store` returns it.
        criteria: Which shards; those that are not open are left alone.
        reason: Why, for the record of changes and the errors.
        limit: Maximum number of shards; None for all.
        dry_run: Change nothing.

    Returns:
        How many shards will be given up, and which were refused because they are published.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any; running queries go on meanwhile.
    """
    change = partial(store.quarantine, audit=audit(reason), dry_run=dry_run)
    return _each(store, criteria, limit, change)


def reopen_shards(
    store: ShardStore, criteria: ShardCriteria, *, reason: str, limit: int | None = None, dry_run: bool = False
) -> ShardsChanged:
    """Have quarantined objects read again, from where each was found bad, by the pipelines that gave them up.

    A running reader sees it with its next heartbeat, another one when it starts. Takes back a quarantine that is not
    carried out yet.

    Args:
        store: The store, as `open_store` returns it.
        criteria: Which shards; those that are open are left alone.
        reason: Why, for the record of changes.
        limit: Maximum number of shards; None for all.
        dry_run: Change nothing.

    Returns:
        How many shards are open again, and which were refused, and why.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any; running queries go on meanwhile.
    """
    change = partial(store.put_back, audit=audit(reason), message_uri=MESSAGE_URI, dry_run=dry_run)
    return _each(store, criteria, limit, change)


def forget_shards(
    store: ShardStore, criteria: ShardCriteria, *, reason: str, limit: int | None = None, dry_run: bool = False
) -> ShardsChanged:
    """Forget finished objects. Announced again, each is new: all of its rows are published **once more**.

    This breaks exactly once on purpose: for objects whose published rows you have removed.

    Args:
        store: The store, as `open_store` returns it.
        criteria: Which shards; unfinished ones are refused.
        reason: Why, for the record of changes.
        limit: Maximum number of shards; None for all.
        dry_run: Change nothing.

    Returns:
        How many shards are forgotten, and which were refused because they are not finished.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any; running queries go on meanwhile.
    """
    return _each(store, criteria, limit, partial(store.forget, audit=audit(reason), dry_run=dry_run))


def _each(store: ShardStore, criteria: ShardCriteria, limit: int | None, change: _Change) -> ShardsChanged:
    done = ShardsChanged()
    for page in shards.pages(store.database, criteria, limit=limit):
        done += change([shard.key for shard in page])
    return done
