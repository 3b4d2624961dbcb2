"""Sets up what Cloud Storage needs to announce a prefix through Pub/Sub: lists the missing parts, and makes them.

`Setup.changes` returns the missing parts, as data; `apply` does exactly that. Existing things stay as they are,
especially other notifications of the bucket and other bindings of the policies. So a second run changes nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

import google.auth
import requests
import tenacity
from google.api_core import exceptions as api
from google.api_core.retry import Retry, if_exception_type
from google.auth import exceptions as auth
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from queue_source.commands.setup import default_name
from queue_source.errors import CuesqueueError, OptionError
from queue_source.queues.pubsub.address import EMULATOR, connect
from shard_store.redaction import redact_text

MOST_DELIVERIES = 100  # the most that Pub/Sub allows: restarts of a pipeline count as deliveries of all in flight
PUBLISHER, SUBSCRIBER = "roles/pubsub.publisher", "roles/pubsub.subscriber"
STORAGE_EMULATOR = "STORAGE_EMULATOR_HOST"

_KEPT = {
    "ackDeadlineSeconds": 60,
    "messageRetentionDuration": f"{14 * 86_400}s",
    "expirationPolicy": {},  # the subscription never expires
}
_DELETED = "_deleted-topic_"
_EVENT = "OBJECT_FINALIZE"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_NAME = re.compile(r"(?!goog)[A-Za-z][\w.~+%-]{2,249}", re.ASCII)
_AGENT = re.compile(r"service-(\d+)@")
_PATIENCE = 30.0  # seconds for an answer
_RETRY = Retry(predicate=if_exception_type(api.ServiceUnavailable), initial=0.2, maximum=2.0, timeout=15.0)
_AGAIN = "run it again once that is solved; it continues where it stopped"
_NETWORK = f"check the network, {EMULATOR} and {STORAGE_EMULATOR}, and run it again"
_LOG_IN = "run `gcloud auth application-default login`, or name a key file with --credentials-file"
_NOT_YET = re.compile("permission to publish messages|service account .* does not exist", re.IGNORECASE)
_WAIT = tenacity.wait_fixed(3)

Change = dict[str, Any]
"""One thing to do: `action`, and what it takes; `attributes` are those of Google's REST interfaces."""


def parse_place(text: str) -> tuple[str, str]:
    """Return bucket and prefix of `gs://bucket/prefix`."""
    parts = re.fullmatch(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(.*))?", text, re.DOTALL)
    if parts is None:
        raise OptionError("PREFIX", f"{text!r} is not a place in Cloud Storage; write gs://bucket/prefix")
    return parts[1], parts[2] or ""


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Map the errors of Google's libraries, with the next step; finished changes stay, and a second run continues."""
    try:
        yield
    except api.GoogleAPIError as error:
        step = _AGAIN
        if isinstance(error, api.Forbidden):
            step = "docs/how-to/pubsub.md lists the roles that setup needs"
        elif isinstance(error, api.Unauthorized):
            step = _LOG_IN
        elif isinstance(error, api.NotFound):
            step = "correct PREFIX, --queue or --project"
        elif isinstance(error, (api.RetryError, api.ServerError)):
            step = _NETWORK
        raise CuesqueueError(f"{what}: {type(error).__name__}: {_plain(error)}; {step}") from error
    except (requests.RequestException, auth.TransportError) as error:
        raise CuesqueueError(f"{what}: {_plain(error)}; {_NETWORK}") from error
    except auth.GoogleAuthError as error:
        raise CuesqueueError(f"there are no usable Google credentials: {_plain(error)}; {_LOG_IN}") from error


def _plain(error: Exception) -> str:
    text = getattr(error, "message", None) or str(error)
    return " ".join(redact_text(text).split())[:500].rstrip(".")


@dataclass
class Setup:
    """The bucket's notifications, the topic and subscription, and those of dead letters.

    Reads on demand, changes only in `apply`. `project` is that of topics and subscriptions, else the credentials';
    the bucket may be in another one. `labels` are those of topics and subscriptions.
    """

    bucket: str
    prefix: str
    queue: str = ""
    project: str = ""
    credentials_file: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = self.queue or default_name(self.bucket, self.prefix)
        if not _NAME.fullmatch(self.queue):
            raise OptionError(
                "--queue",
                f"{self.queue!r} is no name of Pub/Sub; write 3 to 250 letters, digits or -_.~+%, a letter first",
            )
        if not self.project:
            self.project = self._login[1] or ""
        if not self.project:
            raise OptionError("--project", "the credentials name no project; write --project PROJECT")

    def changes(self) -> list[Change]:
        """Return the missing parts, in the order in which they have to be made."""
        about_bucket = self._storage("GET", f"b/{self.bucket}")
        storage_agent = self._agent(str(about_bucket.get("projectNumber") or self.project))
        own_agent = self._agent(self.project)
        if (number := _AGENT.match(own_agent)) is not None:
            owner = number[1]
        elif own_agent == storage_agent:  # older projects have a name there
            owner = str(about_bucket["projectNumber"])
        else:
            raise CuesqueueError(
                f"{own_agent} does not tell the number of the project {self.project}; write --project with the "
                "bucket's own project"
            )
        pubsub_agent = f"serviceAccount:service-{owner}@gcp-sa-pubsub.iam.gserviceaccount.com"

        labels = {"labels": dict(self.labels)} if self.labels else {}
        topic, dead_topic = self._topic(self.queue), self._topic(self._dead)
        existing = self._attached(self.queue, topic)
        leads_to = "" if existing is None else str(existing.dead_letter_policy.dead_letter_topic).replace(_DELETED, "")
        dead_letters = {"deadLetterPolicy": {"deadLetterTopic": dead_topic, "maxDeliveryAttempts": MOST_DELIVERIES}}
        is_ours = leads_to in ("", dead_topic)  # another dead-letter topic is the business of its owner
        missing: list[Change] = []
        if is_ours:
            if not self._exists(dead_topic):
                missing.append(_change("create-topic", dead_topic, labels))
            if self._attached(self._dead, dead_topic) is None:
                kept = {"topic": dead_topic, **_KEPT, **labels}
                missing.append(_change("create-subscription", self._subscription(self._dead), kept))
        if not self._exists(topic):
            missing.append(_change("create-topic", topic, labels))
        subscription = self._subscription(self.queue)
        if existing is None:
            kept = {"topic": topic, **_KEPT, "enableExactlyOnceDelivery": True, **dead_letters, **labels}
            missing.append(_change("create-subscription", subscription, kept))
        elif not leads_to:
            missing.append(_change("set-dead-letters", subscription, dead_letters))
        required = [(topic, PUBLISHER, f"serviceAccount:{storage_agent}")]
        if is_ours:  # Pub/Sub itself moves dead letters
            required = [(dead_topic, PUBLISHER, pubsub_agent), (subscription, SUBSCRIBER, pubsub_agent), *required]
        for resource, role, member in required:
            policy = self._ask(self._publisher.get_iam_policy, _policy_of(resource), resource)
            if policy is None or not _has(policy, role, member):
                missing.append(_change("grant-role", resource, {"role": role, "member": member}))

        target = f"//pubsub.googleapis.com/{topic}"
        present = self._storage("GET", f"b/{self.bucket}/notificationConfigs").get("items", [])
        prefixes = {
            str(notification.get("object_name_prefix", ""))
            for notification in present
            if notification["topic"] == target and _EVENT in (notification.get("event_types") or [_EVENT])
        }
        if others := prefixes - {self.prefix}:  # names of queues have fewer characters than prefixes
            raise CuesqueueError(
                f"topic {self.queue!r} is there for gs://{self.bucket}/{min(others)}; name another queue with --queue"
            )
        if not prefixes:
            configuration = {"topic": target, "payload_format": "JSON_API_V1", "event_types": [_EVENT]}
            if self.prefix:
                configuration["object_name_prefix"] = self.prefix
            missing.append({"action": "create-notification", "bucket": self.bucket, "configuration": configuration})
        return missing

    def apply(self, changes: list[Change]) -> None:
        # a role that was granted, and an account that was made, may take some seconds until they are known everywhere
        patient = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: bool(_NOT_YET.search(str(error))) or isinstance(error.__cause__, api.Aborted)
            ),
            wait=_WAIT,
            stop=tenacity.stop_after_attempt(10),
            reraise=True,
        )
        for change in changes:
            name, attributes = change.get("name", ""), change.get("attributes", {})
            resource = json.dumps({"name": name, **attributes})
            if change["action"] == "create-topic":
                with _errors(name), suppress(api.AlreadyExists):
                    self._publisher.create_topic(
                        request=types.Topic.from_json(resource), retry=_RETRY, timeout=_PATIENCE
                    )
            elif change["action"] == "create-subscription":
                with _errors(name), suppress(api.AlreadyExists):
                    self._subscriber.create_subscription(
                        request=types.Subscription.from_json(resource), retry=_RETRY, timeout=_PATIENCE
                    )
            elif change["action"] == "set-dead-letters":
                request = types.UpdateSubscriptionRequest(
                    subscription=types.Subscription.from_json(resource),
                    update_mask={"paths": ["dead_letter_policy"]},
                )
                with _errors(name):
                    self._subscriber.update_subscription(request=request, retry=_RETRY, timeout=_PATIENCE)
            elif change["action"] == "grant-role":
                patient(self._grant, name, attributes["role"], attributes["member"])
            else:
                patient(self._storage, "POST", f"b/{change['bucket']}/notificationConfigs", change["configuration"])

    def reader_options(self) -> dict[str, str]:
        """Return the options for `spark.readStream.format("cuesqueue")`."""
        return {
            "queueUrl": f"pubsub://{self.project}/{self.queue}",
            "allowedPrefixes": f"gs://{self.bucket}/{self.prefix}",
        }

    def reader_roles(self) -> dict[str, str]:
        """Return the roles that the reader's account needs, and where."""
        subscription = self._subscription(self.queue)
        places = {SUBSCRIBER: subscription, "roles/pubsub.viewer": subscription}
        return {**places, "roles/storage.objectViewer": f"gs://{self.bucket}"}

    def close(self) -> None:
        for opened in ("_session", "_channel"):
            if opened in self.__dict__:
                getattr(self, opened).close()

    # --- Pub/Sub -----------------------------------------------------------------------------------------------------

    @property
    def _dead(self) -> str:
        return f"{self.queue}-dead"

    def _topic(self, name: str) -> str:
        return f"projects/{self.project}/topics/{name}"

    def _subscription(self, name: str) -> str:
        return f"projects/{self.project}/subscriptions/{name}"

    def _exists(self, topic: str) -> bool:
        return self._ask(self._publisher.get_topic, {"topic": topic}, topic) is not None

    def _attached(self, name: str, topic: str) -> Any:
        """Return the subscription, None if it is absent; raise if it is not one that can be pulled from the topic."""
        path = self._subscription(name)
        subscription = self._ask(self._subscriber.get_subscription, {"subscription": path}, path)
        if subscription is None:
            return None
        problem = "" if subscription.topic == topic else f"of the topic {subscription.topic}, not of {topic}"
        if (
            subscription.push_config.push_endpoint
            or subscription.bigquery_config.table
            or subscription.cloud_storage_config.bucket
        ):
            problem = "one that Pub/Sub itself empties, and nobody can pull"
        elif subscription.detached:
            problem = "detached"
        if problem:
            raise CuesqueueError(
                f"the subscription {name!r} is there, but {problem}; name another queue with --queue, or delete it"
            )
        return subscription

    def _ask(self, method: Any, request: Any, what: str) -> Any:
        """Call a method that reads; None where the thing is absent."""
        with _errors(what):
            try:
                return method(request=request, retry=_RETRY, timeout=_PATIENCE)
            except api.NotFound:
                return None

    def _grant(self, resource: str, role: str, member: str) -> None:
        """Add the binding to the policy; the policy's etag makes the service refuse it if it has changed meanwhile."""
        with _errors(resource):
            policy = self._publisher.get_iam_policy(request=_policy_of(resource), retry=_RETRY, timeout=_PATIENCE)
            if _has(policy, role, member):
                return
            policy.bindings.add(role=role, members=[member])
            changed = {"resource": resource, "policy": policy}
            self._publisher.set_iam_policy(request=changed, retry=None, timeout=_PATIENCE)

    @cached_property
    def _publisher(self) -> PublisherClient:
        return PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))

    @cached_property
    def _subscriber(self) -> SubscriberClient:
        return SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))

    @cached_property
    def _channel(self) -> Any:
        if os.environ.get(EMULATOR):
            return connect(self.queue, "", None, None)
        host = SubscriberGrpcTransport.DEFAULT_HOST
        return SubscriberGrpcTransport.create_channel(host, credentials=self._login[0])

    # --- Cloud Storage -----------------------------------------------------------------------------------------------

    def _agent(self, project: str) -> str:
        """Return the address of the account by which Cloud Storage acts for a project, which its first call makes."""
        path = f"projects/{quote(project, safe='')}/serviceAccount"
        return str(self._storage("GET", path).get("email_address", ""))

    def _storage(self, method: str, path: str, content: Any = None) -> Any:
        """Ask Cloud Storage's JSON interface."""
        place = os.environ.get(STORAGE_EMULATOR) or "https://storage.googleapis.com"
        url = f"{place if '://' in place else f'http://{place}'}/storage/v1/{path}"
        with _errors(f"{method} {path}"):
            answer = self._session.request(method, url, json=content, timeout=_PATIENCE)
            try:
                said = answer.json()
            except ValueError:
                said = None
            if not answer.ok:
                error = said.get("error") if isinstance(said, dict) else None
                text = error.get("message") if isinstance(error, dict) else None
                raise api.from_http_status(answer.status_code, str(text or answer.reason))  # type: ignore[no-untyped-call]
            if not isinstance(said, dict):
                raise CuesqueueError(f"{method} {path}: the answer is not one of Cloud Storage; {_NETWORK}")
            return said

    @cached_property
    def _session(self) -> requests.Session:
        if os.environ.get(STORAGE_EMULATOR):
            return requests.Session()
        session: requests.Session = AuthorizedSession(self._login[0])  # type: ignore[no-untyped-call]
        return session

    @cached_property
    def _login(self) -> tuple[Any, str | None]:
        """The credentials, and the project that they name."""
        if self.credentials_file is not None:
            try:
                credentials = service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
                    self.credentials_file, scopes=[_SCOPE]
                )
            except (OSError, ValueError, auth.GoogleAuthError) as error:  # it is absent, or not JSON
                raise OptionError(
                    "--credentials-file",
                    f"{self.credentials_file!r} is no key file of a service account: {_plain(error)}; name one",
                ) from error
            return credentials, credentials.project_id
        if os.environ.get(EMULATOR) and os.environ.get(STORAGE_EMULATOR):
            return None, os.environ.get("GOOGLE_CLOUD_PROJECT")
        with _errors("credentials"):
            credentials, project = google.auth.default(scopes=[_SCOPE])
        return credentials, project


def _change(action: str, name: str, attributes: Mapping[str, Any]) -> Change:
    return {"action": action, "name": name, "attributes": dict(attributes)}


def _policy_of(resource: str) -> dict[str, Any]:
    return {"resource": resource, "options": {"requested_policy_version": 3}}  # 3: with conditions, which stay


def _has(policy: Any, role: str, member: str) -> bool:
    """Tell whether the policy grants the role without a condition."""
    return any(
        binding.role == role and member in binding.members and not binding.HasField("condition")
        for binding in policy.bindings
    )
