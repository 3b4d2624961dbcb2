"""Maps the errors of Google's client to ours; this happens nowhere else.

Every class of `google.api_core.exceptions` is in one of the two tables below; a test fails when the library grows one
that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from google.api_core import exceptions as api
from google.auth import exceptions as auth

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable

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
    api.ResumableTransferError: "what answers at 'gcp.endpoint' is not Pub/Sub's gRPC interface",
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
    step = _next_step(error)
    if step is None:  # PASSING, and a Retry that gave up
        return QueueUnavailable(name, f"{what}: {type(error).__name__}: {text}")
    if isinstance(error, api.Forbidden):
        step = f"the credentials lack {NEEDED[kind]}"
    kind_of_ours = QueueNotFound if isinstance(error, api.NotFound) else QueueConfigurationError
    return kind_of_ours(name, f"{what}: {type(error).__name__}: {text}; {step}")


def _next_step(error: Exception) -> str | None:
    """Return the next step for the user; None for an error that may pass."""
    if isinstance(error, api.MethodNotImplemented) or not isinstance(error, PASSING):
        return next((step for kind, step in LASTING.items() if isinstance(error, kind)), None)
    return None


def receipt_failures(error: api.GoogleAPICallError) -> Mapping[str, str]:
    """Return the failure of each ack id: only subscriptions with exactly-once delivery report them.

    The service sends it as the metadata of an ErrorInfo: {ack id: PERMANENT_FAILURE_... or TRANSIENT_FAILURE_...}.
    """
    metadata: Mapping[str, str] | None = error.metadata
    return {key: value for key, value in (metadata or {}).items() if value.startswith(("PERMANENT_", "TRANSIENT_"))}
