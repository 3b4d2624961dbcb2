"""`cuesqueue status`: every pipeline of a store, for people and for probes."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.filters import duration_of
from queue_source.commands.output import UNHEALTHY, Json, Store, print_result, print_table, tell, visible

if TYPE_CHECKING:
    from shard_store.operations import PipelineStatus, Published, StatusLimits
    from shard_store.store import ShardStore

_WHOLE = 3  # pipelines that are shown with all that is known of them; of more, one line each
_WIDTH = 80
_PATIENCE = 10.0  # seconds for a store that is away: less than a probe waits


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
    is not, or --pipeline has never started. A pipeline whose heartbeats have ended without a stop is never healthy.
    """
    pause = duration_of("--interval", interval)
    import shard_store
    from shard_store.operations import StatusLimits

    def limit(option: str, text: str | None) -> timedelta | None:
        return None if text is None else duration_of(option, text)

    limits = StatusLimits(limit("--max-lag", max_lag), limit("--max-silence", max_silence), max_errors)
    with shard_store.open_store(store, create=False, patience=_PATIENCE) as opened:
        healthy = _show(opened, source, pipeline, limits, as_json)
        while watch:
            try:
                time.sleep(pause.total_seconds())
                if not as_json and sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[2J")
                healthy = _show(opened, source, pipeline, limits, as_json)
            except KeyboardInterrupt:
                break
    if not healthy:
        raise typer.Exit(UNHEALTHY)


def _show(store: ShardStore, source: str | None, pipeline: str | None, limits: StatusLimits, as_json: bool) -> bool:
    """Print it once; returns whether all is well."""
    from queue_source.admin import operations

    found = operations.status(store, source=source, pipeline=pipeline)
    wrong = {one.pipeline: operations.complaints(one, limits) for one in found}
    healthy = not any(wrong.values()) and (bool(found) or pipeline is None)
    if as_json:
        shown = [{**_plain(asdict(one)), "complaints": list(wrong[one.pipeline])} for one in found]
        print_result({"healthy": healthy, "pipelines": shown}, as_json, title="status")
        return healthy
    if len(found) <= _WHOLE:
        for one in found:
            _print_whole(one, wrong[one.pipeline])
    else:
        _print_lines(found, wrong)
    if not found:
        tell("no such pipeline has started with this store" if pipeline or source else "no pipeline has started yet")
    return healthy


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def _print_lines(found: Sequence[PipelineStatus], wrong: Mapping[str, Sequence[str]]) -> None:
    rows = [
        [
            one.pipeline,
            one.state,
            "" if one.last_batch is None else _since(one, one.last_batch.published_at),
            _number(one.files_outstanding),
            _time(one.oldest_age),
            _number(one.rows_per_second),
            _number(sum(one.last_hour.errors.values())),
        ]
        for one in found
    ]
    columns = ("pipeline", "state", "batch", "waiting", "oldest", "rows/s", "errors/h")
    print_table(f"{len(rows)} pipelines", columns, rows)
    for name, sentences in wrong.items():
        for sentence in sentences:
            _line("unhealthy", f"{name}: {sentence}")


def _print_whole(one: PipelineStatus, wrong: Sequence[str]) -> None:
    typer.echo(visible(f"{one.pipeline}: {one.state}"))
    for name, text in _lines(one):
        _line(name, text)
    for sentence in wrong:
        _line("unhealthy", sentence)


def _line(name: str, text: str) -> None:
    indent = " " * 14
    lines = textwrap.fill(visible(text), _WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=indent)
    typer.echo(lines)


def _lines(one: PipelineStatus) -> Iterator[tuple[str, str]]:
    yield "source", f"{one.source}, {one.semantics}"
    versions = f"Spark {one.spark_version or '?'}, cuesqueue {one.cuesqueue_version or '?'}"
    where = f"on {one.host or 'an unknown host'}, {versions}"
    yield "reader", f"incarnation {one.incarnation} {where}; heartbeat {_time(one.silence)} ago"
    if one.last_batch is not None:
        b = one.last_batch
        name = f"seq {b.seq}" if b.batch_id is None else f"batch {b.batch_id} (seq {b.seq})"
        sizes = f"{_number(b.objects)} objects, {_number(b.rows)} rows, {_size(b.bytes)}, {_number(b.errors)} errors"
        yield "published", f"{name} {_since(one, b.published_at)} ago: {sizes}"
    if one.plan is not None:
        yield "plan", f"{one.plan.start_seq}-{one.plan.end_seq} is under way, attempt {one.plan.attempt}"
    if one.in_flight is not None:
        yield (
            "holds",
            f"{_number(one.in_flight)} messages in flight; objects: {_number(one.ready)} ready, "
            f"{_number(one.awaiting_commit)} in a batch, {_number(one.held)} held for other pipelines; "
            f"queue depth {_number(one.queue_depth)}",
        )
    oldest = "" if one.oldest_age is None else f", the oldest for {_time(one.oldest_age)}"
    yield "waiting", f"{_number(one.files_outstanding)} objects are not published{oldest}"
    yield "lag", f"p50 {_time(one.last_hour.lag_p50)}, p99 {_time(one.last_hour.lag_p99)} in the last hour"
    yield "rate", f"{_number(one.rows_per_second)} rows/s, {_size(one.bytes_per_second)}/s in the last minutes"
    yield "last hour", _amounts(one.last_hour)
    yield "in all", _amounts(one.total)
    if one.backfill is not None:
        listed = one.backfill
        how = "under way" if listed.ended_at is None else f"ended {_since(one, listed.ended_at)} ago"
        counts = f"{_number(listed.objects)} objects, {_number(listed.opened)} of them new"
        yield "backfill", f"{how}: {counts}, {_number(listed.failures)} failures ({listed.prefix})"
    if one.certificate is not None:
        found = one.certificate
        ago, objects = _since(one, found.written_at), _number(found.objects)
        yield "certificate", f"{found.id}, {ago} ago: {found.verdict}, {objects} objects ({found.prefix})"


def _amounts(published: Published) -> str:
    p = published
    errors = ", ".join(f"{_number(count)} {cause}" for cause, count in sorted(p.errors.items())) or "none"
    counts = f"{_number(p.batches)} batches, {_number(p.objects)} objects, {_number(p.rows)} rows, {_size(p.bytes)}"
    return f"{counts}, {_number(p.messages)} messages received; errors: {errors}"


def _since(one: PipelineStatus, then: datetime) -> str:
    """By the database's clock, of which the last heartbeat and the silence since tell."""
    return _time((one.heartbeat_at - then).total_seconds() + one.silence)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 120 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _number(count: float | None) -> str:
    if count is None:
        return "unknown"
    return f"{count:.1f}" if 0 < count < 10 and count != int(count) else f"{round(count):,}"


def _size(size: float | None) -> str:
    if size is None:
        return "unknown bytes"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
