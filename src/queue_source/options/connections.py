"""How queues are reached: from options such as `sqs.region` or `aws.region` to the keywords of `open_queue`.

One way for all kinds of queues: the option `PREFIX.someName` becomes the keyword `some_name` of the adapters that take
the prefix, so a kind with options of its own is one line in `_PREFIXES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from queue_source.options.receiving import QueueOptions
from queue_source.options.secrets import Secret, SecretUrl
from queue_source.options.sink import TargetQueue
from queue_source.options.storage import check_keys

_PREFIXES = {"sqs": ("sqs", "aws"), "pubsub": ("gcp",)}
"""Kind of queue -> the prefixes whose options it takes; the first that is given wins."""


def connections(urls: Sequence[SecretUrl], values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each kind of queue what was given, by keyword; `values` holds every option of the reader or sink."""
    from queue_source.queues import adapter_name  # here: adapters are loaded only when a queue is named

    given = {kind: _given(prefixes, values) for kind, prefixes in _PREFIXES.items()}
    for kind in {adapter_name(url.reveal()) for url in urls} & given.keys():
        check_keys(_PREFIXES[kind][-1], given[kind])
    return {kind: {_snake_case(name): value for name, value in found.items()} for kind, found in given.items()}


def connection_options(url: SecretUrl, options: QueueOptions | TargetQueue) -> dict[str, Any]:
    """The keywords of `open_queue` for this queue, secrets revealed: for the adapter, never for a message."""
    from queue_source.queues import adapter_name  # here: adapters are loaded only when a queue is opened

    given = options.connections.get(adapter_name(url.reveal()), {})
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in given.items()}


def _given(prefixes: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Option name without its prefix -> value, for what was given."""
    found: dict[str, Any] = {}
    for prefix in prefixes:
        for name, value in values.items():
            if name.startswith(f"{prefix}.") and value is not None:
                found.setdefault(name.removeprefix(f"{prefix}."), value)
    return found


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
