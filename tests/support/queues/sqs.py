"""Amazon SQS, standard and FIFO, over a server that the tests start, or over the one that a variable names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from support.queues.backend import Backend, RealClock
from support.servers.ministack import KEYS, REGION, new_queue

SERVER_URL = os.environ.get("CUESQUEUE_TEST_SQS_URL", "")
"""Another server that speaks SQS: integration runs the contract over moto."""
EVERYTHING = bool(SERVER_URL) or os.environ.get("CUESQUEUE_TEST_SQS") == "everything"
"""Whether the tests that take long run too."""

_PACE = 1 / 20  # SQS counts in whole seconds
_MANY = 500

_STALE = "SQS may take an old receipt for a good one; test_sqs_queue.py has what it documents"
_DEPTH = "SQS says that its counts are approximate, and counts messages given back with a delay as in flight"
_STANDARD = {
    "order": "a standard queue keeps no order",
    "places": "a standard queue keeps no order",
    "groups": "a standard queue uses groups for fairness only",
    "stale": _STALE,
    "depth": _DEPTH,
}
_FIFO = {"order": "a FIFO queue keeps order within a group only", "stale": _STALE, "depth": _DEPTH}
_SHORT = {"expiry": "real time passes in these tests: leases of FIFO queues are left to integration"}
# its receive takes no lock, and a waiting one does not see which groups others have leased since it began
_MOTO = {"exclusive": "moto gives out a leased message, or a later one of its group, when many consumers ask at once"}
_MOTO_FIFO = {**_MOTO, "delay": "moto mixes up a group that was given back with a delay"}


def _backend(*, fifo: bool) -> Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Backend]]:
    @contextmanager
    def backend(request: pytest.FixtureRequest, _: Path) -> Iterator[Backend]:
        server = SERVER_URL or request.getfixturevalue("ministack_url")
        lacks = {**(_FIFO if fifo else _STANDARD), **(_SHORT if fifo and not EVERYTHING else {})}
        if SERVER_URL:
            lacks |= _MOTO_FIFO if fifo else _MOTO
        url = new_queue(server, fifo=fifo)
        by_name = (f"sqs://{url.rpartition('/')[2]}", {**KEYS, "endpoint_url": server, "region": REGION})
        yield Backend(
            url,
            RealClock(_PACE),
            lacks=lacks,
            options=KEYS,
            many=100 if SERVER_URL else _MANY,
            spellings=[by_name, (url.replace("127.0.0.1", "localhost"), KEYS)],
            another=new_queue(server, fifo=fifo),
        )

    return backend


BACKENDS = {"sqs": _backend(fifo=False), "sqs-fifo": _backend(fifo=True)}
