"""Queues behind one small protocol (`base.py`), one folder an adapter (the table is in `urls.py`).

    with open_queue("sql+sqlite:///jobs.db?queue=files") as queue:
        queue.send([b"s3://bucket/key"])

Queues of users' own are known by the scheme of their URL: installed with a package, or registered by a program. A text
(an option, a row of the store) only selects among these, and never names code itself: anyone who may write such a text
could otherwise run any code.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast, overload

from queue_source.errors import QueueConfigurationError, QueueError
from queue_source.queues.base import Capabilities, Depth, Payload, Queue
from queue_source.queues.urls import KINDS, NAMES_CODE, kind_of, names_code, queue_name, scheme
from shard_store.redaction import redact_url as redact

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    "register_queues",
]


GROUP = "cuesqueue.queues"
"""The group of entry points: `shop = "shop.queues:ShopQueue"` makes the URLs `shop://...`."""

Factory = Callable[..., object]

_SCHEME = re.compile(r"[a-z][a-z0-9.-]*")
_registered: dict[str, Factory] = {}
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
        max_outstanding: Most messages that all threads together have before some are acknowledged, returned or
            rejected; `receive` waits for room. Lost and expired ones do not count.
        on_error: Called with a `QueueError` for what goes wrong while no call waits. AMQP: the connection was lost, or
            a message was held for too long. Kafka: partitions with messages in flight have passed to other members,
            offsets could not be committed, or reading failed. It runs on a thread of the queue's: return soon, and
            do not use the queue.
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
    if max_outstanding is None:
        return queue
    from queue_source.queues.programs import CappedQueue  # here: executors import this module, and never need it

    return CappedQueue(queue, max_outstanding)


def _open(url: str, options: Mapping[str, Any]) -> Queue:
    kind = kind_of(url)
    if kind is None:
        name, redacted = scheme(url), redact(url)
        factory = _registered.get(name)
        if factory is None:
            declared = {point.value: point for point in _declared() if point.name == name} if name else {}
            if len(declared) > 1:
                packages = ", ".join(sorted(declared))
                problem = f"two packages declare {name!r} in {GROUP}: {packages}; uninstall one of them"
                raise QueueConfigurationError(redacted, problem)
            for value, point in declared.items():
                try:
                    factory = point.load()
                except (ImportError, AttributeError) as error:
                    problem = f"{value!r}, which {GROUP} names, cannot be loaded: {error}"
                    raise QueueConfigurationError(redacted, problem) from error
        if factory is None:
            raise QueueConfigurationError(redacted, _unknown(url, name))
        queue = factory(url, **options)
        if missing := [verb for verb in _VERBS if not hasattr(queue, verb)]:
            problem = f"made a {type(queue).__name__}, which is not a Queue: it has no {', '.join(missing)}"
            raise QueueConfigurationError(redacted, problem)
        return cast(Queue, queue)
    module = f"{__name__}.{kind.module}"
    try:
        adapter: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            problem = f"this version has no adapter for {kind.form}; it has {_forms()}"
            raise QueueConfigurationError(redact(url), problem) from None
        hint = f"pip install 'cuesqueue[{kind.extra}]'" if kind.extra else f"install {error.name}"
        raise QueueConfigurationError(redact(url), f"needs {error.name!r}, which is not installed: {hint}") from error
    opened: Queue = getattr(adapter, kind.factory)(url, **options)
    return opened


def adapter_name(url: str) -> str:
    """Return the adapter of a URL, as `sqs` or `sql`; "" for a queue of the user's own and for an unknown kind."""
    kind = kind_of(url)
    return kind.module if kind else ""


def _forms() -> str:
    installed = {kind.form for kind in KINDS.values() if importlib.util.find_spec(f"{__name__}.{kind.module}")}
    own = {*_registered, *(point.name for point in _declared())}
    return ", ".join([*sorted(installed), *(f"{name}://..." for name in sorted(own))])


def _unknown(url: str, kind: str) -> str:
    if names_code(url):
        return NAMES_CODE
    if not kind:
        return f"not a queue URL; write one of {_forms()}"
    close = get_close_matches(kind, [*KINDS, *_SQL_NAMES], n=1)
    database = next((name for name in _SQL_NAMES if kind.partition("+")[0] in (name, "postgres")), None)
    if database and kind.startswith("postgres"):
        database = "postgresql"
    if database or (close and close[0] in _SQL_NAMES):
        driver = kind.partition("+")[2]
        better = f"sql+{database or close[0]}" + (f"+{driver}" if driver else "")
        return f"unknown kind {kind!r}; did you mean '{better}://...?queue=NAME'?"
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown kind {kind!r}; {hint}there are {_forms()}"


# --- queues of users' own -------------------------------------------------------------------------------------------


def register_queue(scheme: str, factory: Factory) -> None:
    """Make the URLs `SCHEME://...` open a queue of your own, in this process.

    For commands, and for Spark's Python processes, a package declares an entry point of the group `cuesqueue.queues`;
    or a subclass of `CuesqueueSource` names the factory in its attribute `queues`.

    Args:
        scheme: What precedes `://`, in small letters.
        factory: Called with the URL and with the keywords of `open_queue`; returns a `Queue`. A class will do.

    Raises:
        ValueError: The scheme is none.

    Process:
        Any.
    """
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(f"{scheme!r} is not the scheme of a URL; write small letters, as in 'shop'")
    _registered[scheme] = factory


def register_queues(factories: Mapping[str, Factory]) -> None:
    """Register several schemes, each as `register_queue`."""
    for name, factory in factories.items():
        register_queue(name, factory)


def _declared() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # here: executors import this module, and it takes a while

    return list(entry_points(group=GROUP))
