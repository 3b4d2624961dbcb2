"""Between Kafka's records and our messages, and which of them are done in a partition. Pure."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.base import republished
from queue_source.tags import check_tag

logger = logging.getLogger("cuesqueue")

TAG = "cuesqueue-tag"
"""Header of our own that has the tag."""
KEY = "Kafka-Key"
"""The header of a message in which the record's key is given, and is set."""
LARGEST = 1_000_000
"""Bytes of a record, as librdkafka has it where no setting says otherwise."""
_OVERHEAD = 512


class Record(NamedTuple):
    """A record to send."""

    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes]]


def record_of(message: Outgoing, largest: int) -> Record:
    """Build the record of a message. Raises ValueError for what Kafka would refuse, before anything is sent.

    The group, else the header `Kafka-Key`, becomes the key: records of one key are in one partition, in their order.
    """
    check_tag(message.tag)
    headers = {str(name): str(value) for name, value in message.headers.items()}
    if TAG in headers:
        raise ValueError(f"the header {TAG!r} is cuesqueue's own")
    key = headers.pop(KEY, None)
    if message.group is not None:
        key = message.group
    if message.tag:
        headers[TAG] = message.tag
    encoded = [(name, value.encode()) for name, value in headers.items()]
    record = Record(message.body, None if key is None else key.encode(), encoded)
    check_size(record, largest)
    return record


def copy_of(raw: Any, largest: int) -> Record:
    """Build the record that `republish` appends: the same value, key and headers, with a raised count."""
    before = dict(_headers(raw))
    texts = {name: _text(value) for name, value in before.items()}
    count = {name: value.encode() for name, value in republished(texts).items() if texts.get(name) != value}
    record = Record(raw.value() or b"", raw.key(), [*{**before, **count}.items()])
    check_size(record, largest)
    return record


def check_size(record: Record, largest: int) -> None:
    """Refuse a record that librdkafka would refuse: ValueError."""
    size = len(record.value) + len(record.key or b"") + sum(len(n.encode()) + len(v) for n, v in record.headers)
    if size + _OVERHEAD > largest:
        raise ValueError(
            f"Kafka takes messages of up to {largest} bytes here, not {size}; raise option 'kafka.message.max.bytes', "
            "and the topic's max.message.bytes"
        )


def message_id(topic: str, partition: int, offset: int) -> str:
    return f"{topic}/{partition}/{offset}"


def received(raw: Any, queue: str, receipt: Receipt, count: int, lease_until: float) -> Received:
    """Build the delivery of a record."""
    headers = {name: _text(value) for name, value in _headers(raw)}
    tag = headers.pop(TAG, "")
    if (key := raw.key()) is not None:
        headers[KEY] = _text(key)
    kind, milliseconds = raw.timestamp()
    return Received(
        queue=queue,
        message_id=message_id(raw.topic(), raw.partition(), raw.offset()),
        receipt=receipt,
        body=raw.value() or b"",
        receive_count=count,
        lease_until=lease_until,
        sent_at=None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000,
        tag=tag,
        headers=headers,
    )


def _headers(raw: Any) -> Any:
    """Return the headers of a record; none where the client cannot read one: the body is what is waited for."""
    try:
        return raw.headers() or []
    except (SystemError, UnicodeDecodeError):
        where = message_id(raw.topic(), raw.partition(), raw.offset())
        logger.warning("message %s has a header whose name is not UTF-8: it is read without its headers", where)
        return []


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value or ""


# --- what is done in a partition -------------------------------------------------------------------------------------
#
# A partition is an ordered stream, and its group has one offset in it: all before that is done. Messages are done in
# any order, so only what is not done is remembered; the lowest of these is what may be committed. Offsets without a
# record (markers of transactions, what compaction has removed) are never waited for.

WIDEST = 100_000
"""Offsets between the one that may be committed and the last one handed out, above which a partition is paused: a
reader that dies has all of them delivered again."""


class OffsetsGone(Exception):
    """The group's offset is outside of what the partition has: messages were deleted before they were read."""


class Held:
    """A message that is handed out, or was given back and waits: then it has no receipt."""

    __slots__ = ("count", "ledger", "offset", "raw", "receipt")

    def __init__(self, ledger: Ledger, offset: int, raw: Any) -> None:
        self.ledger = ledger
        self.offset = offset
        self.raw = raw
        self.count = 0
        self.receipt: Receipt | None = None


class Ledger:
    """One partition during one assignment. `position` is the offset after the last message that was handed out.

    Attributes:
        committed: The group's offset at the brokers; None while it has none.
        at_end: Nothing was behind `position` when the brokers were last heard of.
    """

    def __init__(self, partition: int, epoch: str, position: int, committed: int | None) -> None:
        self.partition = partition
        self.epoch = epoch
        self.position = position
        self.committed = committed
        self.at_end = False
        self._unfinished: OrderedDict[int, Held] = OrderedDict()

    @property
    def low(self) -> int:
        """The offset that may be committed: everything before it is done."""
        return next(iter(self._unfinished), self.position)

    @property
    def is_wide(self) -> bool:
        return self.position - self.low > WIDEST

    @property
    def is_dirty(self) -> bool:
        """Tell whether there is something to commit."""
        return self.committed != self.low

    def hand_out(self, offset: int, raw: Any) -> Held | None:
        """Note that the record at `offset` is handed out; None for one that was handed out before."""
        if offset < self.position:
            return None
        self.at_end = False
        self.position = offset + 1
        held = self._unfinished[offset] = Held(self, offset, raw)
        return held

    def reach_end(self, offset: int) -> None:
        """Note that the partition ends at `offset`, where the next record will be."""
        self.position = max(self.position, offset)
        self.at_end = True

    def finish(self, held: Held) -> None:
        self._unfinished.pop(held.offset, None)


def first_offset(committed: int | None, bounds: tuple[int, int], *, is_new_group: bool, starting: str) -> int:
    """Return the offset at which to begin in a partition whose records are in `bounds` (the first, and after the last).

    `startingOffsets` is for a group that has no offset in any partition. Where it has one in another, this partition
    came later, and is read from its beginning: what was sent before the reader noticed it counts as well.
    """
    low, high = bounds
    if committed is not None:
        if committed < low:
            raise OffsetsGone(f"messages {committed} to {low - 1} were deleted before they were read")
        return committed
    return high if is_new_group and starting == "latest" else low
