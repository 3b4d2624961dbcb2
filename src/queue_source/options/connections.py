"""How queues are reached: from options such as `sqs.region` or `aws.region` to the keywords of `open_queue`.

One way for all kinds of queues: the option `PREFIX.someName` becomes the keyword `some_name` of the adapters that take
the prefix (`tables.access.CONNECTIONS`), so a kind with options of its own is one line there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from queue_source.errors import OptionError
from queue_source.options.groups import QueueOptions, TargetQueue
from queue_source.options.secrets import Secret, SecretUrl
from queue_source.options.tables import READER_OPTIONS
from queue_source.options.tables.access import CONNECTIONS
from queue_source.options.tables.entry import snake_case

_PAIR = ("accessKeyId", "secretAccessKey")


def connections(urls: Sequence[SecretUrl], values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each kind of queue what was given, by keyword; `values` holds every option of the reader or sink."""
    from queue_source.queues import adapter_name  # here: adapters are loaded only when a queue is named

    given = {kind: _given(prefixes, values) for kind, prefixes in CONNECTIONS.items()}
    for kind in {adapter_name(url.reveal()) for url in urls} & given.keys():
        check_keys(CONNECTIONS[kind][-1], given[kind])
    return {kind: {snake_case(name): value for name, value in found.items()} for kind, found in given.items()}


def connection_options(url: SecretUrl, options: QueueOptions | TargetQueue) -> dict[str, Any]:
    """The keywords of `open_queue` for this queue, secrets revealed: for the adapter, never for a message."""
    from queue_source.queues import adapter_name  # here: adapters are loaded only when a queue is opened

    given = options.connections.get(adapter_name(url.reveal()), {})
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in given.items()}


def check_keys(service: str, given: Mapping[Any, Any]) -> None:
    """A key without its other half is refused."""
    names = {name for name, value in given.items() if value is not None}
    for missing, there in (_PAIR, _PAIR[::-1]):
        if there in names and missing not in names:
            raise OptionError(
                f"{service}.{missing}",
                "is missing while its other half is given; set both accessKeyId and secretAccessKey",
            )


def _given(prefixes: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Option name without its prefix -> value, for what was given."""
    known = [option.name for option in READER_OPTIONS if option.name.partition(".")[0] in prefixes]
    found = {}
    for name in dict.fromkeys(name.partition(".")[2] for name in known):
        value = next((v for prefix in prefixes if (v := values.get(f"{prefix}.{name}")) is not None), None)
        if value is not None:
            found[name] = value
    return found
