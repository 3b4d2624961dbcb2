"""Amazon SQS, standard and FIFO (boto3); `address.py` connects to it, `messages.py` converts messages.

Used by the reader process (many threads share one client), commands, and sinks on executors.

Receipts: a FIFO queue refuses a receipt whose lease ran out. A standard queue may take an old one for good, so a stale
receipt is reported only where SQS documents an error for it, and nothing may depend on the report.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from queue_source.errors import QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import (
    BaseQueue,
    Kept,
    at_once,
    check_lease,
    convert_each,
    copy_of,
    in_batches,
    is_found,
    peek_by_receiving,
    raise_worst,
)
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.sqs.address import (
    ENDPOINT,
    LONGEST_WAIT,
    Access,
    create,
    error_of,
    is_stale,
    make_client,
    parse_address,
    service_errors,
)
from queue_source.queues.sqs.messages import (
    BATCH,
    LARGEST,
    Answers,
    Attributes,
    ask,
    entry_of,
    received,
    seconds,
    size_of,
)

LONGEST_LEASE = 43_200  # also the longest that one delivery may be held in all
_SLICE = 4  # seconds of one long poll: nothing can interrupt it, and closing should not take long
_MOVING = 30  # seconds in which a message that is copied elsewhere stays ours
_FEW_RECEIVES = 10
_SIDE_BY_SIDE = 8  # batches of one call

logger = logging.getLogger("cuesqueue")


class SqsQueue(BaseQueue):
    """One SQS queue. `access`: the fields of `Access`.

    Nothing is requested before the first use, which reads the URL and the attributes that it needs.
    """

    def __init__(self, url: str, **access: str | None) -> None:
        self._address = parse_address(url)
        super().__init__(self._address.shown, url)
        self._access = Access(**access)
        self._lock = threading.RLock()
        self._made: Any = None
        self._url = self._address.url
        self._set: Attributes | None = None
        self._dead_letter_url: str | None = None
        self._kept = Kept[Received]()

    @property
    def identity(self) -> str:
        """The queue's ARN, or its URL where an emulator has none."""
        return self._attributes().arn or self._queue_url()

    @property
    def capabilities(self) -> Capabilities:
        """What the queue can do; reads its attributes, and warns of a redrive policy that restarts would trigger."""
        return Capabilities(
            max_batch_size=BATCH,
            max_lease=LONGEST_LEASE,
            lease_cap=LONGEST_LEASE,
            ordered_groups=self._address.fifo,
            max_wait=LONGEST_WAIT,
            retention=self._attributes().retention,
        )

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive up to 10 messages, in long polls of a few seconds each; without `wait` SQS may overlook some."""
        client, url = self._client(), self._queue_url()
        keeps = self._attributes().dead_letter is not None
        until = time.monotonic() + wait
        while True:
            remaining = until - time.monotonic()
            with service_errors(self.name):
                started = time.monotonic()
                answer = client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=min(max_messages, BATCH),
                    VisibilityTimeout=seconds(lease, LONGEST_LEASE),
                    WaitTimeSeconds=seconds(remaining, _SLICE),
                    AttributeNames=["SentTimestamp", "ApproximateReceiveCount", "MessageGroupId"],
                    MessageAttributeNames=["All"],
                )
            ends = started + min(lease, LONGEST_LEASE)
            messages = [received(self.name, entry, ends) for entry in answer.get("Messages", [])]
            for message in messages if keeps else ():
                self._kept.keep(message.receipt, ends, len(message.body) + 1024, message)  # bytes besides the body
            if self._closed.is_set():
                self._change([message.receipt for message in messages], 0)
                self._client().close()  # closes the connections that the request opened again
                return []
            if messages or time.monotonic() >= until:
                return messages

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Extend the leases, 10 messages a call; those that SQS has held for 12 hours, its limit, are lost too."""
        check_lease(lease)
        until = time.monotonic() + lease
        stale = self._change(receipts, seconds(lease, LONGEST_LEASE))
        self._kept.extend(receipts, until)
        return stale

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        stale = self._change_each("delete_message_batch", receipts, {})
        self._kept.forget(receipts)
        return stale

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._change(receipts, seconds(delay, LONGEST_LEASE))
        self._kept.forget(receipts)

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Copy to the dead-letter queue of the redrive policy, then delete; without one, only delete.

        Messages that are no longer remembered (`Kept`) become visible again, until the redrive policy moves them.
        """
        if self._attributes().dead_letter is None:
            logger.warning(
                "queue %r has no dead-letter queue: %d message(s) that were rejected are deleted",
                self.name,
                len(receipts),
            )
            self.acknowledge(receipts)
            return
        distinct = dict.fromkeys(receipts)
        stale = self._change(list(distinct), _MOVING)
        mine = [receipt for receipt in distinct if receipt not in stale]
        remembered = self._kept.find(mine)
        if remembered:
            copies = [Outgoing(m.body, m.tag, m.headers, m.group) for m in remembered.values()]
            with self._lock:
                if self._dead_letter_url is None:
                    account, queue = str(self._attributes().dead_letter).split(":")[-2:]
                    with service_errors(f"{self.name} (its dead-letter queue {queue})"):
                        answer = self._client().get_queue_url(QueueName=queue, QueueOwnerAWSAccountId=account)
                    self._dead_letter_url = str(answer["QueueUrl"])
                url = self._dead_letter_url
            self._send_to(url, copies, in_order=True)
            self.acknowledge(list(remembered))
        self.nack([receipt for receipt in mine if receipt not in remembered])

    def republish(self, message: Received) -> bool:
        """Send the copy, then delete the original; a process that dies between the two leaves both."""
        if self._change([message.receipt], _MOVING):
            return False
        self._send([copy_of(message)], in_order=True)
        self.acknowledge([message.receipt])
        return True

    def depth(self) -> Depth:
        """Count the messages, approximately, as SQS does; messages that nack has delayed count as in flight."""
        names = [f"ApproximateNumberOfMessages{ending}" for ending in ("", "NotVisible", "Delayed")]
        answer = self._ask_attributes(names)
        return Depth(*(int(answer.get(name, 0)) for name in names))

    def close(self) -> None:
        """Close the client, which also ends a `receive` in another thread, within the few seconds of its poll."""
        self._closed.set()
        with self._lock:
            if self._made is not None:
                self._made.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return is_found(lambda: self._ask_attributes(["QueueArn"]))

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
        """Delete all messages, also those in flight, and perhaps new ones within the minute that SQS may take."""
        total = self.depth().total
        with service_errors(self.name):
            self._client().purge_queue(QueueUrl=self._queue_url())
        return total

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages; counts as a receive, for the redrive policy too. Ten at most of one FIFO group."""
        return peek_by_receiving(self, max_messages, wait=1)  # a receive that does not wait may overlook messages

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send in batches of 10; where they go out in order, an error says how many messages were sent before it."""
        return self._send_to(self._queue_url(), messages, in_order=in_order)

    def _send_to(self, url: str, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        entries = convert_each(messages, lambda message: entry_of(message, fifo=url.endswith(".fifo")))
        ids: dict[int, str] = {}

        def send(places: range) -> None:
            batch = {place: entries[place] for place in places}
            with service_errors(self.name):
                done, failed = ask(self._client().send_message_batch, url, batch, self._pause)
            ids.update({place: entry["MessageId"] for place, entry in done.items()})
            self._raise(failed, f"{len(ids)} of {len(entries)} messages were sent before this: " if in_order else "")

        batches = in_batches(map(size_of, entries), BATCH, LARGEST)
        if in_order:
            for places in batches:
                send(places)
        else:
            raise_worst(at_once(send, batches, _SIDE_BY_SIDE)[1], "some messages may have been sent before this: ")
        return [ids[place] for place in range(len(entries))]

    def _change(self, receipts: Sequence[Receipt], lease: int) -> set[Receipt]:
        return self._change_each("change_message_visibility_batch", receipts, {"VisibilityTimeout": lease})

    def _change_each(self, operation: str, receipts: Sequence[Receipt], more: Mapping[str, object]) -> set[Receipt]:
        """Ask for each receipt, in batches; return those that are stale as SQS reports."""
        distinct = list(dict.fromkeys(receipt for receipt in receipts if receipt))
        stale = {receipt for receipt in receipts if not receipt}

        def change(places: range) -> None:
            batch = {place: {"ReceiptHandle": distinct[place], **more} for place in places}
            with service_errors(self.name):
                failed = ask(getattr(self._client(), operation), self._queue_url(), batch, self._pause)[1]
            spoiled = {place for place, at in failed.items() if is_stale(at.get("Code", ""), at.get("Message", ""))}
            stale.update(distinct[place] for place in spoiled)
            troubles = {place: entry for place, entry in failed.items() if place not in spoiled}
            self._raise(troubles, f"{len(troubles)} of {len(batch)} messages: ")

        raise_worst(at_once(change, in_batches([0] * len(distinct), BATCH, LARGEST), _SIDE_BY_SIDE)[1], "")
        return stale

    def _raise(self, failed: Answers, before: str) -> None:
        """Raise the worst error of single messages, if there are any."""
        errors = []
        for entry in failed.values():
            error = error_of(self.name, entry.get("Code", ""), entry.get("Message", ""))
            if entry.get("SenderFault") is False and type(error) is QueueError:
                error = QueueUnavailable(self.name, error.problem)
            errors.append(error)
        raise_worst(errors, before)

    def _pause(self, longest: float) -> None:
        self._closed.wait(random.uniform(longest / 2, longest))

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
                self._set = Attributes.of(self._ask_attributes(["All"]))
                most = self._set.max_receives
                if most is not None and most < _FEW_RECEIVES:
                    logger.warning(
                        "queue %r moves a message to its dead-letter queue after %d receives, and each restart of a "
                        "query is one for every message in flight; raise maxReceiveCount of the redrive policy to %d "
                        "or more",
                        self.name,
                        most,
                        _FEW_RECEIVES,
                    )
            return self._set

    def _ask_attributes(self, names: Sequence[str]) -> Mapping[str, str]:
        client, url = self._client(), self._queue_url()
        with service_errors(self.name, client):
            answer: Mapping[str, Any] = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        if "Attributes" not in answer:
            raise QueueError(self.name, f"the answer is none of SQS; {ENDPOINT}")
        attributes: Mapping[str, str] = answer["Attributes"]
        return attributes
