"""What a pipeline has published, and what its reader says of itself: two texts of JSON in the pipeline's row.

The row is locked and written in the transaction that publishes. So the amounts in it are exact whenever a process
dies, and cost no statement of their own. It holds the amounts since the pipeline's first start, and slots of five
minutes of a bit more than the last hour. When an hour is over, the next write of the row adds it to the history.

Lags, from a message to the publication of what it announced, are counted in fixed buckets. Each ends 20 % later than
the one before it, from 10 ms to more than a month. So a histogram has some hundred numbers at most, whatever is
counted; two are joined by adding them; and a percentile is at most a tenth wrong.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.sql.database import Transaction
from shard_store.sql.schema import history, of_pipeline, pipelines

SHORTEST = 10_000.0
"""Microseconds: all that is shorter counts as this."""
_GROWTH = 1.2
BOUNDS = tuple(SHORTEST * _GROWTH**place for place in range(109))
"""The ends of the buckets, in microseconds; what is longer than the last one is in a bucket without an end."""

Lags = Mapping[int, int]
"""How many lags are in which bucket."""


def histogram(lags: Iterable[int]) -> Counter[int]:
    """Count lags, in microseconds, by bucket; those below 0 (clocks that disagree) count as the shortest."""
    ordered = sorted(lags)
    counts: Counter[int] = Counter()
    before = 0
    while before < len(ordered):  # each turn fills a bucket: there are fewer of them than lags
        place = bisect_left(BOUNDS, ordered[before])
        after = bisect_right(ordered, BOUNDS[place], before) if place < len(BOUNDS) else len(ordered)
        counts[place] = after - before
        before = after
    return counts


def percentile(lags: Lags, part: float) -> int | None:
    """Return about the lag (microseconds) that this part of all (0.5: half) does not exceed; None: there are none."""
    rank = part * sum(lags.values())
    seen = 0
    for place in sorted(lags):
        seen += lags[place]
        if seen >= rank:
            end = BOUNDS[min(place, len(BOUNDS) - 1)]
            return round(end / math.sqrt(_GROWTH) if place else end)
    return None


SLOT = 300_000_000  # microseconds, as are all times here
HOUR = 12 * SLOT
_KEPT = HOUR + SLOT
_RUNS = 5  # that are kept: more do not take turns
_RUN_DIGITS = 12
CAUSES = 50
"""Causes of errors that are counted apart, in one amount; users may name their own. What is beyond is `other`."""


@dataclass
class Amounts:
    """What was published in some time. `rows` and `bytes` are None where only other sinks took them, uncounted.

    `objects`: shards that were published to their end, whose content is an object or a message. `messages`: received by
    its reader, redeliveries included. `errors`: final ones, by cause. `lags`: of objects whose messages have a time.
    `changed`: announcements of other versions of what is published, which are not read. `object_retries`: requests for
    objects that were sent again.
    """

    batches: int = 0
    rows: int | None = None
    bytes: int | None = None
    objects: int = 0
    messages: int = 0
    changed: int = 0
    object_retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)

    def add(self, other: Amounts, *, lags: bool = True) -> None:
        for name in _COUNTS:
            if (more := getattr(other, name)) is not None:
                setattr(self, name, (getattr(self, name) or 0) + more)
        for cause, count in other.errors.items():
            self.errors[cause if cause in self.errors or len(self.errors) < CAUSES else "other"] += count
        if lags:
            self.lags.update(other.lags)

    def as_json(self) -> dict[str, Any]:
        """Return the amounts that are not zero."""
        return {name: v for name, v in vars(self).items() if v or (v == 0 and name in ("rows", "bytes"))}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Amounts:
        counts = {name: stored[name] for name in _COUNTS if name in stored}
        lags = Counter({int(place): count for place, count in stored.get("lags", {}).items()})
        return cls(**counts, errors=Counter(stored.get("errors")), lags=lags)


_COUNTS = ("batches", "rows", "bytes", "objects", "messages", "changed", "object_retries")


@dataclass(frozen=True)
class LastBatch:
    """The batch that was published last. `batch_id` is Spark's, where a sink reported it.

    `direct`: the newest incarnation of which is known that who reads its batches brings them (`readings.is_direct`).
    """

    seq: int
    batch_id: int | None
    kind: str
    published_at: int
    rows: int | None
    bytes: int | None
    objects: int
    errors: int
    direct: int = 0


@dataclass
class Activity:
    """`slots` by their beginning. Up to `stored` the history has the hours.

    `runs`: what each of the last drivers has published, without lags; two may take turns with one pipeline.
    """

    total: Amounts = field(default_factory=Amounts)
    slots: dict[int, Amounts] = field(default_factory=dict)
    stored: int = 0
    last: LastBatch | None = None
    runs: dict[str, Amounts] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Activity:
        if text is None:
            return cls()
        stored = json.loads(text)
        slots = {start: Amounts.of_json(amounts) for start, amounts in stored["slots"]}
        last = None if stored["last"] is None else LastBatch(**_known_fields(LastBatch, stored["last"]))
        runs = {run: Amounts.of_json(amounts) for run, amounts in stored.get("runs", {}).items()}
        return cls(Amounts.of_json(stored["total"]), slots, stored["stored"], last, runs)

    def dump(self) -> str:
        last = None if self.last is None else vars(self.last)
        slots = [[start, amounts.as_json()] for start, amounts in sorted(self.slots.items())]
        content = {"total": self.total.as_json(), "slots": slots, "stored": self.stored, "last": last}
        content["runs"] = {run: amounts.as_json() for run, amounts in self.runs.items()}
        return json.dumps(content, separators=(",", ":"))

    def add(self, now: int, amounts: Amounts, driver: str = "") -> None:
        """Add what was published now. A clock that goes back adds to the last slot: what is stored does not change."""
        if run := run_of(driver):
            of_run = self.runs.pop(run, Amounts())
            of_run.add(amounts, lags=False)
            self.runs = dict([*self.runs.items(), (run, of_run)][-_RUNS:])
        start = max([now - now % SLOT, self.stored, *self.slots])
        self.slots.setdefault(start, Amounts()).add(amounts)
        self.total.add(amounts, lags=False)  # those of all times say nothing

    def take_hours(self, now: int) -> Iterator[tuple[int, Amounts]]:
        """Yield the hours that are over and not stored yet, each once; slots that are no longer needed are removed."""
        over = now - now % HOUR
        yield from self.hours(until=over)
        self.stored = max(self.stored, over)
        self.slots = {start: amounts for start, amounts in self.slots.items() if start > now - _KEPT}

    def hours(self, until: int | None = None) -> Iterator[tuple[int, Amounts]]:
        """Yield the hours that are not stored, up to then."""
        by_hour: dict[int, Amounts] = {}
        for start, amounts in sorted(self.slots.items()):
            if start >= self.stored and (until is None or start < until):
                by_hour.setdefault(start - start % HOUR, Amounts()).add(amounts)
        yield from by_hour.items()

    def since(self, start: int) -> Amounts:
        """Return the amounts of the slots that began then or later."""
        total = Amounts()
        for began, amounts in self.slots.items():
            if began >= start:
                total.add(amounts)
        return total


def run_of(driver: str) -> str:
    """Return the name of a driver in `Activity.runs`; empty where the driver is not known."""
    return driver[:_RUN_DIGITS]


def _known_fields(kind: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows, without those that a later one has added."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}


@dataclass(frozen=True, slots=True)
class Intake:
    """Messages that came lately: how many announced something that may be read, and how many were refused.

    Refused ones are well formed, and announce objects outside of the prefixes that the reader allows.
    """

    accepted: int = 0
    outside: int = 0

    def __bool__(self) -> bool:
        return bool(self.accepted or self.outside)

    def __add__(self, other: Intake) -> Intake:
        return Intake(self.accepted + other.accepted, self.outside + other.outside)

    @property
    def all_outside(self) -> int:
        """Return the number of refused messages where there are no others, else 0."""
        return 0 if self.accepted else self.outside


@dataclass(frozen=True, slots=True)
class Report:
    """What a reader says of itself: what it holds now, and its counters since the pipeline's first start.

    `in_flight` are messages, `ready`, `awaiting_commit` and `held` shards: to be planned, in a batch, and of other
    pipelines that ours wait for. `depth`: what waits in the queues, None where they do not say. `stopped`: it is the
    last report of a reader that has ended by itself, and was not killed. `window`: its `deduplicationWindow` in
    microseconds; None: not known. `same_store`: false where another database may have taken the place of the one in
    which its last plan was made. `waits`: the stopped pipelines whose objects it does not take over, and why.
    `elsewhere`: messages in flight that this reader does not hold, None where the queues do not say. `failure`: what
    has ended a reader that was not stopped.
    """

    in_flight: int = 0
    ready: int = 0
    awaiting_commit: int = 0
    held: int = 0
    depth: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    stopped: bool = False
    intake: Intake = Intake()
    window: int | None = None
    same_store: bool = True
    waits: Mapping[str, str] = field(default_factory=dict)
    elsewhere: int | None = None
    failure: str | None = None

    def dump(self, incarnation: int) -> str:
        return json.dumps({"incarnation": incarnation, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None, incarnation: int) -> Report | None:
        """Return the report, if that incarnation has made it; of an earlier one only its counters are left."""
        if text is None:
            return None
        stored = json.loads(text)
        if stored["incarnation"] != incarnation:
            return None
        return cls(**{**_known_fields(cls, stored), "intake": last_report(text).intake})


def last_report(text: str | None) -> Report:
    """Return what of the last report is true beyond the incarnation that made it: its counters, intake and window."""
    stored = {} if text is None else json.loads(text)
    intake = Intake(**_known_fields(Intake, stored.get("intake", {})))
    return Report(counters=stored.get("counters", {}), intake=intake, window=stored.get("window"))


def settings_of(row: Row[Any]) -> Mapping[str, str]:
    """Return the options that the pipeline's last start recorded; none before its first one."""
    settings: dict[str, str] = json.loads(row.settings or "[0, {}]")[1]
    return settings


def locked_now(transaction: Transaction, pipeline: str) -> Row[Any] | None:
    """Lock the pipeline's row, and return it with the time as `now`."""
    query = sa.select(pipelines, transaction.now().label("now")).where(pipelines.c.pipeline == pipeline)
    return transaction.execute(query.with_for_update()).one_or_none()


def counted(
    transaction: Transaction, row: Row[Any], now: int, amounts: Amounts, last: LastBatch | None = None
) -> dict[str, str]:
    """Return the new value of `activity` for the pipeline's row, which is locked; store the hours that are over."""
    activity = Activity.parse(row.activity)
    activity.last = last or activity.last
    for hour, ended in activity.take_hours(now):
        insert = transaction.dialect.insert_if_absent(history)
        values = {name: getattr(ended, name) for name in ("batches", "rows", "bytes", "objects", "messages")}
        values |= {"causes": json.dumps(ended.errors, separators=(",", ":")), "errors": ended.errors.total()}
        values |= {"lag_p50": percentile(ended.lags, 0.5), "lag_p99": percentile(ended.lags, 0.99)}
        values |= {"lags": json.dumps(ended.lags, separators=(",", ":"))}
        transaction.execute(insert.values(pipeline=row.pipeline, source=row.source, hour=hour, **values))
    activity.add(now, amounts, row.driver)
    return {"activity": activity.dump()}


def count(transaction: Transaction, pipeline: str, amounts: Amounts) -> None:
    """Count what no plan makes final, such as bad messages. A pipeline that never started counts none."""
    row = locked_now(transaction, pipeline)
    if row is not None:
        values = counted(transaction, row, row.now, amounts)
        transaction.execute(of_pipeline, [{"of": pipeline, **values}])
