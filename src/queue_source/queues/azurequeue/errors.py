"""Maps the errors of Azure's client to ours; this happens nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azure.core import exceptions

from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from shard_store.redaction import redact_text

_ROLE = "give the identity the role Storage Queue Data Contributor on the queue or its account"
_CREDENTIALS = (
    "set azureQueue.accessKey, azureQueue.sasToken or azureQueue.clientId, or what Azure's SDK reads by itself"
)
_NEXT_STEPS = {
    "AuthenticationFailed": "check the key or the token, and the clock of this machine",
    "AuthorizationFailure": "allow this network in the account's firewall, and check what a token permits",
    "AuthorizationPermissionMismatch": _ROLE,
    "AuthorizationProtocolMismatch": "the token permits https alone",
    "AuthorizationResourceTypeMismatch": "the token has to permit objects (srt=o) of the queue service (ss=q)",
    "AuthorizationServiceMismatch": "the token has to permit the queue service (ss=q)",
    "AuthorizationSourceIPMismatch": "the token does not permit this address",
    "InsufficientAccountPermissions": _ROLE,
    "InvalidAuthenticationInfo": _CREDENTIALS,
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys; leave them out, and give a role to an identity",
    "NoAuthenticationInformation": _CREDENTIALS,
    "ResourceNotFound": "check the account's name",
}
"""Error codes for which waiting does not help, and what does."""

_PASSING_STATUS = (408, 429)
_PASSING = ("OperationTimedOut", "QueueBeingDeleted", "ServerBusy")
_STALE = ("MessageNotFound", "PopReceiptMismatch")
_STALE_IN_PART = ("InvalidQueryParameterValue", "OutOfRangeQueryParameterValue")
"""Of a receipt that is none, and of a message that expires before the lease that is asked for would end."""


@contextmanager
def service_errors(queue: str) -> Iterator[None]:
    """Map the errors that Azure's client raises in the block to ours, without secrets."""
    try:
        yield
    except exceptions.HttpResponseError as error:
        # no chain of causes where there is a request, whose URL may hold a token
        raise _answer_error(queue, error) from None
    except exceptions.ServiceRequestError as error:
        problem = f"cannot be reached: {_plain(error)}; check the account's name, the endpoint and the network"
        raise QueueUnavailable(queue, problem) from None
    except exceptions.AzureError as error:
        raise QueueUnavailable(queue, f"did not answer as it should: {_plain(error)}") from None
    except ValueError as error:  # an endpoint that is no URL
        raise QueueConfigurationError(queue, f"{_plain(error)}; check the options azureQueue.* and azure.*") from None


def is_stale(error: exceptions.HttpResponseError) -> bool:
    """Tell whether the answer says that a receipt is stale."""
    code = error_code(error)
    return code in _STALE or (error.status_code == 400 and code in _STALE_IN_PART)


def error_code(error: exceptions.HttpResponseError) -> str:
    """Return the code that the service gives, as `QueueNotFound`; "" where it gives none."""
    code = getattr(error, "error_code", None)
    if code is None:
        headers: Any = getattr(error.response, "headers", {})
        code = headers.get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")


def _answer_error(queue: str, error: exceptions.HttpResponseError) -> QueueError:
    """Return our error for an answer of the service, or for one of the place that gives tokens."""
    code, status = error_code(error), error.status_code or 0
    if not code and isinstance(error, exceptions.ClientAuthenticationError):
        return QueueConfigurationError(queue, f"no credential is accepted: {_plain(error)}; {_CREDENTIALS}")
    problem = f"Azure answers {status} {code}: {_plain(error)}"
    if code in _PASSING or status in _PASSING_STATUS or status >= 500:
        return QueueUnavailable(queue, problem)
    if code == "QueueNotFound":
        return QueueNotFound(queue, f"{problem}; create it, or check account and name of the URL")
    if code in _NEXT_STEPS:
        return QueueConfigurationError(queue, f"{problem}; {_NEXT_STEPS[code]}")
    if status in (401, 403, 404):
        return QueueConfigurationError(queue, f"{problem}; check the account's name and the credentials")
    return QueueError(queue, problem)


def _plain(error: Exception) -> str:
    """Return the first line of an error: what follows are ids of the request, and the answer as XML."""
    text = str(getattr(error, "message", None) or error).strip()
    return redact_text(text.splitlines()[0] if text else type(error).__name__).rstrip(".")
