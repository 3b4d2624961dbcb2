"""`cuesqueue status`: every pipeline of a store, for people and for probes; for programs, too."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from time import sleep
from typing import Annotated, Any

import typer

from queue_source.commands.output import (
    UNHEALTHY,
    WIDTH,
    Json,
    Stopped,
    counted,
    hide_secrets,
    number,
    plain_time,
    print_result,
    print_table,
    size_text,
    tell,
    time_text,
)
from queue_source.commands.parameters import Pipeline, Store, duration_if_any, duration_of, flag, option
from queue_source.errors import QueueError
from queue_source.queues import open_queue
from queue_source.queues.base import administered
from shard_store import open_store
from shard_store.notebooks import rows_table
from shard_store.operators.limits import StatusLimits, complaints, complaints_of_routes
from shard_store.operators.status import STOPPED, Hour, PipelineStatus, Published
from shard_store.shards.recording import COUNTS
from shard_store.store import ShardStore

NO_SUCH_PIPELINE = "no such pipeline has started with this store"

_WHOLE = 3  # pipelines that are shown in full; more of them have one line each
_PATIENCE = 10.0  # seconds for an unavailable store: less than a probe waits


def status_command(
    store: Store,
    pipeline: Pipeline = None,
    source: Annotated[str | None, option("S", "Only the pipelines of this source.")] = None,
    watch: Annotated[bool, flag("--watch", "Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, option("D", "With --watch: the time between two.")] = "5s",
    queue: Annotated[
        list[str] | None,
        option("URL", "Ask this queue too, and exit with 3 if it does not answer; may be repeated."),
    ] = None,
    max_lag: Annotated[
        str | None,
        option(
            "D", "Exit with 3 if the oldest message or batch is older, or, without --max-silence, the last heartbeat."
        ),
    ] = None,
    max_silence: Annotated[
        str | None, option("D", "Exit with 3 if the last heartbeat is older, also after a stop.")
    ] = None,
    max_errors: Annotated[int | None, option("N", "Exit with 3 if the last hour had more errors.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Show which pipelines are alive, how far behind they are, how fast, and what went wrong.

    Exit codes: 0 all are healthy, 3 one is not, or nothing of --pipeline or --source has started. Never healthy are
    pipelines that died or stopped within a batch, whose reader failed, or to which only what is outside of
    allowedPrefixes came lately.
    """
    pause = duration_of("--interval", interval)
    limits = limits_of(max_lag, max_silence, max_errors)
    with open_store(store, create=False, patience=_PATIENCE) as opened:
        healthy = _show(opened, source, pipeline, limits, queue or (), as_json)
        while watch:
            try:
                sleep(pause.total_seconds())
                if not as_json and sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[2J")
                healthy = _show(opened, source, pipeline, limits, queue or (), as_json)
            except Stopped:
                break
    if not healthy:
        raise typer.Exit(UNHEALTHY)


def limits_of(max_lag: str | None, max_silence: str | None, max_errors: int | None) -> StatusLimits:
    """Return the limits that the options of these names give. Raises OptionError."""
    lag, silence = duration_if_any("--max-lag", max_lag), duration_if_any("--max-silence", max_silence)
    return StatusLimits(lag, silence, max_errors)


def _asked(url: str) -> dict[str, Any]:
    """Ask a queue how many messages it has, without making it; `problem` is why it does not say so."""
    try:
        with open_queue(url) as queue:
            manager = administered(queue)
            if manager is not None and not manager.exists():
                return {"queue": queue.name, "problem": "it does not exist; create it, or correct its URL"}
            return {"queue": queue.name, **(asdict(queue.depth()) if queue.capabilities.reports_depth else {})}
    except QueueError as error:
        return {"queue": error.queue, "problem": error.problem}


def _show(
    store: ShardStore,
    source: str | None,
    pipeline: str | None,
    limits: StatusLimits,
    urls: Iterable[str],
    as_json: bool,
) -> bool:
    """Print the state once; return whether all is well."""
    statuses = status(store, source=source, pipeline=pipeline)
    wrong = {each.pipeline: complaints(each, limits) for each in statuses}
    queues = [_asked(url) for url in urls]
    healthy = not any(wrong.values()) and (bool(statuses) or not (pipeline or source))
    healthy &= not any("problem" in queue for queue in queues)
    receivers = [] if pipeline or source else store.receivers()
    waiting = [] if pipeline else [waits for waits in store.waiting() if source in (None, waits.source)]
    wrong_routes = complaints_of_routes(receivers, waiting, limits)
    healthy &= not wrong_routes
    if as_json:
        pipelines = [{**asdict(each), "complaints": wrong[each.pipeline]} for each in statuses]
        routed: dict[str, Any] = {"receivers": list(map(asdict, receivers)), "waiting": list(map(asdict, waiting))}
        routed |= {"queues": queues, "complaints": wrong_routes}
        present = {name: values for name, values in routed.items() if values}
        print_result({"healthy": healthy, "pipelines": pipelines, **present}, as_json, title="status")
        return healthy
    if len(statuses) <= _WHOLE:
        for each in statuses:
            typer.echo(hide_secrets(f"{each.pipeline}: {each.state}"))
            for name, text in status_lines(each):
                _line(name, text)
            for sentence in wrong[each.pipeline]:
                _line("unhealthy", sentence)
    else:
        _print_lines(statuses, wrong)
    for receiver in receivers:
        typer.echo(hide_secrets(f"{receiver.receiver}: receiver of {receiver.queue}"))
        worked, received = (plain_time(at) for at in (receiver.worked_at, receiver.received_at))
        _line("worked", f"{time_text(receiver.silence)} ago ({worked}) on {receiver.host}")
        _line("received", received or "none")
        _line("counts", ", ".join(f"{name} {number(getattr(receiver, name))}" for name in COUNTS))
    for queue in queues:
        typer.echo(hide_secrets(f"{queue.pop('queue')}: queue"))
        if "problem" in queue:
            _line("unhealthy", queue["problem"])
        else:
            said = ", ".join(f"{number(count)} {name.replace('_', ' ')}" for name, count in queue.items())
            _line("messages", said or "its kind does not say how many there are")
    if waiting:
        rows = [[waits.source, number(waits.objects), time_text(waits.oldest_age)] for waits in waiting]
        print_table("recorded, and not taken by a reader yet", ("source", "objects", "oldest"), rows)
    for name, sentences in wrong_routes.items():
        _line("unhealthy", f"{name}: {'; '.join(sentences)}")
    if not statuses:
        tell(NO_SUCH_PIPELINE if pipeline or source else "no pipeline has started yet")
    return healthy


def _print_lines(statuses: Sequence[PipelineStatus], wrong: Mapping[str, Sequence[str]]) -> None:
    """Print a line for each. The name comes last, or below where 80 columns have no room, and is never broken."""
    rows = [
        (
            status.state,
            "" if status.last_batch is None else since(status, status.last_batch.published_at),
            number(status.files_outstanding),
            time_text(status.oldest_age),
            number(status.rows_per_second),
            number(sum(status.last_hour.errors.values())),
        )
        for status in statuses
    ]
    typer.echo(f"{len(rows)} pipelines")
    table = [("state", "batch", "waiting", "oldest", "rows/s", "errors/h"), *rows]
    names = ["pipeline", *(hide_secrets(status.pipeline) for status in statuses)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    is_wide = sum(widths) + 2 * len(widths) + max(map(len, names)) > WIDTH
    for row, name in zip(table, names, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(f"{cells.rstrip()}\n  {name}" if is_wide else f"{cells}  {name}")
    for name, sentences in wrong.items():
        for sentence in sentences:
            _line("unhealthy", f"{name}: {sentence}")


def _line(name: str, text: str) -> None:
    indent = " " * 14
    lines = textwrap.fill(hide_secrets(text), WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=indent)
    typer.echo(lines)


def status_lines(status: PipelineStatus) -> Iterator[tuple[str, str]]:
    """Yield the names and the sentences of all that is known."""
    yield "source", f"{status.source}, {status.semantics}"
    versions = f"Spark {status.spark_version or '?'}, cuesqueue {status.cuesqueue_version or '?'}"
    where = f"on {status.host or 'an unknown host'}, {versions}"
    yield "reader", f"incarnation {status.incarnation} {where}; heartbeat {time_text(status.silence)} ago"
    if status.last_batch is not None:
        b = status.last_batch
        name = f"seq {b.seq}" if b.batch_id is None else f"batch {b.batch_id} (seq {b.seq})"
        counts = f"{counted(b.objects, 'object')}, {counted(b.rows, 'row')}"
        sizes = f"{counts}, {size_text(b.bytes)}, {counted(b.errors, 'error')}"
        yield "published", f"{name} {since(status, b.published_at)} ago: {sizes}"
    if status.plan is not None:
        plan = status.plan
        slow = f", for {time_text(plan.seconds)}, usually {time_text(plan.usual_seconds)}" if plan.is_slow else ""
        how = "is not known to be finished" if status.state == STOPPED else "is under way"
        yield "plan", f"{plan.start_seq}-{plan.end_seq} {how}, attempt {plan.attempt}{slow}"
    if status.in_flight is not None:
        others = status.in_flight_elsewhere
        elsewhere = f", and {number(others)} in flight elsewhere" if others else ""
        yield (
            "holds",
            f"{counted(status.in_flight, 'message')} in flight; objects: {number(status.ready)} ready, "
            f"{number(status.awaiting_commit)} in a batch, {number(status.held)} held for other pipelines; "
            f"queue depth {number(status.queue_depth)}{elsewhere}",
        )
    oldest = "" if status.oldest_age is None else f", the oldest for {time_text(status.oldest_age)}"
    unowned = f", and {number(status.unowned)} of its source that no pipeline has" if status.unowned else ""
    yield "waiting", f"{counted(status.files_outstanding, 'object')} not published{unowned}{oldest}"
    yield (
        "lag",
        f"p50 {time_text(status.last_hour.lag_p50)}, p99 {time_text(status.last_hour.lag_p99)} in the last hour",
    )
    yield "rate", f"{number(status.rows_per_second)} rows/s, {size_text(status.bytes_per_second)}/s in the last minutes"
    yield "last hour", amounts(status.last_hour)
    yield "in all", amounts(status.total)
    if status.data_files is not None:
        mean = (status.data_bytes or 0) / max(1, status.data_files)
        yield (
            "data files",
            f"{number(status.data_files)} of {size_text(status.data_bytes)}, {size_text(mean)} on average",
        )
    if status.changed:
        yield "changed", f"{counted(status.changed, 'announcement')} of other versions of what is published: not read"
    if status.object_retries:
        yield "retries", f"{counted(status.object_retries, 'request')} for objects sent again"
    if status.backfill is not None:
        listed = status.backfill
        how = "under way" if listed.ended_at is None else f"ended {since(status, listed.ended_at)} ago"
        counts = f"{counted(listed.objects, 'object')}, {number(listed.opened)} of them new"
        yield "backfill", f"{how}: {counts}, {counted(listed.failures, 'failure')} ({listed.prefix})"
    if status.certificate is not None:
        certificate = status.certificate
        ago, objects = since(status, certificate.written_at), counted(certificate.objects, "object")
        yield (
            "certificate",
            f"{certificate.id}, {ago} ago: {certificate.verdict}, {objects} ({certificate.prefix})",
        )


def amounts(published: Published) -> str:
    """Describe what was published, in one sentence."""
    p = published
    errors = ", ".join(f"{number(count)} {cause}" for cause, count in sorted(p.errors.items())) or "none"
    counts = f"{counted(p.batches, 'batch', 'batches')}, {counted(p.objects, 'object')}, {counted(p.rows, 'row')}"
    return f"{counts}, {size_text(p.bytes)}, {counted(p.messages, 'message')} received; errors: {errors}"


def since(status: PipelineStatus, then: datetime) -> str:
    """Return the time since `then` by the database's clock, derived from the last heartbeat and the silence since."""
    return time_text((status.heartbeat_at - then).total_seconds() + status.silence)


def status(store: ShardStore, *, source: str | None = None, pipeline: str | None = None) -> tuple[PipelineStatus, ...]:
    """Each pipeline that has started with the store: whether it is alive, how far it is, how far behind, how fast.

    What its reader holds (`in_flight` and the like) is as old as its last heartbeat; what is published is exact, also
    after a process was killed.

    Args:
        store: The store, as `open_store` returns it.
        source: Only the pipelines of this source.
        pipeline: Only this pipeline.

    Returns:
        One status for each pipeline, by their names.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any. It reads some rows of each pipeline, and the index of what is not published.
    """
    return _Statuses(store.status(source=source, pipeline=pipeline))


class _Statuses(tuple[PipelineStatus, ...]):
    """The pipelines of a store, which notebooks show as a table with a line for each."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        columns = ("pipeline", "state", "last batch", "waiting", "oldest", "lag p99", "rows/s", "errors/h")
        rows = [
            (
                status.pipeline,
                status.state,
                "" if status.last_batch is None else f"{since(status, status.last_batch.published_at)} ago",
                number(status.files_outstanding),
                "" if status.oldest_age is None else time_text(status.oldest_age),
                "" if status.last_hour.lag_p99 is None else time_text(status.last_hour.lag_p99),
                number(status.rows_per_second),
                number(sum(status.last_hour.errors.values())),
            )
            for status in self
        ]
        return rows_table(columns, rows)


def history(
    store: ShardStore, *, since: datetime, source: str | None = None, pipeline: str | None = None
) -> tuple[Hour, ...]:
    """Return what each pipeline has published in each hour: rows, bytes, objects, errors, percentiles of the lag.

    Args:
        store: The store, as `open_store` returns it.
        since: The first hour, as a time in it, with a zone. Hours are kept for 90 days.
        source: Only the pipelines of this source.
        pipeline: Only this pipeline.

    Returns:
        The hours in which anything happened, the oldest first; the current one as far as it is.

    Raises:
        ShardStoreError: The store failed.

    Process:
        Any.
    """
    return store.hours(since=since, source=source, pipeline=pipeline)
