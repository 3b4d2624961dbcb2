"""Queues on this machine: messages a second that are received and acknowledged.

Those of SQS, Azure and Kafka are local servers, in processes of their own.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.registry import Measurement, Settings, alternate, benchmark
from queue_source.messages import Outgoing
from queue_source.queues import Queue, open_queue
from queue_source.queues.azurequeue import AzureQueue
from queue_source.queues.base import encode_payload, send_messages
from support.servers.azure_queue import ACCOUNT, AzureQueueServer, azure_queue_server
from support.servers.kafka import SINGLE, Kafka, tansu_broker
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
    with ExitStack() as stack:
        named: dict[str, Queue] = {}
        if broker := os.environ.get(RABBITMQ):
            name = f"bench-{uuid.uuid4().hex[:8]}"
            named["RabbitMQ"] = open_queue(f"{broker}?source={name}&pool={name}")
            named["RabbitMQ"].receive(1, lease=60, wait=0)  # one that is absent fails before servers are started
        opened = {
            "SQL queue on SQLite": open_queue(f"sql+sqlite:///{settings.folder / 'queue.db'}?queue=bench"),
            "simulator": open_queue(f"sim://bench?dir={settings.folder}&pool=p&tags=a.%23"),
            "Amazon SQS": open_queue(new_queue(stack.enter_context(ministack_server())), **KEYS),
            "Azure Storage Queue": _azure_queue(stack.enter_context(azure_queue_server())),
            "Kafka": _kafka(stack.enter_context(tansu_broker())),
            **named,
        }
        for queue in opened.values():
            stack.callback(queue.close)
        runs = [partial(_emptied, queue, messages) for queue in opened.values()]
        seconds = dict(zip(opened, alternate(runs, settings.repetitions), strict=True))
        for case, own in seconds.items():
            against = "Amazon SQS" if case.startswith(("Azure", "Kafka")) else ""
            yield Measurement(case, own, messages, "messages", against, seconds.get(against, ()))


def _kafka(broker: Kafka) -> Queue:
    queue = open_queue(broker.url(broker.new_topic(4)), settings=dict(SINGLE))
    queue.receive(1, lease=60, wait=0)  # joins the group
    return queue


def _azure_queue(server: AzureQueueServer) -> Queue:
    queue = AzureQueue(f"azurequeue://{ACCOUNT}/bench", **server.access)
    queue.create()
    return queue


def _emptied(queue: Queue, messages: int) -> float:
    send_messages(queue, [Outgoing(_BODY, "a.b")] * messages)
    before = time.perf_counter()
    done = 0
    while done < messages:
        taken = queue.receive(_BATCH, lease=60, wait=1)
        if queue.acknowledge([message.receipt for message in taken]):
            raise AssertionError("a lease was lost")
        done += len(taken)
    return time.perf_counter() - before
