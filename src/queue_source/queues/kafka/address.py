"""The `kafka://` URL and the settings of librdkafka taken apart, without connecting; and its errors mapped to ours.

kafka://HOST:PORT,HOST:PORT/TOPIC?group=GROUP
kafka://HOST:PORT/TOPIC                          (to send)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.queues.urls import KAFKA_PORT, KAFKA_REFUSED, KINDS, checked_parameters, is_kafka_secret, query_of
from shard_store.redaction import HIDDEN, redact_text, redact_url

_FORM = KINDS["kafka"].form
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
        raise refused(f"{hosts[matches.index(None)]!r} is not HOST:PORT; write {_FORM}")
    topic = unquote(parts.path[1:])
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise refused(f"names no topic (letters, digits, '.', '_' and '-'); write {_FORM}")
    parameters = checked_parameters(name, query_of(url))
    group = parameters.get("group")
    if group == "":
        raise refused(f"names an empty group; write {_FORM}")
    if ours := next((setting for setting in settings if setting in KAFKA_REFUSED), None):
        raise refused(f"option 'kafka.{ours}' is the adapter's own: {KAFKA_REFUSED[ours]}")
    with_ports = ",".join(f"{match[1]}{match[2] or f':{KAFKA_PORT}'}" for match in matches if match)
    return Address(name, with_ports, topic, group, dict(settings))


# --- errors ----------------------------------------------------------------------------------------------------------

_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_LOGIN = "the brokers refused the login; check options 'kafka.sasl.mechanism', 'kafka.sasl.username' and the password"
LASTING: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not read, write or describe the topic; ask for an ACL",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the user may not read with this group; ask for an ACL on the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the user lacks a permission for the cluster; ask for an ACL (to send "
    "without one, set option 'kafka.enable.idempotence' to false)",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "the brokers have no such mechanism; check option 'kafka.sasl.mechanism'",
    KafkaError._SSL: "TLS failed; check options 'kafka.ssl.ca.location' and 'kafka.security.protocol', and the port",
    KafkaError.INVALID_GROUP_ID: "the brokers take no such group; choose another name",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "another program is in the group and shares partitions in another way; "
    "give the readers a group of their own",
    KafkaError.TOPIC_EXCEPTION: "the brokers take no such topic; choose another name",
    KafkaError._INVALID_ARG: "correct the option kafka.SETTING",
    KafkaError.MSG_SIZE_TOO_LARGE: "the topic takes no messages of this size (its max.message.bytes)",
    KafkaError._UNSUPPORTED_FEATURE: "the brokers are too old for it",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old for it",
    KafkaError.INVALID_SESSION_TIMEOUT: "the brokers allow no such time; check option 'kafka.session.timeout.ms'",
    KafkaError.FENCED_INSTANCE_ID: "another reader has the same 'kafka.group.instance.id'; give each its own",
    KafkaError.GROUP_MAX_SIZE_REACHED: "the group has as many members as the brokers allow",
}
"""What waiting does not mend, and the next step. Everything else may pass."""

REBALANCING = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._NO_OFFSET,
        KafkaError._STATE,
        *(code for name in ("STALE_MEMBER_EPOCH",) if (code := getattr(KafkaError, name, None)) is not None),
    }
)
"""A commit came between two assignments: the next one tells which offsets are still ours to commit."""


def error_of(error: KafkaException | KafkaError) -> KafkaError:
    """Return the error inside of an exception."""
    return error.args[0] if isinstance(error, KafkaException) else error


def translated(error: KafkaException | KafkaError, address: Address, doing: str) -> QueueError:
    """Return our error for what librdkafka reported while `doing` something; its text holds no secret."""
    cause = error_of(error)
    said = address.hide(cause.str())
    if cause.code() in _ABSENT:
        return QueueNotFound(
            address.name,
            f"{doing}: the topic does not exist ({said}); create it (`cuesqueue queue create`), or correct its name",
        )
    step = LASTING.get(cause.code())
    if step is not None:
        return QueueConfigurationError(address.name, f"{doing}: {said}; {step}")
    return QueueUnavailable(address.name, f"{doing}: {said}")
