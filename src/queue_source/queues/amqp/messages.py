"""Between AMQP's deliveries and `Received`: pure functions on properties and headers."""

from __future__ import annotations

import hashlib
import json
import struct
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pika import BasicProperties, data

from queue_source.messages import Receipt, Received
from queue_source.queues.base import republished
from queue_source.tags import LONGEST

TAG_BEFORE = "Republish-Tag"
"""Header of a republished message: it goes straight to the pool's queue, so the routing key is no longer the tag."""

_DELIVERIES = "x-delivery-count"  # deliveries that failed, as quorum queues count them
_PERSISTENT = 2
# The broker would send a copy to each queue named there, and refuse a copy that names another user.
_NOT_COPIED = ("CC", "BCC", _DELIVERIES)

_decode = data.decode_value


def _decoded(encoded: bytes, offset: int) -> Any:
    """Decode a value of a header as pika does; where pika fails, return a number for a time, or else the bytes.

    pika would end the connection, and again with the message's next delivery, for ever.
    """
    try:
        return _decode(encoded, offset)
    except (OSError, ValueError, OverflowError, RecursionError):
        kind, start = encoded[offset : offset + 1], offset + 5
        if kind == b"T":  # of a year that Python does not have, as where a sender writes milliseconds
            return struct.unpack_from(">Q", encoded, offset + 1)[0], offset + 9
        if kind not in (b"A", b"F"):
            raise
        end = start + struct.unpack_from(">I", encoded, offset + 1)[0]  # of what is nested too deeply
        return encoded[start:end], end


data.decode_value = _decoded


class Delivery(NamedTuple):
    """What pika hands over."""

    method: Any  # spec.Basic.Deliver
    properties: BasicProperties
    body: bytes


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Convert names and values to text; raise ValueError for what AMQP cannot carry."""
    texts = {str(key): str(value) for key, value in headers.items()}
    for key, value in texts.items():
        value.encode()  # UnicodeEncodeError, a ValueError, for lone surrogates
        if len(key.encode()) > LONGEST:
            raise ValueError(f"the name of the header {key[:50]!r}... is longer than {LONGEST} bytes")
    return texts


def properties_for(headers: Mapping[str, str]) -> BasicProperties:
    """Build the properties of a new message: durable, with its own id and the time in whole seconds, as in AMQP."""
    return BasicProperties(
        headers=dict(headers) or None,
        delivery_mode=_PERSISTENT,
        message_id=uuid.uuid4().hex,
        timestamp=int(time.time()),
    )


def properties_of_copy(original: BasicProperties, tag: str) -> BasicProperties:
    """Build the properties of a copy for the back: the original's but for id, count and the place of its tag."""
    before = original.headers or {}
    kept = {key: value for key, value in before.items() if key not in _NOT_COPIED}
    texts = {key: shown_header(value) for key, value in kept.items()}
    count = {key: value for key, value in republished(texts).items() if texts.get(key) != value}
    return BasicProperties(
        headers={**kept, **count, TAG_BEFORE: tag},
        delivery_mode=original.delivery_mode,
        message_id=uuid.uuid4().hex,
        timestamp=original.timestamp,
        content_type=original.content_type,
        content_encoding=original.content_encoding,
        priority=original.priority,
        correlation_id=original.correlation_id,
        reply_to=original.reply_to,
        expiration=original.expiration,
        type=original.type,
        app_id=original.app_id,
    )


def received(delivery: Delivery, queue: str, receipt: Receipt, lease_until: float) -> Received:
    method, properties, body = delivery
    broker_headers: Mapping[str, Any] = properties.headers or {}
    headers = {
        str(key): shown_header(value) for key, value in broker_headers.items() if key not in (TAG_BEFORE, _DELIVERIES)
    }
    tag = tag_of(delivery)
    failed = broker_headers.get(_DELIVERIES)  # quorum queues count; others only report that it was not the first time
    count = failed + 1 if isinstance(failed, int) else 2 if method.redelivered else 1
    message_id = properties.message_id
    if not message_id:  # the same at each delivery, from the content; headers that brokers add (x-...) do not count
        own = sorted((key, value) for key, value in headers.items() if not key.lower().startswith("x-"))
        metadata = json.dumps([tag, own, properties.timestamp]).encode()
        message_id = "content-" + hashlib.sha256(metadata + b"\0" + body).hexdigest()
    return Received(
        queue=queue,
        message_id=shown_header(message_id),  # any bytes, as a sender may write
        receipt=receipt,
        body=body,
        receive_count=count,
        lease_until=lease_until,
        sent_at=None if properties.timestamp is None else float(properties.timestamp),
        tag=tag,
        headers=headers,
        has_id=bool(properties.message_id),
    )


def tag_of(delivery: Delivery) -> str:
    """Return the routing key, or the one from before the message was put to the back."""
    headers: Mapping[str, Any] = delivery.properties.headers or {}
    if not delivery.method.exchange and TAG_BEFORE in headers:
        return shown_header(headers[TAG_BEFORE])
    return str(delivery.method.routing_key)


def shown_header(value: object) -> str:
    """Return text as it is, and other values of AMQP headers as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | datetime):
        return _text(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=_text)
    except (RecursionError, TypeError):  # a name within it is not UTF-8
        return "(nested too deeply, or not JSON)"


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if isinstance(value, datetime) else str(value)
