"""Google Cloud Pub/Sub (google-cloud-pubsub): a queue is a subscription; its topic gets what is sent.

Synchronous pull, so that this process keeps every lease. Where Pub/Sub promises less than other queues:

- There is no order, except for messages with an ordering key on a subscription with message ordering.
- Without exactly-once delivery the service takes expired receipts in silence: nothing is ever reported as stale.
- It counts deliveries only for subscriptions with a dead-letter policy; else every receive count is 1.
- It does not report how many messages wait.
- An empty answer to a short pull proves nothing, so none is shorter than `shortest_wait`. Messages that the service
  hands out at the moment when a pull ends are lost for the subscription's own deadline.

`address.py` has the URL, the channel and the errors, `messages.py` converts messages, `calls.py` makes the calls.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

# Before gRPC is loaded: after its first call it handles forks, and a program that is started then, such as Spark, may
# die of that before it begins (https://github.com/grpc/grpc/issues/43055). A program that forks on purpose sets it to
# true.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from queue_source.errors import QueueConfigurationError, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, Kept, convert_each, copy_of, peek_by_receiving
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.pubsub.address import parse_address
from queue_source.queues.pubsub.calls import LARGEST_PULL, PubSubCalls
from queue_source.queues.pubsub.messages import Message, dead_message, message_of, received

LONGEST_LEASE = 600
_SHORTEST_WAIT = 2.0
_PAUSE = 0.1  # seconds after an answer that came early, and empty


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
        self._project, self._subscription = parse_address(url, project)
        super().__init__(f"pubsub://{self._project}/{self._subscription}", url)
        path = f"projects/{self._project}/subscriptions/{self._subscription}"
        self._calls = PubSubCalls(self._name, path, credentials_file, endpoint)
        self._closed = self._calls.closed
        self._shortest_wait = shortest_wait
        self._lock = threading.Lock()
        self._delayed: dict[Receipt, float] = {}  # delayed by nack: the service would still accept the receipts
        self._rejectable = Kept[Message]()  # with a dead-letter topic: see reject

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

    def _receive(self, max_messages: int, lease: float, wait: float) -> list[Received]:
        """Pull until something comes; then extend, since until then the subscription's own deadline counts."""
        seconds = _whole("lease", lease)
        subscription = self._calls.subscription()
        pulled: Sequence[Any] = ()
        ends = time.monotonic() + max(wait, self._shortest_wait)
        while not pulled:
            started = time.monotonic()
            if started >= ends:
                return []
            pulled = self._calls.pull(max_messages, ends - started)
            if not pulled and self._closed.wait(min(max(0.0, ends - time.monotonic()), _PAUSE)):
                return []
        until = started + subscription.ack_deadline
        if subscription.dead_letter_topic:
            for item in pulled:
                self._rejectable.keep(Receipt(item.ack_id), until, item.message.ByteSize(), item.message)
        stale: set[Receipt] = set()
        started = time.monotonic()
        try:
            stale = self._extend([Receipt(item.ack_id) for item in pulled], seconds)
            until = started + lease
        except QueueUnavailable:
            pass  # the messages are here, and their leases end so soon that the caller extends them at once
        return [received(item, self._name, until) for item in pulled if item.ack_id not in stale]

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
        kept = self._rejectable.find(receipts)
        alive = list(kept)
        if subscription.exactly_once and alive:
            # another consumer may have them by now: then we must not move them
            stale = self._extend(alive, LONGEST_LEASE)
            alive = [receipt for receipt in alive if receipt not in stale]
        dead = [dead_message(kept[receipt], self._project, self._subscription) for receipt in alive]
        self._publish(subscription.dead_letter_topic, dead)
        self.acknowledge(alive)

    def republish(self, message: Received) -> bool:
        """Send the copy to the topic, for other subscriptions too. What is stale only exactly-once delivery tells."""
        subscription = self._calls.subscription()
        _, stale = self._sorted([message.receipt], forget=False)
        if stale or (subscription.exactly_once and self._extend([message.receipt], LONGEST_LEASE)):
            return False
        self._publish(subscription.topic, [message_of(copy_of(message))])
        self.acknowledge([message.receipt])
        return True

    def _send(self, messages: Sequence[Outgoing], *, in_order: bool) -> list[str]:
        """Send to the subscription's topic, those of one group together, up to 1,000 messages or 10 MB a request.

        After a failure the first ones may be sent.
        """
        made = convert_each(messages, message_of)
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

    def _sorted(self, receipts: Sequence[Receipt], *, forget: bool = True) -> tuple[list[Receipt], set[Receipt]]:
        """Divide into the receipts to ask the service about, once each, and stale ones; `forget` what is over."""
        now = time.monotonic()
        with self._lock:
            stale = {receipt for receipt in receipts if not receipt or self._delayed.get(receipt, 0.0) > now}
        if forget:
            self._rejectable.forget(receipts)
        return [receipt for receipt in dict.fromkeys(receipts) if receipt not in stale], stale

    def _extend(self, receipts: Sequence[Receipt], seconds: int) -> set[Receipt]:
        alive, stale = self._sorted(receipts, forget=False)
        until = time.monotonic() + seconds
        stale |= {Receipt(receipt) for receipt in self._calls.modify_deadline(alive, seconds)}
        self._rejectable.forget(stale)
        self._rejectable.extend(alive, until)
        return stale

    def _publish(self, topic: str, messages: Sequence[Message]) -> list[str]:
        """Publish the messages in requests of one ordering key each."""
        ids: list[str] = []
        for _, group in groupby(messages, lambda message: message.ordering_key):
            ids += self._calls.publish(topic, list(group))
        return ids


def _whole(what: str, seconds: float) -> int:
    """Round to the whole seconds of Pub/Sub, which takes no more than ten minutes at once."""
    if not 0 < seconds <= LONGEST_LEASE:
        raise ValueError(f"{what} must be more than 0 and at most {LONGEST_LEASE} seconds, not {seconds!r}")
    return math.ceil(seconds)
