"""The calls to Google Cloud Pub/Sub: one channel, made at the first use, and requests under the service's limits.

Only the first call is repeated here: the callers know the cost of a second try, and when it comes too late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

import grpc
from google.api_core import exceptions as api
from google.api_core.retry import Retry, if_exception_type
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from queue_source.errors import QueueNotFound, QueueUnavailable
from queue_source.queues.adapter import closed, in_batches, is_found
from queue_source.queues.pubsub.address import connect, mapped, receipt_failures

LARGEST_PULL = 1000  # messages
LARGEST_PUBLISH = (1000, 10_000_000)  # messages, bytes
LARGEST_REQUEST = 524_288  # bytes of a request that acknowledges or extends
MOST_RECEIPTS = 1000  # in one such request; at present a receipt has about 200 bytes

_PATIENCE = 30.0  # seconds for an answer
_FIRST_PATIENCE = 15.0  # and for the first one, tries included
_SILENCE = 60.0  # seconds after which pulls that ended by our own deadline are no longer believed
_ROUNDS = 4  # of a request of which some receipts fail for the moment
_PAUSE = 0.1
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


class PubSubCalls:
    """The calls for one subscription, on any thread; `name` stands for the queue in errors."""

    def __init__(self, name: str, path: str, credentials_file: str | None, endpoint: str | None) -> None:
        self._name = name
        self._path = path
        self._credentials_file = credentials_file
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._subscriber: SubscriberClient
        self._publisher: PublisherClient
        self._subscription: Subscription | None = None
        self._heard = 0.0
        self.closed = threading.Event()

    def subscription(self) -> Subscription:
        """The properties of the subscription, read at the first use."""
        if self._subscription is None:
            self._subscription = self._read(_READ, _FIRST_PATIENCE)
        return self._subscription

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

    def pull(self, max_messages: int, patience: float) -> Sequence[Any]:
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

    def acknowledge(self, receipts: Sequence[str]) -> set[str]:
        """Acknowledge; return the receipts that the service refused, which it does only with exactly-once delivery."""
        return self._change(receipts, "acknowledge", types.AcknowledgeRequest)

    def modify_deadline(self, receipts: Sequence[str], seconds: int) -> set[str]:
        """Make the leases end `seconds` from now; return the receipts that the service refused, as above."""
        request = partial(types.ModifyAckDeadlineRequest, ack_deadline_seconds=seconds)
        return self._change(receipts, "modify_ack_deadline", request)

    def publish(self, topic: str, messages: Sequence[Any]) -> list[str]:
        """Send PubsubMessages of one ordering key, confirmed; returns their ids in order."""
        ids: list[str] = []
        for places in in_batches((message.ByteSize() + 8 for message in messages), *LARGEST_PUBLISH):
            raw = types.PublishRequest.pb()(topic=topic, messages=messages[places.start : places.stop])
            with mapped(self._name, "publish", topic):
                answer = self._open()[1].publish(
                    request=types.PublishRequest.wrap(raw), retry=None, timeout=2 * _PATIENCE
                )
            ids += types.PublishResponse.pb(answer).message_ids
        return ids

    def exists(self) -> bool:
        """Tell whether the subscription exists; asks the service each time."""
        self._subscription = None
        return is_found(self.subscription)

    def create(self) -> None:
        """Create the subscription, and a topic of the same name where there is none; existing ones stay as they are."""
        topic = self._path.replace("/subscriptions/", "/topics/")
        try:
            self._subscribe(topic)
        except QueueNotFound:
            publisher = self._open()[1]
            with mapped(self._name, "create", topic), suppress(api.AlreadyExists):
                publisher.create_topic(request=types.Topic(name=topic), retry=None, timeout=_PATIENCE)
            self._subscribe(topic)

    def _subscribe(self, topic: str) -> None:
        request = types.Subscription(
            name=self._path,
            topic=topic,
            ack_deadline_seconds=60,
            enable_exactly_once_delivery=True,
            # without a time in it: it never expires, however long it is not read
            expiration_policy=types.ExpirationPolicy(),
        )
        subscriber, _ = self._open()
        with mapped(self._name, "create", self._path), suppress(api.AlreadyExists):
            subscriber.create_subscription(request=request, retry=None, timeout=_PATIENCE)

    def delete(self) -> None:
        request = types.DeleteSubscriptionRequest(subscription=self._path)
        subscriber, _ = self._open()
        with mapped(self._name, "delete", self._path), suppress(api.NotFound):
            subscriber.delete_subscription(request=request, retry=None, timeout=_PATIENCE)
        self._subscription = None

    def seek_to_now(self) -> None:
        """Mark everything published before now as done, by the clock of this machine."""
        request = types.SeekRequest(subscription=self._path, time=datetime.now(timezone.utc))
        subscriber, _ = self._open()
        with mapped(self._name, "receive", self._path):
            subscriber.seek(request=request, retry=None, timeout=_PATIENCE)

    def refuse_closed(self) -> None:
        if self.closed.is_set():
            raise closed(self._name)

    def close(self) -> None:
        """Close the channel, which ends the calls that wait in other threads."""
        self.closed.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    # --- receipts that fail one by one -------------------------------------------------------------------------------

    def _change(self, receipts: Sequence[str], method: str, request: Callable[..., Any]) -> set[str]:
        stale: set[str] = set()
        room = LARGEST_REQUEST - len(self._path) - 64  # 64: the request's other fields
        for places in in_batches((len(receipt.encode()) + 4 for receipt in receipts), MOST_RECEIPTS, room):
            stale |= self._change_batch(receipts[places.start : places.stop], method, request)
        return stale

    def _change_batch(self, receipts: Sequence[str], method: str, request: Callable[..., Any]) -> set[str]:
        """Repeat the request until the service takes all receipts but those that it refuses for good; return these.

        An error that names failures is about these alone: the others of its request were taken.
        """
        stale: set[str] = set()
        waiting = receipts
        for _ in range(_ROUNDS):
            with mapped(self._name, "receive", self._path):
                try:
                    some = request(subscription=self._path, ack_ids=waiting)
                    getattr(self._open()[0], method)(request=some, retry=None, timeout=_PATIENCE)
                    return stale
                except api.GoogleAPICallError as error:
                    failures = receipt_failures(error)
                    if failures.keys().isdisjoint(waiting):
                        raise
            failed = [receipt for receipt in waiting if receipt in failures]
            waiting = [receipt for receipt in failed if failures[receipt].startswith("TRANSIENT_")]
            stale |= set(failed) - set(waiting)
            if not waiting:
                return stale
            self.closed.wait(_PAUSE)
        raise QueueUnavailable(self._name, f"{len(waiting)} receipts were not taken: {failures[waiting[0]]}")

    def _open(self) -> tuple[SubscriberClient, PublisherClient]:
        with self._lock:
            self.refuse_closed()
            if self._channel is None:
                channel = connect(self._name, self._path, self._credentials_file, self._endpoint)
                self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
                self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
                self._channel = channel
            return self._subscriber, self._publisher
