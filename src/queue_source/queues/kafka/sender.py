"""Sends records, and waits until the brokers have confirmed them. One producer for all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from queue_source.errors import QueueUnavailable
from queue_source.queues.kafka.address import Address
from queue_source.queues.kafka.messages import LARGEST, Record, message_id
from queue_source.queues.kafka.service import Service

_PATIENCE = 30.0  # seconds for a confirmation, tries included


class Sender:
    """Sends to the topic of an address."""

    def __init__(self, address: Address, service: Service) -> None:
        self._address = address
        self._service = service
        self._lock = threading.Lock()
        self._producer: Any = None

    @property
    def largest(self) -> int:
        """Bytes of the largest record."""
        size = self._address.settings.get("message.max.bytes", "")
        return int(size) if size.isascii() and size.isdigit() else LARGEST

    def send(self, records: Sequence[Record]) -> list[str]:
        """Send them in their order, all confirmed; return their message ids."""
        if not records:
            return []
        producer = self._opened()
        ids: list[str | None] = [None] * len(records)
        failures: list[KafkaError] = []
        confirmed: list[int] = []

        def confirm(place: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                ids[place] = message_id(message.topic(), message.partition(), message.offset())
            confirmed.append(place)

        with self._service.mapped("sending"):
            for place, record in enumerate(records):
                self._produce(producer, record, lambda error, message, place=place: confirm(place, error, message))
            until = time.monotonic() + 2 * _PATIENCE
            while len(confirmed) < len(records) and time.monotonic() < until:
                producer.flush(0.5)  # another thread's flush may serve the confirmations of ours
            if failures:
                raise KafkaException(failures[0])
        if len(confirmed) < len(records):
            raise QueueUnavailable(self._address.name, f"{len(records) - len(confirmed)} messages were not confirmed")
        return [message for message in ids if message is not None]

    def _produce(self, producer: Any, record: Record, confirm: Any) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                producer.produce(
                    self._address.topic, record.value, key=record.key, headers=record.headers, on_delivery=confirm
                )
                return
            except BufferError:  # librdkafka's own queue is full
                if time.monotonic() > until:
                    raise QueueUnavailable(self._address.name, "sending: nothing is confirmed") from None
                producer.poll(0.1)

    def _opened(self) -> Any:
        with self._lock:
            if self._producer is None:
                self._service.partitions()  # a topic that is absent is reported at once, and not after a time-out
                settings = {
                    "enable.idempotence": True,
                    "linger.ms": 2,
                    "message.timeout.ms": int(_PATIENCE * 1000),
                    **self._service.common_settings(),
                }
                with self._service.mapped("sending"):
                    self._producer = Producer(settings)
            return self._producer

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(1)
