"""The metrics of receivers, and of what they have recorded that no reader has taken yet (decision 0086)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shard_store.shards.recording import Receiver, Waiting
from shard_store.store import ShardStore

Samples = Iterable[tuple[tuple[str, ...], float]]
"""The values of the labels, and a number."""


class Routed(NamedTuple):
    """All receivers that were ever started with the store, and what waits for each source, where anything does."""

    receivers: tuple[Receiver, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    @classmethod
    def read(cls, store: ShardStore) -> Routed:
        return cls(store.receivers(), store.waiting())

    def first(self, number: int) -> Routed:
        """Return the first receivers and sources by their names: pages and scrapes are bounded."""
        return Routed(self.receivers[:number], self.waiting[:number])


@dataclass(frozen=True, slots=True)
class RoutedMetric:
    """A metric with these labels, of each receiver or of each source for which something waits."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Routed], Samples]

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def _counts(routed: Routed) -> Samples:
    return [((by.receiver, event), number) for by in routed.receivers for event, number in by.counts.items()]


ROUTED: tuple[RoutedMetric, ...] = (
    RoutedMetric(
        "cuesqueue_receiver_events_total",
        "What a receiver counts, by the names that `cuesqueue status` has for it; all receivers of one name together.",
        ("receiver", "event"),
        _counts,
    ),
    RoutedMetric(
        "cuesqueue_receiver_silence_seconds",
        "How long ago it last asked its queue, by the database's clock alone; a receiver that was ended stays.",
        ("receiver",),
        lambda routed: [((receiver.receiver,), receiver.silence) for receiver in routed.receivers],
    ),
    RoutedMetric(
        "cuesqueue_recorded_objects",
        "Objects that are recorded for the source and that no reader has taken yet; missing where there are none.",
        ("source",),
        lambda routed: [((waits.source,), waits.objects) for waits in routed.waiting],
    ),
    RoutedMetric(
        "cuesqueue_recorded_oldest_seconds",
        "How long ago the oldest of them was recorded.",
        ("source",),
        lambda routed: [((waits.source,), waits.oldest_age) for waits in routed.waiting],
    ),
)
