"""Azure Storage Queue, over the tests' own server, or over the one that a variable names (integration: Azurite)."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from queue_source.messages import Received
from queue_source.queues import Queue, open_queue
from support.queues.backend import Backend, Clock, RealClock
from support.servers.azure_queue import ACCOUNT, AzureQueueServer
from support.servers.azurite import KEY as AZURITE_KEY

SERVER_URL = os.environ.get("CUESQUEUE_TEST_AZURE_QUEUE_URL", "")
"""Another server that speaks Azure Storage Queue, with the account of Azurite."""

_PACE = 1 / 20  # of waiting: only that takes real time; on another server, of everything
_MANY = 500
_LACKS = {
    "order": "a storage queue promises no order",
    "places": "a storage queue promises no order",
    "groups": "a storage queue has no groups",
    "depth": "a storage queue does not tell leased from delayed messages",
    "large": "a message has at most 64 KB",
}
_names = itertools.count(1)


class ServerClock(Clock):
    """The server's clock, which can jump; what is waited for passes in real time."""

    precision = 2.0

    def __init__(self, server: AzureQueueServer) -> None:
        super().__init__()
        self._server = server
        self._jumped = 0.0

    def __call__(self) -> float:
        return self._jumped + time.monotonic() / _PACE

    def wall(self) -> float:
        return time.time() + self._jumped

    def advance(self, seconds: float) -> None:
        self._server.advance(seconds)
        self._jumped += seconds


class Waiting:
    """A queue whose waiting is on a smaller scale; leases are whole seconds."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        return self._queue.receive(max_messages, lease, wait * _PACE)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()


@dataclass
class AzureBackend(Backend):
    server: AzureQueueServer = field(kw_only=True)

    def open(self) -> Queue:
        waiting: Any = Waiting(open_queue(self.url, **self.options))
        self.views.append(waiting)
        return self.views[-1]

    def open_later(self, seconds: float) -> Queue:
        self.clock.advance(seconds)
        return self.open()


def new_queue(access: dict[str, str]) -> str:
    """The URL of a new queue of the account."""
    url = f"azurequeue://{ACCOUNT}/queue-{os.getpid()}-{next(_names)}"
    with open_queue(url, **access) as queue:
        queue.create()  # type: ignore[attr-defined]
    return url


@contextmanager
def _backend(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
    access = {"endpoint_url": SERVER_URL, "access_key": AZURITE_KEY}
    server: AzureQueueServer | None = None
    if not SERVER_URL:
        server = request.getfixturevalue("azure_queue_server")
        access = server.access
    url = new_queue(access)
    by_option = (url.replace(f"//{ACCOUNT}", "//"), {**access, "account_name": ACCOUNT})
    common: dict[str, Any] = {
        "lacks": _LACKS,
        "options": access,
        "many": _MANY,
        "spellings": [(url.replace(ACCOUNT, ACCOUNT.upper()), access), by_option],
        "another": new_queue(access),
    }
    if server is None:
        yield Backend(url, RealClock(_PACE), **common)
    else:
        yield AzureBackend(url, ServerClock(server), server=server, **common)


BACKENDS = {"azurequeue": _backend}
