"""Apache Kafka (confluent-kafka): a queue is a topic, read by an ordinary consumer group.

Kafka knows no leases: a message is ours as long as its partition is, and comes again when that passes to another member
of the group. It counts no deliveries, and has one offset for a group in a partition, before which all is done: of
messages that are done in another order, some come again after a crash. A message that is given back stays in this
process until it is delivered again. The id of a message is its topic, partition and offset.

`address.py` has the URL, `messages.py` converts records and decides what is committed, `reader.py` is the member of the
group, `service.py` asks, administers and sends.

Used by the reader process (many threads), commands, and sinks on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from queue_source.errors import QueueConfigurationError, QueueNotFound
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, check_lease, convert_each
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.kafka.address import parse_address
from queue_source.queues.kafka.messages import copy_of, first_offset, received, record_of
from queue_source.queues.kafka.reader import Reader
from queue_source.queues.kafka.service import Service
from queue_source.queues.urls import canonical

LARGEST_BATCH = 1000
_LEASE = 20.0  # seconds between two looks at what was lost, doubled; they cost no request


class KafkaQueue(BaseQueue):
    """The topic of a URL `kafka://HOST:PORT/TOPIC?group=GROUP`, which has to exist; without a group only to send.

    `settings` are librdkafka's own. `starting_offsets` (`earliest` or `latest`) says where a group begins that has no
    offsets; `fail_on_data_loss` whether messages that are deleted before they were read are an error.
    """

    def __init__(
        self,
        url: str,
        *,
        settings: Mapping[str, str] | None = None,
        starting_offsets: str = "earliest",
        fail_on_data_loss: bool = True,
    ) -> None:
        self._address = address = parse_address(url, settings or {})
        super().__init__(address.name, url)
        if starting_offsets not in ("earliest", "latest"):
            raise QueueConfigurationError(self.name, f"starting_offsets={starting_offsets!r}; write earliest or latest")
        self._starting = starting_offsets
        self._fails = fail_on_data_loss
        self._service = Service(address)
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._identity: str | None = None

    @property
    def identity(self) -> str:
        """An id from the cluster's id and the topic: all groups of a topic have the same messages."""
        if self._identity is None:
            cluster = self._service.cluster()
            self._identity = f"kafka:{cluster}/{self._address.topic}" if cluster else canonical(self.name)
        return self._identity

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_batch_size=LARGEST_BATCH, max_lease=_LEASE, empty_is_certain=True, ends_leases=False)

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive; `lease` only sets `lease_until`: a message is ours as long as its partition is."""
        return self._opened().receive(min(max_messages, LARGEST_BATCH), lease, wait)

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Return the receipts of lost partitions; sends nothing, since no lease ends by time."""
        check_lease(lease)
        return self._opened().stale(receipts) if receipts else set()

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        """Note that the messages are done; commit the offset before which all are."""
        return self._opened().finish(receipts) if receipts else set()

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Deliver the messages again, here; when the partition passes to another member, there."""
        if receipts:
            self._opened().give_back(receipts, delay)

    def republish(self, message: Received) -> bool:
        """Append a copy to the topic, which its other groups get as well."""
        reader = self._opened()
        if (raw := reader.raw(message.receipt)) is None:
            return False
        self._service.send([copy_of(raw, self._service.largest)])
        return not reader.finish([message.receipt])

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Append to the topic. Messages of one group, or with one `Kafka-Key`, are in one partition, in their order."""
        largest = self._service.largest
        return self._service.send(convert_each(messages, lambda message: record_of(message, largest)))

    def depth(self) -> Depth:
        """Count the offsets behind the group's, gaps of transactions and compaction too; what others hold is ready."""
        self._refuse_closed()
        reader = self._reader
        positions, held, delayed = reader.counts() if reader is not None else ({}, 0, 0)
        return Depth(sum(self._service.bounds(p)[1] - at for p, at in self._next(positions).items()), held, delayed)

    def _next(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Return the offset in each partition from which messages are to be handed out."""
        committed = self._service.committed() if self._group() else {}
        is_new = all(offset is None for offset in committed.values())
        following: dict[int, int] = {}
        for partition, offset in committed.items():
            bounds = self._service.bounds(partition)
            start = positions.get(partition, offset)
            start = None if start is None else max(start, bounds[0])  # the topic may have deleted what is before
            following[partition] = first_offset(start, bounds, is_new_group=is_new, starting=self._starting)
            following[partition] = min(following[partition], bounds[1])
        return following

    def close(self) -> None:
        """Commit what may be and leave the group, which also ends a `receive` in another thread."""
        self._closed.set()
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._service.close()

    # --- for people and commands: the topic --------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._service.exists()

    def create(self) -> None:
        """Create the topic as the brokers make new ones; an existing one stays as it is."""
        self._service.create()

    def delete(self) -> None:
        """Delete the topic, for all its groups."""
        self._service.delete()

    def purge(self) -> int:
        """Set the group's offsets to the ends; refused while it has members. The topic keeps its messages."""
        self._group()
        ready = self.depth().ready
        self._service.commit(
            {partition: self._service.bounds(partition)[1] for partition in self._service.partitions()}
        )
        return ready

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages of the group, without being its member: this is no delivery."""
        if not self.exists():
            raise QueueNotFound(self.name, "the topic does not exist; create it, or correct its name")
        raws = self._service.records(self._next({}), max_messages)
        return [received(raw, self.name, Receipt(""), 1, 0.0) for raw in raws]

    def _group(self) -> str:
        if self._address.group is None:
            raise QueueConfigurationError(self.name, "names no group to read with; add ?group=NAME to the URL")
        return self._address.group

    def _opened(self) -> Reader:
        """Return the member of the group; after a failure a new one."""
        self._group()
        with self._lock:
            self._refuse_closed()
            failed = self._reader if self._reader is not None and self._reader.failure is not None else None
            if failed is not None:
                self._reader = None
                failed.close()
            if self._reader is None:
                self._service.partitions()  # what is absent is reported at once
                reader = Reader(self._address, self._service, self.report, starting=self._starting, fails=self._fails)
                reader.start()
                self._reader = reader
            return self._reader
