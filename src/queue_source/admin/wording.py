"""What is known of a pipeline in words: the same in a terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shard_store.operators.status import PipelineStatus, Published


def status_lines(one: PipelineStatus) -> Iterator[tuple[str, str]]:
    """All that is known, as names and sentences."""
    yield "source", f"{one.source}, {one.semantics}"
    versions = f"Spark {one.spark_version or '?'}, cuesqueue {one.cuesqueue_version or '?'}"
    where = f"on {one.host or 'an unknown host'}, {versions}"
    yield "reader", f"incarnation {one.incarnation} {where}; heartbeat {time_text(one.silence)} ago"
    if one.last_batch is not None:
        b = one.last_batch
        name = f"seq {b.seq}" if b.batch_id is None else f"batch {b.batch_id} (seq {b.seq})"
        sizes = f"{number(b.objects)} objects, {number(b.rows)} rows, {size_text(b.bytes)}, {number(b.errors)} errors"
        yield "published", f"{name} {since(one, b.published_at)} ago: {sizes}"
    if one.plan is not None:
        yield "plan", f"{one.plan.start_seq}-{one.plan.end_seq} is under way, attempt {one.plan.attempt}"
    if one.in_flight is not None:
        yield (
            "holds",
            f"{number(one.in_flight)} messages in flight; objects: {number(one.ready)} ready, "
            f"{number(one.awaiting_commit)} in a batch, {number(one.held)} held for other pipelines; "
            f"queue depth {number(one.queue_depth)}",
        )
    oldest = "" if one.oldest_age is None else f", the oldest for {time_text(one.oldest_age)}"
    yield "waiting", f"{number(one.files_outstanding)} objects are not published{oldest}"
    yield "lag", f"p50 {time_text(one.last_hour.lag_p50)}, p99 {time_text(one.last_hour.lag_p99)} in the last hour"
    yield "rate", f"{number(one.rows_per_second)} rows/s, {size_text(one.bytes_per_second)}/s in the last minutes"
    yield "last hour", amounts(one.last_hour)
    yield "in all", amounts(one.total)
    if one.backfill is not None:
        listed = one.backfill
        how = "under way" if listed.ended_at is None else f"ended {since(one, listed.ended_at)} ago"
        counts = f"{number(listed.objects)} objects, {number(listed.opened)} of them new"
        yield "backfill", f"{how}: {counts}, {number(listed.failures)} failures ({listed.prefix})"
    if one.certificate is not None:
        found = one.certificate
        ago, objects = since(one, found.written_at), number(found.objects)
        yield "certificate", f"{found.id}, {ago} ago: {found.verdict}, {objects} objects ({found.prefix})"


def amounts(published: Published) -> str:
    """What was published, as one sentence."""
    p = published
    errors = ", ".join(f"{number(count)} {cause}" for cause, count in sorted(p.errors.items())) or "none"
    counts = f"{number(p.batches)} batches, {number(p.objects)} objects, {number(p.rows)} rows, {size_text(p.bytes)}"
    return f"{counts}, {number(p.messages)} messages received; errors: {errors}"


def since(one: PipelineStatus, then: datetime) -> str:
    """By the database's clock, of which the last heartbeat and the silence since tell."""
    return time_text((one.heartbeat_at - then).total_seconds() + one.silence)


def time_text(seconds: float | None) -> str:
    """Seconds, with a unit that suits them."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 120 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def number(count: float | None) -> str:
    """A count, with commas between thousands."""
    if count is None:
        return "unknown"
    return f"{count:.1f}" if 0 < count < 10 and count != int(count) else f"{round(count):,}"


def size_text(size: float | None) -> str:
    """Bytes, with a unit that suits them."""
    if size is None:
        return "unknown bytes"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
