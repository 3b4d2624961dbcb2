"""`cuesqueue prune`, `vacuum`, `migrate`, `adopt` and `reset`: the maintenance of a store, by hand or by a job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from queue_source.commands.filters import duration_of
from queue_source.commands.output import DryRun, Json, Store, print_result, progress, tell
from queue_source.options.reader import DEFAULT_WINDOW


def prune(
    store: Store,
    source: Annotated[str | None, typer.Option(metavar="S", help="Only this source; otherwise all.")] = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="D",
            help="Remove what ended longer ago than this, as in the option deduplicationWindow. A source remembers for "
            "longer where one of its pipelines has a longer window.",
        ),
    ] = DEFAULT_WINDOW,
    max_shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep at most this many finished shards.")
    ] = None,
    pipelines_older_than: Annotated[
        str,
        typer.Option(
            metavar="D",
            help="Forget pipelines that have been stopped for longer than this, with nothing unfinished and no data "
            "files; a checkpoint of theirs cannot be continued then.",
        ),
    ] = "365 days",
    data_older_than: Annotated[
        str | None,
        typer.Option(
            metavar="D",
            help="Forget data files that were published longer ago than this: their rows leave the view data, and "
            "vacuum removes the files. Never, unless it is given.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove finished shards that are older than the deduplication window, and all else that nothing needs any more."""
    window = duration_of("--older-than", older_than)
    pipelines = duration_of("--pipelines-older-than", pipelines_older_than)
    data = None if data_older_than is None else duration_of("--data-older-than", data_older_than)
    import shard_store
    from shard_store.upkeep.pruning import TABLES
    from shard_store.upkeep.timing import LASTING

    policy = shard_store.RetentionPolicy(
        window=window, max_shards=max_shards, source=source, pipelines=pipelines, data=data
    )
    with shard_store.open_store(store, create=False) as opened:
        result = shard_store.prune(opened, policy, now=None, dry_run=dry_run)
    counts = {name: getattr(result, name) for name in (*TABLES, "timed_out")}
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be removed" if dry_run else "removed")
    for name, longer in result.windows.items():
        tell(f"source {name}: what ended within {longer} stays, the deduplicationWindow of one of its pipelines")
    if result.ahead is not None:
        tell(
            f"the store's clock is {result.ahead} ahead of the last pruning, and nothing was removed by it; once it "
            f"has been so for {LASTING} the next run goes by it"
        )
    if result.timed_out:
        tell("the time limit ended this run and more is left; run the command again")


def vacuum(
    store: Store,
    path: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Folder of the data files, as the sink's option path; without it only staged messages are removed.",
        ),
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="D", help="What is younger stays; choose a time longer than any micro-batch takes.")
    ] = "2 days",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove what was never published: files in the sink's folder, and messages staged in the store's database."""
    age = duration_of("--older-than", older_than)
    import shard_store
    from queue_source.admin import vacuum as vacuuming
    from queue_source.admin import vacuum_staged as staging

    counts: dict[str, int] = {}
    with shard_store.open_store(store, create=False) as opened:
        if path is not None:
            folder = path if "://" in path else str(Path(path).absolute())
            with progress("files", None, not as_json) as advance:
                files = vacuuming.vacuum(opened, folder, older_than=age, dry_run=dry_run, progress=advance)
            counts = {
                "files": files.found,
                "published": files.published,
                "announced": files.announced,
                "too_young": files.young,
                "removed": files.removed,
                "bytes": files.bytes,
            }
        messages = staging.vacuum_staged(opened, older_than=age, dry_run=dry_run)
    counts |= {"staged_messages": messages.found, "staged_removed": messages.removed}
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be removed" if dry_run else "vacuum")


def migrate(store: Store, as_json: Json = False) -> None:
    """Bring the store's tables to this version's schema; in an empty database, create them.

    End the queries of the version before first. While one runs, or a batch is not finished, the command names the
    pipelines, changes nothing, and ends with exit code 2: start each query once more with the version that it had, with
    trigger availableNow. Running the command again changes nothing. A store of a version before 0.3 is refused.
    """
    from shard_store.sql.database import Database
    from shard_store.sql.install import migrate as migrate_tables

    database = Database(store)
    try:
        before, after = migrate_tables(database)
    finally:
        database.close()
    print_result({"from": before, "to": after, "changed": before != after}, as_json, title="schema of the store")


def adopt(
    source: Annotated[str, typer.Option(metavar="S", help="The source, as in the reader's option source.")],
    store: Store,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help="Folder or URI that the query had as checkpointLocation.")
    ] = None,
    list_: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="Instead of a checkpoint: a file with a URI or a path a line."),
    ] = None,
    stream: Annotated[
        int, typer.Option(min=0, metavar="N", help="Which source of the query it is, where the query reads several.")
    ] = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take over the list of files that another reader has read, such as Spark's file source: none is read again.

    Stop that query first, after its last micro-batch has ended. The checkpoint is only read; the store is created if
    there is none. Running it again changes nothing.
    """
    import shard_store
    from queue_source.admin.adopt import adopt as adopt_files
    from queue_source.admin.adopt import adopt_list
    from queue_source.errors import OptionError

    if (checkpoint is None) == (list_ is None):
        raise OptionError("CHECKPOINT", "or --list FILE says what was read: give one of them")
    with ExitStack() as opened, progress("files", None, not as_json) as advance:
        target = None if dry_run else opened.enter_context(shard_store.open_store(store))
        if checkpoint is None:
            assert list_ is not None
            with list_.open(encoding="utf-8") as lines:
                result = adopt_list(target, source, lines, progress=advance)
        else:
            folder = checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())
            result = adopt_files(target, source, folder, stream=stream, progress=advance)
    counts = {"files": result.files} if dry_run else {"files": result.files, "new": result.new}
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be adopted" if dry_run else "adopted")


def reset(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="The source, as in the reader's option source.")
    ],
    store: Store,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in the record of changes.")],
    pipeline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P", help="Only what this pipeline has read, where several share a source; may be repeated."
        ),
    ] = None,
    adopted: Annotated[
        bool, typer.Option("--adopted", help="Also what another reader had read (cuesqueue adopt).")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Yes, where rows are still in a table they will be there twice.")
    ] = False,
    lose_rows: Annotated[
        bool,
        typer.Option(
            "--lose-rows",
            help="Also where the view data loses rows for good: of messages that were data, and of objects that "
            "cleanSource has deleted or moved.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have a stopped source begin anew: objects that are announced once more are read and published ONCE MORE.

    For a table that was emptied on purpose, as by spark-pipelines run --full-refresh. What the sink with path has
    published leaves the view data; no table, topic or queue is emptied. A source is refused while its query runs.
    """
    from queue_source.errors import OptionError

    if not (yes or dry_run):
        raise OptionError("--yes", "says that the tables of this source are empty, or will be; write --yes")
    import shard_store
    from queue_source.admin.audit import audit
    from queue_source.messages import MESSAGE_URI

    with shard_store.open_store(store, create=False) as opened:
        done = opened.reset(
            sources,
            audit(reason),
            message_uri=MESSAGE_URI,
            only=pipeline or (),
            adopted=adopted,
            lose_rows=lose_rows,
            dry_run=dry_run,
        )
    counts = {
        "pipelines": list(done.pipelines) if as_json else ", ".join(done.pipelines),
        "objects": done.objects,
        "messages": done.messages,
        "begun": done.begun,
        "adopted": done.adopted,
        "cleaned": done.cleaned,
        "files": done.files,
    }
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be forgotten" if dry_run else "forgotten")
    if done.messages:
        tell(f"the queue has deleted the {done.messages} messages that were data themselves: they do not come again")
    if done.cleaned:
        tell(f"{done.cleaned} objects are deleted or moved by cleanSource: announce them where they are now")
    if done.adopted:
        tell(f"{done.adopted} objects that another reader had read stay known; --adopted forgets them, too")
    if done.beyond_memory:
        tell(
            "older objects, which the store has pruned, are found by no listing as long as other pipelines keep what "
            "they have read: announce them with `cuesqueue send`"
        )
    if done.objects and not dry_run:
        tell(
            "now announce the objects once more: start the query with the option backfillPrefixes, or run "
            "`cuesqueue reconcile PREFIX --send QUEUE_URL`"
        )
