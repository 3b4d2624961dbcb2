"""Maps librdkafka's errors to ours; this happens nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.queues.kafka.address import Address

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
