"""Azure Storage Queue (azure-storage-queue); `address.py` connects to it (`transport.py`: over HTTP), `messages.py`
converts messages.

Used by the reader process (many threads share one client), commands, and sinks on executors.

The service has no request for many messages and no receive that waits: requests for single messages go out side by
side, and an empty queue is asked again after growing pauses. Each extension gives a lease another receipt: callers have
receipts of ours, and `Leases` knows the service's own.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, at_once, check_lease, convert_each, copy_of, is_found, raise_worst
from queue_source.queues.azurequeue.address import (
    Access,
    error_code,
    is_stale,
    make_client,
    make_credential,
    new_session,
    parse_address,
    service_errors,
)
from queue_source.queues.azurequeue.messages import Encoding, content_of, text_of
from queue_source.queues.base import Capabilities, Depth

LARGEST_PAGE = 32
LONGEST_LEASE = 7 * 86_400
_MOVING = 30  # seconds in which a message that is copied elsewhere stays ours
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between receives of an empty queue
_SIDE_BY_SIDE = 16  # requests of one call
_ONCE = {"retry_total": 0}
"""A deletion or an extension whose answer is lost has spent its receipt: the client's own retry would find it stale."""

_RECEIPT = re.compile(r"([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})/([\w+/=.%-]+)", re.ASCII)
_KEPT_SECONDS = 600.0  # beyond its end: then a lease is given up for lost, or its message is done


class AzureQueue(BaseQueue):
    """One queue of a storage account. `access`: the fields of `Access`; `message_encoding`: a value of `Encoding`.

    Nothing is requested before the first use.
    """

    def __init__(self, url: str, *, message_encoding: str = "auto", **access: str | None) -> None:
        try:
            self._encoding = Encoding(message_encoding)
        except ValueError:
            raise QueueConfigurationError(url, f"message encoding {message_encoding!r} is unknown") from None
        self._address, self._access = parse_address(url, Access(**access))
        super().__init__(self._address.name, url)
        self._lock = threading.Lock()
        self._made: QueueClient | None = None
        self._credential: Any = None
        self._session = new_session()
        self._leases = Leases()

    @property
    def capabilities(self) -> Capabilities:
        """What every queue of a storage account can do; nothing is requested."""
        return Capabilities(max_batch_size=LARGEST_PAGE, max_lease=LONGEST_LEASE)

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive up to 32 messages; an empty queue is asked again after pauses of up to a second."""
        until = time.monotonic() + wait
        pause = _FIRST_PAUSE
        while True:
            started = time.monotonic()
            client, size = self._client(), min(max_messages, LARGEST_PAGE)
            with service_errors(self.name):
                pages = client.receive_messages(messages_per_page=size, visibility_timeout=max(1, _whole(lease)))
                page: list[Any] = list(next(pages.by_page(), ()))
                if self._closed.is_set():
                    with self._session:  # its connections were opened again
                        for message in page:
                            client.update_message(message.id, message.pop_receipt, visibility_timeout=0, **_ONCE)
                    page = []
            remaining = until - time.monotonic()
            if page or remaining <= 0 or self._closed.wait(min(pause, remaining)):
                ends = started + min(lease, LONGEST_LEASE)
                return [self._received(m, self._leases.add(m.id, m.pop_receipt, ends), ends) for m in page]
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _received(self, message: Any, receipt: Receipt, until: float) -> Received:
        content = content_of(message.content or "", self._encoding)
        return Received(
            queue=self.name,
            message_id=message.id,
            receipt=receipt,
            body=content.body,
            receive_count=message.dequeue_count,
            lease_until=until,
            sent_at=message.inserted_on.timestamp(),
            tag=content.tag,
            headers=content.headers,
        )

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        check_lease(lease)
        return self._change(receipts, max(1, _whole(lease)), ends=False)

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        def delete(receipt: Receipt, lease: Lease) -> None:
            self._client().delete_message(lease.message_id, lease.pop_receipt, **_ONCE)
            self._leases.end(receipt, lease)

        return self._for_each(receipts, delete)

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        self._change(receipts, _whole(max(delay, 0.0)), ends=True)

    def republish(self, message: Received) -> bool:
        """Send the copy, then delete the original; a process that dies between the two leaves both."""
        copy = text_of(copy_of(message), self._encoding)
        if self._change([message.receipt], _MOVING, ends=False):
            return False
        self._send_one(copy)
        self.acknowledge([message.receipt])
        return True

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send one after the other, or several at the same time; an error says how many were sent, or were not."""
        texts = convert_each(messages, lambda message: text_of(message, self._encoding))
        ids: list[str] = []
        if not in_order:
            ids, errors = at_once(self._send_one, texts, _SIDE_BY_SIDE)
            raise_worst(errors, f"{len(errors)} of {len(texts)} messages were not sent: ")
        for text in texts if in_order else ():
            try:
                ids.append(self._send_one(text))
            except QueueError as error:
                raise_worst([error], f"{len(ids)} of {len(texts)} messages were sent before this: ")
        return ids

    def _send_one(self, text: str) -> str:
        with service_errors(self.name):
            return str(self._client().send_message(text, time_to_live=-1).id)  # without it, a week

    def depth(self) -> Depth:
        """Count the messages: exactly while fewer than 32 are visible; else those are in flight that this object holds.

        The service counts all messages together, visible or not.
        """
        with service_errors(self.name):
            visible = len(self._client().peek_messages(max_messages=LARGEST_PAGE))
        total = int(self._properties().approximate_message_count or 0)
        ready = visible if visible < LARGEST_PAGE else max(visible, total - len(self._leases))
        return Depth(ready, max(0, total - ready))

    def _properties(self) -> Any:
        with service_errors(self.name):
            return self._client().get_queue_properties()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._session.close()
            if hasattr(self._credential, "close"):
                self._credential.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return is_found(self._properties)

    def create(self) -> None:
        with service_errors(self.name):
            try:
                self._client().create_queue()
            except HttpResponseError as error:
                if error_code(error) != "QueueAlreadyExists":
                    raise

    def delete(self) -> None:
        """Delete the queue; the service takes up to a minute for it."""
        with suppress(QueueNotFound), service_errors(self.name):
            self._client().delete_queue()

    def purge(self) -> int:
        total = self.depth().total
        with service_errors(self.name):
            self._client().clear_messages()
        return total

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages, 32 at most; the service shows no more to those who do not take them."""
        if max_messages <= 0:
            return []
        with service_errors(self.name):
            messages = self._client().peek_messages(max_messages=min(max_messages, LARGEST_PAGE))
        return [self._received(message, Receipt(""), 0.0) for message in messages]

    def _change(self, receipts: Sequence[Receipt], seconds: int, *, ends: bool) -> set[Receipt]:
        """Let the leases end in so many seconds; `ends`: they are ours no longer. Returns those that were stale."""

        def update(receipt: Receipt, lease: Lease) -> None:
            started = time.monotonic()
            message = self._client().update_message(
                lease.message_id, lease.pop_receipt, visibility_timeout=seconds, **_ONCE
            )
            if ends:
                self._leases.end(receipt, lease)
            else:
                self._leases.extend(receipt, lease, str(message.pop_receipt), started + seconds)

        return self._for_each(receipts, update)

    def _for_each(self, receipts: Sequence[Receipt], request: Callable[[Receipt, Lease], None]) -> set[Receipt]:
        """Make one request for each receipt, several at the same time; return those that are stale."""
        leases = self._leases.find(receipts)
        stale = set(receipts) - leases.keys()

        def change(item: tuple[Receipt, Lease]) -> None:
            receipt, lease = item
            with lease.lock:
                if lease.is_over:
                    stale.add(receipt)
                    return
                with service_errors(self.name):
                    try:
                        request(receipt, lease)
                    except HttpResponseError as error:
                        if not is_stale(error):
                            raise
                        self._leases.end(receipt, lease)
                        stale.add(receipt)

        errors = at_once(change, list(leases.items()), _SIDE_BY_SIDE)[1]
        raise_worst(errors, f"{len(errors)} of {len(leases)} messages were not changed: ")
        return stale

    def _client(self) -> QueueClient:
        with self._lock:
            self._refuse_closed()
            if self._made is None:
                with service_errors(self.name):
                    self._credential = make_credential(self._address, self._access)
                    self._made = make_client(self._address, self._credential, self._session)
            return self._made


def _whole(seconds: float) -> int:
    """Round up to whole seconds, as the service counts, so that no lease is shorter than requested."""
    return min(math.ceil(seconds), LONGEST_LEASE)


@dataclass(slots=True, eq=False)
class Lease:
    """One delivery of a message: `pop_receipt` is valid for the next request, and another after it.

    Hold `lock` from reading it to writing the next one: an acknowledgement waits for an extension that is under way.
    `is_over`: it was ended by us, or found lost.
    """

    message_id: str
    pop_receipt: str
    until: float
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Leases:
    """The deliveries in flight. A receipt that is not here, such as one of an earlier process, has its first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: OrderedDict[Receipt, Lease] = OrderedDict()  # about in the order of their ends

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, message_id: str, pop_receipt: str, until: float) -> Receipt:
        """Note a delivery; return the receipt that names it for as long as it lasts."""
        receipt = Receipt(f"{message_id}/{pop_receipt}")
        with self._lock:
            self._leases[receipt] = Lease(message_id, pop_receipt, until)
        return receipt

    def find(self, receipts: Sequence[Receipt]) -> dict[Receipt, Lease]:
        """Return the leases of receipts, each once; those that are the receipts of no message are left out."""
        with self._lock:
            now = time.monotonic()
            while self._leases and next(iter(self._leases.values())).until + _KEPT_SECONDS <= now:
                self._leases.popitem(last=False)
            leases = {receipt: self._leases[receipt] for receipt in receipts if receipt in self._leases}
        matches = {receipt: _RECEIPT.fullmatch(receipt) for receipt in receipts if receipt not in leases}
        return leases | {receipt: Lease(parts[1], parts[2], 0.0) for receipt, parts in matches.items() if parts}

    def extend(self, receipt: Receipt, lease: Lease, pop_receipt: str, until: float) -> None:
        """Note the next receipt of a lease, whose lock the caller holds."""
        lease.pop_receipt, lease.until = pop_receipt, until
        with self._lock:
            self._leases[receipt] = lease
            self._leases.move_to_end(receipt)

    def end(self, receipt: Receipt, lease: Lease) -> None:
        """Forget a lease, whose lock the caller holds: it is lost, given back, or its message is done."""
        lease.is_over = True
        with self._lock:
            if self._leases.get(receipt) is lease:
                del self._leases[receipt]
