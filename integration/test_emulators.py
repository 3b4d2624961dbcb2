"""What the emulators of SQS that people try a pipeline with do with messages: which of them a page may name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest

from support.servers.ministack import REGION, client, ministack_server, new_queue


def test_moto_loses_a_message_that_is_sent_while_two_others_are_deleted() -> None:
    """Without a lock it makes the list of messages anew: no run on it proves that nothing is lost."""
    models = pytest.importorskip("moto.sqs.models")
    backend = models.sqs_backends["123456789012"][REGION]
    queue = backend.create_queue("q", {})
    for body in ("first", "second"):
        backend.send_message("q", body)
    first, second = backend.receive_message("q", 10, 0, 30)
    usual: Callable[..., bool] = models.Message.had_receipt_handle
    meanwhile: Iterator[Callable[[], Any]] = iter(
        [lambda: None, lambda: None, lambda: backend.delete_message("q", second.receipt_handle),
         lambda: backend.send_message("q", "third")]
    )  # fmt: skip
    inside = False

    def as_other_requests_run(message: Any, handle: str) -> bool:
        nonlocal inside
        if not inside:
            inside = True
            next(meanwhile, lambda: None)()
            inside = False
        return usual(message, handle)

    with patch.object(models.Message, "had_receipt_handle", as_other_requests_run):
        backend.delete_message("q", first.receipt_handle)
    assert [message.body for message in queue._messages] == ["second"], "the third is gone, and a deleted one is there"


def test_ministack_loses_no_message_that_is_sent_while_others_are_deleted() -> None:
    with ministack_server() as server, closing(client(server, "sqs")) as sqs, ThreadPoolExecutor(8) as threads:
        url = new_queue(server)

        def send(number: int) -> list[str]:
            bodies = [f"{number}-{place}" for place in range(200)]
            for at in range(0, len(bodies), 10):
                some = [{"Id": body, "MessageBody": body} for body in bodies[at : at + 10]]
                sqs.send_message_batch(QueueUrl=url, Entries=some)
            return bodies

        def receive(_: int) -> list[str]:
            bodies, empty = list[str](), 0
            while empty < 3:
                messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages")
                empty = 0 if messages else empty + 1
                for message in messages or ():
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    bodies.append(message["Body"])
            return bodies

        received = [threads.submit(receive, number) for number in range(4)]
        sent = [body for bodies in threads.map(send, range(4)) for body in bodies]
        assert sorted(body for one in received for body in one.result()) == sorted(sent)
