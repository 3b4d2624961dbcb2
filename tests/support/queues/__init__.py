"""The queues that the contract runs over. A new adapter adds a module with its backends here, and no test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.queues import amqp, azurequeue, kafka, pubsub, sim, sql, sqs
from support.queues.backend import Backend

BACKENDS: Mapping[str, Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Backend]]] = {
    **sql.BACKENDS,
    **sim.BACKENDS,
    **amqp.BACKENDS,
    **azurequeue.BACKENDS,
    **kafka.BACKENDS,
    **pubsub.BACKENDS,
    **sqs.BACKENDS,
}
