"""The `kafka://` URL and the settings of librdkafka taken apart, without connecting.

kafka://HOST:PORT,HOST:PORT/TOPIC?group=GROUP
kafka://HOST:PORT/TOPIC                          (to send)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from queue_source.errors import QueueConfigurationError
from queue_source.queues.urls import KAFKA_REFUSED, KINDS, checked_parameters, is_kafka_secret, query_of
from shard_store.redaction import HIDDEN, redact_text, redact_url

FORM = KINDS["kafka"].form
PORT = 9092
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.\-]+)(:[0-9]{1,5})?", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._\-]{1,249}")


@dataclass(frozen=True)
class Address:
    """Where the brokers are, what is read or written there, and librdkafka's settings with their secrets."""

    name: str
    hosts: str
    topic: str
    group: str | None
    settings: Mapping[str, str] = field(repr=False)

    def hide(self, text: str) -> str:
        """Return a text of librdkafka, in which a broker's words may be, without the secrets of the settings."""
        text = redact_text(" ".join(text.split()))
        for setting, value in self.settings.items():
            if is_kafka_secret(setting) and value:
                text = text.replace(value, HIDDEN)
        return text


def parse_address(url: str, settings: Mapping[str, str]) -> Address:
    """Parse the URL and check the settings. Raises `QueueConfigurationError` for whatever is wrong with them."""
    name = redact_url(url)

    def refused(problem: str) -> QueueConfigurationError:
        return QueueConfigurationError(name, problem)

    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise refused("the URL names a user; set options 'kafka.sasl.username' and 'kafka.sasl.password' instead")
    hosts = parts.netloc.split(",")
    matches = [_HOST.fullmatch(host) for host in hosts]
    if None in matches:
        raise refused(f"{hosts[matches.index(None)]!r} is not HOST:PORT; write {FORM}")
    topic = unquote(parts.path[1:])
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise refused(f"names no topic (letters, digits, '.', '_' and '-'); write {FORM}")
    parameters = checked_parameters(name, query_of(url))
    group = parameters.get("group")
    if group == "":
        raise refused(f"names an empty group; write {FORM}")
    if ours := next((setting for setting in settings if setting in KAFKA_REFUSED), None):
        raise refused(f"option 'kafka.{ours}' is the adapter's own: {KAFKA_REFUSED[ours]}")
    with_ports = ",".join(f"{match[1]}{match[2] or f':{PORT}'}" for match in matches if match)
    return Address(name, with_ports, topic, group, dict(settings))
