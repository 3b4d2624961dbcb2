"""`cuesqueue route`: it receives what a queue announces, for other readers."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from queue_source.announcements.routes import read_routes
from queue_source.commands.output import Json, end_as_stopped, on_signals, print_result, tell
from queue_source.commands.parameters import NewStore, QueueUrl, flag, named_options, option
from queue_source.coordinator.receivers import Receiver
from queue_source.coordinator.session import Threads
from queue_source.errors import OptionError
from queue_source.options import connection_options, parse_receiver_options
from queue_source.options.connections import DEFAULT_STORE
from queue_source.options.types import check_name
from queue_source.queues import open_queue, queue_name
from shard_store.store import QUERY_PATIENCE, open_store


class Unrouted(str, Enum):
    QUARANTINE = "quarantine"
    COUNT = "count"


def route(
    queue_url: QueueUrl,
    routes: Annotated[str, option("FILE", 'A list in JSON: [{"prefix": "s3://b/orders/", "source": "orders"}, ...].')],
    store: NewStore = DEFAULT_STORE,
    name: Annotated[str | None, option("NAME", "Its name in the store; else the queue's.")] = None,
    on_unrouted: Annotated[
        Unrouted,
        typer.Option(help="An object that no route takes goes to the error table, or is counted."),
    ] = Unrouted.QUARANTINE,
    memory: Annotated[
        Path | None,
        option(
            "FILE",
            "A file of this receiver alone, by which it notices a restored store.",
        ),
    ] = None,
    until_empty: Annotated[bool, flag("--until-empty", "End when the queue is empty.")] = False,
    option: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "A reader's option for receiving and parsing (aws.region ...); may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Receive messages of one queue for many sources, until SIGTERM or Ctrl-C.

    Each object is recorded once for each source that a route leads to, whose readers have queueUrl=store.
    """
    options = parse_receiver_options(queue_url, named_options(option), quarantines=on_unrouted is Unrouted.QUARANTINE)
    parsed = read_routes(routes)
    url = options.url.reveal()
    try:
        own_name = check_name(name or queue_name(url))
    except ValueError as error:
        raise OptionError("--name", str(error)) from None
    threads = Threads()
    stopped: list[signal.Signals] = []

    def stop(number: int) -> None:
        stopped.append(signal.Signals(number))
        threads.stopping.set()

    with (
        open_store(store, patience=QUERY_PATIENCE) as opened,
        open_queue(url, **connection_options(options.url, options)) as queue,
        on_signals(stop),
    ):
        receiver = Receiver(own_name, queue, parsed, options, opened, threads.stopping, memory=memory)
        receiver.begin()
        tell(f"receiver {own_name}: {len(parsed)} route(s) to {len(parsed.sources)} source(s); Ctrl-C ends it")

        def run(ended: threading.Event) -> None:
            try:
                receiver.run(until_empty=until_empty)
            finally:
                ended.set()

        running = [threading.Event() for _ in range(options.threads)]
        for number, ended in enumerate(running):
            threads.start(f"route-{number}", run, ended)
        while not threads.stopping.is_set() and not all(ended.is_set() for ended in running):
            threads.stopping.wait(0.2)
        threads.stop(30.0)  # seconds to end what they have begun
        threads.check()
        result = {"receiver": own_name, "queue": queue.name, **asdict(receiver.totals)}
    print_result(result, as_json, title="received")
    if stopped and until_empty:
        end_as_stopped(stopped[0], "; the queue may not be empty")
