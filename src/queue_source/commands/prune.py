"""`cuesqueue prune`: the scheduled job that removes old records of finished work."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_source.commands.filters import duration_of
from queue_source.commands.output import DryRun, Json, Store, print_result, stderr
from queue_source.options.reader import DEFAULT_WINDOW


def prune(
    store: Store,
    source: Annotated[str | None, typer.Option(metavar="S", help="Only this source; otherwise all.")] = None,
    older_than: Annotated[
        str,
        typer.Option(metavar="D", help="Remove what ended longer ago than this, as in the option deduplicationWindow."),
    ] = DEFAULT_WINDOW,
    max_shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep at most this many finished shards.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove finished shards that are older than the deduplication window, and old snapshots, attempts and errors."""
    window = duration_of("--older-than", older_than)
    import shard_store

    policy = shard_store.RetentionPolicy(window=window, max_shards=max_shards, source=source)
    with shard_store.open_store(store, create=False) as opened:
        result = shard_store.prune(opened, policy, now=None, dry_run=dry_run)
    names = ("shards", "snapshots", "attempts", "errors", "timed_out")
    counts = {name: getattr(result, name) for name in names}
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be removed" if dry_run else "removed")
    if result.timed_out:
        stderr().print("the time limit ended this run and more is left; run the command again", markup=False)
