"""Between Pub/Sub's messages and ours: pure functions on attributes, keys and sizes."""

from __future__ import annotations

from typing import Any

from google.pubsub_v1 import types

from queue_source.messages import Outgoing, Receipt, Received

TAG = "cuesqueue-tag"
EMPTY = "cuesqueue-empty"
"""Attributes of our own: the tag, and what a message without a body has, since Pub/Sub takes none without both."""

_LARGEST_BODY = 10_000_000
_MOST_ATTRIBUTES, _LONGEST_KEY, _LONGEST_VALUE, _LONGEST_GROUP = 100, 256, 1024, 1024

Message = Any  # google.pubsub.v1.PubsubMessage: the protobuf class itself, many times faster than Google's wrapper
_new_message = types.PubsubMessage.pb()


def message_of(message: Outgoing) -> Message:
    """Build the message. Raises ValueError for what the service would refuse, before anything is sent."""
    body, group, attributes = message.body, message.group or "", dict(message.headers)
    for own in (TAG, EMPTY):
        if own in attributes:
            raise ValueError(f"the header {own!r} is cuesqueue's own")
    if message.tag:
        attributes[TAG] = message.tag
    if not body and not attributes:
        attributes[EMPTY] = "true"
    if len(body) > _LARGEST_BODY:
        raise ValueError(f"Pub/Sub takes bodies of up to {_LARGEST_BODY} bytes, not {len(body)}")
    if len(attributes) > _MOST_ATTRIBUTES:
        raise ValueError(f"Pub/Sub takes up to {_MOST_ATTRIBUTES} headers, not {len(attributes)}")
    for key, value in attributes.items():
        if not 0 < len(key.encode()) <= _LONGEST_KEY or len(value.encode()) > _LONGEST_VALUE:
            raise ValueError(
                f"Pub/Sub takes header names of 1 to {_LONGEST_KEY} bytes with values of up to {_LONGEST_VALUE}: "
                f"{key[:50]!r} has {len(key.encode())} and {len(value.encode())}"
            )
    if len(group.encode()) > _LONGEST_GROUP:
        raise ValueError(f"Pub/Sub takes groups (ordering keys) of up to {_LONGEST_GROUP} bytes: {group!r:.60}")
    return _new_message(data=body, attributes=attributes, ordering_key=group)


def dead_message(message: Message, project: str, subscription: str) -> Message:
    """Build the message for the dead-letter topic as the service itself would, with its origin."""
    attributes = {
        **message.attributes,
        "CloudPubSubDeadLetterSourceSubscription": subscription,
        "CloudPubSubDeadLetterSourceSubscriptionProject": project,
    }
    return _new_message(data=message.data, attributes=attributes, ordering_key=message.ordering_key)


def received(pulled: Any, queue: str, lease_until: float) -> Received:
    """Build the delivery of a ReceivedMessage."""
    message = pulled.message
    headers = dict(message.attributes)
    tag = headers.pop(TAG, "")
    headers.pop(EMPTY, None)
    return Received(
        queue=queue,
        message_id=message.message_id,
        receipt=Receipt(pulled.ack_id),
        body=message.data,
        receive_count=pulled.delivery_attempt or 1,
        lease_until=lease_until,
        sent_at=message.publish_time.seconds + message.publish_time.nanos / 1e9,
        tag=tag,
        headers=headers,
        group=message.ordering_key or None,
    )
