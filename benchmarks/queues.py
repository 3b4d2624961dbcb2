"""Messages a second that are received and acknowledged: of queues that need no service, and of two that are one."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from functools import partial

from benchmarks.registry import Measurement, Settings, alternate, benchmark
from queue_source.announcements.parser import parse_notification
from queue_source.queues import Queue, open_queue
from queue_source.queues.base import encode_payload
from support.servers.kafka import SINGLE, tansu_broker
from support.servers.ministack import KEYS, ministack_server, new_queue

RABBITMQ = "CUESQUEUE_BENCH_AMQP"
"""Names a broker to measure as well, as amqp://USER:PASSWORD@HOST/VHOST."""
_RECORD = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "k" * 100, "size": 1}}}
_BODY = encode_payload({"Records": [_RECORD]})
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


@benchmark("queue-services")
def queue_services(settings: Settings) -> Iterator[Measurement]:
    """notifications received, opened and acknowledged over the network of this machine: Kafka, compared with SQS"""
    messages = 2_000 if settings.quick else 5_000
    with (
        ministack_server() as server,
        tansu_broker() as broker,
        open_queue(new_queue(server), **KEYS) as sqs,
        open_queue(broker.url(broker.new_topic(4)), settings=dict(SINGLE)) as kafka,
    ):
        settings.say("the reader joins its group")
        kafka.receive(1, lease=60, wait=0)
        runs = [partial(_emptied, queue, messages, opens=True) for queue in (kafka, sqs)]
        kafka_seconds, sqs_seconds = alternate(runs, settings.repetitions)
    yield Measurement("SQS", sqs_seconds, messages, "messages")
    yield Measurement("Kafka", kafka_seconds, messages, "messages", "SQS", sqs_seconds)


def _emptied(queue: Queue, messages: int, opens: bool = False) -> float:
    queue.publish([_BODY] * messages, tag="a.b")
    before = time.perf_counter()
    done = 0
    while done < messages:
        taken = queue.receive(_BATCH, lease=60, wait=1)
        if opens and not all(parse_notification(m.body, m.headers, "auto", None).objects for m in taken):
            raise AssertionError("a notification announces nothing")
        if queue.acknowledge([message.receipt for message in taken]):
            raise AssertionError("a lease was lost")
        done += len(taken)
    return time.perf_counter() - before
