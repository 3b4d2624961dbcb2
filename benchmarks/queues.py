"""The queues that need no service: messages a second that are received and acknowledged."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from functools import partial

from benchmarks.registry import Measurement, Settings, alternate, benchmark
from queue_source.queues import Queue, open_queue
from queue_source.queues.base import encode_payload

RABBITMQ = "CUESQUEUE_BENCH_AMQP"
"""Names a broker to measure as well, as amqp://USER:PASSWORD@HOST/VHOST."""
_BODY = encode_payload({"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "k" * 100}}}]})
_BATCH = 1000


@benchmark("queues")
def queues(settings: Settings) -> Iterator[Measurement]:
    """receive + acknowledge, a thousand at a time, by one thread"""
    messages = 2_000 if settings.quick else 20_000
    urls = {
        "SQL queue on SQLite": f"sql+sqlite:///{settings.folder / 'queue.db'}?queue=bench",
        "simulator": f"sim://bench?dir={settings.folder}&pool=p&tags=a.%23",
    }
    if broker := os.environ.get(RABBITMQ):
        name = f"bench-{uuid.uuid4().hex[:8]}"
        urls["RabbitMQ"] = f"{broker}?source={name}&pool={name}"
    opened = {case: open_queue(url) for case, url in urls.items()}
    try:
        runs = [partial(_emptied, queue, messages) for queue in opened.values()]
        for case, seconds in zip(opened, alternate(runs, settings.repetitions), strict=True):
            yield Measurement(case, seconds, messages, "messages")
    finally:
        for queue in opened.values():
            queue.close()


def _emptied(queue: Queue, messages: int) -> float:
    queue.publish([_BODY] * messages, tag="a.b")
    before = time.perf_counter()
    done = 0
    while done < messages:
        taken = queue.receive(_BATCH, lease=60, wait=1)
        if queue.acknowledge([message.receipt for message in taken]):
            raise AssertionError("a lease was lost")
        done += len(taken)
    return time.perf_counter() - before
