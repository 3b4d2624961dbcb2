"""`cuesqueue status`: every pipeline of a store, for people and for probes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.admin.wording import number, since, status_lines, time_text
from queue_source.commands.filters import duration_of
from queue_source.commands.output import UNHEALTHY, Json, Store, hide_secrets, print_result, print_table, tell

if TYPE_CHECKING:
    from shard_store.operators.status import PipelineStatus, StatusLimits
    from shard_store.store import ShardStore

_WHOLE = 3  # pipelines that are shown in full; more of them have one line each
_WIDTH = 80
_PATIENCE = 10.0  # seconds for an unavailable store: less than a probe waits


def status(
    store: Store,
    pipeline: Annotated[str | None, typer.Option(metavar="P", help="Only this pipeline.")] = None,
    source: Annotated[str | None, typer.Option(metavar="S", help="Only the pipelines of this source.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option(metavar="D", help="With --watch: the time between two.")] = "5s",
    max_lag: Annotated[
        str | None,
        typer.Option(metavar="D", help="Exit with 3 if the oldest message that is not published is older than this."),
    ] = None,
    max_silence: Annotated[
        str | None,
        typer.Option(metavar="D", help="Exit with 3 if the last heartbeat is older, also of a stopped pipeline."),
    ] = None,
    max_errors: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Exit with 3 if the last hour had more errors.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which pipelines are alive, how far behind they are, how fast, and what went wrong.

    All of it is in the store, also of pipelines that run elsewhere or were killed. Exit codes: 0 all are healthy, 3 one
    is not, or nothing of --pipeline or --source has started. A pipeline whose heartbeats ended without a stop is never
    healthy; nor is one to which only what is outside of allowedPrefixes has come lately.
    """
    pause = duration_of("--interval", interval)
    import shard_store
    from shard_store.operators.status import StatusLimits

    def limit(option: str, text: str | None) -> timedelta | None:
        return None if text is None else duration_of(option, text)

    limits = StatusLimits(limit("--max-lag", max_lag), limit("--max-silence", max_silence), max_errors)
    with shard_store.open_store(store, create=False, patience=_PATIENCE) as opened:
        healthy = _show(opened, source, pipeline, limits, as_json)
        while watch:
            try:
                sleep(pause.total_seconds())
                if not as_json and sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[2J")
                healthy = _show(opened, source, pipeline, limits, as_json)
            except KeyboardInterrupt:
                break
    if not healthy:
        raise typer.Exit(UNHEALTHY)


def _show(store: ShardStore, source: str | None, pipeline: str | None, limits: StatusLimits, as_json: bool) -> bool:
    """Print the state once; return whether all is well."""
    from queue_source.admin import operations

    statuses = operations.status(store, source=source, pipeline=pipeline)
    wrong = {status.pipeline: operations.complaints(status, limits) for status in statuses}
    healthy = not any(wrong.values()) and (bool(statuses) or not (pipeline or source))
    if as_json:
        pipelines = [{**_plain(asdict(status)), "complaints": list(wrong[status.pipeline])} for status in statuses]
        routed = {} if pipeline else _routed(store, source)
        print_result({"healthy": healthy, "pipelines": pipelines, **routed}, as_json, title="status")
        return healthy
    if len(statuses) <= _WHOLE:
        for status in statuses:
            _print_whole(status, wrong[status.pipeline])
    else:
        _print_lines(statuses, wrong)
    if not pipeline:
        _print_routed(store, source)
    if not statuses:
        tell("no such pipeline has started with this store" if pipeline or source else "no pipeline has started yet")
    return healthy


def _routed(store: ShardStore, source: str | None) -> dict[str, Any]:
    """Return the receivers of routes, and what they have recorded that no reader has taken yet, as far as there are."""
    routed = {
        "receivers": [] if source else [_plain(asdict(receiver)) for receiver in store.receivers()],
        "waiting": [asdict(waits) for waits in store.waiting() if source in (None, waits.source)],
    }
    return {name: values for name, values in routed.items() if values}


def _print_routed(store: ShardStore, source: str | None) -> None:
    from shard_store.shards.recording import COUNTS

    routed = _routed(store, source)
    for receiver in routed.get("receivers", ()):
        typer.echo(hide_secrets(f"{receiver['receiver']}: receiver of {receiver['queue']}"))
        _line("worked", f"{time_text(receiver['silence'])} ago ({receiver['worked_at']}) on {receiver['host']}")
        _line("last message", receiver["received_at"] or "none")
        _line("counts", ", ".join(f"{name} {number(receiver[name])}" for name in COUNTS))
    rows = [
        [waits["source"], number(waits["objects"]), time_text(waits["oldest_age"])]
        for waits in routed.get("waiting", ())
    ]
    if rows:
        print_table("recorded, and not taken by a reader yet", ("source", "objects", "oldest"), rows)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def _print_lines(statuses: Sequence[PipelineStatus], wrong: Mapping[str, Sequence[str]]) -> None:
    rows = [
        [
            status.pipeline,
            status.state,
            "" if status.last_batch is None else since(status, status.last_batch.published_at),
            number(status.files_outstanding),
            time_text(status.oldest_age),
            number(status.rows_per_second),
            number(sum(status.last_hour.errors.values())),
        ]
        for status in statuses
    ]
    columns = ("pipeline", "state", "batch", "waiting", "oldest", "rows/s", "errors/h")
    print_table(f"{len(rows)} pipelines", columns, rows)
    for name, sentences in wrong.items():
        for sentence in sentences:
            _line("unhealthy", f"{name}: {sentence}")


def _print_whole(status: PipelineStatus, wrong: Sequence[str]) -> None:
    typer.echo(hide_secrets(f"{status.pipeline}: {status.state}"))
    for name, text in status_lines(status):
        _line(name, text)
    for sentence in wrong:
        _line("unhealthy", sentence)


def _line(name: str, text: str) -> None:
    indent = " " * 14
    lines = textwrap.fill(hide_secrets(text), _WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=indent)
    typer.echo(lines)
