"""What is done without being a member of the group: questions, what people create, and sending.

One handle of librdkafka for all questions, opened by the first; it joins no group. All methods may be called on any
thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from queue_source.errors import QueueConfigurationError, QueueNotFound, QueueUnavailable
from queue_source.queues.adapter import closed, is_found
from queue_source.queues.kafka.address import LASTING, Address, error_of, translated
from queue_source.queues.kafka.messages import LARGEST, Record, message_id

logger = logging.getLogger("cuesqueue")
_Result = TypeVar("_Result")

PATIENCE = 10.0
"""Seconds for an answer of the brokers."""
_SILENCE = 1.0  # seconds without a first answer after which a line says what is waited for
_NO_GROUP = "cuesqueue"  # librdkafka opens no consumer without one; nothing is ever committed by it
_LONGEST_PEEK = 5.0
_CONFIRMING = 30.0  # seconds for a confirmation, tries included
_AWAY = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._WAIT_COORD})


class Service:
    """Asks the brokers of one address."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._producing = threading.Lock()
        self._producer: Any = None  # one for all threads
        self._reported: KafkaError | None = None
        self._is_heard = False  # or it was said that nothing was heard
        self._is_closed = False

    def common_settings(self) -> dict[str, Any]:
        """Return the settings of every handle."""
        return {
            "log_level": 0,
            "socket.timeout.ms": 20_000,
            **self._address.settings,
            "bootstrap.servers": self._address.hosts,
            "allow.auto.create.topics": False,
            "error_cb": self._note,
        }

    def consumer_settings(self) -> dict[str, Any]:
        return {
            **self.common_settings(),
            "group.id": self._address.group or _NO_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }

    def cluster(self) -> str:
        """Return the cluster's id, "" where the brokers have none."""
        return self._ask("reading the cluster's id", lambda c: c.list_topics(timeout=PATIENCE).cluster_id) or ""

    def partitions(self) -> list[int]:
        """List the topic's partitions. Raises `QueueNotFound` where there is no topic, or none in it."""
        topic = self._address.topic
        metadata = self._ask("reading the topic", lambda c: c.list_topics(topic, timeout=PATIENCE).topics[topic])
        if metadata.error is not None:
            raise translated(metadata.error, self._address, "reading the topic")
        if not metadata.partitions:
            raise QueueNotFound(self._address.name, "the topic has no partitions; create it anew")
        return sorted(metadata.partitions)

    def committed(self) -> dict[int, int | None]:
        """Return the group's offset in each partition, None where it has none."""
        asked = [self.place(partition) for partition in self.partitions()]
        answered = self._ask("reading the group's offsets", lambda c: c.committed(asked, timeout=PATIENCE))
        for place in answered:
            if place.error is not None:
                raise translated(place.error, self._address, "reading the group's offsets")
        return {place.partition: place.offset if place.offset >= 0 else None for place in answered}

    def answers(self, seconds: float) -> bool:
        """Tell whether the group's coordinator answers within these seconds; what it answers does not matter."""
        if not self._lock.acquire(timeout=seconds):
            return False
        try:
            self._opened().committed([self.place(0)], timeout=seconds)
        except KafkaException as error:
            return error_of(error).code() not in _AWAY
        finally:
            self._lock.release()
        return True

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset of the partition, and the one after the last."""
        place = self.place(partition)
        low, high = self._ask("reading offsets", lambda c: c.get_watermark_offsets(place, timeout=PATIENCE))
        return low, high

    def place(self, partition: int, offset: int | None = None) -> Any:
        topic = self._address.topic
        return TopicPartition(topic, partition) if offset is None else TopicPartition(topic, partition, offset)

    def _ask(self, doing: str, question: Callable[[Any], _Result]) -> _Result:
        with self.mapped(doing), self._lock, self._silence_told(doing):  # the handle is not closed during a call
            answer = question(self._opened())
            self._reported = None
            return answer

    @contextmanager
    def _silence_told(self, doing: str) -> Iterator[None]:
        """Log one line where the block waits for a first answer: people who run a command see nothing else."""

        def tell() -> None:
            name = self._address.name
            logger.warning("queue %r: %s: the brokers do not answer yet; they have %.0f s", name, doing, PATIENCE)

        timer = threading.Timer(_SILENCE, tell)
        timer.daemon = True
        if not self._is_heard:
            timer.start()
        try:
            yield
        finally:
            if not self._is_heard:
                self._is_heard = True
                timer.cancel()
                timer.join()

    def _opened(self) -> Any:
        if self._is_closed:
            raise closed(self._address.name)
        if self._consumer is None:
            self._consumer = Consumer(self.consumer_settings())
        return self._consumer

    def _note(self, error: KafkaError) -> None:
        """Keep what librdkafka reports by itself: a refused login is reported only here, and tried again after it."""
        if self._reported is None or error.code() in LASTING or self._reported.code() not in LASTING:
            self._reported = error

    @contextmanager
    def mapped(self, doing: str) -> Iterator[None]:
        """Map the errors of the block to ours."""
        try:
            yield
        except KafkaException as error:
            raise self.translated(error, doing) from None  # librdkafka's text may hold a secret

    def translated(self, error: KafkaException | KafkaError, doing: str) -> Exception:
        """Return our error; where the brokers were not reached, the reason that was reported for it."""
        if error_of(error).code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN):
            with self._lock:
                if self._consumer is not None:
                    self._consumer.poll(0)  # delivers what is to be reported
            if self._reported is not None:
                reported, self._reported = self._reported, None
                return translated(reported, self._address, doing)
        return translated(error, self._address, doing)

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return is_found(self.partitions)

    def create(self) -> None:
        """Create the topic, with as many partitions and copies as the brokers have for new ones."""
        if self.exists():
            return
        new = NewTopic(self._address.topic, num_partitions=-1, replication_factor=-1)
        self._administer("creating the topic", lambda admin: admin.create_topics([new], request_timeout=PATIENCE))

    def delete(self) -> None:
        names = [self._address.topic]
        if self.exists():
            self._administer("deleting the topic", lambda admin: admin.delete_topics(names, request_timeout=PATIENCE))

    def _administer(self, doing: str, call: Callable[[Any], Mapping[Any, Any]]) -> None:
        with self.mapped(doing):
            admin = AdminClient(self.common_settings())  # its answers end with it
            for future in call(admin).values():
                try:
                    future.result(2 * PATIENCE)
                except KafkaException as error:
                    if error_of(error).code() not in (
                        KafkaError.TOPIC_ALREADY_EXISTS,
                        KafkaError.UNKNOWN_TOPIC_OR_PART,
                    ):
                        raise

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Set the group's offsets. The brokers refuse it while the group has members."""
        places = [self.place(partition, offset) for partition, offset in offsets.items()]
        try:
            with self._lock:
                self._opened().commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if error_of(error).code() not in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION):
                raise self.translated(error, "setting the group's offsets") from None
            raise QueueConfigurationError(
                self._address.name, "the group has members, whose offsets nobody else may set; stop its readers first"
            ) from None

    def records(self, offsets: Mapping[int, int], most: int) -> list[Any]:
        """Return up to `most` records from these offsets on; changes nothing."""
        consumer = Consumer(self.consumer_settings())
        records: list[Any] = []
        try:
            with self.mapped("reading"):
                consumer.assign([self.place(partition, offset) for partition, offset in offsets.items()])
                open_partitions = set(offsets)
                while open_partitions and len(records) < most:
                    # one after the other: `consume` waits for as many as are asked for
                    if (raw := consumer.poll(_LONGEST_PEEK)) is None:
                        break
                    if (error := raw.error()) is None:
                        records.append(raw)
                    elif error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                        open_partitions.discard(raw.partition())
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()
        return records

    @property
    def largest(self) -> int:
        """Bytes of the largest record."""
        size = self._address.settings.get("message.max.bytes", "")
        return int(size) if size.isascii() and size.isdigit() else LARGEST

    def send(self, records: Sequence[Record]) -> list[str]:
        """Send them in their order, all confirmed; return their message ids."""
        if not records:
            return []
        producer = self._opened_producer()
        ids: list[str | None] = [None] * len(records)
        failures: list[KafkaError] = []
        confirmed: list[int] = []

        def confirm(place: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                ids[place] = message_id(message.topic(), message.partition(), message.offset())
            confirmed.append(place)

        with self.mapped("sending"):
            for place, record in enumerate(records):
                fields: dict[str, Any] = {"value": record.value, "key": record.key, "headers": record.headers}
                fields["on_delivery"] = partial(confirm, place)
                until = time.monotonic() + _CONFIRMING
                while True:
                    try:
                        producer.produce(self._address.topic, **fields)
                        break
                    except BufferError:  # librdkafka's own queue is full
                        if time.monotonic() > until:
                            raise QueueUnavailable(self._address.name, "sending: nothing is confirmed") from None
                        producer.poll(0.1)
            until = time.monotonic() + 2 * _CONFIRMING
            while len(confirmed) < len(records) and time.monotonic() < until:
                producer.flush(0.5)  # another thread's flush may serve the confirmations of ours
            if failures:
                raise KafkaException(failures[0])
        if len(confirmed) < len(records):
            raise QueueUnavailable(self._address.name, f"{len(records) - len(confirmed)} messages were not confirmed")
        return [message for message in ids if message is not None]

    def _opened_producer(self) -> Any:
        with self._producing:
            if self._producer is None:
                self.partitions()  # a topic that is absent is reported at once, and not after a time-out
                settings = {
                    "enable.idempotence": True,
                    "linger.ms": 2,
                    "message.timeout.ms": int(_CONFIRMING * 1000),
                    **self.common_settings(),
                }
                with self.mapped("sending"):
                    self._producer = Producer(settings)
            return self._producer

    def close(self) -> None:
        with self._producing:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(1)
        with self._lock:
            self._is_closed = True
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
