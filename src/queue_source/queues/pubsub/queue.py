"""Google Cloud Pub/Sub: a queue is one subscription; sent messages go to the topic that it belongs to.

Synchronous pull, so that this process keeps every lease. Where Pub/Sub promises less than other queues:

- There is no order, except for messages with an ordering key on a subscription with message ordering.
- Without exactly-once delivery the service takes expired receipts in silence: nothing is ever reported as stale.
- It counts deliveries only for subscriptions with a dead-letter policy; else every receive count is 1.
- It does not report how many messages wait.
- An empty answer to a short pull proves nothing, so none is shorter than `shortest_wait`. Messages that the service
  hands out at the moment when a pull ends are lost for the subscription's own deadline.

`calls.py` makes the calls, `errors.py` maps their errors.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from google.pubsub_v1 import types

from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, convert_each, copy_of, peek_by_receiving
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.pubsub.calls import LARGEST_PULL, PubSubCalls, Subscription
from queue_source.queues.urls import checked_parameters, query_of
from shard_store.redaction import redact_url

LONGEST_LEASE = 600
TAG = "cuesqueue-tag"
EMPTY = "cuesqueue-empty"
"""Attributes of our own: the tag, and what a message without a body has, since Pub/Sub takes none without both."""

_URL = re.compile(r"pubsub://(?P<project>[^/?#]*)/(?P<subscription>[A-Za-z][\w.~+%-]{2,254})", re.ASCII)
_FORM = "pubsub://PROJECT/SUBSCRIPTION"
_SHORTEST_WAIT = 2.0
_PAUSE = 0.1  # seconds after an answer that came early, and empty
_LARGEST_BODY = 10_000_000
_MOST_ATTRIBUTES, _LONGEST_KEY, _LONGEST_VALUE, _LONGEST_GROUP = 100, 256, 1024, 1024

_Message = Any  # google.pubsub.v1.PubsubMessage: the protobuf class itself, many times faster than Google's wrapper
_new_message = types.PubsubMessage.pb()


class PubSubQueue(BaseQueue):
    """The subscription of a URL `pubsub://PROJECT/SUBSCRIPTION`, which has to exist.

    `project` is used where the URL leaves it out, `credentials_file` for Google's own search for credentials;
    `endpoint` is `host:port` of another place that speaks Pub/Sub, with `http://` before it one without encryption
    (an emulator). `shortest_wait`: the minimum time of a pull, in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        project: str | None = None,
        credentials_file: str | None = None,
        endpoint: str | None = None,
        shortest_wait: float = _SHORTEST_WAIT,
    ) -> None:
        name = redact_url(url)
        checked_parameters(name, query_of(url))
        parts = _URL.fullmatch(url.partition("?")[0])
        if parts is None:
            raise QueueConfigurationError(name, f"is not of the form {_FORM}")
        owner = parts["project"] or project
        if not owner:
            raise QueueConfigurationError(name, f"names no project; write {_FORM} or set option 'gcp.project'")
        super().__init__(f"pubsub://{owner}/{parts['subscription']}", url)
        self._path = f"projects/{owner}/subscriptions/{parts['subscription']}"
        self._calls = PubSubCalls(self._name, self._path, credentials_file, endpoint)
        self._closed = self._calls.closed
        self._shortest_wait = shortest_wait
        self._lock = threading.Lock()
        self._delayed: dict[Receipt, float] = {}  # delayed by nack: the service would still accept the receipts
        self._rejectable: dict[Receipt, tuple[float, _Message]] = {}  # until when, the message: see reject

    @property
    def capabilities(self) -> Capabilities:
        """What the subscription can do; asks the service at the first use."""
        subscription = self._calls.subscription()
        return Capabilities(
            max_batch_size=LARGEST_PULL,
            max_lease=LONGEST_LEASE,
            ordered_groups=subscription.ordered,
            retention=subscription.retention,
            reports_depth=False,
            reports_stale=subscription.exactly_once,
        )

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Pull until something comes; then extend, since until then the subscription's own deadline counts."""
        seconds = _whole("lease", lease)
        subscription = self._calls.subscription()
        started, pulled = self._pull(max_messages, max(wait, self._shortest_wait))
        until = started + subscription.ack_deadline
        self._remember(subscription, pulled, until)
        stale: set[Receipt] = set()
        if pulled:
            started = time.monotonic()
            try:
                stale = self._extend([Receipt(item.ack_id) for item in pulled], seconds)
                until = started + lease
            except QueueUnavailable:
                pass  # the messages are here, and their leases end so soon that the caller extends them at once
        return [self._received(item, until) for item in pulled if item.ack_id not in stale]

    def _pull(self, max_messages: int, wait: float) -> tuple[float, Sequence[Any]]:
        """Return the messages of the first pull with an answer, and when it began."""
        until = time.monotonic() + wait
        while True:
            started = time.monotonic()
            pulled = self._calls.pull(max_messages, until - started) if started < until else ()
            remaining = until - time.monotonic()
            if pulled or remaining <= 0 or self._calls.closed.wait(min(remaining, _PAUSE)):
                return started, pulled

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Extend the leases; without exactly-once delivery only receipts that we returned are reported as lost."""
        return self._extend(receipts, _whole("lease", lease))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        alive, stale = self._sorted(receipts)
        return stale | {Receipt(receipt) for receipt in self._calls.acknowledge(alive)}

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Return the messages. A delay becomes the lease of those, at most ten minutes."""
        alive, _ = self._sorted(receipts)
        seconds = min(math.ceil(max(delay, 0.0)), LONGEST_LEASE)
        self._calls.modify_deadline(alive, seconds)
        if seconds:
            now = time.monotonic()
            with self._lock:
                self._delayed = {receipt: until for receipt, until in self._delayed.items() if until > now}
                self._delayed.update(dict.fromkeys(alive, now + seconds))

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Copy to the subscription's dead-letter topic, confirmed, and delete; without such a topic only delete.

        Pub/Sub itself knows no rejection: it moves a message there when its deliveries are used up.
        """
        subscription = self._calls.subscription()
        if not subscription.dead_letter_topic:
            self.acknowledge(receipts)
            return
        with self._lock:
            kept = {receipt: self._rejectable[receipt][1] for receipt in receipts if receipt in self._rejectable}
        alive = list(kept)
        if subscription.exactly_once and alive:
            # another consumer may have them by now: then we must not move them
            stale = self._extend(alive, LONGEST_LEASE)
            alive = [receipt for receipt in alive if receipt not in stale]
        self._publish(subscription.dead_letter_topic, [self._dead(kept[receipt]) for receipt in alive])
        self.acknowledge(alive)

    def republish(self, message: Received) -> bool:
        """Send the copy to the subscription's topic: other subscriptions of that topic get it too.

        Staleness is noticed with exactly-once delivery only.
        """
        subscription = self._calls.subscription()
        _, stale = self._sorted([message.receipt], forget=False)
        if stale or (subscription.exactly_once and self._extend([message.receipt], LONGEST_LEASE)):
            return False
        self._publish(subscription.topic, [_message(copy_of(message))])
        self.acknowledge([message.receipt])
        return True

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send to the subscription's topic, those of one group together, up to 1,000 messages or 10 MB a request.

        After a failure the first ones may be sent.
        """
        made = convert_each(messages, _message)
        places = sorted(range(len(made)), key=lambda place: str(made[place].ordering_key))
        ids = self._publish(self._calls.subscription().topic, [made[place] for place in places])
        return [message_id for _, message_id in sorted(zip(places, ids, strict=True))]

    def depth(self) -> Depth:
        """Raise: only Cloud Monitoring reports the depth, minutes late."""
        raise QueueConfigurationError(
            self._name,
            "Pub/Sub does not report how many messages wait; see subscription/num_undelivered_messages in Cloud "
            "Monitoring",
        )

    def close(self) -> None:
        self._calls.close()

    # --- for people and commands: the subscription, never its topic --------------------------------------------------

    def exists(self) -> bool:
        return self._calls.exists()

    def create(self) -> None:
        """Create the subscription of the topic with its name, and that topic, where they are absent."""
        if not self._calls.exists():
            self._calls.create()

    def delete(self) -> None:
        self._calls.delete()

    def purge(self) -> None:
        """Delete all messages sent until now, by the clock of this machine; Pub/Sub does not report their number."""
        self._calls.seek_to_now()

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages; counts as a delivery, for the dead-letter policy too."""
        return peek_by_receiving(self, max_messages)

    # --- receipts ----------------------------------------------------------------------------------------------------

    def _sorted(self, receipts: Sequence[Receipt], *, forget: bool = True) -> tuple[list[Receipt], set[Receipt]]:
        """Divide into the receipts to ask the service about, once each, and stale ones.

        Those that are over may be forgotten.
        """
        now = time.monotonic()
        with self._lock:
            stale = {receipt for receipt in receipts if not receipt or self._delayed.get(receipt, 0.0) > now}
            if forget:
                for receipt in receipts:
                    self._rejectable.pop(receipt, None)
        return [receipt for receipt in dict.fromkeys(receipts) if receipt not in stale], stale

    def _extend(self, receipts: Sequence[Receipt], seconds: int) -> set[Receipt]:
        alive, stale = self._sorted(receipts, forget=False)
        until = time.monotonic() + seconds
        stale |= {Receipt(receipt) for receipt in self._calls.modify_deadline(alive, seconds)}
        with self._lock:
            for receipt in receipts:
                kept = self._rejectable.pop(receipt, None)
                if kept is not None and receipt not in stale:
                    self._rejectable[receipt] = (until, kept[1])
        return stale

    def _remember(self, subscription: Subscription, pulled: Sequence[Any], until: float) -> None:
        """Keep the messages of a subscription with a dead-letter topic while they are leased, for `reject`."""
        if not subscription.dead_letter_topic:
            return
        now = time.monotonic()
        with self._lock:
            self._rejectable.update({Receipt(item.ack_id): (until, item.message) for item in pulled})
            while self._rejectable:  # in the order of their last extension: expired ones come first
                first = next(iter(self._rejectable))
                if self._rejectable[first][0] > now:
                    break
                del self._rejectable[first]

    # --- messages ----------------------------------------------------------------------------------------------------

    def _received(self, pulled: Any, until: float) -> Received:
        message = pulled.message
        headers = dict(message.attributes)
        tag = headers.pop(TAG, "")
        headers.pop(EMPTY, None)
        return Received(
            queue=self._name,
            message_id=message.message_id,
            receipt=Receipt(pulled.ack_id),
            body=message.data,
            receive_count=pulled.delivery_attempt or 1,
            lease_until=until,
            sent_at=message.publish_time.seconds + message.publish_time.nanos / 1e9,
            tag=tag,
            headers=headers,
            group=message.ordering_key or None,
        )

    def _dead(self, message: _Message) -> _Message:
        """Build the message for the dead-letter topic as the service itself would, with its origin."""
        attributes = {
            **message.attributes,
            "CloudPubSubDeadLetterSourceSubscription": self._path.rpartition("/")[2],
            "CloudPubSubDeadLetterSourceSubscriptionProject": self._path.split("/")[1],
        }
        return _new_message(data=message.data, attributes=attributes, ordering_key=message.ordering_key)

    def _publish(self, topic: str, messages: Sequence[_Message]) -> list[str]:
        """Publish the messages in requests of one ordering key each."""
        ids: list[str] = []
        for _, group in groupby(messages, lambda message: message.ordering_key):
            ids += self._calls.publish(topic, list(group))
        return ids


def _message(message: Outgoing) -> _Message:
    """Build the message. Raises ValueError for what the service would refuse, before anything is sent."""
    body, group, attributes = message.body, message.group or "", dict(message.headers)
    for own in (TAG, EMPTY):
        if own in attributes:
            raise ValueError(f"the header {own!r} is cuesqueue's own")
    if message.tag:
        attributes[TAG] = message.tag
    if not body and not attributes:
        attributes[EMPTY] = "true"
    if len(body) > _LARGEST_BODY:
        raise ValueError(f"Pub/Sub takes bodies of up to {_LARGEST_BODY} bytes, not {len(body)}")
    if len(attributes) > _MOST_ATTRIBUTES:
        raise ValueError(f"Pub/Sub takes up to {_MOST_ATTRIBUTES} headers, not {len(attributes)}")
    for key, value in attributes.items():
        if not 0 < len(key.encode()) <= _LONGEST_KEY or len(value.encode()) > _LONGEST_VALUE:
            raise ValueError(
                f"Pub/Sub takes header names of 1 to {_LONGEST_KEY} bytes with values of up to {_LONGEST_VALUE}: "
                f"{key[:50]!r} has {len(key.encode())} and {len(value.encode())}"
            )
    if len(group.encode()) > _LONGEST_GROUP:
        raise ValueError(f"Pub/Sub takes groups (ordering keys) of up to {_LONGEST_GROUP} bytes: {group!r:.60}")
    return _new_message(data=body, attributes=attributes, ordering_key=group)


def _whole(what: str, seconds: float) -> int:
    """Round to the whole seconds of Pub/Sub, which takes no more than ten minutes at once."""
    if not 0 < seconds <= LONGEST_LEASE:
        raise ValueError(f"{what} must be more than 0 and at most {LONGEST_LEASE} seconds, not {seconds!r}")
    return math.ceil(seconds)
