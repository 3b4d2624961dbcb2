"""SQS's adapter without a service: what closing and failures do to calls that are under way."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import pytest

from queue_source.errors import QueueUnavailable
from queue_source.messages import Receipt
from queue_source.queues.sqs import SqsQueue

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/files"
DEAD = "arn:aws:sqs:eu-west-1:123456789012:dead"


class Service:
    """Takes the place of boto3's client: one queue with a dead-letter queue."""

    def __init__(self, waiting: int) -> None:
        self._bodies = [f"m{number}" for number in range(waiting)]
        self.copied: list[str] = []
        self.deleted: list[str] = []
        self.shown: list[str] = []
        self.full = False

    def get_queue_attributes(self, **_: object) -> dict[str, Any]:
        return {"Attributes": {"RedrivePolicy": f'{{"deadLetterTargetArn": "{DEAD}", "maxReceiveCount": 20}}'}}

    def get_queue_url(self, QueueName: str, **_: object) -> dict[str, str]:
        return {"QueueUrl": f"{URL}-{QueueName}"}

    def receive_message(self, MaxNumberOfMessages: int, **_: object) -> dict[str, Any]:
        taken, self._bodies = self._bodies[:MaxNumberOfMessages], self._bodies[MaxNumberOfMessages:]
        return {"Messages": [{"MessageId": body, "ReceiptHandle": body, "Body": body} for body in taken]}

    def change_message_visibility_batch(self, Entries: list[dict[str, Any]], **_: object) -> dict[str, Any]:
        self.shown += [entry["ReceiptHandle"] for entry in Entries if entry["VisibilityTimeout"] == 0]
        return {"Successful": Entries}

    def delete_message_batch(self, Entries: list[dict[str, Any]], **_: object) -> dict[str, Any]:
        self.deleted += [entry["ReceiptHandle"] for entry in Entries]
        return {"Successful": Entries}

    def send_message_batch(self, Entries: list[dict[str, Any]], **_: object) -> dict[str, Any]:
        if self.full:
            failed = [{"Id": entry["Id"], "Code": "OverLimit", "SenderFault": False} for entry in Entries]
            return {"Failed": failed}
        self.copied += [entry["MessageBody"] for entry in Entries]
        return {"Successful": [{"Id": entry["Id"], "MessageId": "new"} for entry in Entries]}

    def close(self) -> None:
        """Nothing is open."""


def opened(service: Service) -> SqsQueue:
    queue = SqsQueue(URL)
    queue._made = service
    queue._pause = lambda longest: None  # type: ignore[method-assign]
    return queue


def taken(queue: SqsQueue, count: int) -> list[Receipt]:
    receipts: list[Receipt] = []
    while len(receipts) < count:
        receipts += [message.receipt for message in queue.receive(10, 30, 0)]
    return receipts


def test_a_rejection_that_fails_can_be_tried_again_and_moves_every_message_to_the_dead_letter_queue() -> None:
    service = Service(waiting=3)
    with opened(service) as queue:
        receipts = taken(queue, 3)
        service.full = True
        with pytest.raises(QueueUnavailable):
            queue.reject(receipts)
        service.full = False
        queue.reject(receipts)
    assert (service.copied, service.deleted, service.shown) == (receipts, receipts, [])


class ClosesFirst:
    """A lock before which another thread closes the queue."""

    def __init__(self, queue: SqsQueue) -> None:
        self._lock, self._queue, self._first = threading.RLock(), queue, True

    def __enter__(self) -> None:
        if self._first:
            self._first = False
            self._queue.close()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def test_a_queue_that_is_closed_while_batches_are_about_to_go_out_lets_them_go() -> None:
    service = Service(waiting=30)
    with opened(service) as queue:
        receipts = taken(queue, 30)
        queue.nack(receipts)  # its threads are there now
        queue._lock = ClosesFirst(queue)  # type: ignore[assignment]
        assert queue.acknowledge(receipts) == set()
    assert service.deleted == receipts
