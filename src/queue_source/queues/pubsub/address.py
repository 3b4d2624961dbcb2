"""The way to a subscription: its URL, the channel to the service, and from the errors of Google's client to ours.

Every class of `google.api_core.exceptions` is in one of the two tables below, but those of uploads, which older
libraries lack; a test fails when the library grows one that is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import google.auth
import grpc
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.oauth2 import service_account
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.queues.urls import KINDS, checked_parameters, query_of
from shard_store.redaction import redact_url

EMULATOR = "PUBSUB_EMULATOR_HOST"

_URL = re.compile(r"pubsub://(?P<project>[^/?#]*)/(?P<subscription>[A-Za-z][\w.~+%-]{2,254})", re.ASCII)
_FORM = KINDS["pubsub"].form
# as Google's own client: messages of 10 MB come a thousand at once; failures of receipts come as metadata
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 4 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
]


def parse_address(url: str, project: str | None) -> tuple[str, str]:
    """Return the project and the subscription that the URL names; `project` is used where it leaves that out."""
    name = redact_url(url)
    checked_parameters(name, query_of(url))
    parts = _URL.fullmatch(url.partition("?")[0])
    if parts is None:
        raise QueueConfigurationError(name, f"is not of the form {_FORM}")
    owner = parts["project"] or project
    if not owner:
        raise QueueConfigurationError(name, f"names no project; write {_FORM} or set option 'gcp.project'")
    return owner, parts["subscription"]


def connect(name: str, path: str, credentials_file: str | None, endpoint: str | None) -> grpc.Channel:
    """Open the channel; one for `http://` or an emulator has neither encryption nor credentials."""
    emulator = os.environ.get(EMULATOR)
    place = endpoint or (f"http://{emulator}" if emulator else "")
    parts = urlsplit(place if "://" in place else f"https://{place}")
    if parts.scheme == "http":
        return grpc.insecure_channel(parts.netloc, options=_CHANNEL)
    scopes = SubscriberGrpcTransport.AUTH_SCOPES
    try:
        if credentials_file is None:
            credentials = google.auth.default(scopes=scopes)[0]
        else:
            credentials = service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
                credentials_file, scopes=scopes
            )
    except auth.GoogleAuthError as error:
        raise our_error(name, "read", path, error) from error
    except (OSError, ValueError) as error:  # the file is absent, or not JSON
        problem = f"{credentials_file!r} is no key file of a service account: {error}"
        raise QueueConfigurationError(name, f"{problem}; name one in option 'gcp.credentialsFile'") from error
    host = parts.netloc or SubscriberGrpcTransport.DEFAULT_HOST
    return SubscriberGrpcTransport.create_channel(host, credentials=credentials, options=_CHANNEL)


# --- errors ----------------------------------------------------------------------------------------------------------

PASSING: tuple[type[api.GoogleAPICallError], ...] = (
    api.Aborted,
    api.Cancelled,
    api.ServerError,  # Internal, Unknown, Unavailable, DeadlineExceeded, DataLoss ..., except those below
    api.TooManyRequests,  # ResourceExhausted: a quota, which comes back
)
"""Trouble that may be over at the next try."""

LASTING: Mapping[type[api.GoogleAPICallError], str] = {
    api.NotFound: "it does not exist; create it, or correct the name",
    api.Forbidden: "give the permission to the account whose credentials are used",
    api.Unauthorized: "the credentials are not accepted; check 'gcp.credentialsFile', or log in anew",
    api.BadRequest: "the service does not take the request as it is",  # InvalidArgument, FailedPrecondition (detached)
    api.MethodNotImplemented: "what answers at 'gcp.endpoint' is not all of Pub/Sub",
    api.ClientError: "the service does not take the request as it is",
    api.Redirection: "what answers at 'gcp.endpoint' is not Pub/Sub's gRPC interface",
}
"""What waiting does not mend, and the next step. The first that fits holds; they are tried before `PASSING`."""

NEEDED: Mapping[str, str] = {
    "read": "pubsub.subscriptions.get (role roles/pubsub.viewer on the subscription)",
    "receive": "pubsub.subscriptions.consume (role roles/pubsub.subscriber on the subscription)",
    "publish": "pubsub.topics.publish (role roles/pubsub.publisher on the topic)",
    "create": "pubsub.subscriptions.create, pubsub.topics.attachSubscription, and for a new topic pubsub.topics.create "
    "(role roles/pubsub.editor on the project)",
    "delete": "pubsub.subscriptions.delete (role roles/pubsub.editor on the subscription)",
}
"""What the calls of each kind need to be allowed."""


@contextmanager
def mapped(name: str, kind: str, what: str) -> Iterator[None]:
    """Map the errors that Google's client raises in the block to ours, for a call of `kind` about `what`."""
    try:
        yield
    except (api.GoogleAPIError, auth.GoogleAuthError) as error:
        raise our_error(name, kind, what, error) from error
    except ValueError as error:
        if "closed channel" not in str(error):  # all that gRPC raises for a channel that `close` has ended
            raise
        raise QueueUnavailable(name, "was closed during the call") from error


def our_error(name: str, kind: str, what: str, error: Exception) -> QueueError:
    """Return our error for `error`: one that may pass, or one with the next step."""
    if isinstance(error, auth.GoogleAuthError):
        if error.retryable:
            return QueueUnavailable(name, f"no access token was to be had: {error}")
        return QueueConfigurationError(
            name,
            f"there are no usable Google credentials: {error}; name a key file in option 'gcp.credentialsFile', or run "
            "'gcloud auth application-default login'",
        )
    text = getattr(error, "message", None) or str(error)
    step = None
    if isinstance(error, api.MethodNotImplemented) or not isinstance(error, PASSING):
        step = next((step for kind_of_error, step in LASTING.items() if isinstance(error, kind_of_error)), None)
    if step is None:  # PASSING, and a Retry that gave up
        return QueueUnavailable(name, f"{what}: {type(error).__name__}: {text}")
    if isinstance(error, api.Forbidden):
        step = f"the credentials lack {NEEDED[kind]}"
    kind_of_ours = QueueNotFound if isinstance(error, api.NotFound) else QueueConfigurationError
    return kind_of_ours(name, f"{what}: {type(error).__name__}: {text}; {step}")


def receipt_failures(error: api.GoogleAPICallError) -> Mapping[str, str]:
    """Return the failure of each ack id: only subscriptions with exactly-once delivery report them.

    The service sends it as the metadata of an ErrorInfo: {ack id: PERMANENT_FAILURE_... or TRANSIENT_FAILURE_...}.
    """
    metadata: Mapping[str, str] | None = error.metadata
    return {key: value for key, value in (metadata or {}).items() if value.startswith(("PERMANENT_", "TRANSIENT_"))}
