"""The content of SQS messages, bytes, tag and headers as text and attributes and back, and requests for many of them.

SQS takes text of some characters only, never empty, and at most 10 attributes. Other content travels in base64 or JSON,
marked by an attribute of ours (`cuesqueue.*`); the rest travels as it is, so that others can read it. In messages of
other senders bodies stay untouched, and attributes appear as headers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from queue_source.messages import Outgoing, Receipt, Received, headers_of
from queue_source.queues.sqs.address import is_passing, short_code

LARGEST = 1 << 20
"""Most bytes of one message, and of one request with several, attributes included."""
BATCH = 10
"""Most messages of one request."""
_MOST_ATTRIBUTES = 10
_PAUSES = (0.2, 0.8)  # seconds before failed messages of a batch are sent again; later tries are the caller's

_ENCODING = "cuesqueue.encoding"  # `base64`, or `empty` where the body has no bytes at all
_TAG = "cuesqueue.tag"
_HEADERS = "cuesqueue.headers"  # all headers as JSON, where one of them cannot be an attribute
_NO_GROUP = "cuesqueue.none."  # a FIFO queue needs a group: a message without one gets one of its own

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!cuesqueue\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_GROUP = re.compile(r"""[A-Za-z0-9!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}""")

Entry = dict[str, Any]
"""The parameters of one message of a request, as boto3 takes them."""


def entry_of(message: Outgoing, *, fifo: bool) -> Entry:
    """Build the entry of one message. Raises ValueError for what SQS cannot carry in any form."""
    body, group = message.body, message.group or None
    if group is not None and not _GROUP.fullmatch(group):
        raise ValueError(f"group {group!r:.200} must be 1 to 128 ASCII letters, digits and punctuation for SQS")
    text, encoding = "-", "empty"  # or the text itself, without an encoding
    if body:
        try:
            text, encoding = body.decode(), ""
        except UnicodeDecodeError:
            text = "\0"
        if _FORBIDDEN.search(text):
            text, encoding = base64.b64encode(body).decode(), "base64"
    entry: Entry = {"MessageBody": text}
    attributes = _attributes(message.tag, message.headers) | ({_ENCODING: _string(encoding)} if encoding else {})
    if attributes:
        entry["MessageAttributes"] = attributes
    if fifo:
        key = message.deduplication_id or uuid.uuid4().hex
        # a group of its own, by the same key: a queue may search for duplicates within each group only
        entry["MessageGroupId"] = group or f"{_NO_GROUP}{hashlib.sha256(key.encode()).hexdigest()}"
        entry["MessageDeduplicationId"] = key  # of the message, not of its body: two equal ones are two
    elif group is not None:
        entry["MessageGroupId"] = group
    if (size := size_of(entry)) > LARGEST:
        raise ValueError(f"a message of {len(body)} bytes takes {size} in SQS, which carries at most {LARGEST}")
    return entry


def size_of(entry: Entry) -> int:
    """Return the bytes that count: body, and names, types and values of attributes."""
    attributes: Mapping[str, Any] = entry.get("MessageAttributes", {})
    parts = (f"{name}{value['DataType']}{value['StringValue']}" for name, value in attributes.items())
    return len(entry["MessageBody"].encode()) + sum(len(part.encode()) for part in parts)


def received(queue: str, message: Mapping[str, Any], lease_until: float) -> Received:
    """Build a delivery from the answer of ReceiveMessage."""
    system: Mapping[str, str] = message.get("Attributes", {})
    attributes = {  # text and numbers as they are, bytes as base64
        name: base64.b64encode(at["BinaryValue"]).decode() if "BinaryValue" in at else str(at.get("StringValue", ""))
        for name, at in message.get("MessageAttributes", {}).items()
    }
    encoding, tag, packed = (attributes.pop(name, "") for name in (_ENCODING, _TAG, _HEADERS))
    body = b"" if encoding == "empty" else message["Body"].encode()
    if encoding == "base64":
        with suppress(ValueError):  # then the marker is not ours after all: the text is the body
            body = base64.b64decode(message["Body"], validate=True)
    sent = system.get("SentTimestamp")
    group = system.get("MessageGroupId")
    return Received(
        queue=queue,
        message_id=message["MessageId"],
        receipt=Receipt(message["ReceiptHandle"]),
        body=body,
        receive_count=int(system.get("ApproximateReceiveCount", "1")),
        lease_until=lease_until,
        sent_at=None if sent is None else int(sent) / 1000,
        tag=tag,
        headers={**attributes, **(headers_of(packed, _HEADERS) if packed else {})},
        group=None if group is None or group.startswith(_NO_GROUP) else group,
    )


def _attributes(tag: str, headers: Mapping[str, str]) -> dict[str, Any]:
    attributes = {}
    if tag:
        tag.encode()  # UnicodeEncodeError, a ValueError, for lone surrogates
        if _FORBIDDEN.search(tag):
            raise ValueError(f"tag {tag!r:.200} holds a character that SQS does not carry")
        attributes[_TAG] = _string(tag)
    texts = {str(name): str(value) for name, value in headers.items()}
    room = _MOST_ATTRIBUTES - 2  # tag and encoding may be two attributes of ours
    if len(texts) <= room and all(
        value and len(name) <= 256 and _ATTRIBUTE_NAME.fullmatch(name) and not _FORBIDDEN.search(value)
        for name, value in texts.items()
    ):
        return attributes | {name: _string(value) for name, value in texts.items()}
    "".join([*texts, *texts.values()]).encode()
    return attributes | {_HEADERS: _string(json.dumps(texts))}


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


# --- requests --------------------------------------------------------------------------------------------------------

Answers = dict[int, Mapping[str, Any]]
"""What SQS said of each message, by its place in what was asked."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of a queue: its ARN, seconds, the ARN of its dead-letter queue, and after how many receives."""

    arn: str | None
    retention: float
    dead_letter: str | None
    max_receives: int | None

    @classmethod
    def of(cls, answer: Mapping[str, str]) -> Attributes:
        """Read the answer of GetQueueAttributes; missing ones have the values that SQS documents for them."""
        redrive = json.loads(answer.get("RedrivePolicy") or "{}")
        most = redrive.get("maxReceiveCount")
        retention = float(answer.get("MessageRetentionPeriod", 345_600))
        arns = answer.get("QueueArn"), redrive.get("deadLetterTargetArn")
        return cls(arns[0], retention, arns[1], None if most is None else int(most))


def ask(
    call: Callable[..., Mapping[str, Any]], url: str, entries: Mapping[int, Entry], pause: Callable[[float], object]
) -> tuple[Answers, Answers]:
    """Send one batch; return what succeeded and what failed, by the keys of `entries`.

    Throttled entries, and those that failed through SQS's own fault, are asked for again a few times. A batch that is
    too long for this queue (some regions and emulators take less than others) goes in halves.
    """
    done: Answers = {}
    failed: Answers = {}
    waiting = dict(entries)
    for wait in (*_PAUSES, None):
        try:
            answer = call(QueueUrl=url, Entries=[{"Id": str(place), **entry} for place, entry in waiting.items()])
        except ClientError as error:
            if short_code(error.response.get("Error", {}).get("Code", "")) != "BatchRequestTooLong" or len(waiting) < 2:
                raise
            places = list(waiting)
            for half in (places[: len(places) // 2], places[len(places) // 2 :]):
                better, worse = ask(call, url, {place: waiting[place] for place in half}, pause)
                done |= better
                failed |= worse
            break
        done |= {int(entry["Id"]): entry for entry in answer.get("Successful", [])}
        failed |= {int(entry["Id"]): entry for entry in answer.get("Failed", [])}
        passing = {p for p, at in failed.items() if is_passing(at.get("Code", "")) or at.get("SenderFault") is False}
        waiting = {place: entry for place, entry in waiting.items() if place in passing}
        if not waiting or wait is None:
            break
        pause(wait)
        failed = {place: entry for place, entry in failed.items() if place not in waiting}
    return done, failed


def seconds(time: float, maximum: int) -> int:
    """Round up to whole seconds, as SQS counts, so that no lease is shorter than requested."""
    return min(max(math.ceil(time), 0), maximum)
