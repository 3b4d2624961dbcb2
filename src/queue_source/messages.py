"""The stages of a message: one frozen type each, so that a stage cannot use what it does not have yet.

Received (a delivery) -> Announcement (its objects); then its shards are followed, and the message by its key. Outgoing
is the input of a sink: the beginning of another delivery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, NewType

REPUBLISH_COUNT = "Republish-Count"
"""The header that says how often a message was put to the back; absent = never."""

Receipt = NewType("Receipt", str)
"""Names one delivery of one message to the queue that made it; stale after the lease is lost or the message is done."""

_YEAR_9999 = 253_370_764_800  # in seconds since 1970
_MOST_RECEIVES = 2**31


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery, body untouched. `queue` is the queue's name, `message_id` is stable over redeliveries.

    `sent_at` is seconds since 1970 (UTC) by the queue's clock, None where the queue omits it. `lease_until` is
    `time.monotonic()` seconds counted from the *start* of the receive request. `has_id` is False where neither sender
    nor queue set an id: `message_id` then comes from the content, so equal ones share it. `content` is the body as
    JSON, else as text, else as bytes. `republish_count`: how often the message was put to the back.
    """

    queue: str
    message_id: str
    receipt: Receipt
    body: bytes
    receive_count: int
    lease_until: float
    sent_at: float | None = None
    tag: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    has_id: bool = True

    def __post_init__(self) -> None:
        """Take times and counts that no store or row can hold, which a sender may have written, for unknown ones."""
        if self.sent_at is not None and not 0 <= self.sent_at < _YEAR_9999:
            object.__setattr__(self, "sent_at", None)
        if not 0 <= self.receive_count < _MOST_RECEIVES:
            object.__setattr__(self, "receive_count", 1)

    @property
    def content(self) -> Any:
        """Return the value of the body if it is JSON, else its text if it is UTF-8, else the bytes."""
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            return self.body
        try:
            return json.loads(text, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            return text

    @property
    def republish_count(self) -> int:
        return republish_count(self.headers)


def republish_count(headers: Mapping[str, str]) -> int:
    """Return the count of the header; one that is no number is taken as 0, since any sender may write it."""
    count = headers.get(REPUBLISH_COUNT, "0")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0


def headers_of(text: str, name: str) -> dict[str, str]:
    """Read headers that are written as a JSON object. Another text, which any sender may write, is a header itself."""
    with suppress(ValueError, RecursionError):
        headers = json.loads(text)
        if isinstance(headers, dict):
            return {key: str(value) for key, value in headers.items()}
    return {name: text}


def refuse_constant(name: str) -> object:
    """Refuse NaN and Infinity, which Python's json reads, and no standard of JSON has: ValueError."""
    raise ValueError(f"{name} is not JSON")


MessageKey = tuple[str, Receipt]
"""One delivery of one message: (queue name, receipt)."""

Group = tuple[str, str]
"""(queue name, group): contents of one group are read in their order."""


def key_of(message: Received) -> MessageKey:
    return message.queue, message.receipt


def by_queue(keys: Iterable[MessageKey]) -> dict[str, list[Receipt]]:
    """Group the receipts by queue."""
    grouped: dict[str, list[Receipt]] = {}
    for queue, receipt in keys:
        grouped.setdefault(queue, []).append(receipt)
    return grouped


class Outgoing(NamedTuple):
    """A message to send. Queues with deduplication ids send messages with the same `deduplication_id` once.

    `group`: messages of one group stay in order, where the queue has groups.
    """

    body: bytes
    tag: str = ""
    headers: Mapping[str, str] = {}
    group: str | None = None
    deduplication_id: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectNotice:
    """One object that a notification announces. `size` in bytes and `etag`/`version` are None when omitted.

    `sequence` orders the notifications about one object, where they have an order: as text, the greater is the later.
    `modified` (aware) is when the object was written, if its store reports that with its size; `event_time` (aware) is
    the time of the reported event.
    """

    uri: str
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    sequence: str | None = field(default=None, compare=False)  # when it was announced: not part of the object
    modified: datetime | None = field(default=None, compare=False)
    event_time: datetime | None = field(default=None, compare=False)


class ListedObject(NamedTuple):
    """One object of a listing. `uri` is raw, as in notifications; `modified` is aware, by the store's clock.

    `version` is set only where the listing was asked for versions and the bucket keeps them. `appeared`: when it got
    its name or its content at the latest, where the store has a time of its own for it, which no writer can set.
    """

    uri: str
    size: int
    etag: str | None
    modified: datetime
    version: str | None = None
    appeared: datetime | None = None


@dataclass(frozen=True, slots=True)
class Announcement:
    """The content of a message: objects to read, and how many of its records announced nothing to read (`ignored`).

    A test event or a delete event has no objects and `ignored` > 0: the message is acknowledged and counted.
    """

    objects: tuple[ObjectNotice, ...]
    ignored: int = 0


MESSAGE_URI = "message:"
"""In place of an object's URI where the message is the content (`content=message`)."""


_KEPT = 4 << 20  # bytes


def kept_message(body: bytes, tag: str, headers: tuple[tuple[str, str], ...], group: str | None) -> dict[str, Any]:
    """Return the fields of an `ErrorRecord` with which a bad message can be published again."""
    return {"input": body[:_KEPT], "input_size": len(body), "tag": tag, "headers": headers, "group": group}
