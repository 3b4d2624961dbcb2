"""`cuesqueue prune`: the scheduled job that forgets what is done and old (design section 5)."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_source.commands.filters import duration_of
from queue_source.commands.output import Json, Store, print_result, stderr
from queue_source.options.reader import DEFAULT_WINDOW


def prune(
    store: Store,
    source: Annotated[str | None, typer.Option(metavar="S", help="Only this source; otherwise all.")] = None,
    older_than: Annotated[
        str, typer.Option(metavar="D", help="What ended longer ago is removed, as in the option deduplicationWindow.")
    ] = DEFAULT_WINDOW,
    max_shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of what ended, keep at most this many shards.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be removed, and remove nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove finished shards that are older than the deduplication window, and old snapshots, attempts and errors."""
    window = duration_of("--older-than", older_than)
    import shard_store

    policy = shard_store.RetentionPolicy(window=window, max_shards=max_shards, source=source)
    with shard_store.open_store(store, create=False) as opened:
        result = shard_store.prune(opened, policy, now=None, dry_run=dry_run)
    counts = {
        "shards": result.shards,
        "snapshots": result.snapshots,
        "attempts": result.attempts,
        "errors": result.errors,
    }
    print_result(
        {**counts, "timed_out": result.timed_out, "dry_run": dry_run},
        as_json,
        title="would be removed" if dry_run else "removed",
    )
    if result.timed_out:
        stderr().print("the time limit ended this run and more is left; run the command again", markup=False)
