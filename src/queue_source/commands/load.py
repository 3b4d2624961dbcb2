"""`cuesqueue load`: it loads what a queue announces into a table or files.

It imports little before Java starts: see `queue_source/spark/own_java.py`.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.output import (
    FAILED,
    UNHEALTHY,
    Json,
    counted,
    end_as_stopped,
    number,
    on_signals,
    print_error,
    print_result,
    progress,
    tell,
)
from queue_source.commands.parameters import DryRun, NewStore, argument, flag, named_options, option
from queue_source.common.logs import error_of
from queue_source.errors import CuesqueueError, OptionError
from queue_source.options.connections import DEFAULT_STORE
from queue_source.options.content import FILE_FORMATS
from queue_source.spark.java import require_java
from queue_source.spark.own_java import own_java

if TYPE_CHECKING:
    from queue_source.options import ContentOptions
    from shard_store.operators.status import PipelineStatus, Published
    from shard_store.store import ShardStore

_POLL = 0.5  # seconds between two looks at the store
_JAVA_ENDED = (
    "Spark's Java process has ended; the next run goes on. If the system's log says that memory ran out, let "
    "batches be smaller (maxFilesPerTrigger), or take a larger machine"
)
_PYTHON_GONE = re.compile(r"exception: (Broken pipe|Stream closed)|Python worker exited unexpectedly")
_PYTHON_ENDED = (
    "a Python process of Spark has ended, which read the queue or objects; the next run goes on. If the system's log "
    "says that memory ran out, let batches be smaller (maxFilesPerTrigger), or take a larger machine"
)
_LAST_WORDS = 10.0  # seconds in which a reader whose query has ended reports
_PATIENCE = 3.0  # seconds for a store that does not answer, before Spark is started

Format = Enum("Format", {name: name for name in FILE_FORMATS}, type=str)  # type: ignore[misc]


def load(
    queue: Annotated[
        str | None, argument("QUEUE_URL", "The queue, as in the option queueUrl.", show_default=False)
    ] = None,
    prefix: Annotated[
        list[str] | None,
        option("URI", "Where objects may be, as s3://landing/orders/; may be repeated. Without a queue it is listed."),
    ] = None,
    format: Annotated[Format | None, option("F", f"Their format: {', '.join(FILE_FORMATS)}.", "--format")] = None,
    table: Annotated[str | None, option("NS.NAME", "Iceberg table to load into.")] = None,
    path: Annotated[str | None, option("URI", "Folder of Parquet files to load into.")] = None,
    delta: Annotated[str | None, option("URI", "Folder of a Delta table to load into.")] = None,
    schema: Annotated[
        str | None, option("DDL", "Columns; else inferred (option schemaLocation); a table's stay.")
    ] = None,
    store: NewStore = DEFAULT_STORE,
    option: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            ("An option of reader or sink (warehouse, mode, source ...), or checkpointLocation; may be repeated."),
        ),
    ] = None,
    master: Annotated[str, option("M", "Where Spark runs.")] = "local[*]",
    watch: Annotated[bool, flag("--watch", "Go on until Ctrl-C or SIGTERM.")] = False,
    max_errors: Annotated[int | None, option("N", "Exit with 3 after more errors.", min=0)] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Load the objects that a queue announces into files or a table, each once. Runs Spark on this machine.

    Unless you give --schema, it names new columns, and loads them too (schemaEvolutionMode addNewColumns).
    """
    if format is None:
        raise OptionError("--format", f"is required: name the format of the objects: {', '.join(FILE_FORMATS)}")
    if not prefix:
        raise OptionError("--prefix", "is required: name where the objects may be, as in s3://landing/orders/")
    if sum(map(bool, (table, path, delta))) != 1:
        raise OptionError("--table", "or --path or --delta is required, one of them: name where the objects go")
    folder = path and (path if "/" in path else f"./{path}")  # not to be taken for the name of a table
    into = table or folder or f"delta:{delta}"
    options = {"logLevel": "warning", **named_options(option)}
    began = time.monotonic()
    with ExitStack() as stack:
        # Java starts beside what follows, imports first; its session begins when nothing is found wrong
        java = None if dry_run else stack.enter_context(own_java(master))
        # late: it imports Spark
        from queue_source.spark.load import JAVA_GONE, LoadQuery, check, preview, quiet_session
        from queue_source.spark.process import driver_identity
        from shard_store.errors import StoreConfigurationError
        from shard_store.store import open_store

        query = LoadQuery.of(queue, into, format.value, prefix, schema, store, options)
        if dry_run:
            seen = preview(query)
            print_result(_for_people(seen, as_json), as_json, title="dry run: nothing loaded")
            if not (seen["next_objects"] or seen.get("messages_waiting") or seen["problems"] or as_json):
                tell("nothing is there that is not loaded: a load would load nothing")
            return
        if java is None:
            require_java()
        # a store without tables is made below; only the query waits for one that does not answer
        with suppress(StoreConfigurationError), open_store(store, create=False, patience=_PATIENCE):
            pass
        opened = stack.enter_context(open_store(store))
        before = _status(opened, query.pipeline)
        check(query, opened)
        try:
            with nullcontext() if java is None else java.connected():
                spark = quiet_session(master)
            driver = driver_identity()
        except Exception as error:  # what PySpark raises then depends on how far Java was
            is_gone = isinstance(error, JAVA_GONE) or "JAVA_GATEWAY_EXITED" in str(error)
            if is_gone or (java is not None and java.has_ended):
                raise CuesqueueError(_JAVA_ENDED) from error
            raise

        @stack.callback
        def end() -> None:
            with suppress(Exception):  # gone already, where Java had the signal that ends us
                spark.stop()

        advance = stack.enter_context(progress("objects", None, not as_json))
        advance(0, description="starting Spark")

        def loaded_until(now: PipelineStatus | None) -> dict[str, Any]:
            """Return the numbers of this run, without those of another one that takes turns with it."""
            ours = opened.published_by(query.pipeline, driver)
            return _loaded(before, now) if ours is None else _difference(None, ours)

        def follow(*, at_end: bool = False) -> None:
            if as_json or not sys.stderr.isatty() or (now := _status(opened, query.pipeline)) is None:
                return
            done = loaded_until(now)
            errors = sum(done["errors"].values())
            text = f"{done['rows']:,} rows, {done['bytes'] / 1e6:,.1f} MB, {errors:,} errors"
            waiting = 0 if at_end else now.files_outstanding + (now.queue_depth or 0)  # as of the last heartbeat
            advance(done["objects"], total=done["objects"] + waiting, description=text)

        def start() -> Any:
            nonlocal query
            started = query.start(spark, available_now=not watch)
            query = query.sampling_more()  # should it be started again
            return started

        stopped: list[signal.Signals] = []
        problem = _run(start, query.content, follow, stopped)
        after = _status(opened, query.pipeline)
        loaded = loaded_until(after)
        if problem is None and not watch and not stopped:
            problem = _listing_failed(opened, before, after)
        unread = None if after is None else opened.count_open(after.source)
    seconds = round(time.monotonic() - began, 1)
    result = {"pipeline": query.pipeline, "into": into, **loaded, "seconds": seconds}
    is_cut_off = bool(stopped) and not watch
    title = "not all is loaded" if problem or is_cut_off else "loaded"
    if problem is None and loaded["errors"] and not (loaded["objects"] or loaded["rows"]):
        causes = ", ".join(sorted(loaded["errors"]))
        title = problem = f"0 objects loaded, {number(sum(loaded['errors'].values()))} refused: {causes}"
    print_result(_for_people(result, as_json), as_json, title=title)
    if query.queue and not any(loaded.values()) and problem is None and not stopped and not as_json:
        tell("the queue announced nothing new; if you expected objects, check the queue's name in the URL")
    if loaded["errors"] and not as_json:
        tell("what was bad: 'cuesqueue errors list' with this store; repair and requeue it (docs/how-to/errors.md)")
    if problem:
        print_error(problem)
        raise typer.Exit(FAILED)
    if is_cut_off:
        recorded = "" if unread is None else f", {counted(unread, 'object')} unread"
        end_as_stopped(stopped[0], f"{recorded}; the next run goes on")
    if max_errors is not None and sum(loaded["errors"].values()) > max_errors:
        raise typer.Exit(UNHEALTHY)


def _for_people(result: Mapping[str, Any], as_json: bool) -> Mapping[str, Any]:
    """Return the result with lists and counts as lines, for people."""
    if as_json:
        return result

    def line(value: Any) -> Any:
        if isinstance(value, Mapping):
            return "\n".join(f"{name}: {count}" for name, count in value.items()) or "none"
        return "\n".join(value) or "none" if isinstance(value, list) else value

    return {name: line(value) for name, value in result.items()}


def _run(
    start: Callable[[], Any], content: ContentOptions, follow: Callable[..., None], stopped: list[signal.Signals]
) -> str | None:
    """Run the query to its end, and return what it failed with. Signals stop it, and are added to `stopped`.

    Where new columns have ended it, and are kept in `schemaLocation`, it is started again: the same batch is read with
    them. So each start has more columns than the one before, or is the last.
    """
    from queue_source.schema.location import SchemaLocation, added, listed  # late: it imports Arrow
    from queue_source.spark.load import JAVA_GONE

    place, kept = content.schema.schema_location, None
    location = SchemaLocation(place, content.storage) if place and content.schema.adds_columns else None
    if location is not None:
        kept = location.latest()

    def stop(number: int) -> None:
        """Let a call to Java end by itself, since py4j would print the trace of an interrupted one."""
        stopped.append(signal.Signals(number))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who is in a hurry presses Ctrl-C again
        # Java may have had the same signal, and be gone; py4j says so by loggers of its own, and by the root
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)

    with on_signals(stop):
        while True:
            try:
                query = start()
                while not stopped and not query.awaitTermination(timeout=_POLL):
                    follow()
                if stopped:
                    query.stop()
            except OptionError:
                raise
            except JAVA_GONE:
                text = _JAVA_ENDED
            except Exception as error:  # noqa: BLE001 -- Spark's: what ended the query
                text = str(error)
            else:
                follow(at_end=not stopped)
                return None
            if stopped:
                return None
            lines = filter(None, map(str.strip, text.splitlines()))
            sentence = _PYTHON_ENDED if _PYTHON_GONE.search(text) else next(lines, "the query failed")
            kind, sentence = error_of(text) or ("", sentence)
            if location is None or kind != "SchemaChanged":
                return sentence
            before, kept = kept, location.latest()
            if not (columns := added(before, kept)):
                return sentence
            verb = "added or widened" if content.schema.widens_types else "added"
            tell(f"{counted(len(columns), 'column')} {verb}: {listed(columns)}; going on")


def _status(store: ShardStore, pipeline: str) -> PipelineStatus | None:
    return next(iter(store.status(pipeline=pipeline)), None)


def _listing_failed(store: ShardStore, before: PipelineStatus | None, after: PipelineStatus | None) -> str | None:
    """Tell that a listing of this run has failed: no query ends by that, and it may be all that this run reads."""
    from shard_store.operators.status import RUNNING

    until = time.monotonic() + _LAST_WORDS
    while after is not None and after.backfill and after.state == RUNNING and time.monotonic() < until:
        time.sleep(_POLL / 5)
        after = _status(store, after.pipeline)  # its reader counts failures in its last report
    counts = [0 if status is None else status.counters.get("listingFailures", 0) for status in (before, after)]
    if counts[1] <= counts[0]:
        return None
    return "what was to be listed could not all be listed, and the log says why; the next run goes on"


def _loaded(before: PipelineStatus | None, after: PipelineStatus | None) -> dict[str, Any]:
    """Return what was published between."""
    return _difference(*(None if status is None else status.total for status in (before, after)))


def _difference(before: Published | None, after: Published | None) -> dict[str, Any]:
    from shard_store.operators.status import Published

    old, new = before or Published(), after or Published()
    return {
        **{name: (getattr(new, name) or 0) - (getattr(old, name) or 0) for name in ("objects", "rows", "bytes")},
        "errors": {c: count - old.errors.get(c, 0) for c, count in new.errors.items() if count > old.errors.get(c, 0)},
    }
