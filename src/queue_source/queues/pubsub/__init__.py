"""Google Cloud Pub/Sub (google-cloud-pubsub): a queue is a subscription; its topic gets what is sent.

Synchronous pull, so that this process keeps every lease. Where Pub/Sub promises less than other queues:

- There is no order, except for messages with an ordering key on a subscription with message ordering.
- Without exactly-once delivery the service takes expired receipts in silence: nothing is ever reported as stale.
- It counts deliveries only for subscriptions with a dead-letter policy; else every receive count is 1.
- It does not report how many messages wait.
- An empty answer to a short pull proves nothing, so none is shorter than `shortest_wait`. Messages that the service
  hands out at the moment when a pull ends are lost for the subscription's own deadline.

Only the first call is repeated here: callers know the cost of a second try, and when it comes too late. `address.py`
has the URL, the channel and the errors, `messages.py` converts messages.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import groupby
from typing import Any

# Before gRPC is loaded: after its first call it handles forks, and a program that is started then, such as Spark, may
# die of that before it begins (https://github.com/grpc/grpc/issues/43055). A program that forks on purpose sets it to
# true.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import grpc
from google.api_core import exceptions as api
from google.api_core.retry import Retry, if_exception_type
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from queue_source.errors import QueueConfigurationError, QueueNotFound, QueueUnavailable
from queue_source.messages import Outgoing, Receipt, Received
from queue_source.queues.adapter import BaseQueue, Kept, convert_each, copy_of, in_batches, is_found, peek_by_receiving
from queue_source.queues.base import Capabilities, Depth
from queue_source.queues.pubsub.address import connect, mapped, parse_address, receipt_failures
from queue_source.queues.pubsub.messages import Message, dead_message, message_of, received

LONGEST_LEASE = 600
LARGEST_PULL = 1000  # messages
LARGEST_PUBLISH = (1000, 10_000_000)  # messages, bytes
LARGEST_REQUEST = 524_288  # bytes of a request that acknowledges or extends
MOST_RECEIPTS = 1000  # in one such request; at present a receipt has about 200 bytes

_SHORTEST_WAIT = 2.0
_PATIENCE = 30.0  # seconds for an answer
_FIRST_PATIENCE = 15.0  # and for the first one, tries included
_SILENCE = 60.0  # seconds after which pulls that ended by our own deadline are no longer believed
_ROUNDS = 4  # of a request of which some receipts fail for the moment
_PAUSE = 0.1  # seconds after an answer that came early, and empty, and between these rounds
_READ = Retry(
    predicate=if_exception_type(api.Aborted, api.ServiceUnavailable, api.Unknown),
    initial=0.1,
    maximum=2.0,
    timeout=_FIRST_PATIENCE,
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The properties of a subscription; times in seconds."""

    topic: str
    ack_deadline: float
    ordered: bool
    exactly_once: bool
    retention: float
    dead_letter_topic: str


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
        self._project, self._name_there = parse_address(url, project)
        super().__init__(f"pubsub://{self._project}/{self._name_there}", url)
        self._path = f"projects/{self._project}/subscriptions/{self._name_there}"
        self._credentials_file, self._endpoint = credentials_file, endpoint
        self._shortest_wait = shortest_wait
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._subscriber: SubscriberClient
        self._publisher: PublisherClient
        self._known: Subscription | None = None
        self._heard = 0.0
        self._delayed: dict[Receipt, float] = {}  # delayed by nack: the service would still accept the receipts
        self._rejectable = Kept[Message]()  # with a dead-letter topic: see reject

    @property
    def capabilities(self) -> Capabilities:
        """What the subscription can do; asks the service at the first use."""
        subscription = self._subscription()
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
        seconds = _whole(lease)
        subscription = self._subscription()
        pulled: Sequence[Any] = ()
        ends = time.monotonic() + max(wait, self._shortest_wait)
        while not pulled:
            started = time.monotonic()
            if started >= ends:
                return []
            pulled = self._pull(max_messages, ends - started)
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

    def _pull(self, max_messages: int, patience: float) -> Sequence[Any]:
        """Pull up to `max_messages` ReceivedMessages; none when nothing came within `patience` seconds.

        Our own deadline ends a pull in the same way whether there is no message or no service: after a minute without
        an answer the service is asked for one.
        """
        request = types.PullRequest(subscription=self._path, max_messages=min(max_messages, LARGEST_PULL))
        subscriber, _ = self._open()
        with mapped(self._name, "receive", self._path):
            try:
                answer = subscriber.pull(request=request, retry=None, timeout=patience)
            except api.DeadlineExceeded:
                answer = None
        if answer is None:
            if time.monotonic() - self._heard > _SILENCE:
                self._read(None, _PATIENCE)
            return ()
        self._heard = time.monotonic()
        return types.PullResponse.pb(answer).received_messages  # type: ignore[no-any-return]

    def extend(self, receipts: Sequence[Receipt], lease: float) -> set[Receipt]:
        """Extend the leases; without exactly-once delivery only receipts that we returned are reported as lost."""
        return self._extend(receipts, _whole(lease))

    def acknowledge(self, receipts: Sequence[Receipt]) -> set[Receipt]:
        alive, stale = self._sorted(receipts)
        return stale | self._change(alive, "acknowledge", types.AcknowledgeRequest)

    def nack(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Return the messages. A delay becomes the lease of those, at most ten minutes."""
        alive, _ = self._sorted(receipts)
        seconds = min(math.ceil(max(delay, 0.0)), LONGEST_LEASE)
        self._modify_deadline(alive, seconds)
        if seconds:
            now = time.monotonic()
            with self._lock:
                self._delayed = {receipt: until for receipt, until in self._delayed.items() if until > now}
                self._delayed.update(dict.fromkeys(alive, now + seconds))

    def reject(self, receipts: Sequence[Receipt]) -> None:
        """Copy to the subscription's dead-letter topic, confirmed, and delete; without such a topic only delete.

        Pub/Sub itself knows no rejection: it moves a message there when its deliveries are used up.
        """
        subscription = self._subscription()
        if not subscription.dead_letter_topic:
            self.acknowledge(receipts)
            return
        kept = self._rejectable.find(receipts)
        alive = list(kept)
        if subscription.exactly_once and alive:
            # another consumer may have them by now: then we must not move them
            stale = self._extend(alive, LONGEST_LEASE)
            alive = [receipt for receipt in alive if receipt not in stale]
        dead = [dead_message(kept[receipt], self._project, self._name_there) for receipt in alive]
        self._publish(subscription.dead_letter_topic, dead)
        self.acknowledge(alive)

    def republish(self, message: Received) -> bool:
        """Send the copy to the topic, for other subscriptions too. What is stale only exactly-once delivery tells."""
        subscription = self._subscription()
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
        ids = self._publish(self._subscription().topic, [made[place] for place in places])
        return [message_id for _, message_id in sorted(zip(places, ids, strict=True))]

    def depth(self) -> Depth:
        """Raise: only Cloud Monitoring reports the depth, minutes late."""
        raise QueueConfigurationError(
            self._name,
            "Pub/Sub does not report how many messages wait; see subscription/num_undelivered_messages in Cloud "
            "Monitoring",
        )

    def close(self) -> None:
        """Close the channel, which ends the calls that wait in other threads."""
        self._closed.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    # --- for people and commands: the subscription, never its topic --------------------------------------------------

    def exists(self) -> bool:
        """Tell whether the subscription exists; asks the service each time."""
        self._known = None
        return is_found(self._subscription)

    def create(self) -> None:
        """Create the subscription of the topic with its name, and that topic, where they are absent."""
        if self.exists():
            return
        topic = self._path.replace("/subscriptions/", "/topics/")
        subscriber, publisher = self._open()

        def subscribe() -> None:
            request = types.Subscription(
                name=self._path,
                topic=topic,
                ack_deadline_seconds=60,
                enable_exactly_once_delivery=True,
                # without a time in it: it never expires, however long it is not read
                expiration_policy=types.ExpirationPolicy(),
            )
            with mapped(self._name, "create", self._path), suppress(api.AlreadyExists):
                subscriber.create_subscription(request=request, retry=None, timeout=_PATIENCE)

        try:
            subscribe()
        except QueueNotFound:
            with mapped(self._name, "create", topic), suppress(api.AlreadyExists):
                publisher.create_topic(request=types.Topic(name=topic), retry=None, timeout=_PATIENCE)
            subscribe()

    def delete(self) -> None:
        request = types.DeleteSubscriptionRequest(subscription=self._path)
        subscriber, _ = self._open()
        with mapped(self._name, "delete", self._path), suppress(api.NotFound):
            subscriber.delete_subscription(request=request, retry=None, timeout=_PATIENCE)
        self._known = None

    def purge(self) -> None:
        """Delete all messages sent until now, by the clock of this machine; Pub/Sub does not report their number."""
        request = types.SeekRequest(subscription=self._path, time=datetime.now(timezone.utc))
        subscriber, _ = self._open()
        with mapped(self._name, "receive", self._path):
            subscriber.seek(request=request, retry=None, timeout=_PATIENCE)

    def peek(self, max_messages: int) -> list[Received]:
        """Return the next messages; counts as a delivery, for the dead-letter policy too."""
        return peek_by_receiving(self, max_messages)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _subscription(self) -> Subscription:
        if self._known is None:
            self._known = self._read(_READ, _FIRST_PATIENCE)
        return self._known

    def _read(self, retry: Retry | None, patience: float) -> Subscription:
        request = types.GetSubscriptionRequest(subscription=self._path)
        with mapped(self._name, "read", self._path):
            description = types.Subscription.pb(
                self._open()[0].get_subscription(request=request, retry=retry, timeout=patience)
            )
        self._heard = time.monotonic()
        return Subscription(
            topic=description.topic,
            ack_deadline=float(description.ack_deadline_seconds or 10),
            ordered=description.enable_message_ordering,
            exactly_once=description.enable_exactly_once_delivery,
            retention=description.message_retention_duration.ToTimedelta().total_seconds(),
            dead_letter_topic=description.dead_letter_policy.dead_letter_topic,
        )

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
        stale |= self._modify_deadline(alive, seconds)
        self._rejectable.forget(stale)
        self._rejectable.extend(alive, until)
        return stale

    def _modify_deadline(self, receipts: Sequence[Receipt], seconds: int) -> set[Receipt]:
        request = partial(types.ModifyAckDeadlineRequest, ack_deadline_seconds=seconds)
        return self._change(receipts, "modify_ack_deadline", request)

    def _change(self, receipts: Sequence[Receipt], method: str, request: Callable[..., Any]) -> set[Receipt]:
        """Repeat the request until the service takes all receipts but those that it refuses for good; return these.

        It refuses receipts only with exactly-once delivery. An error that names failures is about these alone: the
        others of its request were taken.
        """
        stale: set[Receipt] = set()
        room = LARGEST_REQUEST - len(self._path) - 64  # 64: the request's other fields
        for places in in_batches((len(receipt.encode()) + 4 for receipt in receipts), MOST_RECEIPTS, room):
            waiting = receipts[places.start : places.stop]
            for _ in range(_ROUNDS):
                failures: Mapping[str, str] = {}
                with mapped(self._name, "receive", self._path):
                    try:
                        some = request(subscription=self._path, ack_ids=waiting)
                        getattr(self._open()[0], method)(request=some, retry=None, timeout=_PATIENCE)
                    except api.GoogleAPICallError as error:
                        failures = receipt_failures(error)
                        if failures.keys().isdisjoint(waiting):
                            raise
                failed = [receipt for receipt in waiting if receipt in failures]
                waiting = [receipt for receipt in failed if failures[receipt].startswith("TRANSIENT_")]
                stale |= set(failed) - set(waiting)
                if not waiting:
                    break
                self._closed.wait(_PAUSE)
            else:
                problem = f"{len(waiting)} receipts were not taken: {failures[waiting[0]]}"
                raise QueueUnavailable(self._name, problem)
        return stale

    def _publish(self, topic: str, messages: Sequence[Message]) -> list[str]:
        """Publish the messages, all confirmed, in requests of one ordering key each; return their ids in order."""
        ids: list[str] = []
        for _, group in groupby(messages, lambda message: message.ordering_key):
            alike = list(group)
            for places in in_batches((message.ByteSize() + 8 for message in alike), *LARGEST_PUBLISH):
                raw = types.PublishRequest.pb()(topic=topic, messages=alike[places.start : places.stop])
                with mapped(self._name, "publish", topic):
                    request = types.PublishRequest.wrap(raw)
                    answer = self._open()[1].publish(request=request, retry=None, timeout=2 * _PATIENCE)
                ids += types.PublishResponse.pb(answer).message_ids
        return ids

    def _open(self) -> tuple[SubscriberClient, PublisherClient]:
        with self._lock:
            self._refuse_closed()
            if self._channel is None:
                channel = connect(self._name, self._path, self._credentials_file, self._endpoint)
                self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
                self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
                self._channel = channel
            return self._subscriber, self._publisher


def _whole(seconds: float) -> int:
    """Round to the whole seconds of Pub/Sub, which takes no more than ten minutes at once."""
    if not 0 < seconds <= LONGEST_LEASE:
        raise ValueError(f"lease must be more than 0 and at most {LONGEST_LEASE} seconds, not {seconds!r}")
    return math.ceil(seconds)
