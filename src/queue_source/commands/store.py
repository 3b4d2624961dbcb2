"""`cuesqueue files`, `prune`, `migrate`, `reset` and `serve`: what a store has published, its maintenance, its page."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import shard_store
from queue_source.commands.output import Json, json_text, print_change, print_result, tell
from queue_source.commands.parameters import (
    DryRun,
    Pipeline,
    Source,
    Store,
    argument,
    duration_if_any,
    duration_of,
    flag,
    option,
)
from queue_source.commands.status import limits_of
from queue_source.errors import CuesqueueError, OptionError
from queue_source.messages import MESSAGE_URI
from queue_source.options.reader import DEFAULT_WINDOW
from shard_store.shards.changes import Audit
from shard_store.sql import install
from shard_store.sql.database import Database
from shard_store.upkeep.pruning import TABLES
from shard_store.upkeep.timing import LASTING


def files(
    store: Store,
    pipeline: Pipeline = None,
    source: Source = None,
    as_of: Annotated[str | None, option("TIME", "Only what was published at this time (UTC).")] = None,
    as_of_attempt: Annotated[str | None, option("HASH", "Only what was published up to this attempt.")] = None,
    as_json: Annotated[
        bool,
        flag("--json", "Print a JSON object a line."),
    ] = False,
) -> None:
    """List the Parquet files that the sink with path has published, a path a line, in their order.

    The list is one state of the store: it has all files of a publish or none.
    """
    from queue_source.spark.published import published  # here: it loads Spark, which the other commands do without

    with shard_store.open_store(store, create=False) as opened:
        state = published(opened, pipeline=pipeline, source=source, as_of=as_of, as_of_attempt=as_of_attempt)
        empty = True
        try:
            for file in state.files():
                empty = False
                fields = {**asdict(file), "published_at": file.published_at.isoformat(timespec="microseconds")}
                sys.stdout.write(f"{json_text(fields)}\n" if as_json else f"{file.path}\n")
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough; what is still in the buffer must not fail at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if empty:
        tell("no such file is published; `cuesqueue status` shows the pipelines of the store")


def prune(
    store: Store,
    source: Annotated[str | None, option("S", "Only this source.")] = None,
    older_than: Annotated[
        str,
        option(
            "D",
            "Remove what ended longer ago; a longer window of a pipeline of its source counts instead.",
        ),
    ] = DEFAULT_WINDOW,
    max_shards: Annotated[int | None, option("N", "Keep at most this many finished shards of a source.", min=1)] = None,
    pipelines_older_than: Annotated[
        str,
        option(
            "D",
            (
                "Forget pipelines that stopped longer ago, if nothing is unfinished and they have no data files; "
                "their checkpoints cannot be continued."
            ),
        ),
    ] = "365 days",
    data_older_than: Annotated[
        str | None,
        option(
            "D",
            (
                "Forget data files that were published longer ago: their rows leave the view data, and vacuum removes "
                "them."
            ),
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove finished shards that are older than the deduplication window, and all else that nothing needs."""
    policy = shard_store.RetentionPolicy(
        window=duration_of("--older-than", older_than),
        max_shards=max_shards,
        source=source,
        pipelines=duration_of("--pipelines-older-than", pipelines_older_than),
        data=duration_if_any("--data-older-than", data_older_than),
    )
    with shard_store.open_store(store, create=False) as opened:
        result = shard_store.prune(opened, policy, now=None, dry_run=dry_run)
    counts = {name: getattr(result, name) for name in (*TABLES, "timed_out")}
    print_change(counts, "removed", dry_run=dry_run, as_json=as_json)
    for name, longer in result.windows.items():
        tell(f"source {name}: what ended within {longer} stays, the deduplicationWindow of one of its pipelines")
    if result.ahead is not None:
        tell(
            f"the store's clock is {result.ahead} ahead of the last pruning, and nothing was removed by it; once it "
            f"has been so for {LASTING} the next run goes by it"
        )
    if result.timed_out:
        tell("the time limit ended this run and more is left; run the command again")


def migrate(store: Store, as_json: Json = False) -> None:
    """Bring the store's tables to this version's schema; in an empty database, create them.

    End the queries of the version before first, with trigger availableNow. While one runs, or a batch is unfinished,
    nothing is changed, and the exit code is 2. A store of a version before 0.3 is refused.
    """
    with closing(Database(store)) as database:
        before, after = install.migrate(database)
    print_result({"from": before, "to": after, "changed": before != after}, as_json, title="schema of the store")


def reset(
    sources: Annotated[list[str], argument("SOURCE...", "The source, as in the reader's option source.")],
    store: Store,
    reason: Annotated[str, option("TEXT", "Why; it is kept in the record of changes.")],
    pipeline: Annotated[
        list[str] | None,
        option("P", "Only what this pipeline has read, of several of a source; may be repeated."),
    ] = None,
    adopted: Annotated[bool, flag("--adopted", "Also what another reader had read (cuesqueue adopt).")] = False,
    yes: Annotated[bool, flag("--yes", "Yes, rows that are still in a table will be there twice.")] = False,
    lose_rows: Annotated[
        bool,
        flag(
            "--lose-rows",
            "Also where the view data loses rows for good: of messages, and of cleaned objects.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Have a stopped source begin anew: objects that are announced once more are read and published ONCE MORE.

    For a table that was emptied on purpose. What the sink with path has published leaves the view data; no table,
    topic or queue is emptied.
    """
    if not (yes or dry_run):
        raise OptionError("--yes", "says that the tables of this source are empty, or will be; write --yes")
    with shard_store.open_store(store, create=False) as opened:
        done = opened.reset(
            sources,
            Audit.of_user(reason),
            message_uri=MESSAGE_URI,
            only=pipeline or (),
            adopted=adopted,
            lose_rows=lose_rows,
            dry_run=dry_run,
        )
    counts = {name: getattr(done, name) for name in ("objects", "messages", "begun", "adopted", "cleaned", "files")}
    names = list(done.pipelines) if as_json else ", ".join(done.pipelines)
    print_change({"pipelines": names, **counts}, "forgotten", dry_run=dry_run, as_json=as_json)
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


def serve(
    store: Store,
    host: Annotated[str, option("H", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on.", min=1, max=65535)] = 8642,
    token: Annotated[
        str | None,
        option(
            "TEXT",
            (
                "What browsers and scrapers must send; needed unless --host is loopback. Set the variable: other "
                "users see options."
            ),
            envvar="CUESQUEUE_SERVE_TOKEN",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, option("NAME", "A name that they may use for it; may be repeated.")
    ] = None,
    max_lag: Annotated[str | None, option("D", "Unhealthy if the oldest unpublished message is older.")] = None,
    max_silence: Annotated[
        str | None, option("D", "Unhealthy if the last heartbeat is older, also after a stop.")
    ] = None,
    max_errors: Annotated[int | None, option("N", "Unhealthy if the last hour had more errors.", min=0)] = None,
    store_timeout: Annotated[str, option("D", "How long a request waits for the store.")] = "5s",
) -> None:
    """Serve a page, metrics and a health check of all pipelines of a store, until Ctrl-C.

    / is the page, /metrics is for Prometheus, /healthz answers 200 or 503 by the limits that are given here. It
    changes nothing, and listens on this machine alone if you name no other host. Needs the extra `serve`.
    """
    time_out = duration_of("--store-timeout", store_timeout)
    try:
        from queue_source.serve import app
    except ModuleNotFoundError as error:
        raise CuesqueueError(f"serve needs {error.name}: pip install 'cuesqueue[serve]'") from None
    access = app.access_of(host, token or None, allowed_host or [])
    limits = limits_of(max_lag, max_silence, max_errors)
    with shard_store.open_store(store, create=False, patience=2.0) as opened:  # seconds for one read
        tell(f"http://{f'[{host}]' if ':' in host else host}:{port}/ (Ctrl-C ends it)")
        app.serve(opened, host=host, port=port, access=access, limits=limits, time_out=time_out.total_seconds())
