"""`cuesqueue shards list/show/quarantine/reopen/forget`: what became of an object, and how to get a stream past it.

Programs call the same functions. Decision 0064 explains what keeps exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any

import typer

from queue_source.commands.output import (
    Json,
    counted,
    end_with_refused,
    print_change,
    print_result,
    print_table,
    tell,
    without_unknown,
)
from queue_source.commands.parameters import (
    DryRun,
    Everything,
    Source,
    Store,
    argument,
    choosing,
    criteria_of,
    flag,
    option,
)
from queue_source.errors import OptionError
from queue_source.messages import MESSAGE_URI
from shard_store import open_store
from shard_store.model import ShardKey, iso_time
from shard_store.operators.repair import ShardsChanged
from shard_store.operators.shards import FoundShard, ShardCriteria, ShardStory
from shard_store.shards.changes import Audit
from shard_store.store import ShardStore

_SHORT = 12  # digits of a key in tables

group = typer.Typer(
    name="shards",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="See what became of an object, and get a stream past one.",
)
Limit = Annotated[int | None, option("N", "At most this many.", min=1)]
Reason = Annotated[str, option("TEXT", "Why; it is kept in the record of changes.")]


class State(str, Enum):
    OPEN = "open"
    DONE = "done"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class ShardChoice:
    """The options by which a command with `@choosing` chooses shards."""

    ids: Annotated[
        list[str] | None, argument("ID...", "Only these shards: URIs, or first digits of the keys that list shows.")
    ] = None
    match: Annotated[str | None, option("GLOB", "Only where the whole id matches: *, ?, [a-z], {a,b}.")] = None
    state: Annotated[list[State] | None, option("STATE", "Only open, done or quarantined; may be repeated.")] = None
    source: Source = None
    pipeline: Annotated[str | None, option("P", "Only shards that this pipeline owns, or has finished.")] = None
    older_than: Annotated[str | None, option("D", "Only what was finished (or opened) longer ago, as 2h.")] = None
    since: Annotated[str | None, option("D", "Only what was finished (or opened) since then.")] = None

    def criteria(self, *, everything: bool = True) -> ShardCriteria:
        """Return the options for the store, as `criteria_of`."""
        return criteria_of(ShardCriteria, self, everything=everything, ids=tuple(self.ids or ()))


@group.command("list")
@choosing
def list_shards(
    store: Store,
    choice: ShardChoice,
    limit: Annotated[int, option("N", "At most this many.", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """List shards: objects, and messages that are contents themselves."""
    chosen = choice.criteria()
    with open_store(store, create=False) as opened:
        matching = list(find_shards(opened, chosen, limit=limit + 1))
    more = len(matching) > limit
    del matching[limit:]
    if as_json:
        print_result({"shards": list(map(shard_as_dict, matching)), "more": more}, as_json, title="shards")
        return
    rows = [
        [
            shard.key.hex()[:_SHORT],
            shard.state if shard.pending in (None, "reopened") else f"{shard.state} ({shard.pending})",
            shard.source,
            (iso_time(shard.opened_at if shard.finished_at is None else shard.finished_at) or "")[:19],
            "" if shard.size is None else str(shard.size),
            shard.shard_id,
        ]
        for shard in matching
    ]
    print_table(counted(len(rows), "shard"), ("key", "state", "source", "since (UTC)", "bytes", "shard"), rows)
    if more:
        tell("there are more; raise --limit, or choose fewer shards")


@group.command()
def show(
    store: Store,
    shard_id: Annotated[str, argument("ID", "Its URI, or the first digits of the key that list shows.")],
    source: Annotated[str | None, option("S", "Only in this source.")] = None,
    as_json: Json = False,
) -> None:
    """Tell one object's story: announced, planned, found bad, published, and what was done to it by hand."""
    chosen = ShardChoice([shard_id], source=source).criteria()
    with open_store(store, create=False) as opened:
        stories = list(shard_stories(opened, chosen, limit=2))
    if len(stories) != 1:
        problem = "knows nothing of" if not stories else "has several shards for"
        hint = "see `cuesqueue shards list`" if not stories else "name more digits, or the --source"
        raise OptionError("ID", f"the store {problem} {shard_id[:300]!r}; {hint}")
    story = story_as_dict(stories[0])
    if as_json:
        print_result(story, as_json, title="shard")
        return
    print_result(without_unknown({"outcome": story["outcome"], **(story["shard"] or {})}), as_json, title="shard")
    for name in ("planned", "attempts", "errors", "changes"):
        for entry in story[name] if isinstance(story[name], list) else [story[name]] if story[name] else []:
            print_result(without_unknown(entry), as_json, title=name.removesuffix("s"))


@group.command()
@choosing
def quarantine(
    store: Store,
    choice: ShardChoice,
    reason: Reason,
    everything: Everything = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Get a stream past an object: the next plan that holds it gives it up, unread, and publishes the rest.

    Also while the query runs. The object becomes an error (quarantined-by-hand), and can be reopened. Published
    objects are refused (exit code 1).
    """
    chosen = choice.criteria(everything=everything)
    with open_store(store, create=False) as opened:
        done = quarantine_shards(opened, chosen, reason=reason, limit=limit, dry_run=dry_run)
    _print_changed(done, "to be quarantined", dry_run, as_json)


@group.command()
@choosing
def reopen(
    store: Store,
    choice: ShardChoice,
    reason: Reason = "",
    everything: Everything = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have quarantined objects read again, once they are repaired; or take back a quarantine not carried out.

    A running query sees it with its next heartbeat. What cannot be reopened is refused (exit code 1).
    """
    chosen = choice.criteria(everything=everything)
    with open_store(store, create=False) as opened:
        done = reopen_shards(opened, chosen, reason=reason, limit=limit, dry_run=dry_run)
    _print_changed(done, "reopened", dry_run, as_json)


@group.command()
@choosing
def forget(
    store: Store,
    choice: ShardChoice,
    reason: Reason,
    everything: Everything = False,
    yes: Annotated[bool, flag("--yes", "Yes, objects that are announced again may be published twice.")] = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Forget finished objects, so that an object that is announced again is read and published ONCE MORE.

    For objects whose rows were removed from where they were published. Unfinished ones are refused (exit code 1).
    """
    if not (yes or dry_run):
        raise OptionError(
            "--yes", "what is forgotten is published a second time when it is announced again; write --yes"
        )
    chosen = choice.criteria(everything=everything)
    with open_store(store, create=False) as opened:
        done = forget_shards(opened, chosen, reason=reason, limit=limit, dry_run=dry_run)
    _print_changed(done, "forgotten", dry_run, as_json)


def _print_changed(done: ShardsChanged, what: str, dry_run: bool, as_json: bool) -> None:
    refused = done.refused if as_json else len(done.refused)
    counts = {"shards": done.changed, "unchanged": done.unchanged, "refused": refused}
    print_change(counts, what, dry_run=dry_run, as_json=as_json)
    end_with_refused(done.refused, 300)


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
    return _each(store, criteria, limit, partial(store.quarantine, audit=Audit.of_user(reason), dry_run=dry_run))


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
    put_back = partial(store.put_back, audit=Audit.of_user(reason), message_uri=MESSAGE_URI, dry_run=dry_run)
    return _each(store, criteria, limit, put_back)


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
    return _each(store, criteria, limit, partial(store.forget, audit=Audit.of_user(reason), dry_run=dry_run))


def _each(
    store: ShardStore, criteria: ShardCriteria, limit: int | None, change: Callable[[list[ShardKey]], ShardsChanged]
) -> ShardsChanged:
    done = ShardsChanged()
    for page in store.find_shards(criteria, limit=limit):
        done += change([shard.key for shard in page])
    return done


def shard_as_dict(shard: FoundShard) -> dict[str, Any]:
    """Return the shard as JSON values."""
    fields = asdict(shard)
    times = {name: iso_time(fields.pop(name)) for name in ("opened_at", "finished_at")}
    return {"key": fields.pop("key").hex(), **fields, **times}


def story_as_dict(story: ShardStory) -> dict[str, Any]:
    """Return all that the store knows of one shard, as JSON values."""
    planned = story.planned
    plan = None
    if planned is not None:
        seqs = [planned.identity.start_seq, planned.identity.end_seq]
        plan = {"delivery_hash": planned.identity.delivery_hash, "seqs": seqs, "attempt": planned.attempt}
    attempts = [asdict(attempt) for attempt in story.attempts]
    for attempt in attempts:
        attempt |= {name: iso_time(attempt[name]) for name in ("planned_at", "published_at")}
    return {
        "outcome": story.outcome,
        "shard": None if story.shard is None else shard_as_dict(story.shard),
        "planned": plan,
        "attempts": attempts,
        "errors": [{**e.as_dict(), "state": e.state, "reopened_at": iso_time(e.reopened_at)} for e in story.errors],
        "changes": [
            {
                "changed_at": iso_time(stored.changed_at),
                **{name: getattr(stored.change, name) for name in ("action", "actor", "reason", "message_id")},
                "before": stored.before,
                "after": stored.after,
            }
            for stored in story.changes
        ],
    }
