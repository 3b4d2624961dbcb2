"""Queues behind one small protocol (`base.py`), one file an adapter.

with open_queue("sql+sqlite:///jobs.db?queue=files") as queue:
    queue.send([b"s3://bucket/key"])
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast, overload

from queue_source.errors import QueueConfigurationError, QueueError
from queue_source.queues.base import Capabilities, Depth, Payload, Queue
from queue_source.queues.capped import CappedQueue
from queue_source.queues.own import own_factory, own_schemes, register_queue
from queue_source.queues.urls import NAMES_CODE, names_code, queue_name, scheme
from shard_store.redaction import redact_url as redact

__all__ = [
    "Capabilities",
    "Depth",
    "Payload",
    "Queue",
    "adapter_name",
    "open_queue",
    "queue_name",
    "redact",
    "register_queue",
]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of queue. Its adapter is imported only when such a URL is opened."""

    module: str
    factory: str
    form: str
    extra: str | None = None


_SQS = _Kind("queue_source.queues.sqs", "SqsQueue", "sqs://NAME", "sqs")
_KINDS: Mapping[str, _Kind] = {
    "sqs": _SQS,
    "https": _SQS,
    "http": _SQS,  # an emulator of SQS
    "azurequeue": _Kind("queue_source.queues.azurequeue", "AzureQueue", "azurequeue://ACCOUNT/NAME", "azure"),
    "pubsub": _Kind("queue_source.queues.pubsub", "PubSubQueue", "pubsub://PROJECT/SUBSCRIPTION", "pubsub"),
    "amqp": _Kind("queue_source.queues.amqp", "AmqpQueue", "amqp://HOST/VHOST?source=S&pool=P", "amqp"),
    "amqps": _Kind("queue_source.queues.amqp", "AmqpQueue", "amqps://HOST/VHOST?source=S&pool=P", "amqp"),
    "kafka": _Kind("queue_source.queues.kafka", "KafkaQueue", "kafka://HOST:PORT/TOPIC?group=GROUP", "kafka"),
    "sim": _Kind("queue_source.queues.sim", "SimQueue", "sim://NAME?dir=PATH"),
    "sql+": _Kind("queue_source.queues.sql", "SqlQueue", "sql+SQLALCHEMY-URL?queue=NAME"),
}
_VERBS = ("name", "receive", "extend", "acknowledge", "nack", "reject", "republish", "send", "depth", "close")
_SQL_NAMES = ("sqlite", "postgresql", "mysql", "mariadb")


@overload
def open_queue(
    url: str,
    *,
    max_outstanding: int | None = None,
    on_error: Callable[[QueueError], None] | None = None,
) -> Queue: ...


@overload
def open_queue(url: str, **options: Any) -> Queue: ...


def open_queue(
    url: str,
    *,
    max_outstanding: int | None = None,
    on_error: Callable[[QueueError], None] | None = None,
    **options: Any,
) -> Queue:
    """Open a queue; nothing is connected before its first use. Close it, or use it in a `with` statement.

    Args:
        url: The queue, as in the option `queueUrl` of a reader: `sqs://NAME`, `sql+sqlite:///jobs.db?queue=files` ...,
            or a scheme of your own (`register_queue`).
        max_outstanding: Give out no more messages than this until some are acknowledged, returned or rejected, to all
            threads together; `receive` waits for room as it waits for messages. Lost and expired ones do not count.
        on_error: Called with a `QueueError` for what goes wrong while no call waits for it. AMQP: the connection that
            held messages was lost, or a message was held for too long. Kafka: partitions with messages in flight have
            passed to other members, offsets could not be committed, or reading has failed. Other queues do nothing in
            the background. It runs on a thread of the queue's: it should return soon, and not use the queue.
        options: Keywords of the adapter, such as `region` or `endpoint_url` of SQS.

    Returns:
        The queue. Several threads may share it; after a fork each process opens its own.

    Raises:
        QueueConfigurationError: The URL is of no known kind, the adapter or its library is not installed, the adapter
            refuses the URL, or `max_outstanding` is no number from 1 on.

    Process:
        Any.
    """
    if max_outstanding is not None and (not isinstance(max_outstanding, int) or max_outstanding < 1):
        raise QueueConfigurationError(redact(url), f"max_outstanding={max_outstanding!r}; write a number from 1 on")
    queue = _open(url, options)
    if on_error is not None:
        cast(Any, queue).on_error = on_error
    return queue if max_outstanding is None else CappedQueue(queue, max_outstanding)


def _open(url: str, options: Mapping[str, Any]) -> Queue:
    kind = scheme(url)
    adapter_kind = _KINDS.get("sql+" if kind.startswith("sql+") else kind)
    if adapter_kind is None:
        factory = own_factory(kind, redact(url)) if kind else None
        if factory is None:
            raise QueueConfigurationError(redact(url), _unknown(url, kind))
        queue = factory(url, **options)
        if missing := [verb for verb in _VERBS if not hasattr(queue, verb)]:
            problem = f"made a {type(queue).__name__}, which is not a Queue: it has no {', '.join(missing)}"
            raise QueueConfigurationError(redact(url), problem)
        return cast(Queue, queue)
    opened: Queue = getattr(_adapter(url, adapter_kind), adapter_kind.factory)(url, **options)
    return opened


def adapter_name(url: str) -> str:
    """Return the adapter of a URL, as `sqs` or `sql`; "" for a queue of the user's own and for an unknown kind."""
    kind = scheme(url)
    adapter_kind = _KINDS.get("sql+" if kind.startswith("sql+") else kind)
    return adapter_kind.module.rpartition(".")[2] if adapter_kind else ""


def _adapter(url: str, kind: _Kind) -> Any:
    try:
        return importlib.import_module(kind.module)
    except ModuleNotFoundError as error:
        if error.name == kind.module:
            raise QueueConfigurationError(
                redact(url), f"this version has no adapter for {kind.form}; it has {_forms()}"
            ) from None
        hint = f"pip install 'cuesqueue[{kind.extra}]'" if kind.extra else f"install {error.name}"
        raise QueueConfigurationError(redact(url), f"needs {error.name!r}, which is not installed: {hint}") from error


def _forms() -> str:
    installed = {kind.form for kind in _KINDS.values() if importlib.util.find_spec(kind.module)}
    return ", ".join([*sorted(installed), *(f"{name}://..." for name in sorted(own_schemes()))])


def _unknown(url: str, kind: str) -> str:
    if names_code(url):
        return NAMES_CODE
    if not kind:
        return f"not a queue URL; write one of {_forms()}"
    close = get_close_matches(kind, [*_KINDS, *_SQL_NAMES], n=1)
    database = next((name for name in _SQL_NAMES if kind.partition("+")[0] in (name, "postgres")), None)
    if database and kind.startswith("postgres"):
        database = "postgresql"
    if database or (close and close[0] in _SQL_NAMES):
        driver = kind.partition("+")[2]
        better = f"sql+{database or close[0]}" + (f"+{driver}" if driver else "")
        return f"unknown kind {kind!r}; did you mean '{better}://...?queue=NAME'?"
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown kind {kind!r}{hint}; there are {_forms()}"
