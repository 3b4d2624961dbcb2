"""What a reader may ask of its queues: checked once, when options and opened queues first come together."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from queue_source.errors import OptionError
from queue_source.options import ReaderOptions
from queue_source.options.units import format_duration
from queue_source.queues.base import Queue, identity_of

logger = logging.getLogger("cuesqueue")


def check_suitability(queues: Sequence[Queue], options: ReaderOptions) -> None:
    """Raises OptionError for a queue that cannot keep the promise of `deliverySemantics`, or that is there twice."""
    _check_different(queues)
    semantics = options.delivery.delivery_semantics
    for queue in queues:
        if queue.capabilities.loses_while_closed and semantics != "at-most-once":
            raise OptionError(
                "queueUrl",
                f"{queue.name} is a listener: what is sent while it is not connected is lost, so it can be read with "
                f"deliverySemantics at-most-once and not with {semantics}; read a pool (pool=NAME instead of "
                "listener=true), which keeps its messages",
            )


def _check_different(queues: Sequence[Queue]) -> None:
    """However they are written: by two names each would be received, counted and given its share as another one."""
    if len(queues) < 2:
        return
    names: dict[str, str] = {}
    for queue in queues:
        if (identity := identity_of(queue)) in names:
            raise OptionError(
                "queueUrl", f"names one queue twice: {names[identity]} and {queue.name}; leave one of them out"
            )
        names[identity] = queue.name


def check_not_read(errors: Queue, queues: Iterable[Queue]) -> None:
    """Raises OptionError where errors would go to a queue that is read: each would be one more message."""
    if identity_of(errors) in map(identity_of, queues):
        raise OptionError("errorQueueUrl", f"{errors.name} is the queue that is read; name another one for errors")


def check_error_queue(queue: Queue) -> None:
    """Raises OptionError for a queue in which errors would not stay until somebody reads them."""
    if queue.capabilities.loses_while_closed:
        raise OptionError(
            "errorQueueUrl",
            f"{queue.name} is a listener: its messages are gone with its connection; name a pool (pool=NAME instead of "
            "listener=true), which keeps them",
        )


def warn_of_retention(queues: Iterable[Queue], window: timedelta) -> None:
    """A message that outlives the memory of its shard would be published a second time."""
    for queue in queues:
        kept = queue.capabilities.retention
        if kept is not None and kept > window.total_seconds():
            logger.warning(
                "queue %r keeps messages for %s, longer than deduplicationWindow = %s: one that is delivered again "
                "after the window is published again; raise 'deduplicationWindow'",
                queue.name,
                format_duration(timedelta(seconds=kept)),
                format_duration(window),
            )
