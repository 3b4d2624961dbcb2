"""`cuesqueue route`: receives the messages of one queue, and records their objects for the sources of many readers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from queue_source.commands.output import Json, named_options, print_result, tell
from queue_source.errors import OptionError
from queue_source.options.connections import DEFAULT_STORE

_LOOK = 0.2  # seconds between two looks at the threads
_PATIENCE = 30.0  # seconds in which threads end what they have begun


class Unrouted(str, Enum):
    QUARANTINE = "quarantine"
    COUNT = "count"


def route(
    queue_url: Annotated[str, typer.Argument(metavar="QUEUE_URL", help="The queue, as in the option queueUrl.")],
    routes: Annotated[
        str,
        typer.Option(metavar="FILE", help='A list in JSON: [{"prefix": "s3://b/orders/", "source": "orders"}, ...].'),
    ],
    store: Annotated[
        str, typer.Option(envvar="CUESQUEUE_STORE", metavar="URL", help="Database of the store; it may be new.")
    ] = DEFAULT_STORE,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name in the store; the queue's if it is left out.")
    ] = None,
    on_unrouted: Annotated[
        Unrouted,
        typer.Option(
            help="What becomes of a message with an object that no route takes: to the error table, or counted."
        ),
    ] = Unrouted.QUARANTINE,
    memory: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file in which it keeps how many messages it has had: so it notices, also when it is started again, "
            "that the store was restored from a backup. It must outlast the process, and be one receiver's.",
        ),
    ] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when the queue is empty.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of a reader for receiving and parsing (aws.region, notificationFormat, ...); may be "
            "repeated. Secrets as env:NAME or file:PATH.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Receive messages of one queue for many sources, until SIGTERM or Ctrl-C.

    Each object is recorded for every source that a route leads to; then its message is acknowledged. Readers of these
    sources have queueUrl=store. Any number of receivers may run; each object is recorded once for each source.
    """
    from queue_source.announcements.routes import read_routes
    from queue_source.coordinator.receiver import Receiver
    from queue_source.coordinator.threads import Threads
    from queue_source.options import connection_options, parse_receiver_options
    from queue_source.options.types import check_name
    from queue_source.queues import open_queue, queue_name
    from shard_store.store import QUERY_PATIENCE, open_store

    options = parse_receiver_options(
        queue_url, named_options(option or []), quarantines=on_unrouted is Unrouted.QUARANTINE
    )
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
        _ended_by_signals(threads.stopping),
    ):
        receiver = Receiver(own_name, queue, parsed, options, opened, threads.stopping, memory=memory)
        receiver.begin()
        tell(f"receiver {own_name}: {len(parsed)} route(s) to {len(parsed.sources)} source(s); Ctrl-C ends it")
        running = [threading.Event() for _ in range(options.threads)]
        for number, ended in enumerate(running):
            threads.start(f"route-{number}", _run, receiver, until_empty, ended)
        while not threads.stopping.is_set() and not all(ended.is_set() for ended in running):
            threads.stopping.wait(_LOOK)
        threads.stop(_PATIENCE)
        threads.check()
        result = {"receiver": own_name, "queue": queue.name, **asdict(receiver.totals)}
    print_result(result, as_json, title="received")


def _run(receiver: object, until_empty: bool, ended: threading.Event) -> None:
    from queue_source.coordinator.receiver import Receiver

    assert isinstance(receiver, Receiver)
    try:
        receiver.run(until_empty=until_empty)
    finally:
        ended.set()


@contextmanager
def _ended_by_signals(stopping: threading.Event) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C set the event while the block lasts."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
