"""The receivers that a reader with the option `routes` runs itself: for its own source, and all others of the file."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from queue_source.announcements.routes import read_routes
from queue_source.coordinator.holding.in_flight import InFlight
from queue_source.coordinator.intake.recorded import Recorded
from queue_source.coordinator.receiver import Receiver
from queue_source.coordinator.session import Session
from queue_source.coordinator.threads import Threads
from queue_source.errors import OptionError
from queue_source.options import NotificationOptions, ReceiverOptions
from queue_source.queues.base import Queue

_EXPECTED = "routes"


class OwnReceivers:
    """One receiver for each queue of the reader; none without the option.

    The reader takes what they record as if others had recorded it. `queues`: by name, closed by `close`.
    """

    def __init__(self, session: Session, queues: Mapping[str, Queue], in_flight: InFlight, recorded: Recorded) -> None:
        self._session = session
        self._in_flight = in_flight
        self._recorded = recorded
        self._queues = queues
        self._pausing = threading.Event()
        self._running: list[threading.Event] = []
        self._receivers: list[Receiver] = []
        options = session.options
        if options.queue.routes is None:
            return
        routes = read_routes(options.queue.routes)
        if options.source not in routes.sources:
            raise OptionError(
                "routes",
                f"no route of {options.queue.routes} leads to source {options.source!r}, which this reader reads; add "
                "one, or let `cuesqueue route` receive",
            )
        for queue in queues.values():
            self._receivers.append(
                Receiver(
                    options.pipeline,
                    queue,
                    routes,
                    self._options,
                    session.store,
                    session.stopping,
                    session.clock,
                    source=options.source,
                    on_recorded=self._look,
                    on_empty=self._expect_nothing,
                )
            )
        in_flight.expect_listing(True, of=_EXPECTED)

    @property
    def _options(self) -> ReceiverOptions:
        options = self._session.options
        chosen = options.notifications
        return ReceiverOptions(
            url=options.queue.urls[0],
            connections=options.queue.connections,
            notifications=NotificationOptions(
                allowed_prefixes=("",),
                path_rewrites=chosen.path_rewrites,
                notification_format=chosen.notification_format,
                max_objects_per_message=chosen.max_objects_per_message,
                uri_path=chosen.uri_path,
                bucket_path=chosen.bucket_path,
                key_path=chosen.key_path,
                read_hidden_files=True,
                by_reference=True,
            ),
            threads=options.queue.receive_threads,
            lease=options.leases.visibility_timeout,
            retry_timeout=options.queue.retry_timeout,
            quarantines=options.queue.on_unrouted_object == "quarantine",
        )

    def start(self, threads: Threads) -> None:
        """Make the receivers known, and let them begin with the other threads. Raises ShardStoreError."""
        for receiver in self._receivers:
            receiver.begin()
            for _ in range(self._session.options.queue.receive_threads):
                ended = threading.Event()
                threads.start(f"route-{len(self._running)}", self._run, receiver, ended)
                self._running.append(ended)

    def drain(self) -> None:
        """Record what is in the queues now; what is sent later is left to the next run (AvailableNow)."""
        self._pausing.set()
        for ended in self._running:
            while not ended.wait(0.2) and not self._session.stopping.is_set():
                pass
        for receiver in self._receivers:
            receiver.run(until_empty=True, most=receiver.present)
        self._in_flight.expect_listing(False, of=_EXPECTED)

    def close(self) -> None:
        """Close the queues."""
        for queue in self._queues.values():
            queue.close()

    def _run(self, receiver: Receiver, ended: threading.Event) -> None:
        try:
            receiver.run(ending=self._pausing)
        finally:
            ended.set()

    def _look(self, sources: Mapping[str, object]) -> None:
        if self._session.options.source in sources:
            self._recorded.look()

    def _expect_nothing(self) -> None:
        """Note that a queue was empty: a first batch waits no longer for it."""
        self._in_flight.expect_listing(False, of=_EXPECTED)
