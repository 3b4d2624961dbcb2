"""The metrics that are exported: one table of them, and a collector that reads the store at each scrape.

Names follow Prometheus' rules: base units, `_total` for what only grows, `_seconds` and `_bytes`. Labels are the names
of pipelines, sources and receivers, causes of errors (the store counts up to 51 of them separately), and words of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from queue_source.serve.reads import Routed, StoreReads
from shard_store.errors import ShardStoreError
from shard_store.operators.status import DEAD, RUNNING, STOPPED, PipelineStatus
from shard_store.redaction import visible

PIPELINES = 1000
"""Pipelines that are exported, the first ones by their names; `cuesqueue_pipelines` counts all."""

T = TypeVar("T")

_LONGEST = 200  # characters of a label's value

Samples = Iterable[tuple[tuple[str, ...], float | None]]
"""The values of further labels, and a number; None: it is not known, and there is no sample."""


@dataclass(frozen=True, slots=True)
class Exported(Generic[T]):
    """A metric with the labels `pipeline` and `source`, or, of a `source`, with that alone; then `labels`.

    `samples`: of one pipeline's status; of a source, that of one of its pipelines.
    """

    name: str
    help: str
    samples: Callable[[T], Samples]
    labels: tuple[str, ...] = ()
    of_source: bool = False

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (("source",) if self.of_source else ("pipeline", "source")) + self.labels


def _single(value: Callable[[PipelineStatus], float | None]) -> Callable[[PipelineStatus], Samples]:
    return lambda status: [((), value(status))]


def _each(counts: Callable[[PipelineStatus], Mapping[str, int]]) -> Callable[[PipelineStatus], Samples]:
    return lambda status: [((name,), count) for name, count in counts(status).items()]


def _states(now: str, *states: str) -> Samples:
    return [((state,), float(state == now)) for state in states]


def _at(then: datetime | None) -> float | None:
    return None if then is None else then.timestamp()


_VERDICTS = ("complete", "incomplete", "unknown", "empty")

METRICS: tuple[Exported[PipelineStatus], ...] = (
    Exported(
        "cuesqueue_pipeline_info",
        "With what a pipeline's reader was started last; always 1.",
        lambda s: [(tuple(fact or "" for fact in (s.host, s.spark_version, s.cuesqueue_version, s.semantics)), 1.0)],
        ("host", "spark_version", "cuesqueue_version", "semantics"),
    ),
    Exported(
        "cuesqueue_pipeline_state",
        "1 for the state of the pipeline, 0 for the others: running, stopped (by itself), dead (without heartbeats).",
        lambda s: _states(s.state, RUNNING, STOPPED, DEAD),
        ("state",),
    ),
    Exported(
        "cuesqueue_pipeline_failed",
        "1 if its reader has failed, as where a queue refuses it, else 0.",
        _single(lambda s: float(s.failure is not None)),
    ),
    Exported("cuesqueue_pipeline_starts_total", "How often its reader was started.", _single(lambda s: s.incarnation)),
    Exported(
        "cuesqueue_heartbeat_timestamp_seconds",
        "When its reader sent the last heartbeat, by the database's clock.",
        _single(lambda s: _at(s.heartbeat_at)),
    ),
    Exported(
        "cuesqueue_heartbeat_age_seconds",
        "How long ago that was.",
        _single(lambda s: s.silence),
    ),
    Exported(
        "cuesqueue_published_batches_total",
        "Published micro-batches, also those without new input.",
        _single(lambda s: s.total.batches),
    ),
    Exported(
        "cuesqueue_published_objects_total",
        "Objects, and messages as content, that were published to their end.",
        _single(lambda s: s.total.objects),
    ),
    Exported(
        "cuesqueue_published_rows_total",
        "Published rows; missing where other sinks took them.",
        _single(lambda s: s.total.rows),
    ),
    Exported(
        "cuesqueue_published_bytes_total",
        "Bytes of published data files; missing as the rows are.",
        _single(lambda s: s.total.bytes),
    ),
    Exported(
        "cuesqueue_last_publish_timestamp_seconds",
        "When the last micro-batch was published.",
        _single(lambda s: None if s.last_batch is None else _at(s.last_batch.published_at)),
    ),
    Exported(
        "cuesqueue_received_messages_total",
        "Messages received, with redeliveries, up to the last heartbeat.",
        _single(lambda s: s.total.messages),
    ),
    Exported(
        "cuesqueue_errors_total",
        "Final errors; at most 51 causes for each pipeline, `other` has the rest.",
        _each(lambda s: s.total.errors),
        ("cause",),
    ),
    Exported(
        "cuesqueue_data_files",
        "Published files of the sink with path; missing where none was.",
        _single(lambda s: s.data_files),
    ),
    Exported("cuesqueue_data_bytes", "Their bytes.", _single(lambda s: s.data_bytes)),
    Exported(
        "cuesqueue_changed_objects_total",
        "Announcements of other versions of what is published, which are not read.",
        _single(lambda s: s.changed),
    ),
    Exported(
        "cuesqueue_object_retries_total",
        "Requests for objects that its successful tasks have sent again.",
        _single(lambda s: s.object_retries),
    ),
    Exported(
        "cuesqueue_all_outside_prefixes_messages",
        "Messages that came lately and announce objects outside of allowedPrefixes, where nothing else came; else 0.",
        _single(lambda s: s.all_outside),
    ),
    Exported(
        "cuesqueue_reader_events_total",
        "What its reader counts, by the names in the query's progress.",
        _each(lambda s: s.counters),
        ("event",),
    ),
    Exported(
        "cuesqueue_plan_attempts",
        "How often the current micro-batch was planned, 0 if none is; from 2 on one attempt has failed.",
        _single(lambda s: 0 if s.plan is None else s.plan.attempt),
    ),
    Exported(
        "cuesqueue_plan_seconds",
        "For how long the current micro-batch has been under way; 0 if none is.",
        _single(lambda s: 0 if s.plan is None else s.plan.seconds),
    ),
    Exported(
        "cuesqueue_waiting_objects",
        "Objects that it has opened and not published.",
        _single(lambda s: s.files_outstanding),
    ),
    Exported(
        "cuesqueue_oldest_waiting_seconds",
        "How long ago the oldest one's message was sent, also of one that no pipeline has; 0 if nothing waits.",
        _single(lambda s: s.oldest_age or 0.0),
    ),
    Exported(
        "cuesqueue_lag_p50_seconds",
        "From sending to publication, of the median object in the last hour.",
        _single(lambda s: s.last_hour.lag_p50),
    ),
    Exported(
        "cuesqueue_lag_p99_seconds",
        "The same, which 99 of 100 objects do not exceed.",
        _single(lambda s: s.last_hour.lag_p99),
    ),
    Exported(
        "cuesqueue_in_flight_messages",
        "Messages that its reader holds; missing unless it runs, as the next five.",
        _single(lambda s: s.in_flight),
    ),
    Exported("cuesqueue_ready_objects", "Objects that wait to be planned.", _single(lambda s: s.ready)),
    Exported("cuesqueue_planned_objects", "Objects in a micro-batch.", _single(lambda s: s.awaiting_commit)),
    Exported(
        "cuesqueue_held_objects", "Objects of other pipelines for which its messages wait.", _single(lambda s: s.held)
    ),
    Exported(
        "cuesqueue_queue_messages",
        "Messages that wait in its queues; missing where they do not say.",
        _single(lambda s: s.queue_depth),
    ),
    Exported(
        "cuesqueue_in_flight_elsewhere_messages",
        "Messages that other readers hold, or one before; missing as the last.",
        _single(lambda s: s.in_flight_elsewhere),
    ),
    Exported(
        "cuesqueue_backfill_running",
        "1 while a listing is under way, else 0.",
        _single(lambda s: None if s.backfill is None else float(s.backfill.ended_at is None)),
        of_source=True,
    ),
    Exported(
        "cuesqueue_backfill_end_timestamp_seconds",
        "When the last listing ended.",
        _single(lambda s: None if s.backfill is None else _at(s.backfill.ended_at)),
        of_source=True,
    ),
    Exported(
        "cuesqueue_backfill_new_objects",
        "Unannounced objects of the last listing.",
        _single(lambda s: None if s.backfill is None else s.backfill.opened),
        of_source=True,
    ),
    Exported(
        "cuesqueue_backfill_failures",
        "Failures of the last listing since it read a page.",
        _single(lambda s: None if s.backfill is None else s.backfill.failures),
        of_source=True,
    ),
    Exported(
        "cuesqueue_certificate_verdict",
        "1 for the worst prefix's newest verdict, 0 for the others.",
        lambda s: _states(s.certificate.verdict, *_VERDICTS) if s.certificate is not None else [],
        ("verdict",),
        of_source=True,
    ),
    Exported(
        "cuesqueue_certificate_timestamp_seconds",
        "When that was written.",
        _single(lambda s: None if s.certificate is None else _at(s.certificate.written_at)),
        of_source=True,
    ),
)

ROUTED: tuple[Exported[Routed], ...] = (
    Exported(
        "cuesqueue_receiver_events_total",
        "What receivers of one name count, by the names in `cuesqueue status`.",
        lambda routed: [((by.receiver, event), n) for by in routed.receivers for event, n in by.counts.items()],
        ("receiver", "event"),
    ),
    Exported(
        "cuesqueue_receiver_silence_seconds",
        "How long ago it last asked its queue; a receiver that was ended stays.",
        lambda routed: [((receiver.receiver,), receiver.silence) for receiver in routed.receivers],
        ("receiver",),
    ),
    Exported(
        "cuesqueue_recorded_objects",
        "Objects that no reader of the source has taken yet.",
        lambda routed: [((waits.source,), waits.objects) for waits in routed.waiting],
        ("source",),
    ),
    Exported(
        "cuesqueue_recorded_oldest_seconds",
        "How long ago the oldest of them was recorded.",
        lambda routed: [((waits.source,), waits.oldest_age) for waits in routed.waiting],
        ("source",),
    ),
)
"""Of each receiver, and of each source for which something waits. They have no labels but their own."""

OWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "cuesqueue_pipelines": ("Pipelines that have started with the store, also those that are not exported.", ()),
    "cuesqueue_scrape_success": ("1 if the store could be read for this scrape; else 0, and nothing else of it.", ()),
    "cuesqueue_scrape_errors_total": ("Scrapes for which the store could not be read.", ()),
    "cuesqueue_scrape_duration_seconds": ("How long reading the store took for this scrape.", ()),
    "cuesqueue_build_info": ("The version of cuesqueue that exports this; always 1.", ("version",)),
}
"""What is said of the export itself, and not of a pipeline: name -> help and labels."""


class StoreCollector(Collector):
    """Reads the store when it is collected. A store that does not answer is a metric, not a failed scrape."""

    def __init__(self, reads: StoreReads) -> None:
        self._reads = reads
        self._errors = 0

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise the store would be read when the collector is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        began = time.perf_counter()
        statuses: tuple[PipelineStatus, ...] | None = None
        try:
            statuses, routed = self._reads.status(), self._reads.routed()
        except ShardStoreError:
            self._errors += 1
        yield self._own("cuesqueue_scrape_duration_seconds", time.perf_counter() - began)
        yield self._own("cuesqueue_scrape_success", float(statuses is not None))
        yield self._own("cuesqueue_scrape_errors_total", self._errors)
        yield self._own("cuesqueue_build_info", 1.0, version("cuesqueue"))
        if statuses is not None:
            yield self._own("cuesqueue_pipelines", len(statuses))
            for metric in METRICS:
                values: dict[tuple[str, ...], float] = {}
                for status in statuses[:PIPELINES]:
                    whose = (status.source,) if metric.of_source else (status.pipeline, status.source)
                    for labels, value in metric.samples(status):
                        if value is not None:
                            values[tuple(map(_label, (*whose, *labels)))] = value
                yield _family(metric.name, metric.help, metric.all_labels, values)
            some = routed.first(PIPELINES)
            for of_routes in ROUTED:
                values = {tuple(map(_label, labels)): n for labels, n in of_routes.samples(some) if n is not None}
                yield _family(of_routes.name, of_routes.help, of_routes.labels, values)

    def _own(self, name: str, value: float, *labels: str) -> Metric:
        text, names = OWN[name]
        return _family(name, text, names, {labels: value})


def _family(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(list(label_values), value)
    return family


def _label(text: str) -> str:
    """Escape control characters and halves of characters in a label: users choose names and causes."""
    return visible(text)[:_LONGEST]


class Export:
    """The text of a scrape."""

    def __init__(self, reads: StoreReads) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StoreCollector(reads))

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the text in the form that the scraper accepts, and its content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # it asks for an invalid version
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type
