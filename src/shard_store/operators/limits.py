"""What a pipeline may do before it counts as unhealthy, as probes, the page and the health over HTTP see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from shard_store.operators.status import DEAD, STOPPED, PipelineStatus
from shard_store.shards.recording import Receiver, Waiting

_FORGOTTEN = timedelta(days=1)
"""For how long a silent receiver is missed: one that was ended for good stays in the store."""


@dataclass(frozen=True, slots=True)
class StatusLimits:
    """What a pipeline may do before it counts as unhealthy; None: anything.

    A dead one is always unhealthy, and so are one that has left a batch unfinished, one whose reader has failed, and
    one to which nothing comes but what it refuses (`all_outside`).

    Attributes:
        max_lag: The age of the oldest message that is not published, and of the micro-batch that is under way. Where a
            pipeline was stopped without `max_silence`, also the time since the last heartbeat of its source.
        max_silence: The time since the last heartbeat, also of a pipeline that was stopped; and, as `max_lag` without
            it, since a receiver has asked its queue.
        max_errors: Errors in the last hour.
    """

    max_lag: timedelta | None = None
    max_silence: timedelta | None = None
    max_errors: int | None = None


def complaints(status: PipelineStatus, limits: StatusLimits) -> tuple[str, ...]:
    """What is wrong with a pipeline, as a probe sees it.

    Args:
        status: One pipeline, of `status`.
        limits: What it may do. Whatever they say, it is wrong when its heartbeats have ended and it was not stopped or
            has not finished its batch, or when its reader has failed.

    Returns:
        A sentence for each thing that is wrong; none if the pipeline is healthy.

    Raises:
        Nothing.

    Process:
        Any.
    """
    problems = []
    if status.state == DEAD:
        problems.append(f"its heartbeats ended {_ago(status.silence)} ago, and it was not stopped")
    if status.plan is not None and status.plan.is_left:
        problems.append(
            f"its batch {status.plan.start_seq}-{status.plan.end_seq} is not finished, and nothing goes on with it "
            f"since its reader stopped {_ago(status.silence)} ago; start its query again"
        )
    if status.failure is not None:
        problems.append(f"its reader has failed: {status.failure}")
    if limits.max_silence is not None and status.silence > limits.max_silence.total_seconds():
        problems.append(f"its last heartbeat was {_ago(status.silence)} ago")
    if limits.max_lag is not None:
        longest = limits.max_lag.total_seconds()
        if status.state == STOPPED and limits.max_silence is None and status.source_silence > longest:
            problems.append(f"nothing runs its source: the last heartbeat was {_ago(status.source_silence)} ago")
        if status.oldest_age is not None and status.oldest_age > longest:
            problems.append(f"its oldest message has waited for {_ago(status.oldest_age)}")
        if status.plan is not None and status.plan.seconds is not None and status.plan.seconds > longest:
            problems.append(f"its micro-batch has been under way for {_ago(status.plan.seconds)}")
    if status.all_outside:
        problems.append(
            f"nothing is read: what came lately is outside of allowedPrefixes ({status.all_outside} message(s)); "
            "correct the option, start the query again, then run `cuesqueue errors requeue --cause outside-prefixes`"
        )
    for name, why in status.waits.items():
        problems.append(
            f"it waits for objects of pipeline {name!r}, whose last batch may be in its target: {why}; start that "
            "query, or set onUnknownTakeover to repeat"
        )
    errors = sum(status.last_hour.errors.values())
    if limits.max_errors is not None and errors > limits.max_errors:
        problems.append(f"{errors:,} error{'' if errors == 1 else 's'} in the last hour")
    return tuple(problems)


def complaints_of_routes(
    receivers: Iterable[Receiver], waiting: Iterable[Waiting], limits: StatusLimits
) -> dict[str, list[str]]:
    """Return what is wrong with receivers of other sources' objects, and with what they have recorded, by their names.

    No pipeline shows either: one without a queue has heartbeats, and a source may have no pipeline.
    """
    problems: dict[str, list[str]] = {}
    silence = limits.max_silence or limits.max_lag
    for receiver in receivers:
        if silence is not None and silence < timedelta(seconds=receiver.silence) < silence + _FORGOTTEN:
            problem = f"it asked its queue {_ago(receiver.silence)} ago, so that its sources get nothing"
            problems[f"receiver {receiver.receiver}"] = [problem]
    for waits in waiting:
        if limits.max_lag is not None and waits.oldest_age > limits.max_lag.total_seconds():
            problem = f"what is recorded for it has waited for a reader for {_ago(waits.oldest_age)}"
            problems[f"source {waits.source}"] = [problem]
    return problems


def _ago(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
