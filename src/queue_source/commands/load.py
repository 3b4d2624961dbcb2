"""`cuesqueue load`: loads announced objects into files or a table, without a program; for people, cron and Airflow."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.output import UNHEALTHY, DryRun, Json, named_options, print_error, print_result, stderr, tell
from queue_source.errors import OptionError
from queue_source.logs.endings import sentence_of
from queue_source.options.connections import DEFAULT_STORE
from queue_source.options.content import FILE_FORMATS

if TYPE_CHECKING:
    from queue_source.spark.load import LoadQuery
    from shard_store.operators.status import PipelineStatus, Published
    from shard_store.store import ShardStore

_POLL = 0.5  # seconds between two looks at the store

Format = Enum("Format", {name: name for name in FILE_FORMATS}, type=str)  # type: ignore[misc]


def load(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE_URL", help="The queue, as in the option queueUrl.", show_default=False),
    ] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URI",
            help="Where objects may be, as in s3://landing/orders/; may be repeated. Without a queue they are listed.",
        ),
    ] = None,
    format: Annotated[
        Format | None, typer.Option("--format", metavar="F", help=f"Their format: {', '.join(FILE_FORMATS)}.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NS.NAME", help="Iceberg table to load into.")] = None,
    path: Annotated[str | None, typer.Option(metavar="URI", help="Folder of Parquet files to load into.")] = None,
    delta: Annotated[str | None, typer.Option(metavar="URI", help="Folder of a Delta table to load into.")] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="DDL", help="Columns; else inferred (option schemaLocation), or the table's.")
    ] = None,
    store: Annotated[
        str, typer.Option(envvar="CUESQUEUE_STORE", metavar="URL", help="Database of the store; it may be new.")
    ] = DEFAULT_STORE,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A further option of reader or sink (warehouse, aws.region, mode, source ...), or checkpointLocation; "
            "may be repeated. Secrets as env:NAME or file:PATH.",
        ),
    ] = None,
    master: Annotated[str, typer.Option(metavar="M", help="Where Spark runs.")] = "local[*]",
    watch: Annotated[bool, typer.Option("--watch", help="Go on with what comes, until Ctrl-C or SIGTERM.")] = False,
    max_errors: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Exit with 3 when there were more errors.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Load the objects that a queue announces into files or a table, each once. Runs Spark on this machine."""
    if format is None:
        raise OptionError("--format", f"is required: name the format of the objects: {', '.join(FILE_FORMATS)}")
    if not prefix:
        raise OptionError("--prefix", "is required: name where the objects may be, as in s3://landing/orders/")
    targets = [name for name in (table, path, delta) if name]
    if len(targets) != 1:
        raise OptionError("--table", "or --path or --delta is required, one of them: name where the objects go")
    into = table or (f"delta:{delta}" if delta else _folder(path or ""))
    options = {"logLevel": "warning", **named_options(option or [])}
    began = time.monotonic()
    from queue_source.spark.load import LoadQuery  # late: it imports Spark

    query = LoadQuery.of(queue, into, format.value, prefix, schema, store, options)  # before Spark starts
    if dry_run:
        from queue_source.spark.load_preview import preview

        print_result(_for_people(preview(query), as_json), as_json, title="dry run: nothing loaded")
        return
    with ExitStack() as stack:
        running, opened = stack.enter_context(_started(query, store, master, watch=watch))
        before = _total(opened, query.pipeline)
        follow = stack.enter_context(_progress(visible=not as_json))
        problem = _run(running, lambda: follow(opened, query.pipeline, before))
        after = _total(opened, query.pipeline)
    numbers = _loaded(before, after)
    seconds = round(time.monotonic() - began, 1)
    result = {"pipeline": query.pipeline, "into": into, **numbers, "seconds": seconds}
    print_result(_for_people(result, as_json), as_json, title="not all is loaded" if problem else "loaded")
    if numbers["errors"] and not as_json:
        tell("what was bad: 'cuesqueue errors list' with this store; repair and requeue it (docs/how-to/errors.md)")
    if problem:
        print_error(problem)
        raise typer.Exit(1)
    if max_errors is not None and sum(numbers["errors"].values()) > max_errors:
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


def _folder(path: str) -> str:
    """Return the folder in a form that is not taken for the name of a table."""
    return path if "/" in path else f"./{path}"


@contextmanager
def _started(query: LoadQuery, url: str, master: str, *, watch: bool) -> Iterator[tuple[Any, ShardStore]]:
    """Start the query in a session of its own, which ends with the block."""
    from queue_source.spark.load import quiet_session
    from shard_store.store import open_store

    with open_store(url) as store:
        spark = quiet_session(master)
        try:
            yield query.start(spark, available_now=not watch), store
        finally:
            with suppress(Exception):  # gone already, where Java had the signal that ends us
                spark.stop()


def _run(query: Any, follow: Callable[[], None]) -> str | None:
    """Wait for the end of the query, and return what it failed with. Ctrl-C and SIGTERM stop it."""
    import signal

    is_stopped = False

    def stop(*_: object) -> None:
        """Let a call to Java end by itself, since py4j would print the trace of an interrupted one."""
        nonlocal is_stopped
        is_stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who is in a hurry presses Ctrl-C again
        # Java may have had the same signal, and be gone; py4j says so by loggers of its own, and by the root
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not is_stopped and not query.awaitTermination(timeout=_POLL):
            follow()
        if is_stopped:
            query.stop()
    except Exception as error:  # noqa: BLE001 -- Spark's: what ended the query
        return None if is_stopped else _cause(str(error))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    follow()
    return None


def _cause(text: str) -> str:
    """Return our own sentence out of Spark's text of an exception, or its first line."""
    if (sentence := sentence_of(text)) is not None:
        return sentence
    return next((line.strip() for line in text.splitlines() if line.strip()), "the query failed")


def _total(store: ShardStore, pipeline: str) -> Published | None:
    return next((status.total for status in store.status(pipeline=pipeline)), None)


def _loaded(before: Published | None, after: Published | None) -> dict[str, Any]:
    """Return the numbers of this run."""
    names = ("objects", "rows", "bytes")
    numbers: dict[str, Any] = {
        name: (getattr(after, name, None) or 0) - (getattr(before, name, None) or 0) for name in names
    }
    old = {} if before is None else before.errors
    new = {} if after is None else after.errors
    numbers["errors"] = {cause: count - old.get(cause, 0) for cause, count in new.items() if count > old.get(cause, 0)}
    return numbers


@contextmanager
def _progress(*, visible: bool) -> Iterator[Callable[[ShardStore, str, Published | None], None]]:
    """Show how far the pipeline is, on a terminal."""
    if not visible or not sys.stderr.isatty():
        yield lambda store, pipeline, before: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    summary = TextColumn("{task.fields[summary]}")
    with Progress(
        TextColumn("objects"),
        BarColumn(),
        MofNCompleteColumn(),
        summary,
        TimeElapsedColumn(),
        console=stderr(),
        transient=True,
    ) as bar:
        task = bar.add_task("objects", total=None, summary="starting Spark")

        def follow(store: ShardStore, pipeline: str, before: Published | None) -> None:
            status: PipelineStatus | None = next(iter(store.status(pipeline=pipeline)), None)
            if status is None:
                return
            numbers = _loaded(before, status.total)
            waiting = status.files_outstanding + (status.queue_depth or 0)
            errors = sum(numbers["errors"].values())
            text = f"{numbers['rows']:,} rows, {numbers['bytes'] / 1e6:,.1f} MB, {errors:,} errors"
            bar.update(task, completed=numbers["objects"], total=numbers["objects"] + waiting, summary=text)

        yield follow
