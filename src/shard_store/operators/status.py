"""What operators see of every pipeline that shares the store, running or dead: read only, from the tables alone.

The command `status`, and whatever shows or exports the same, are built on these functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from statistics import median
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.completeness.comparing import EMPTY, Category, verdict
from shard_store.model import SINK, Semantics, micros, time_of
from shard_store.notebooks import NotebookTable
from shard_store.shards.activity import (
    HOUR,
    SLOT,
    Activity,
    Amounts,
    Report,
    last_report,
    percentile,
    run_of,
)
from shard_store.sql.database import Transaction
from shard_store.sql.schema import attempts, certificates, history, listings, pipelines, shards, snapshots

RUNNING, STOPPED, DEAD = "running", "stopped", "dead"
"""The states of a pipeline. Stopped: its reader has ended by itself; dead: its heartbeats have ended, and nothing else
said so."""

_SECOND = 1_000_000
_RECENT = 2 * SLOT
_LONG = 60.0  # seconds that any batch may take
_LATELY = 24 * HOUR  # in which the listings and certificates of a source are looked at together
_BAD = {"complete": 0, EMPTY: 1, "unknown": 2, "incomplete": 3}  # the verdicts, the worst last
_USUAL = 20  # batches whose times are the usual ones
SLOT_SECONDS = SLOT // _SECOND


@dataclass(frozen=True, slots=True)
class Published:
    """What a pipeline has published in some time.

    Attributes:
        batches: Micro-batches, also those without new input.
        rows: None where only other sinks than cuesqueue's took them, uncounted; as `bytes`.
        bytes: Of the data files.
        objects: Objects, or messages that are content themselves, that were published to their end.
        messages: Messages received, redeliveries included.
        errors: Final errors, by cause.
        lag_p50: Seconds from the sending of a message to the publication, of the median object; None: not known.
        lag_p99: The same, that 99 of 100 objects are not longer than.
    """

    batches: int = 0
    rows: int | None = None
    bytes: int | None = None
    objects: int = 0
    messages: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    lag_p50: float | None = None
    lag_p99: float | None = None


@dataclass(frozen=True, slots=True)
class CurrentPlan:
    """The plan of the micro-batch that is under way. `attempt`: how often it was made; from 2 on one has failed.

    Attributes:
        seconds: For how long it is under way, since its last snapshot; None: not known.
        usual_seconds: The median of the last batches; None where this one takes less than a minute, or none is known.
        is_slow: Whether it takes more than ten times as long as usual: its reader lives, but perhaps it hangs.
        is_left: Whether its reader has stopped within it, for so long that it would be dead, and nothing goes on.
    """

    start_seq: int
    end_seq: int
    attempt: int
    delivery_hash: str
    seconds: float | None = None
    usual_seconds: float | None = None
    is_slow: bool = False
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """The micro-batch that was published last. `batch_id` is Spark's, where a sink reported it."""

    seq: int
    batch_id: int | None
    kind: str
    published_at: datetime
    rows: int | None
    bytes: int | None
    objects: int
    errors: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The comparison of a prefix with its source that ended last, or is under way (`ended_at` is None), or fails."""

    prefix: str
    began_at: datetime
    ended_at: datetime | None
    objects: int
    opened: int
    failures: int


@dataclass(frozen=True, slots=True)
class Certified:
    """The newest certificate of a source; of those of several prefixes in one day, the newest of the worst one."""

    id: int
    prefix: str
    verdict: str
    objects: int
    written_at: datetime


@dataclass(frozen=True, slots=True)
class PipelineStatus(NotebookTable):
    """One pipeline, as the store knows it. Times are aware, durations are seconds, by the database's clock.

    Attributes:
        pipeline: Its name.
        source: Its source.
        state: `running`, `stopped` (its reader has ended by itself) or `dead` (its heartbeats have ended).
        incarnation: How often its reader was started.
        semantics: The option `deliverySemantics`.
        host: Where its reader runs; like the versions, None if that is not known.
        spark_version: Of its driver.
        cuesqueue_version: Of its reader.
        created_at: When it started first.
        heartbeat_at: Its last heartbeat, or its start.
        silence: Seconds since then.
        source_silence: Seconds since the last heartbeat of any pipeline of its source.
        last_seq: The last offset that Spark was given.
        confirmed_seq: The last one that is known to be done.
        plan: The micro-batch that is under way, if any.
        last_batch: None if nothing was published yet.
        in_flight: Messages that its reader holds; like the next four as of its last heartbeat, and None unless it runs.
        ready: Shards that wait to be planned.
        awaiting_commit: Shards in a micro-batch.
        held: Shards of other pipelines for which messages wait.
        queue_depth: Messages that wait in its queues, where they say so.
        in_flight_elsewhere: Messages of its queues that other readers hold, or one before until their leases end, where
            the queues say so.
        failure: What has ended its reader, where that was no stop but a failure of its own.
        files_outstanding: Its shards that are not published, by the store.
        unowned: Shards of its source that are not published, and that no pipeline has.
        oldest_age: Seconds since the message of the oldest of both was sent, or else received; None if nothing waits.
        last_hour: What it has published in the last 60 to 65 minutes.
        rows_per_second: In the last 5 to 10 minutes; None where rows are not counted.
        bytes_per_second: The same.
        total: What it has published since its first start.
        counters: Of its reader, since the pipeline's first start, as in the query's progress.
        data_files: Parquet files of the sink with `path` that are published now; None: none was.
        data_bytes: All of them together.
        changed: Announcements of other versions of what is published, which are not read.
        object_retries: Requests for objects that successful tasks have sent again, as where a bucket is busy.
        all_outside: Messages of the last hour or two that announce objects outside of `allowedPrefixes`, where nothing
            else came; 0 as soon as it has accepted one.
        waits: Stopped pipelines whose objects it does not take over, and why: `onUnknownTakeover`.
        backfill: The last listing of its source, or one that fails.
        certificate: The newest one of its source, or of the prefix with the worst verdict.
    """

    pipeline: str
    source: str
    state: str
    incarnation: int
    semantics: str
    host: str | None
    spark_version: str | None
    cuesqueue_version: str | None
    created_at: datetime
    heartbeat_at: datetime
    silence: float
    source_silence: float
    last_seq: int
    confirmed_seq: int
    plan: CurrentPlan | None
    last_batch: Batch | None
    in_flight: int | None
    ready: int | None
    awaiting_commit: int | None
    held: int | None
    queue_depth: int | None
    in_flight_elsewhere: int | None
    failure: str | None
    files_outstanding: int
    unowned: int
    oldest_age: float | None
    last_hour: Published
    rows_per_second: float | None
    bytes_per_second: float | None
    total: Published
    counters: Mapping[str, int]
    data_files: int | None
    data_bytes: int | None
    changed: int
    object_retries: int
    all_outside: int
    waits: Mapping[str, str]
    backfill: Listed | None
    certificate: Certified | None


@dataclass(frozen=True, slots=True)
class Hour(NotebookTable):
    """What a pipeline published in the hour that began at `start`; of `recent`, in the `SLOT_SECONDS`."""

    pipeline: str
    source: str
    start: datetime
    published: Published


def status(
    transaction: Transaction, *, source: str | None = None, pipeline: str | None = None
) -> tuple[PipelineStatus, ...]:
    """Return all pipelines, or those of a source, or one, by their names. In a few statements, however many there are.

    Not those of a source that is in another store by now: they do not run here, as intended.
    """
    # not by EXISTS, for which PostgreSQL reads the whole table
    delivered = sa.select(attempts.c.delivery_hash).where(attempts.c.delivery_hash == pipelines.c.plan_hash).limit(1)
    written = sa.select(sa.func.max(snapshots.c.created_at)).where(
        snapshots.c.pipeline == pipelines.c.pipeline, snapshots.c.seq == pipelines.c.plan_end
    )
    query = sa.select(
        pipelines,
        transaction.now().label("now"),
        delivered.scalar_subquery().label("delivered"),
        written.scalar_subquery().label("written_at"),
    )
    if pipeline is not None:  # and the others of its source
        its_source = sa.select(pipelines.c.source).where(pipelines.c.pipeline == pipeline)
        query = query.where(pipelines.c.source.in_(its_source))
    rows = transaction.execute(query.where(*_of(pipelines, source, None)).order_by(pipelines.c.pipeline)).all()
    beats: dict[str, int] = {}
    for row in rows:
        beats[row.source] = max(row.heartbeat_at, beats.get(row.source, 0))
    since = sa.func.min(sa.func.coalesce(shards.c.sent_at, shards.c.opened_at))
    free = sa.select(shards.c.source, sa.func.count(), since).group_by(shards.c.source)
    free = free.where(shards.c.owner.is_(None), shards.c.finished_at.is_(None))
    unowned = {row[0]: row[1:] for row in transaction.select_among(free, shards.c.source, beats)}
    owner, c = shards.c.owner, certificates.c
    # not the one that was opened first, since queues have an order of their own
    unpublished = sa.select(owner, sa.func.count(), since).where(shards.c.finished_at.is_(None), owner.is_not(None))
    outstanding = {row[0]: row[1:] for row in transaction.execute(unpublished.group_by(owner))}
    listed: dict[str, Listed] = {}
    touched = transaction.execute(sa.select(listings).order_by(listings.c.touched_at)).all()
    last = {row.source: row.touched_at for row in touched}
    # by source the one that was touched last, or one that fails: it is not touched, and hides behind the others
    for row in sorted(touched, key=lambda row: row.failures > 0 and row.touched_at > last[row.source] - _LATELY):
        listed[row.source] = Listed(
            prefix=row.prefix,
            began_at=time_of(row.began_at),
            ended_at=None if row.ended_at is None else time_of(row.ended_at),
            objects=row.objects,
            opened=row.opened,
            failures=row.failures,
        )
    newest = sa.select(c.source, sa.func.max(c.written_at).label("at")).group_by(c.source).subquery()
    categories = [category.value for category in Category]
    columns = (c.id, c.source, c.prefix, c.objects, c.written_at, *(c[name] for name in categories))
    lately = sa.and_(newest.c.source == c.source, c.written_at > newest.c.at - _LATELY)
    by_prefix = {}
    for row in transaction.execute(sa.select(*columns).join_from(certificates, newest, lately).order_by(c.id)):
        counts = {name: row._mapping[name] or 0 for name in categories}
        certificate = Certified(row.id, row.prefix, verdict(counts), row.objects, time_of(row.written_at))
        by_prefix[row.source, row.prefix] = certificate
    certified: dict[str, Certified] = {}
    for (of_source, _), worst in sorted(by_prefix.items(), key=lambda item: (_BAD[item[1].verdict], item[1].id)):
        certified[of_source] = worst
    return tuple(
        _status(
            row,
            _plan(transaction, row, outstanding.get(row.pipeline, (0, None))[0]),
            outstanding.get(row.pipeline, (0, None)),
            beats[row.source],
            unowned.get(row.source, (0, None)),
            listed.get(row.source),
            certified.get(row.source),
        )
        for row in rows
        if pipeline in (None, row.pipeline)
    )


def published_by(transaction: Transaction, pipeline: str, driver: str) -> Published | None:
    """Return what a pipeline has published in one driver; None where nothing tells, as of a reader that knew none."""
    text = transaction.execute(sa.select(pipelines.c.activity).where(pipelines.c.pipeline == pipeline)).scalar()
    runs = Activity.parse(text).runs
    return _published(runs.get(run_of(driver), Amounts())) if runs and driver else None


_ACTIVITY = pipelines.c.pipeline, pipelines.c.source, pipelines.c.activity


def hours(
    transaction: Transaction, *, since: datetime, source: str | None = None, pipeline: str | None = None
) -> tuple[Hour, ...]:
    """Return what was published in each hour since then, the oldest first; the current hour as far as it is."""
    first = micros(since.astimezone(timezone.utc))
    stored = sa.select(history).where(history.c.hour >= first - HOUR + 1, *_of(history, source, pipeline))
    running = sa.select(*_ACTIVITY).where(*_of(pipelines, source, pipeline))
    # first what is not stored yet: what is stored between the two statements is then found twice, and not missed
    by_hour: dict[tuple[int, str], Hour] = {}
    for row in transaction.execute(running):
        for start, amounts in Activity.parse(row.activity).hours():
            if start > first - HOUR:
                by_hour[start, row.pipeline] = Hour(row.pipeline, row.source, time_of(start), _published(amounts))
    for row in transaction.execute(stored):
        published = Published(
            **{name: getattr(row, name) for name in ("batches", "rows", "bytes", "objects", "messages")},
            errors=json.loads(row.causes),
            lag_p50=_lag(row.lag_p50),
            lag_p99=_lag(row.lag_p99),
        )
        by_hour[row.hour, row.pipeline] = Hour(row.pipeline, row.source, time_of(row.hour), published)
    return tuple(by_hour[key] for key in sorted(by_hour))


def recent(transaction: Transaction, *, source: str | None = None, pipeline: str | None = None) -> tuple[Hour, ...]:
    """Return what was published in each five minutes of the last hour in which anything happened, the oldest first."""
    query = sa.select(*_ACTIVITY, transaction.now().label("now")).where(*_of(pipelines, source, pipeline))
    slots = [
        (start, row, amounts)
        for row in transaction.execute(query.order_by(pipelines.c.pipeline))
        for start, amounts in Activity.parse(row.activity).slots.items()
        if start > row.now - HOUR - SLOT
    ]
    slots.sort(key=lambda slot: slot[0])
    return tuple(Hour(row.pipeline, row.source, time_of(start), _published(amounts)) for start, row, amounts in slots)


def _of(table: sa.Table, source: str | None, pipeline: str | None) -> list[sa.ColumnElement[bool]]:
    names = {"source": source, "pipeline": pipeline}
    return [table.c[column] == name for column, name in names.items() if name is not None]


def state_of(row: Row[Any]) -> str:
    """Return the state of a pipeline by its row, with the database's time as `now`."""
    report = Report.parse(row.report, row.incarnation)
    if report is not None and report.stopped:
        return STOPPED
    return RUNNING if row.stale_at > row.now else DEAD


def _plan(transaction: Transaction, row: Row[Any], outstanding: int) -> CurrentPlan | None:
    """Return the plan that is under way. The usual time costs a statement, only where a batch takes long."""
    if row.plan_hash is None or row.delivered is not None or row.plan_end <= row.confirmed_seq:
        return None
    seconds = None if row.written_at is None else _seconds(row.now - row.written_at)
    usual, is_slow = None, False
    if seconds is not None and seconds > _LONG:
        took = (
            sa.select(attempts.c.published_at - attempts.c.snapshot_at)
            .where(attempts.c.pipeline == row.pipeline, attempts.c.snapshot_at.is_not(None))
            .order_by(attempts.c.end_seq.desc())
            .limit(_USUAL)
        )
        times = transaction.execute(took).scalars().all()
        if times:
            usual = _seconds(round(median(times)))
            is_slow = seconds > 10 * usual
    plan = (row.plan_start, row.plan_end, row.plan_attempt, row.plan_hash)
    return CurrentPlan(*plan, seconds, usual, is_slow, _is_left(row, outstanding))


def _is_left(row: Row[Any], outstanding: int) -> bool:
    """Tell whether the plan, which is not delivered, is one that a reader has left when it stopped long ago.

    As where its driver was killed: Java then stops the reader in good order. Before Spark 4.2 a query with another sink
    does not say that its last batch is done, so the plan says nothing unless our sink was made for it. What another
    pipeline has taken over meanwhile is left no more.
    """
    version = tuple(map(int, re.findall(r"\d+", row.spark_version or "")[:2]))
    tells_its_end = version >= (4, 2) or (row.sink == SINK and row.sink_incarnation == row.plan_incarnation)
    is_somebodys = not outstanding and Semantics(row.semantics).keeps_shards
    return state_of(row) == STOPPED and row.stale_at <= row.now and tells_its_end and not is_somebodys


def _status(
    row: Row[Any],
    plan: CurrentPlan | None,
    outstanding: tuple[int, int | None],
    source_beat: int,
    unowned: tuple[int, int | None],
    listed: Listed | None,
    certified: Certified | None,
) -> PipelineStatus:
    activity, state = Activity.parse(row.activity), state_of(row)
    report = Report.parse(row.report, row.incarnation)
    held = report if state == RUNNING else None
    since = [at for at in (outstanding[1], unowned[1]) if at is not None]
    last, last_said = activity.last, last_report(row.report)
    batch = None
    if last is not None:
        same = {f.name: getattr(last, f.name) for f in fields(Batch)}
        batch = Batch(**{**same, "published_at": time_of(last.published_at)})
    # the slot that runs and the one before it, and how many seconds they are by now
    start = row.now - row.now % SLOT - SLOT
    recent, seconds = activity.since(start), max(_SECOND, row.now - start) / _SECOND
    if recent.rows is None and activity.total.rows is not None:
        recent.rows = recent.bytes = 0  # they are counted, and there were none
    # of the last report; nothing once a later batch has published an object
    has_read = last is not None and bool(last.objects) and last.published_at > row.heartbeat_at
    now_held: dict[str, Any] = {n: getattr(held, n, None) for n in ("in_flight", "ready", "awaiting_commit", "held")}
    return PipelineStatus(
        **{name: getattr(row, name) for name in _AS_STORED},
        state=state,
        created_at=time_of(row.created_at),
        heartbeat_at=time_of(row.heartbeat_at),
        silence=_seconds(row.now - row.heartbeat_at),
        source_silence=_seconds(row.now - source_beat),
        plan=plan,
        last_batch=batch,
        **now_held,
        queue_depth=None if held is None else held.depth,
        in_flight_elsewhere=None if held is None else held.elsewhere,
        failure=report.failure if report is not None and state == STOPPED else None,
        files_outstanding=outstanding[0],
        unowned=unowned[0],
        oldest_age=_seconds(row.now - min(since)) if since else None,
        last_hour=_published(activity.since(row.now - HOUR - row.now % SLOT)),
        rows_per_second=None if recent.rows is None else recent.rows / seconds,
        bytes_per_second=None if recent.bytes is None else recent.bytes / seconds,
        total=_published(activity.total),
        counters=last_said.counters,
        changed=activity.total.changed,
        object_retries=activity.total.object_retries,
        all_outside=0 if has_read else last_said.intake.all_outside,
        waits={} if held is None else held.waits,
        backfill=listed,
        certificate=certified,
    )


_AS_STORED = (
    *("pipeline", "source", "incarnation", "semantics", "host", "spark_version", "cuesqueue_version"),
    *("last_seq", "confirmed_seq", "data_files", "data_bytes"),
)


def _published(amounts: Amounts) -> Published:
    return Published(
        batches=amounts.batches,
        rows=amounts.rows,
        bytes=amounts.bytes,
        objects=amounts.objects,
        messages=amounts.messages,
        errors=dict(amounts.errors),
        lag_p50=_lag(percentile(amounts.lags, 0.5)),
        lag_p99=_lag(percentile(amounts.lags, 0.99)),
    )


def _lag(micros: int | None) -> float | None:
    return None if micros is None else micros / _SECOND


def _seconds(micros: int) -> float:
    return max(0, micros) / _SECOND
