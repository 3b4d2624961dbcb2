"""What Google documents of Pub/Sub's topics and pull subscriptions, as a small machine with a clock of its own.

- A delivery has an ack id of its own; the subscription's deadline counts until it is modified.
- Without exactly-once delivery expired ack ids are accepted: they delete a message that nobody else got meanwhile, and
  are ignored else. With it they fail, each by name.
- With message ordering a key is blocked while one of its messages is outstanding, though one pull may bring several;
  a redelivery brings all later messages of the key again, acknowledged ones too.
- With a dead-letter policy deliveries are counted, and the message moves when they are used up, whatever the policies
  of access say: these are kept, and nothing is refused because of them.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.iam.v1 import policy_pb2
from google.pubsub_v1 import types

LARGEST_REQUEST = 524_288
_Message = types.PubsubMessage.pb()


class Refused(Exception):
    """The answer is an error: its gRPC status by name, and what failed for which ack id."""

    def __init__(self, status: str, text: str, failures: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.failures = failures or {}


@dataclass
class Held:
    """One message in one subscription."""

    message: Any
    ack_id: str = ""  # of the latest delivery
    until: float = 0.0  # outstanding until then, or not before then after a nack with a retry policy
    outstanding: bool = False
    acknowledged: bool = False  # but kept: an earlier message of its key is not
    attempts: int = 0


@dataclass
class Subscription:
    config: Any
    messages: dict[str, Held] = field(default_factory=dict)  # by message id, in the order of publishing
    deliveries: dict[str, str] = field(default_factory=dict)  # ack id -> message id, of all that were ever given

    def key(self, held: Held) -> str:
        return str(held.message.ordering_key) if self.config.enable_message_ordering else ""


class Service:
    """All topics and subscriptions. `advance` moves its clock, which else goes with time."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._offset = 0.0
        self._topics: dict[str, Any] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._policies: dict[str, Any] = {}
        self._numbers = itertools.count(10_000_000_000_000)

    def now(self) -> float:
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        with self.changed:
            self._offset += seconds
            self.changed.notify_all()

    # --- resources ---------------------------------------------------------------------------------------------------

    def create_topic(self, topic: Any) -> Any:
        with self.changed:
            if topic.name in self._topics:
                raise Refused("ALREADY_EXISTS", f"Resource already exists in the project (resource={topic.name}).")
            self._topics[topic.name] = topic
            return topic

    def get_topic(self, name: str) -> Any:
        with self.changed:
            if name not in self._topics:
                raise Refused("NOT_FOUND", f"Resource not found (resource={name}).")
            return self._topics[name]

    def delete_topic(self, name: str) -> None:
        with self.changed:
            self.get_topic(name)
            del self._topics[name]
            self._policies.pop(name, None)
            for subscription in self._subscriptions.values():
                if subscription.config.topic == name:
                    subscription.config.topic = "_deleted-topic_"
                if subscription.config.dead_letter_policy.dead_letter_topic == name:
                    subscription.config.dead_letter_policy.dead_letter_topic = "_deleted-topic_"

    def create_subscription(self, config: Any) -> Any:
        with self.changed:
            self.get_topic(config.topic)
            if config.name in self._subscriptions:
                raise Refused("ALREADY_EXISTS", f"Resource already exists in the project (resource={config.name}).")
            config.ack_deadline_seconds = config.ack_deadline_seconds or 10
            if not 10 <= config.ack_deadline_seconds <= 600:
                raise Refused("INVALID_ARGUMENT", "The ack deadline is 10 to 600 seconds.")
            if not config.message_retention_duration.seconds:
                config.message_retention_duration.seconds = 7 * 86_400
            if not 600 <= config.message_retention_duration.seconds <= 31 * 86_400:
                raise Refused("INVALID_ARGUMENT", "The message retention is 10 minutes to 31 days.")
            self._check_dead_letters(config)
            self._subscriptions[config.name] = Subscription(config)
            return config

    def update_subscription(self, config: Any, paths: Iterable[str]) -> Any:
        with self.changed:
            kept = self._find(config.name).config
            self._check_dead_letters(config)
            for path in paths:
                if path != "dead_letter_policy":
                    raise Refused("UNIMPLEMENTED", f"{path} is not changed here.")
                kept.dead_letter_policy.CopyFrom(config.dead_letter_policy)
            return kept

    def _check_dead_letters(self, config: Any) -> None:
        policy = config.dead_letter_policy
        if config.HasField("dead_letter_policy"):
            self.get_topic(policy.dead_letter_topic)
            policy.max_delivery_attempts = policy.max_delivery_attempts or 5
            if not 5 <= policy.max_delivery_attempts <= 100:
                raise Refused("INVALID_ARGUMENT", "The maximum of delivery attempts is 5 to 100.")

    def get_subscription(self, name: str) -> Any:
        with self.changed:
            return self._find(name).config

    def delete_subscription(self, name: str) -> None:
        with self.changed:
            self._find(name)
            del self._subscriptions[name]
            self._policies.pop(name, None)

    def get_policy(self, resource: str) -> Any:
        """The policy of a topic or subscription; that of a new one has no bindings."""
        with self.changed:
            if resource not in self._topics and resource not in self._subscriptions:
                raise Refused("NOT_FOUND", f"Resource not found (resource={resource.rpartition('/')[2]}).")
            return self._policies.get(resource, policy_pb2.Policy(etag=b"ACAB"))

    def set_policy(self, resource: str, policy: Any) -> Any:
        """Replaces the whole policy, unless it names an etag that is no longer the present one."""
        with self.changed:
            if policy.etag and policy.etag != self.get_policy(resource).etag:
                raise Refused("ABORTED", "There were concurrent policy changes.")
            for binding in policy.bindings:
                if binding.HasField("condition") and policy.version != 3:
                    raise Refused("INVALID_ARGUMENT", "A policy with conditions has the version 3.")
            kept = policy_pb2.Policy()
            kept.CopyFrom(policy)
            kept.etag = str(next(self._numbers)).encode()
            self._policies[resource] = kept
            return kept

    def seek(self, name: str, nanoseconds: int) -> None:
        """What was published before is acknowledged; nothing comes back, since nothing acknowledged is retained."""
        with self.changed:
            subscription = self._find(name)
            for message_id, held in list(subscription.messages.items()):
                if held.message.publish_time.ToNanoseconds() < nanoseconds:
                    del subscription.messages[message_id]
            self.changed.notify_all()

    def _find(self, name: str) -> Subscription:
        if name not in self._subscriptions:
            raise Refused("NOT_FOUND", f"Resource not found (resource={name.rpartition('/')[2]}).")
        return self._subscriptions[name]

    # --- messages ----------------------------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Iterable[Any]) -> list[str]:
        messages = list(messages)
        with self.changed:
            self.get_topic(topic)
            if not 0 < len(messages) <= 1000:
                raise Refused("INVALID_ARGUMENT", f"The value for message_count is {len(messages)}: 1 to 1000.")
            if len({message.ordering_key for message in messages}) > 1:
                raise Refused("INVALID_ARGUMENT", "All messages of a publish request must have one ordering key.")
            for message in messages:
                _check(message)
            return [self._put(topic, message) for message in messages]

    def _put(self, topic: str, message: Any) -> str:
        now = self.now()
        kept = _Message(
            data=message.data,
            attributes=message.attributes,
            ordering_key=message.ordering_key,
            message_id=str(next(self._numbers)),
        )
        kept.publish_time.FromNanoseconds(int(now * 1e9))
        for subscription in self._subscriptions.values():
            if subscription.config.topic == topic:
                subscription.messages[kept.message_id] = Held(kept)
        self.changed.notify_all()
        return str(kept.message_id)

    def pull(self, name: str, most: int) -> list[Any]:
        """What is to be had now; the caller waits for `changed`, and holds it."""
        subscription = self._find(name)
        if most <= 0:
            raise Refused("INVALID_ARGUMENT", "You have passed a non-positive max_messages.")
        if subscription.config.detached:
            raise Refused("FAILED_PRECONDITION", "The subscription is detached.")
        self._expire(subscription)
        given = list(itertools.islice(self._ready(subscription), min(most, 1000)))
        return [self._deliver(subscription, held) for held in given]

    def next_change(self, name: str) -> float:
        """In how many seconds a lease or a delay ends."""
        times = [held.until for held in self._find(name).messages.values() if not held.acknowledged and held.until]
        return max(0.0, min(times, default=self.now() + 60) - self.now()) + 0.001

    def _ready(self, subscription: Subscription) -> Iterator[Held]:
        now = self.now()
        blocked = {subscription.key(h) for h in subscription.messages.values() if h.outstanding} - {""}
        for held in list(subscription.messages.values()):
            key = subscription.key(held)
            if held.outstanding or held.acknowledged or key in blocked:
                continue
            if held.until > now:
                blocked |= {key} - {""}
                continue
            if not self._moved(subscription, held):
                yield held

    def _moved(self, subscription: Subscription, held: Held) -> bool:
        """To the dead-letter topic, when its deliveries are used up."""
        policy = subscription.config.dead_letter_policy
        if not policy.dead_letter_topic or held.attempts < policy.max_delivery_attempts:
            return False
        copy = _Message(data=held.message.data, attributes=held.message.attributes)
        copy.attributes["CloudPubSubDeadLetterSourceSubscription"] = subscription.config.name.rpartition("/")[2]
        self._put(policy.dead_letter_topic, copy)
        del subscription.messages[held.message.message_id]
        return True

    def _deliver(self, subscription: Subscription, held: Held) -> Any:
        held.ack_id = secrets.token_urlsafe(132)  # as long as those of the service
        held.until = self.now() + subscription.config.ack_deadline_seconds
        held.outstanding = True
        held.attempts += 1
        subscription.deliveries[held.ack_id] = held.message.message_id
        counted = bool(subscription.config.dead_letter_policy.dead_letter_topic)
        return types.ReceivedMessage.pb()(
            ack_id=held.ack_id, message=held.message, delivery_attempt=held.attempts if counted else 0
        )

    # --- ack ids -----------------------------------------------------------------------------------------------------

    def acknowledge(self, name: str, ack_ids: Iterable[str]) -> None:
        with self.changed:
            subscription = self._find(name)
            found, failures = self._held(subscription, list(ack_ids))
            for held in found:
                held.outstanding, held.acknowledged, held.until = False, True, 0.0
            self._drop_done(subscription)
            self.changed.notify_all()
            _tell(failures)

    def modify(self, name: str, ack_ids: Iterable[str], seconds: int) -> None:
        with self.changed:
            subscription = self._find(name)
            if not 0 <= seconds <= 600:
                raise Refused("INVALID_ARGUMENT", f"Invalid ack deadline given: {seconds}; it is 0 to 600 seconds.")
            found, failures = self._held(subscription, list(ack_ids))
            for held in found:
                if held.outstanding and seconds:
                    held.until = self.now() + seconds
                elif held.outstanding:
                    self._return(subscription, held)
            self.changed.notify_all()
            _tell(failures)

    def _held(self, subscription: Subscription, ack_ids: list[str]) -> tuple[list[Held], dict[str, str]]:
        """The messages that the ack ids still hold, and the failures of the others, with exactly-once delivery."""
        self._expire(subscription)
        exactly_once = subscription.config.enable_exactly_once_delivery
        found: list[Held] = []
        failures: dict[str, str] = {}
        for ack_id in ack_ids:
            held = subscription.messages.get(subscription.deliveries.get(ack_id, ""))
            latest = held is not None and held.ack_id == ack_id and not held.acknowledged
            if held is not None and latest and (held.outstanding or not exactly_once):
                found.append(held)
            elif exactly_once:
                failures[ack_id] = "PERMANENT_FAILURE_INVALID_ACK_ID"
            elif ack_id not in subscription.deliveries:
                raise Refused("INVALID_ARGUMENT", f"You have passed an invalid ack ID (ack_id={ack_id}).")
        return found, failures

    def _expire(self, subscription: Subscription) -> None:
        now = self.now()
        for held in subscription.messages.values():
            if held.outstanding and held.until <= now:
                self._return(subscription, held)

    def _return(self, subscription: Subscription, held: Held) -> None:
        """To be delivered again, with all later messages of its key."""
        delay = subscription.config.retry_policy.minimum_backoff.ToTimedelta().total_seconds()
        key = subscription.key(held)
        again = [held]
        if key:
            following = itertools.dropwhile(lambda other: other is not held, subscription.messages.values())
            again = [other for other in following if subscription.key(other) == key and other.ack_id]
            earlier = itertools.takewhile(lambda other: other is not held, subscription.messages.values())
            if any(subscription.key(other) == key and other.outstanding for other in earlier):
                again = [held]  # they wait for the earlier one anyway
        for other in again:
            other.outstanding = other.acknowledged = False
            other.until = self.now() + delay if delay else 0.0

    def _drop_done(self, subscription: Subscription) -> None:
        """Acknowledged messages are kept while an earlier one of their key may be delivered again."""
        open_keys: set[str] = set()
        for message_id, held in list(subscription.messages.items()):
            key = subscription.key(held)
            if held.acknowledged and key not in open_keys:
                del subscription.messages[message_id]
            elif key:
                open_keys.add(key)

    def depth(self, name: str) -> tuple[int, int]:
        """(ready, outstanding): what the service tells nobody."""
        with self.changed:
            subscription = self._find(name)
            self._expire(subscription)
            waiting = [held for held in subscription.messages.values() if not held.acknowledged]
            outstanding = sum(held.outstanding for held in waiting)
            return len(waiting) - outstanding, outstanding


def _tell(failures: dict[str, str]) -> None:
    """The request is refused, though all others in it were taken (as Google's own emulator does)."""
    if failures:
        raise Refused("INVALID_ARGUMENT", "Some acknowledgement ids in the request were invalid.", failures)


def _check(message: Any) -> None:
    if not message.data and not message.attributes:
        raise Refused("INVALID_ARGUMENT", "One or more messages in the publish request is empty.")
    if len(message.data) > 10_000_000 or len(message.attributes) > 100 or len(message.ordering_key.encode()) > 1024:
        raise Refused("INVALID_ARGUMENT", "A message in the publish request is too large.")
    for key, value in message.attributes.items():
        if not 0 < len(key.encode()) <= 256 or len(value.encode()) > 1024:
            raise Refused("INVALID_ARGUMENT", "An attribute of a message is too large.")
