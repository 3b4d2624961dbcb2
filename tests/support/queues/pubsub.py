"""Pub/Sub subscriptions: plain, with exactly-once delivery, and with message ordering.

On the tests' own server, which tells them what Pub/Sub does not tell (how many messages there are), and whose clock
jumps when they say so; and on Google's own emulator where one is named.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from queue_source.messages import Received
from queue_source.queues import Capabilities, Depth, Queue, open_queue
from queue_source.queues.pubsub.address import EMULATOR
from support.queues.backend import Backend, Clock, RealClock
from support.servers.pubsub import PubSubServer
from support.servers.pubsub_emulator import VARIABLE

_PACE = 1 / 20  # of waiting: only that takes real time
_OPTIONS = {"shortest_wait": 0.1}
_names = itertools.count(1)

GOOGLE = os.environ.get(VARIABLE, "")
"""`host:port` of a running emulator of Google's."""

_NO_ORDER = "Pub/Sub gives messages without ordering keys in any order"
_NO_COUNT = "Pub/Sub counts deliveries only for subscriptions with a dead-letter policy"
_NO_DEPTH = "Pub/Sub tells no depth"
_NOT_TOLD = "without exactly-once delivery Pub/Sub takes stale receipts in silence"
_PLAIN = {
    "order": _NO_ORDER,
    "places": _NO_ORDER,
    "groups": "without message ordering ordering keys mean nothing",
    "count": _NO_COUNT,
    "stale": _NOT_TOLD,
    "depth": _NO_DEPTH,
}

_GOOGLE = {"unknown": "it refuses the whole request, and does not tell the receipt"}


def _without(lacks: Mapping[str, str], *promises: str) -> Mapping[str, str]:
    return {name: reason for name, reason in lacks.items() if name not in promises}


class ServerClock(Clock):
    """The server's clock, which can jump; what is waited for passes twenty times as fast."""

    precision = 2.0

    def __init__(self, server: PubSubServer) -> None:
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


class Watched:
    """A subscription of which the server tells the depth; waiting is on a smaller scale, leases are whole seconds."""

    def __init__(self, queue: Queue, server: PubSubServer, pace: float) -> None:
        self._queue = queue
        self._server = server
        self._pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        return self._queue.receive(max_messages, lease, wait * self._pace)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._queue.capabilities, reports_depth=True)

    def depth(self) -> Depth:
        return Depth(*self._server.depth(self._queue.name))

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()


@dataclass
class PubSubBackend(Backend):
    server: PubSubServer = field(kw_only=True)

    def open(self) -> Queue:
        return self._open(_PACE, self.options)

    def open_in_real_time(self) -> Queue:
        # there many messages come in one answer, which a busy machine does not give in a tenth of a second
        return self._open(1, {**self.options, "shortest_wait": 1.0})

    def open_later(self, seconds: float) -> Queue:
        self.clock.advance(seconds)
        return self.open()

    def _open(self, pace: float, options: Mapping[str, Any]) -> Queue:
        watched: Any = Watched(open_queue(self.url, **options), self.server, pace)
        self.views.append(watched)
        return self.views[-1]


def _set_up(server: PubSubServer, counts: bool, config: Mapping[str, Any]) -> str:
    """The URL of a new subscription of a new topic."""
    number = f"{os.getpid()}-{next(_names)}"
    topic = server.create_topic("contract", f"topic-{number}")
    if counts:
        dead = server.create_topic("contract", f"dead-{number}")
        config = {**config, "dead_letter_policy": {"dead_letter_topic": dead, "max_delivery_attempts": 100}}
    return server.create_subscription("contract", f"subscription-{number}", topic, **config)


def _names_of(url: str, options: Mapping[str, Any], another: str) -> dict[str, Any]:
    """The other spelling of a subscription's URL: its project is an option."""
    spelling = url.replace("//contract/", "///"), {**options, "project": "contract"}
    return {"spellings": [spelling], "another": another}


@contextmanager
def _emulated(host: str) -> Iterator[None]:
    """Pub/Sub is there, also for the processes that a test starts."""
    before = os.environ.get(EMULATOR)
    os.environ[EMULATOR] = host
    try:
        yield
    finally:
        if before is None:
            del os.environ[EMULATOR]
        else:
            os.environ[EMULATOR] = before


def _backend(
    lacks: Mapping[str, str], *, counts: bool = False, **config: Any
) -> Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Backend]]:
    @contextmanager
    def make(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
        server: PubSubServer = request.getfixturevalue("pubsub_server")
        with _emulated(server.host):
            url = _set_up(server, counts, config)
            names = _names_of(url, _OPTIONS, _set_up(server, counts, config))
            yield PubSubBackend(url, ServerClock(server), lacks=lacks, options=_OPTIONS, server=server, **names)

    return make


def _google(
    lacks: Mapping[str, str], *, counts: bool = False, **config: Any
) -> Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Backend]]:
    @contextmanager
    def make(_: pytest.FixtureRequest, __: Path) -> Iterator[Backend]:
        server = PubSubServer(GOOGLE)
        try:
            with _emulated(GOOGLE):
                url = _set_up(server, counts, config)
                options = {"shortest_wait": 0.5}  # it may answer late, and then a short pull finds nothing
                names = _names_of(url, options, _set_up(server, counts, config))
                yield Backend(url, RealClock(_PACE), lacks={**lacks, **_GOOGLE}, options=options, **names)
        finally:
            server.close()

    return make


BACKENDS = {
    "pubsub": _backend(_PLAIN),
    "pubsub-exactly-once": _backend(_without(_PLAIN, "stale", "count"), counts=True, enable_exactly_once_delivery=True),
    "pubsub-ordered": _backend(_without(_PLAIN, "groups"), enable_message_ordering=True),
}
if GOOGLE:
    BACKENDS |= {
        "google-emulator": _google(_PLAIN),
        "google-emulator-exactly-once": _google(
            _without(_PLAIN, "stale", "count"), counts=True, enable_exactly_once_delivery=True
        ),
        "google-emulator-ordered": _google(_without(_PLAIN, "groups"), enable_message_ordering=True),
    }
