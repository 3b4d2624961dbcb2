"""Requests for many messages: batches that SQS takes, the outcome for each message, and the messages in flight."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from queue_source.messages import Receipt, Received
from queue_source.queues.sqs.client import is_passing, short_code
from queue_source.queues.sqs.messages import LARGEST, Entry

BATCH = 10
_REMEMBERED = 64 << 20  # bytes that are kept for the dead-letter queue
_PAUSES = (0.2, 0.8)  # seconds before failed messages of a batch are sent again; later tries are the caller's

Answers = dict[int, Mapping[str, Any]]
"""What SQS said of each message, by its place in what was asked."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of a queue; times are seconds.

    `arn` is the queue's, `dead_letter` that of its dead-letter queue.
    """

    arn: str | None
    retention: float
    dead_letter: str | None
    max_receives: int | None


def attributes(answer: Mapping[str, str]) -> Attributes:
    """Read the answer of GetQueueAttributes; missing attributes have the values that SQS documents for them."""
    redrive = json.loads(answer.get("RedrivePolicy") or "{}")
    max_receives = redrive.get("maxReceiveCount")
    return Attributes(
        answer.get("QueueArn"),
        float(answer.get("MessageRetentionPeriod", 345_600)),
        redrive.get("deadLetterTargetArn"),
        None if max_receives is None else int(max_receives),
    )


def in_batches(sizes: Sequence[int]) -> Iterator[range]:
    """Yield ranges of neighbours that go into one request: at most 10, and not too large together."""
    start, size = 0, 0
    for place, more in enumerate(sizes):
        if place - start == BATCH or (place > start and size + more > LARGEST):
            yield range(start, place)
            start, size = place, 0
        size += more
    if start < len(sizes):
        yield range(start, len(sizes))


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
        waiting = {place: waiting[place] for place in waiting if place in failed and _worth_another(failed[place])}
        if not waiting or wait is None:
            break
        pause(wait)
        failed = {place: entry for place, entry in failed.items() if place not in waiting}
    return done, failed


def seconds(time: float, maximum: int) -> int:
    """Round up to whole seconds, as SQS counts, so that no lease is shorter than requested."""
    return min(max(math.ceil(time), 0), maximum)


def _worth_another(entry: Mapping[str, Any]) -> bool:
    return is_passing(entry.get("Code", "")) or entry.get("SenderFault") is False


class Leased:
    """The messages in flight, up to `_REMEMBERED`: SQS cannot move one to the dead-letter queue by its receipt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: OrderedDict[Receipt, Received] = OrderedDict()
        self._bytes = 0

    def add(self, messages: Sequence[Received]) -> None:
        with self._lock:
            for message in messages:
                self._messages[message.receipt] = message
                self._bytes += _weight(message)
            while self._bytes > _REMEMBERED:
                self._bytes -= _weight(self._messages.popitem(last=False)[1])

    def remembered(self, receipts: Sequence[Receipt]) -> dict[Receipt, Received]:
        with self._lock:
            return {receipt: self._messages[receipt] for receipt in receipts if receipt in self._messages}

    def forget(self, receipts: Sequence[Receipt]) -> None:
        with self._lock:
            for receipt in receipts:
                if receipt in self._messages:
                    self._bytes -= _weight(self._messages.pop(receipt))


def _weight(message: Received) -> int:
    return len(message.body) + 1024  # bytes in addition to the body
