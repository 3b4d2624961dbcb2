"""`cuesqueue shards list/show/quarantine/reopen/forget`: what became of an object, and how to get a stream past it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.admin.wording import counted
from queue_source.commands.filters import Everything, ShardChoice, choosing
from queue_source.commands.output import FAILED, DryRun, Json, Store, print_result, print_table, tell
from queue_source.errors import OptionError

if TYPE_CHECKING:
    from shard_store.operators.repair import ShardsChanged

group = typer.Typer(
    name="shards",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="See what became of an object, and get a stream past one.",
)

_SHORT = 12  # digits of a key in tables
_REPORTED = 20  # refusals that are reported one by one

Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most this many.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in the record of changes.")]


@group.command("list")
@choosing
def list_shards(
    store: Store,
    choice: ShardChoice,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many.")] = 100,
    as_json: Json = False,
) -> None:
    """List shards: objects, and messages that are contents themselves."""
    chosen = choice.criteria()
    import shard_store
    from queue_source.admin import shards
    from queue_source.admin.stories import shard_as_dict
    from queue_source.coordinator.ending.error_queue import iso_time

    with shard_store.open_store(store, create=False) as opened:
        found_shards = list(shards.find_shards(opened, chosen, limit=limit + 1))
    more = len(found_shards) > limit
    del found_shards[limit:]
    if as_json:
        print_result(
            {"shards": [shard_as_dict(shard) for shard in found_shards], "more": more}, as_json, title="shards"
        )
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
        for shard in found_shards
    ]
    columns = ("key", "state", "source", "since (UTC)", "bytes", "shard")
    print_table(counted(len(rows), "shard"), columns, rows)
    if more:
        tell("there are more; raise --limit, or choose fewer shards")


@group.command()
def show(
    store: Store,
    shard_id: Annotated[
        str, typer.Argument(metavar="ID", help="The shard: its URI, or the first digits of the key that list shows.")
    ],
    source: Annotated[str | None, typer.Option(metavar="S", help="Only in this source.")] = None,
    as_json: Json = False,
) -> None:
    """Tell one object's whole story: announced, planned, found bad, published, and what was done to it by hand."""
    chosen = ShardChoice([shard_id], source=source).criteria()
    import shard_store
    from queue_source.admin import shards
    from queue_source.admin.stories import story_as_dict

    with shard_store.open_store(store, create=False) as opened:
        stories = list(shards.shard_stories(opened, chosen, limit=2))
    if len(stories) != 1:
        problem = "knows nothing of" if not stories else "has several shards for"
        hint = "see `cuesqueue shards list`" if not stories else "name more digits, or the --source"
        raise OptionError("ID", f"the store {problem} {shard_id[:300]!r}; {hint}")
    story = story_as_dict(stories[0])
    if as_json:
        print_result(story, as_json, title="shard")
        return
    shard = {field: value for field, value in (story["shard"] or {}).items() if value is not None}
    print_result({"outcome": story["outcome"], **shard}, as_json, title="shard")
    for name in ("planned", "attempts", "errors", "changes"):
        for entry in story[name] if isinstance(story[name], list) else [story[name]] if story[name] else []:
            filled = {field: value for field, value in entry.items() if value is not None}
            print_result(filled, as_json, title=name.removesuffix("s"))


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

    Also while the query runs, and for a plan that fails again and again: then its next attempt does. The object becomes
    an error with the cause quarantined-by-hand, and can be reopened. Published objects are refused (exit code 1).
    """
    from queue_source.admin import shards

    _change(store, choice, everything, as_json, dry_run, "to be quarantined", shards.quarantine_shards, reason, limit)


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

    No message is needed: a running query sees it with its next heartbeat. What cannot be reopened is refused
    (exit code 1).
    """
    from queue_source.admin import shards

    _change(store, choice, everything, as_json, dry_run, "reopened", shards.reopen_shards, reason, limit)


@group.command()
@choosing
def forget(
    store: Store,
    choice: ShardChoice,
    reason: Reason,
    everything: Everything = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Yes, objects that are announced again may be published a second time.")
    ] = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Forget finished objects, so that an object that is announced again is read and published ONCE MORE.

    This gives up exactly once for them: use it when their rows were removed from where they were published.
    Unfinished objects are refused (exit code 1).
    """
    if not (yes or dry_run):
        raise OptionError(
            "--yes", "what is forgotten is published a second time when it is announced again; write --yes"
        )
    from queue_source.admin import shards

    _change(store, choice, everything, as_json, dry_run, "forgotten", shards.forget_shards, reason, limit)


def _change(
    store: str,
    choice: ShardChoice,
    everything: bool,
    as_json: bool,
    dry_run: bool,
    what: str,
    change: Callable[..., ShardsChanged],
    reason: str,
    limit: int | None,
) -> None:
    chosen = choice.criteria(everything=everything)
    import shard_store

    with shard_store.open_store(store, create=False) as opened:
        done = change(opened, chosen, reason=reason, limit=limit, dry_run=dry_run)
    refused = done.refused if as_json else len(done.refused)
    counts: dict[str, Any] = {"shards": done.changed, "unchanged": done.unchanged, "refused": refused}
    print_result({**counts, "dry_run": dry_run}, as_json, title=f"would be {what}" if dry_run else what)
    for number, (shard_id, why) in enumerate(done.refused.items()):
        if number == _REPORTED:
            tell(f"and {len(done.refused) - _REPORTED} more; --json names all")
            break
        tell(f"{shard_id[:300]} was refused: {why}")
    if done.refused:
        raise typer.Exit(FAILED)
