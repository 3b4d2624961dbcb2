"""RabbitMQ, where CUESQUEUE_TEST_AMQP_URL names a broker whose user may configure everything.

A classic and a quorum queue: two implementations on the broker's side. A second of the tests is 20 ms.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from support.queues.backend import Backend, RealClock

URL = os.environ.get("CUESQUEUE_TEST_AMQP_URL", "")
"""As amqp://USER:PASSWORD@HOST:PORT/VHOST; PyPI has no broker, so it may be absent."""

LACKS = {
    "expiry": "a delivery is held as long as its connection lives, and comes again as soon as that ends",
    "groups": "AMQP has no ordered groups",
    "depth": "it does not tell what other consumers hold",
}
CLASSIC_LACKS = {**LACKS, "count": "a classic queue only says whether it is the first delivery"}
QUORUM_LACKS = {**LACKS, "places": "a quorum queue puts what is given back where it likes"}


@contextmanager
def rabbitmq(_: pytest.FixtureRequest, __: Path, *, queue_type: str) -> Iterator[Backend]:
    name = f"contract-{uuid.uuid4().hex[:12]}"
    url = f"{URL}?source={name}&pool={name}&queue_type={queue_type}"
    backend = Backend(
        url,
        RealClock(0.02),
        lacks=CLASSIC_LACKS if queue_type == "classic" else QUORUM_LACKS,
        spellings=[(f"{url}&heartbeat=30", {})],
        another=f"{URL}?source={name}&pool=another-{name}",
    )
    try:
        yield backend
    finally:
        backend.close()
        from queue_source.queues.amqp import AmqpQueue

        for named in (url, f"{URL}?source={name}"):
            with AmqpQueue(named) as queue:
                queue.delete()


BACKENDS = {
    f"rabbitmq-{queue_type}": partial(rabbitmq, queue_type=queue_type) for queue_type in ("classic", "quorum") if URL
}
