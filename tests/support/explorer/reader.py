"""One reader process without its threads, or one receiver: what they do is done a step at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest import mock

from pyspark.sql.types import StructType

from queue_source.announcements.routes import Route, Routes
from queue_source.coordinator import prepare
from queue_source.coordinator.acknowledging import LeaseKeeper
from queue_source.coordinator.backfill import Backfill
from queue_source.coordinator.cleaning import Cleaner
from queue_source.coordinator.opening import Opener
from queue_source.coordinator.receivers import Receiver
from queue_source.coordinator.session import Threads
from queue_source.options import ReaderOptions, parse_reader_options, parse_receiver_options
from queue_source.queues.leases import terms_of
from queue_source.queues.sim import SimQueue
from queue_source.read.partitions import PlanStore
from queue_source.sinks.takeover import looking
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.writer import NotedPlan
from queue_source.storage.files import stat_objects
from queue_source.tags import EVERYTHING
from shard_store.model import STORE
from support.explorer.objects import LARGEST_PIECE
from support.explorer.points import POINTS
from support.explorer.world import LEASE, ROUTES, STALE, World

_PAGES = 5  # of what stopped pipelines have left, in one turn
SCHEMA = StructType().add("row_id", "string")


class StillThreads(Threads):
    """Threads that never run: `works` are those that would."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.works: dict[str, Callable[..., None]] = {}

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        self.works[name] = work


def reader_options(world: World, source: str, pipeline: str) -> ReaderOptions:
    cleaning = {"cleanSource": "delete", "cleanSource.retentionDuration": "10m"}
    folder = world.folder / world.place(source)
    listing = {"backfillPrefixes": f"{folder.as_uri()}/", "backfillGrace": "0s", "backfillInterval": "1m"}
    return parse_reader_options(
        {
            "queueUrl": STORE if world.cast.routed else world.queue_url(source),
            "store": world.store_url,
            "source": source,
            "pipeline": pipeline,
            "fileFormat": "json",
            "allowedPrefixes": world.folder.as_uri() + "/",
            "visibilityTimeout": f"{LEASE:.0f}s",
            "commitTimeout": f"{STALE / 2:.0f}s",
            "maxFilesPerTrigger": "3",
            "minPartitions": "2",
            "maxPartitionBytes": str(LARGEST_PIECE),
            **(cleaning if world.cast.cleans == source else {}),
            **({"allowOverwrites": "true"} if source in world.cast.versioned else {}),
            **(listing if source in world.lists else {}),
        }
    )


class Reader:
    """The reader of one pipeline. Spark's calls go to `spark`, which is the class that Spark uses."""

    def __init__(self, world: World, source: str, pipeline: str) -> None:
        self.world, self.source, self.pipeline = world, source, pipeline
        options = reader_options(world, source, pipeline)
        store = world.open_store()
        queues = [] if world.cast.routed else [world.open_queue(source)]
        errors = SimQueue(world.queue_url("errors"), clock=lambda: world.now) if world.tells_errors else None
        still = StillThreads()
        try:
            look = looking(store.store_id(), options.content.storage)
            with mock.patch("queue_source.coordinator.start.Threads", return_value=still):
                coordinator = prepare(
                    options,
                    store,
                    {queue.name: queue for queue in queues},
                    stat_objects,
                    driver=world.driver.name,
                    error_queue=errors,
                    open_bucket=lambda prefix: world.open_bucket(prefix, source),
                    look=look,
                    answers_with_facts=(lambda uri: True) if world.spares else None,
                    clock=lambda: world.now,
                )
        except BaseException:
            for queue in (*queues, *([] if errors is None else [errors])):
                queue.close()
            store.close()
            raise
        self._queues = queues
        self._coordinator = coordinator
        coordinator.receivers.hurry = False
        self._opener: Opener = still.works["open"].__self__  # type: ignore[attr-defined]
        self._leases: LeaseKeeper = still.works["leases"].__self__  # type: ignore[attr-defined]
        listing = still.works.get("backfill-0")
        self._backfill: Backfill | None = listing and listing.__self__  # type: ignore[attr-defined]
        cleaning = still.works.get("cleaning")
        self._cleaner: Cleaner | None = cleaning and cleaning.__self__  # type: ignore[attr-defined]
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
        """Messages of its queue; or what a receiver has recorded."""
        parts = self._coordinator
        for queue in self._queues:
            receive = parts.in_flight.begin_receive(queue.name, 0, most, 0.0)
            if receive is not None:
                messages = queue.receive(receive.room, LEASE, 0.0)
                parts.receivers.hold(receive, messages, terms_of(queue.capabilities, LEASE))
        if parts.recorded is not None:
            parts.recorded.take()

    def open(self) -> None:
        self._opener.open(10, 0.0)

    def maintain(self) -> None:
        """What the maintenance thread does at each heartbeat."""
        ownership = self._coordinator.ownership
        ownership.get_again(self._coordinator.in_flight.foreign())
        ownership.get_renewed()
        for _ in range(_PAGES):
            if not ownership.take_abandoned():
                return

    def heartbeat(self) -> None:
        session = self._coordinator.session
        session.store.heartbeat(session.token, session.stale_after)
        self._leases.tick()

    def acknowledge(self) -> None:
        for queue in self._queues:
            while self._coordinator.acknowledger.acknowledge(queue.name):
                pass

    def list_objects(self) -> None:
        """What its listings do when they are due, or were begun."""
        if (backfill := self._backfill) is not None and (prefix := backfill._next()) is not None:
            try:
                backfill._list(prefix)
            finally:
                state = backfill._prefixes[prefix]
                state.busy, state.checked, state.due = False, True, self.world.now + 60.0

    def clean(self) -> None:
        if self._cleaner is not None:
            self._cleaner.clean()

    @property
    def has_work(self) -> bool:
        counts = self._coordinator.in_flight.counts()
        return bool(counts.ready or counts.planned or counts.held or counts.in_flight)

    def lose_connections(self) -> None:
        """As when another server takes the place of the store's; the file of these stores stays open."""
        self._coordinator.session.store.database.memory.connection_broke()

    def stop(self) -> None:
        self._noted.close()
        self._coordinator.stop()

    def die(self) -> None:
        """As SIGKILL: nothing is given back, acknowledged, released or said."""
        self._noted.close()
        self._coordinator.close()


class Router:
    """A receiver that records each object for all sources, with a file of what it has had.

    Its own death leaves its messages to their leases.
    """

    def __init__(self, world: World) -> None:
        prefix = world.folder.as_uri() + "/"
        self._queue, self._store = world.open_queue(ROUTES), world.open_store()
        self._receiver = Receiver(
            ROUTES,
            self._queue,
            Routes([Route(prefix, EVERYTHING, source) for source in world.names]),
            parse_receiver_options(world.queue_url(ROUTES), {}),
            self._store,
            threading.Event(),
            lambda: world.now,
            memory=world.folder / "receiver.json",
        )
        try:
            self._receiver.begin()
        except BaseException:
            self.die()
            raise

    def work(self, die_at: str | None) -> None:
        with POINTS.dying(die_at):
            if messages := self._queue.receive(10, LEASE, 0.0):
                self._receiver.take(messages, self._queue.capabilities)

    def die(self) -> None:
        self._queue.close()
        self._store.close()
