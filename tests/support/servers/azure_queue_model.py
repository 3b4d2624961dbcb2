"""What a storage account does with queues, without HTTP: messages, visibility, pop receipts, expiry.

As Microsoft documents it: https://learn.microsoft.com/rest/api/storageservices/queue-service-rest-api.
"""

from __future__ import annotations

import base64
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

LARGEST_PAGE = 32
LARGEST_TEXT = 64 << 10
LONGEST = 7 * 86_400


class Refused(Exception):
    """The answer to a request that cannot be served: its status and its code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status, self.code = status, code


@dataclass
class Message:
    text: str
    inserted: float
    visible: float
    expires: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    count: int = 0
    pop_receipt: str = ""


class Account:
    """The queues of one account. `clock` gives seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[str, dict[str, Message]] = {}  # in the order of their sending
        self._soonest: dict[str, float] = {}  # when the next message of a queue expires
        self._numbers = itertools.count(1)

    # --- queues ------------------------------------------------------------------------------------------------------

    def create(self, name: str) -> int:
        """The status: 204 where it was there."""
        if name in self._queues:
            return 204
        self._queues[name] = {}
        return 201

    def delete(self, name: str) -> None:
        self._messages(name)
        del self._queues[name]

    def clear(self, name: str) -> None:
        self._messages(name).clear()

    def count(self, name: str) -> int:
        return len(self._messages(name))

    # --- messages ----------------------------------------------------------------------------------------------------

    def put(self, name: str, text: str, seconds: int = 0, life: int = LONGEST) -> Message:
        messages = self._messages(name)
        if len(text.encode()) > LARGEST_TEXT:
            raise Refused(413, "RequestBodyTooLarge")
        now = self._clock()
        expires = float("inf") if life == -1 else now + life
        message = Message(text, now, now + seconds, expires)
        message.pop_receipt = self._new_receipt()
        messages[message.id] = message
        self._soonest[name] = min(expires, self._soonest.get(name, expires))
        return message

    def get(self, name: str, most: int, seconds: int) -> list[Message]:
        self._check(seconds, at_least=1)
        taken = self.peek(name, most)
        now = self._clock()
        for message in taken:
            message.count += 1
            message.visible = now + seconds
            message.pop_receipt = self._new_receipt()
        return taken

    def peek(self, name: str, most: int) -> list[Message]:
        if not 1 <= most <= LARGEST_PAGE:
            raise Refused(400, "OutOfRangeQueryParameterValue")
        now = self._clock()
        visible = (message for message in self._messages(name).values() if message.visible <= now)
        return list(itertools.islice(visible, most))

    def update(self, name: str, message_id: str, pop_receipt: str, seconds: int, text: str | None) -> Message:
        self._check(seconds, at_least=0)
        message = self._held(name, message_id, pop_receipt)
        now = self._clock()
        if now + seconds > message.expires:
            raise Refused(400, "OutOfRangeQueryParameterValue")
        message.text = message.text if text is None else text
        message.visible = now + seconds
        message.pop_receipt = self._new_receipt()
        return message

    def remove(self, name: str, message_id: str, pop_receipt: str) -> None:
        del self._messages(name)[self._held(name, message_id, pop_receipt).id]

    # --- the small parts ---------------------------------------------------------------------------------------------

    def _held(self, name: str, message_id: str, pop_receipt: str) -> Message:
        message = self._messages(name).get(message_id)
        if message is None:
            raise Refused(404, "MessageNotFound")
        if message.pop_receipt != pop_receipt:
            raise Refused(400, "PopReceiptMismatch")
        return message

    def _messages(self, name: str) -> dict[str, Message]:
        messages = self._queues.get(name)
        if messages is None:
            raise Refused(404, "QueueNotFound")
        now = self._clock()
        if self._soonest.get(name, now + 1) <= now:
            for expired in [message.id for message in messages.values() if message.expires <= now]:
                del messages[expired]
            self._soonest[name] = min((message.expires for message in messages.values()), default=float("inf"))
        return messages

    def _check(self, seconds: int, at_least: Literal[0, 1]) -> None:
        if not at_least <= seconds <= LONGEST:
            raise Refused(400, "OutOfRangeQueryParameterValue")

    def _new_receipt(self) -> str:
        """A text with characters that a URL has to encode, as the service's have."""
        return base64.b64encode(b"\xfb\xef\xbe" + next(self._numbers).to_bytes(8, "big")).decode()
