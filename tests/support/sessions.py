"""Sessions of a reader without a start: for tests of the parts of the coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from queue_source.coordinator.session import Metrics, Session
from queue_source.options import parse_reader_options
from shard_store.model import PublishToken

LEAST = {"queueUrl": "sim://files", "source": "files", "fileFormat": "json", "allowedPrefixes": "s3://"}


def make_session(
    store: object = None,
    queues: Mapping[str, object] | None = None,
    *,
    token: PublishToken = PublishToken("p", 1),  # noqa: B008 - frozen
    stopping: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    **options: str,
) -> Session:
    """`store` and `queues` may be fakes of what the part under test calls."""
    return Session(
        parse_reader_options({**LEAST, **options}),
        cast("Any", SimpleNamespace(is_trusted=True) if store is None else store),
        cast("Any", queues or {}),
        token,
        Metrics(),
        stopping or threading.Event(),
        clock,
    )
