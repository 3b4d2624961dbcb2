"""The state of a pipeline in words: the same in a terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shard_store.operators.status import PipelineStatus, Published


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
        yield "plan", f"{plan.start_seq}-{plan.end_seq} is under way, attempt {plan.attempt}{slow}"
    if status.in_flight is not None:
        yield (
            "holds",
            f"{counted(status.in_flight, 'message')} in flight; objects: {number(status.ready)} ready, "
            f"{number(status.awaiting_commit)} in a batch, {number(status.held)} held for other pipelines; "
            f"queue depth {number(status.queue_depth)}",
        )
    oldest = "" if status.oldest_age is None else f", the oldest for {time_text(status.oldest_age)}"
    yield "waiting", f"{counted(status.files_outstanding, 'object')} not published{oldest}"
    yield (
        "lag",
        f"p50 {time_text(status.last_hour.lag_p50)}, p99 {time_text(status.last_hour.lag_p99)} in the last hour",
    )
    yield "rate", f"{number(status.rows_per_second)} rows/s, {size_text(status.bytes_per_second)}/s in the last minutes"
    yield "last hour", amounts(status.last_hour)
    yield "in all", amounts(status.total)
    if status.changed:
        yield "changed", f"{counted(status.changed, 'announcement')} of other versions of what is published: not read"
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


def time_text(seconds: float | None) -> str:
    """Format seconds, with a unit that suits them."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 120 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def number(count: float | None) -> str:
    """Format a count, with commas between thousands."""
    if count is None:
        return "unknown"
    return f"{count:.1f}" if 0 < count < 10 and count != int(count) else f"{round(count):,}"


def counted(count: float | None, name: str, names: str = "") -> str:
    """Format a count with the name of what is counted, in the singular for one."""
    return f"{number(count)} {name if count == 1 else names or name + 's'}"


def size_text(size: float | None) -> str:
    """Format bytes, with a unit that suits them."""
    if size is None:
        return "unknown bytes"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
