"""One reader process without its threads: what they do is done a step at a time, when the explorer says so."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

from pyspark.sql.types import StructType

from queue_source.coordinator import prepare
from queue_source.coordinator.holding.leases import LeaseKeeper
from queue_source.coordinator.intake.opening import Opener
from queue_source.coordinator.threads import Threads
from queue_source.options import ReaderOptions, parse_reader_options
from queue_source.queues.leases import terms_of
from queue_source.read.plan_store import PlanStore
from queue_source.spark.noted_plan import NotedPlan
from queue_source.spark.reader import CuesqueueStreamReader
from support.explorer.world import LEASE, STALE, World

SCHEMA = StructType().add("row_id", "string")


class StillThreads(Threads):
    """Threads that never run: `works` are those that would."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.works: dict[str, Callable[..., None]] = {}

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        self.works[name] = work


def reader_options(world: World, source: str, pipeline: str) -> ReaderOptions:
    return parse_reader_options(
        {
            "queueUrl": world.queue_url(source),
            "store": world.store_url,
            "source": source,
            "pipeline": pipeline,
            "fileFormat": "json",
            "allowedPrefixes": world.folder.as_uri() + "/",
            "visibilityTimeout": f"{LEASE:.0f}s",
            "commitTimeout": f"{STALE / 2:.0f}s",
            "maxFilesPerTrigger": "3",
            "minPartitions": "2",
        }
    )


class Reader:
    """The reader of one pipeline. Spark's calls go to `spark`, which is the class that Spark uses."""

    def __init__(self, world: World, source: str, pipeline: str) -> None:
        self.world, self.source, self.pipeline = world, source, pipeline
        options = reader_options(world, source, pipeline)
        queue, store = world.open_queue(source), world.open_store()
        still = StillThreads()
        try:
            with mock.patch("queue_source.coordinator.start.Threads", return_value=still):
                coordinator = prepare(
                    options,
                    store,
                    {queue.name: queue},
                    world.stat,
                    clock=lambda: world.now,
                )
        except BaseException:
            queue.close()
            store.close()
            raise
        self._queue = queue
        self._coordinator = coordinator
        self._parts = coordinator._parts
        self._parts.receivers.hurry = False
        self._opener: Opener = still.works["open"].__self__  # type: ignore[attr-defined]
        self._leases: LeaseKeeper = still.works["leases"].__self__  # type: ignore[attr-defined]
        self.spark = CuesqueueStreamReader(options, SCHEMA)
        self.spark._coordinator = coordinator
        self.spark._store = plan_store = PlanStore.of(options.store, store)
        token = coordinator.token
        self._noted = NotedPlan(world.driver, plan_store.store_id, token.pipeline, token.incarnation)
        self.spark._noted = self._noted

    def work(self) -> None:
        """One turn of each thread."""
        self.receive()
        self.open()
        self.maintain()
        self.acknowledge()

    def receive(self, most: int = 10) -> None:
        parts = self._parts
        receive = parts.in_flight.begin_receive(self._queue.name, 0, most, 0.0)
        if receive is not None:
            messages = self._queue.receive(receive.room, LEASE, 0.0)
            parts.receivers._end(receive, messages, terms_of(self._queue.capabilities, LEASE))

    def open(self) -> None:
        if messages := self._parts.in_flight.begin_opening(10, 0.0):
            self._opener._open(messages)
            self._parts.in_flight.end_opening()

    def maintain(self) -> None:
        """What the maintenance thread does at each heartbeat."""
        self._parts.maintenance._get_foreign()
        self._coordinator._parts.progress._ownership.get_renewed()

    def heartbeat(self) -> None:
        session = self._coordinator._session
        session.store.heartbeat(session.token, session.stale_after)
        self._leases.tick()

    def acknowledge(self) -> None:
        while self._parts.acknowledger.acknowledge(self._queue.name):
            pass

    @property
    def has_work(self) -> bool:
        counts = self._parts.in_flight.counts()
        return bool(counts.ready or counts.planned or counts.held or counts.in_flight)

    def lose_connections(self) -> None:
        """As when another server takes the place of the store's; the file of these stores stays open."""
        self._coordinator._session.store.database.memory.connection_broke()

    def stop(self) -> None:
        self._noted.close()
        self._coordinator.stop()

    def die(self) -> None:
        """As SIGKILL: nothing is given back, acknowledged, released or said."""
        self._noted.close()
        self._coordinator.close()
