"""`cuesqueue route`: receives the messages of one queue, and records their objects for the sources of many readers."""

from __future__ import annotations

import threading
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from queue_source.announcements.routes import read_routes
from queue_source.commands.output import Json, on_signals, print_result, tell
from queue_source.commands.parameters import NewStore, QueueUrl, flag, named_options, option
from queue_source.coordinator.receivers import Receiver
from queue_source.coordinator.session import Threads
from queue_source.errors import OptionError
from queue_source.options import connection_options, parse_receiver_options
from queue_source.options.connections import DEFAULT_STORE
from queue_source.options.types import check_name
from queue_source.queues import open_queue, queue_name
from shard_store.store import QUERY_PATIENCE, open_store

_LOOK = 0.2  # seconds between two looks at the threads
_PATIENCE = 30.0  # seconds in which threads end what they have begun


class Unrouted(str, Enum):
    QUARANTINE = "quarantine"
    COUNT = "count"


def route(
    queue_url: QueueUrl,
    routes: Annotated[str, option("FILE", 'A list in JSON: [{"prefix": "s3://b/orders/", "source": "orders"}, ...].')],
    store: NewStore = DEFAULT_STORE,
    name: Annotated[str | None, option("NAME", "Its name in the store; the queue's if it is left out.")] = None,
    on_unrouted: Annotated[
        Unrouted,
        typer.Option(
            help="What becomes of a message with an object that no route takes: to the error table, or counted."
        ),
    ] = Unrouted.QUARANTINE,
    memory: Annotated[
        Path | None,
        option(
            "FILE",
            "A file in which it keeps how many messages it has had: so it notices, also when it is started again, "
            "that the store was restored from a backup. It must outlast the process, and be one receiver's.",
        ),
    ] = None,
    until_empty: Annotated[bool, flag("--until-empty", "End when the queue is empty.")] = False,
    option: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "An option of a reader for receiving and parsing (aws.region, notificationFormat, ...); may be "
            "repeated. Secrets as env:NAME or file:PATH.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Receive messages of one queue for many sources, until SIGTERM or Ctrl-C.

    Each object is recorded for every source that a route leads to; then its message is acknowledged. Readers of these
    sources have queueUrl=store. Any number of receivers may run; each object is recorded once for each source.
    """
    options = parse_receiver_options(queue_url, named_options(option), quarantines=on_unrouted is Unrouted.QUARANTINE)
    parsed = read_routes(routes)
    url = options.url.reveal()
    try:
        own_name = check_name(name or queue_name(url))
    except ValueError as error:
        raise OptionError("--name", str(error)) from None
    threads = Threads()
    with (
        open_store(store, patience=QUERY_PATIENCE) as opened,
        open_queue(url, **connection_options(options.url, options)) as queue,
        on_signals(threads.stopping.set),
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
            threads.stopping.wait(_LOOK)
        threads.stop(_PATIENCE)
        threads.check()
        result = {"receiver": own_name, "queue": queue.name, **asdict(receiver.totals)}
    print_result(result, as_json, title="received")
