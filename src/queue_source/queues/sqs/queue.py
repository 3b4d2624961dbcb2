"""Amazon SQS, standard and FIFO; `client.py` connects to it, `messages.py` converts messages.

Used by the reader process (many threads share one client), commands, and sinks on executors.

Receipts: a FIFO queue refuses a receipt whose lease ran out. A standard queue may take an old one for good, so a stale
receipt is reported only where SQS documents an error for it, and nothing may depend on the report.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from queue_source.errors import QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, check_lease, convert_each, copy_of, peek_by_receiving
from queue_source.queues.base import Capabilities, Depth, Payload, encode_payloads
from queue_source.queues.log_ids import stamped, stamped_messages
from queue_source.queues.sqs import messages as sqs_messages
from queue_source.queues.sqs.client import (
    LONGEST_WAIT,
    Access,
    create,
    error_of,
    is_passing,
    is_stale,
    make_client,
    parse_address,
    service_errors,
)
from queue_source.queues.sqs.requests import BATCH, Answers, Attributes, Leased, ask, attributes, in_batches, seconds

LONGEST_LEASE = 43_200  # also the longest that one delivery may be held in all
_SLICE = 4  # seconds of one long poll: nothing can interrupt it, and closing should not take long
_MOVING = 30  # seconds in which a message that is copied elsewhere stays ours
_FEW_RECEIVES = 10
_SIDE_BY_SIDE = 8  # batches of one call

logger = logging.getLogger("cuesqueue")
_Result = TypeVar("_Result")


class SqsQueue(BaseQueue):
    """One SQS queue. `access`: the fields of `Access`.

    Nothing is requested before the first use, which reads the URL and the attributes that it needs.
    `log_id_header`: the header (message attribute) that contains the log id, where the URL names one.
    """

    def __init__(self, url: str, **access: str | None) -> None:
        self._address, self.log_id_header = parse_address(url)
        super().__init__(self._address.shown)
        self._access = Access(**access)
        self._lock = threading.RLock()
        self._made: Any = None
        self._url = self._address.url
        self._set: Attributes | None = None
        self._dead_letter_url: str | None = None
        self._leased = Leased()
        self._workers: ThreadPoolExecutor | None = None

    @property
    def identity(self) -> str:
        """The queue's ARN, or its URL where an emulator has none."""
        return self._attributes().arn or self._queue_url()

    @property
    def capabilities(self) -> Capabilities:
        """What the queue can do.

        Reads the queue's attributes at the first use, and warns of a redrive policy that restarts would trigger.
        """
        return Capabilities(
            max_batch_size=BATCH,
            max_lease=LONGEST_LEASE,
            lease_cap=LONGEST_LEASE,
            ordered_groups=self._address.fifo,
            max_wait=LONGEST_WAIT,
            retention=self._attributes().retention,
        )

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive up to 10 messages, in long polls of a few seconds each; without `wait` SQS may overlook some."""
        check_lease(lease)
        until = time.monotonic() + wait
        while max_messages > 0:
            remaining = until - time.monotonic()
            messages = self._poll(min(max_messages, BATCH), lease, seconds(remaining, _SLICE))
            if self._closed.is_set():
                self._change([message.receipt for message in messages], 0)
                self._client().close()  # closes the connections that the request opened again
                return []
            if messages or time.monotonic() >= until:
                return messages
        return []

    def _poll(self, max_messages: int, lease: float, wait: int) -> list[Received]:
        client, url = self._client(), self._queue_url()
        keeps = self._attributes().dead_letter is not None
        started = time.monotonic()
        with service_errors(self.name):
            answer = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=max_messages,
                VisibilityTimeout=seconds(lease, LONGEST_LEASE),
                WaitTimeSeconds=wait,
                AttributeNames=["SentTimestamp", "ApproximateReceiveCount", "MessageGroupId"],
                MessageAttributeNames=["All"],
            )
        until = started + min(lease, LONGEST_LEASE)
        messages = [sqs_messages.received(self.name, entry, until) for entry in answer.get("Messages", [])]
        if keeps:
            self._leased.add(messages)
        return messages

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Extend the leases, with one call for 10 messages.

        Also lost are those that SQS has held for 12 hours, its limit.
        """
        check_lease(lease)
        return self._change(receipts, seconds(lease, LONGEST_LEASE))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        stale = self._change_each("delete_message_batch", receipts, {})
        self._leased.forget(receipts)
        return stale

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._change(receipts, seconds(delay, LONGEST_LEASE))
        self._leased.forget(receipts)

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Copy to the dead-letter queue of the redrive policy, then delete; without one, only delete.

        Messages that are no longer remembered (`Leased`) become visible again, until the redrive policy moves them.
        """
        if self._attributes().dead_letter is None:
            self.acknowledge(receipts)
            return
        distinct = dict.fromkeys(receipts)
        stale = self._change(list(distinct), _MOVING)
        mine = [receipt for receipt in distinct if receipt not in stale]
        remembered = self._leased.remembered(mine)
        if remembered:
            url = self._dead_letter()
            copies = [Outgoing(m.body, m.tag, m.headers, m.group) for m in remembered.values()]
            self._send(url, copies, in_order=True)
            self.acknowledge(list(remembered))
        self.nack([receipt for receipt in mine if receipt not in remembered])

    def republish(self, message: Received) -> bool:
        """Send the copy, then delete the original; a process that dies between the two leaves both."""
        if self._change([message.receipt], _MOVING):
            return False
        self._send(self._queue_url(), [copy_of(message)], in_order=True)
        self.acknowledge([message.receipt])
        return True

    def send(
        self,
        payloads: Sequence[Payload],
        *,
        tag: str = "",
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> list[str]:
        """Send in batches of 10, one after the other: an error says how many messages were sent before it."""
        bodies = encode_payloads(payloads)
        messages = [Outgoing(body, tag, stamped(headers, self.log_id_header), group) for body in bodies]
        return self._send(self._queue_url(), messages, in_order=True) if messages else []

    def send_messages(self, messages: Sequence[Outgoing]) -> list[str]:
        """Send in batches of 10: at the same time where no message has a group, whose order that would break."""
        with_log_id = stamped_messages(messages, self.log_id_header)
        return self._send(self._queue_url(), with_log_id, in_order=any(message.group for message in messages))

    def depth(self) -> Depth:
        """Count the messages, approximately, as SQS does; messages that nack has delayed count as in flight."""
        parts = {"ready": "", "in_flight": "NotVisible", "delayed": "Delayed"}
        names = {part: f"ApproximateNumberOfMessages{ending}" for part, ending in parts.items()}
        answer = self._ask_attributes(list(names.values()))
        return Depth(**{part: int(answer.get(name, 0)) for part, name in names.items()})

    def close(self) -> None:
        """Close the client, which also ends a `receive` in another thread, within the few seconds of its poll."""
        self._closed.set()
        with self._lock:
            if self._workers is not None:
                self._workers.shutdown(wait=False)
            if self._made is not None:
                self._made.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        try:
            self._ask_attributes(["QueueArn"])
        except QueueNotFound:
            return False
        return True

    def create(self) -> None:
        """Create the queue: FIFO where the name says so, 14 days of retention, all else with the defaults of SQS."""
        if not self.exists():
            made = create(self._client(), self._address)
            with self._lock:
                self._url = self._url or made

    def delete(self) -> None:
        """Delete the queue; SQS takes up to a minute for it."""
        with suppress(QueueNotFound), service_errors(self.name):
            self._client().delete_queue(QueueUrl=self._queue_url())
        with self._lock:
            self._url, self._set, self._dead_letter_url = self._address.url, None, None

    def purge(self) -> int:
        """Delete all messages, those in flight too.

        New messages within the minute that SQS may take can be deleted as well.
        """
        total = self.depth().total
        with service_errors(self.name):
            self._client().purge_queue(QueueUrl=self._queue_url())
        return total

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages; counts as a receive, for the redrive policy too.

        Of one FIFO group it shows ten at most.
        """
        return peek_by_receiving(self, max_messages, wait=1)  # a receive that does not wait may overlook messages

    # --- requests ----------------------------------------------------------------------------------------------------

    def _send(self, url: str, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        fifo = url.endswith(".fifo")
        entries = convert_each(messages, lambda message: sqs_messages.entry_of(message, fifo=fifo))

        def ask_for(places: range) -> tuple[Answers, Answers]:
            batch = {place: entries[place] for place in places}
            with service_errors(self.name):
                return ask(self._client().send_message_batch, url, batch, self._pause)

        batches = list(in_batches([sqs_messages.size_of(entry) for entry in entries]))
        ids: list[str] = []
        for places, (done, failed) in zip(
            batches, map(ask_for, batches) if in_order else self._at_once(ask_for, batches), strict=True
        ):
            if failed:
                self._raise(failed, f"{len(ids) + len(done)} of {len(entries)} messages were sent before this: ")
            ids += [done[place]["MessageId"] for place in places]
        return ids

    def _change(self, receipts: Sequence[Receipt], lease: int) -> set[Receipt]:
        return self._change_each("change_message_visibility_batch", receipts, {"VisibilityTimeout": lease})

    def _change_each(self, operation: str, receipts: Sequence[Receipt], more: Mapping[str, object]) -> set[Receipt]:
        """Ask for each receipt, in batches; return those that are stale as SQS reports."""
        distinct = list(dict.fromkeys(receipt for receipt in receipts if receipt))
        stale = {receipt for receipt in receipts if not receipt}
        troubles: Answers = {}

        def change(places: range) -> Answers:
            batch = {place: {"ReceiptHandle": distinct[place], **more} for place in places}
            with service_errors(self.name):
                return ask(getattr(self._client(), operation), self._queue_url(), batch, self._pause)[1]

        for failed in self._at_once(change, list(in_batches([0] * len(distinct)))):
            for place, entry in failed.items():
                if is_stale(entry.get("Code", ""), entry.get("Message", "")):
                    stale.add(distinct[place])
                else:
                    troubles[place] = entry
        if troubles:  # raised at the end: the other batches are no worse for it
            self._raise(troubles, f"{len(troubles)} of {len(distinct)} messages: ")
        return stale

    def _at_once(self, work: Callable[[range], _Result], batches: Sequence[range]) -> Iterable[_Result]:
        """Send several batches at the same time: each call is mostly waiting for SQS."""
        if len(batches) < 2:
            return map(work, batches)
        with self._lock:
            if self._closed.is_set():
                return map(work, batches)
            self._workers = self._workers or ThreadPoolExecutor(_SIDE_BY_SIDE, "cuesqueue-sqs")
            return self._workers.map(work, batches)

    def _raise(self, failed: Answers, before: str) -> None:
        """Raise the worst error of single messages: first one that waiting does not solve."""
        worst = min(failed.values(), key=lambda entry: is_passing(entry.get("Code", "")))
        error = error_of(self.name, worst.get("Code", ""), worst.get("Message", ""))
        if worst.get("SenderFault") is False and type(error) is QueueError:
            raise QueueUnavailable(self.name, before + error.problem)
        raise type(error)(self.name, before + error.problem)

    def _pause(self, longest: float) -> None:
        self._closed.wait(random.uniform(longest / 2, longest))

    # --- what is read once -------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._refuse_closed()
                self._made = make_client(self._address, self._access)
            return self._made

    def _queue_url(self) -> str:
        with self._lock:
            if self._url is None:
                client = self._client()
                with service_errors(self.name, client):
                    self._url = str(client.get_queue_url(QueueName=self._address.queue)["QueueUrl"])
            return self._url

    def _attributes(self) -> Attributes:
        with self._lock:
            if self._set is None:
                answer = attributes(self._ask_attributes(["All"]))
                self._warn(answer)
                self._set = answer
            return self._set

    def _warn(self, queue_attributes: Attributes) -> None:
        if queue_attributes.dead_letter is None:
            logger.warning("queue %r has no dead-letter queue: rejected messages are deleted", self.name)
        elif queue_attributes.max_receives is not None and queue_attributes.max_receives < _FEW_RECEIVES:
            logger.warning(
                "queue %r moves a message to its dead-letter queue after %d receives, and each restart of a query is "
                "one for every message in flight; raise maxReceiveCount of the redrive policy to %d or more",
                self.name,
                queue_attributes.max_receives,
                _FEW_RECEIVES,
            )

    def _ask_attributes(self, names: Sequence[str]) -> Mapping[str, str]:
        client, url = self._client(), self._queue_url()
        with service_errors(self.name, client):
            answer: Mapping[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return answer

    def _dead_letter(self) -> str:
        """Return the URL of the dead-letter queue, from its ARN."""
        with self._lock:
            if self._dead_letter_url is None:
                account, queue = str(self._attributes().dead_letter).split(":")[-2:]
                with service_errors(f"{self.name} (its dead-letter queue {queue})"):
                    answer = self._client().get_queue_url(QueueName=queue, QueueOwnerAWSAccountId=account)
                self._dead_letter_url = str(answer["QueueUrl"])
            return self._dead_letter_url
