"""Azure Storage Queue; `access.py` connects to it, `messages.py` converts messages, `leases.py` follows receipts.

Used by the reader process (many threads share one client), commands, and sinks on executors.

The service has no request for many messages and no receive that waits: requests for single messages go out side by
side, and an empty queue is asked again after growing pauses.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, check_lease, convert_each, copy_of
from queue_source.queues.azurequeue.access import Access, make_client, make_credential, new_session, parse_address
from queue_source.queues.azurequeue.errors import error_code, is_stale, service_errors
from queue_source.queues.azurequeue.leases import Lease, Leases
from queue_source.queues.azurequeue.messages import Encoding, content_of, text_of
from queue_source.queues.base import Capabilities, Depth, Payload, encode_payloads
from queue_source.queues.log_ids import stamped_messages

LARGEST_PAGE = 32
LONGEST_LEASE = 7 * 86_400
_MOVING = 30  # seconds in which a message that is copied elsewhere stays ours
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between receives of an empty queue
_SIDE_BY_SIDE = 16  # requests of one call
_ONCE = {"retry_total": 0}
"""A deletion or an extension whose answer is lost has spent its receipt: the client's own retry would find it stale."""

_Item = TypeVar("_Item")


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
        super().__init__(self._address.name)
        self.log_id_header = self._address.log_id_header
        self._lock = threading.Lock()
        self._made: QueueClient | None = None
        self._credential: Any = None
        self._session = new_session()
        self._leases = Leases()

    @property
    def capabilities(self) -> Capabilities:
        """What every queue of a storage account can do; nothing is requested."""
        return Capabilities(max_batch_size=LARGEST_PAGE, max_lease=LONGEST_LEASE)

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Receive up to 32 messages; an empty queue is asked again after pauses of up to a second."""
        check_lease(lease)
        until = time.monotonic() + wait
        pause = _FIRST_PAUSE
        while max_messages > 0:
            started = time.monotonic()
            page = self._page(min(max_messages, LARGEST_PAGE), max(1, _whole(lease)))
            remaining = until - time.monotonic()
            if page or remaining <= 0 or self._closed.wait(min(pause, remaining)):
                return [self._received(message, started + min(lease, LONGEST_LEASE)) for message in page]
            pause = min(2 * pause, _LONGEST_PAUSE)
        return []

    def _page(self, max_messages: int, seconds: int) -> list[Any]:
        """Make one request; messages that come after the queue was closed are given back at once."""
        client = self._client()
        with service_errors(self.name):
            pages = client.receive_messages(messages_per_page=max_messages, visibility_timeout=seconds)
            page = list(next(pages.by_page(), ()))
            if self._closed.is_set():
                with self._session:  # its connections were opened again
                    for message in page:
                        client.update_message(message.id, message.pop_receipt, visibility_timeout=0, **_ONCE)
                return []
        return page

    def _received(self, message: Any, until: float) -> Received:
        content = content_of(message.content or "", self._encoding)
        return Received(
            queue=self.name,
            message_id=message.id,
            receipt=self._leases.add(message.id, message.pop_receipt, until),
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

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Delete the messages: a storage queue has no dead-letter queue."""
        self.acknowledge(receipts)

    def republish(self, message: Received) -> bool:
        """Send the copy, then delete the original; a process that dies between the two leaves both."""
        copy = text_of(copy_of(message), self._encoding)
        if self._change([message.receipt], _MOVING, ends=False):
            return False
        self._send_one(copy)
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
        """Send one after the other: an error says how many messages were sent before it."""
        messages = [Outgoing(body, tag, headers or {}) for body in encode_payloads(payloads)]
        stamped = stamped_messages(messages, self.log_id_header)
        texts = convert_each(stamped, lambda message: text_of(message, self._encoding))
        ids: list[str] = []
        for text in texts:
            try:
                ids.append(self._send_one(text))
            except QueueError as error:
                problem = f"{len(ids)} of {len(texts)} messages were sent before this: {error.problem}"
                raise type(error)(self.name, problem) from None
        return ids

    def send_messages(self, messages: Sequence[Outgoing]) -> list[str]:
        """Send several at the same time: a storage queue promises no order."""
        stamped = stamped_messages(messages, self.log_id_header)
        texts = convert_each(stamped, lambda message: text_of(message, self._encoding))
        ids: dict[int, str] = {}

        def send(place: int) -> None:
            ids[place] = self._send_one(texts[place])

        self._at_once(send, range(len(texts)), "sent")
        return [ids[place] for place in range(len(texts))]

    def _send_one(self, text: str) -> str:
        with service_errors(self.name):
            return str(self._client().send_message(text, time_to_live=-1).id)  # without it, a week

    def depth(self) -> Depth:
        """Count the messages: exactly while fewer than 32 are visible; else those are in flight that this object holds.

        The service counts all messages together, visible or not.
        """
        with service_errors(self.name):
            visible = len(self._client().peek_messages(max_messages=LARGEST_PAGE))
            total = int(self._client().get_queue_properties().approximate_message_count or 0)
        ready = visible if visible < LARGEST_PAGE else max(visible, total - len(self._leases))
        return Depth(ready, max(0, total - ready))

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._session.close()
            if hasattr(self._credential, "close"):
                self._credential.close()

    # --- for people and commands -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        try:
            with service_errors(self.name):
                self._client().get_queue_properties()
        except QueueNotFound:
            return False
        return True

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
        return [self._peeked(message) for message in messages]

    def _peeked(self, message: Any) -> Received:
        content = content_of(message.content or "", self._encoding)
        return Received(
            queue=self.name,
            message_id=message.id,
            receipt=Receipt(""),
            body=content.body,
            receive_count=message.dequeue_count,
            lease_until=0.0,
            sent_at=message.inserted_on.timestamp(),
            tag=content.tag,
            headers=content.headers,
        )

    # --- requests ----------------------------------------------------------------------------------------------------

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

        self._at_once(change, list(leases.items()), "changed")
        return stale

    def _at_once(self, work: Callable[[_Item], None], items: Sequence[_Item], done: str) -> None:
        """Work on all items, several at the same time; raise the worst error at the end.

        The other items are no worse for an error.
        """

        def attempt(item: _Item) -> QueueError | None:
            try:
                work(item)
            except QueueError as error:
                return error
            return None

        with ThreadPoolExecutor(_SIDE_BY_SIDE, "cuesqueue-azure-queue") as threads:
            errors = [error for error in threads.map(attempt, items) if error is not None]
        if errors:
            worst = min(errors, key=lambda error: isinstance(error, QueueUnavailable))
            problem = f"{len(errors)} of {len(items)} messages were not {done}: {worst.problem}"
            raise type(worst)(self.name, problem)

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
