"""Queues of users' own, by the scheme of their URL: installed with a package, or registered by a program.

A text (an option, a row of the store) only selects among these, and never names code itself: anyone who may write such
a text could otherwise run any code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from queue_source.errors import QueueConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cuesqueue.queues"
"""The group of entry points: `shop = "shop.queues:ShopQueue"` makes the URLs `shop://...`."""

Factory = Callable[..., object]

_SCHEME = re.compile(r"[a-z][a-z0-9.-]*")
_registered: dict[str, Factory] = {}


def register_queue(scheme: str, factory: Factory) -> None:
    """Make the URLs `SCHEME://...` open a queue of your own, in this process.

    For commands, and for Spark, whose Python processes are others than this one, a package declares an entry point of
    the group `cuesqueue.queues`; or a subclass of `CuesqueueSource` names the factory in its attribute `queues`.

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
    for scheme, factory in factories.items():
        register_queue(scheme, factory)


def own_factory(scheme: str, name: str) -> Factory | None:
    """Return the factory for the queues of this scheme; None for an undeclared scheme.

    Raises QueueConfigurationError, for the URL `name`, when two packages declare it or its module cannot be imported.
    """
    if scheme in _registered:
        return _registered[scheme]
    declared = {point.value: point for point in _declared() if point.name == scheme}
    if len(declared) > 1:
        raise QueueConfigurationError(
            name, f"two packages declare {scheme!r} in {GROUP}: {', '.join(sorted(declared))}; uninstall one of them"
        )
    for value, point in declared.items():
        try:
            factory: Factory = point.load()
        except (ImportError, AttributeError) as error:
            raise QueueConfigurationError(name, f"{value!r}, which {GROUP} names, cannot be loaded: {error}") from error
        return factory
    return None


def own_schemes() -> set[str]:
    """Return all schemes that are declared or registered."""
    return {*_registered, *(point.name for point in _declared())}


def _declared() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # here: executors import this module, and it takes a while

    return list(entry_points(group=GROUP))
