"""Between Kafka's records and our messages: pure functions on headers, keys and ids."""

from __future__ import annotations

import logging
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
_YEAR_9999 = 253_370_764_800_000  # in milliseconds


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
    # a sender may write any number, such as nanoseconds; later ones are no time in Python, the store or Spark
    is_time = kind != TIMESTAMP_NOT_AVAILABLE and 0 <= milliseconds < _YEAR_9999
    return Received(
        queue=queue,
        message_id=message_id(raw.topic(), raw.partition(), raw.offset()),
        receipt=receipt,
        body=raw.value() or b"",
        receive_count=count,
        lease_until=lease_until,
        sent_at=milliseconds / 1000 if is_time else None,
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
