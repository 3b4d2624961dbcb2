"""The way from a queue's URL and options to a client of Azure Storage Queue, and from its errors to ours.

| URL | account |
|---|---|
| `azurequeue://ACCOUNT/NAME` | in the URL |
| `azurequeue:///NAME` | of the option `azureQueue.connectionStringSecret`, or `azureQueue.accountName` |

The endpoint is `https://ACCOUNT.queue.core.windows.net`, or that of the connection string, or the option `endpointUrl`:
the address of an emulator, where paths begin with the account, or the whole address of the account in another cloud.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests
from azure.core import exceptions
from azure.storage.queue import LinearRetry, QueueClient
from requests.adapters import HTTPAdapter

from queue_source.common.clouds import new_credential
from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.queues.azurequeue.transport import DirectTransport
from queue_source.queues.urls import KINDS, checked_parameters, query_of
from shard_store.redaction import redact_text, redact_url

_FORM = KINDS["azurequeue"].form
_NAME = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_PUBLIC = "queue.core.windows.net"
_ACCOUNT_VARIABLE = "AZURE_STORAGE_ACCOUNT"
_CONNECTION_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
_KEY_VARIABLE = "AZURE_STORAGE_KEY"
_TOKEN_VARIABLE = "AZURE_STORAGE_SAS_TOKEN"
_CONNECT_SECONDS = 10
_READ_SECONDS = 30
_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an account; None leaves it to Azure's default credential. Secrets are not in its repr."""

    account_name: str | None = None
    access_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    connection_string_secret: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    endpoint_url: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A queue: the address of its account's queue service, and its name."""

    account: str
    queue: str
    service: str

    @property
    def name(self) -> str:
        return f"azurequeue://{self.account}/{self.queue}"


def parse_address(url: str, access: Access) -> tuple[Address, Access]:
    """Return the queue that the URL names, and its access with what the environment and a connection string add."""
    name = redact_url(url)
    try:
        parts, parameters = urlsplit(url), query_of(name)
    except ValueError:
        raise QueueConfigurationError(name, f"not a URL; write {_FORM}") from None
    checked_parameters(name, parameters)
    if parts.fragment or "@" in parts.netloc:
        raise QueueConfigurationError(
            name, "the URL of an Azure queue has no password; set the options azureQueue.* instead"
        )
    queue = parts.path.removeprefix("/").removesuffix("/")
    account = parts.netloc.lower()
    if not _NAME.fullmatch(queue) or (account and not _ACCOUNT.fullmatch(account)):
        raise QueueConfigurationError(
            name,
            f"names no Azure queue; write {_FORM}, with the account's name alone, and a queue's name of 3 to 63 small "
            "letters, digits and single hyphens",
        )
    connected = _connection(name, access.connection_string_secret)
    access = _with_environment(access, account) if connected is None else _connected(access, connected)
    owner = account or (access.account_name or "").lower()
    if not owner:
        raise QueueConfigurationError(name, f"names no account; write {_FORM}, or set option 'azureQueue.accountName'")
    if connected is not None and owner != connected.get("accountname", owner).lower():
        raise QueueConfigurationError(
            name,
            f"is of the account {owner!r}, and azureQueue.connectionStringSecret of {connected['accountname']!r}; use "
            "the connection string of the queue's account",
        )
    service = f"https://{owner}.{_PUBLIC}"
    if (endpoint := access.endpoint_url) is not None:
        service = (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/")
        host_names_it = (urlsplit(service).hostname or "").startswith(f"{owner}.")
        service = service if host_names_it or service.endswith(f"/{owner}") else f"{service}/{owner}"
    return Address(owner, queue, service), access


def _connection(name: str, text: str | None) -> dict[str, str] | None:
    """Return the parts of a connection string, by their names in small letters; none of them is in an error."""
    if text is None:
        return None
    pairs = [part.strip().partition("=") for part in text.split(";") if part.strip()]
    parts = {key.strip().lower(): value.strip() for key, _, value in pairs}
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        raise QueueConfigurationError(
            name, "an emulator has no connection string; set azureQueue.accessKey and azureQueue.endpointUrl"
        )
    if not all(equals for _, equals, _ in pairs) or not ({"accountkey", "sharedaccesssignature"} & parts.keys()):
        raise QueueConfigurationError(
            name,
            "azureQueue.connectionStringSecret has no AccountKey and no SharedAccessSignature; copy the whole "
            "connection string of the account (Security + networking, Access keys)",
        )
    return parts


def _connected(access: Access, parts: Mapping[str, str]) -> Access:
    account = parts.get("accountname") or access.account_name
    suffix = parts.get("endpointsuffix")
    named = f"{parts.get('defaultendpointsprotocol', 'https')}://{account}.queue.{suffix}" if suffix else None
    return Access(
        account_name=account,
        access_key=parts.get("accountkey"),
        sas_token=parts.get("sharedaccesssignature"),
        endpoint_url=parts.get("queueendpoint") or access.endpoint_url or named,
    )


def _with_environment(access: Access, account: str) -> Access:
    """Add what Azure's own command line reads, where it is of this account, and no option says otherwise."""
    if access.access_key or access.sas_token or access.client_secret or access.client_id:
        return access
    variables = os.environ
    if text := variables.get(_CONNECTION_VARIABLE):
        parts = _connection(_CONNECTION_VARIABLE, text) or {}
        if account in ("", parts.get("accountname", "").lower()):
            return _connected(access, parts)
    if variables.get(_ACCOUNT_VARIABLE, "").lower() != (account or "-"):
        return access
    return Access(
        account_name=account,
        access_key=variables.get(_KEY_VARIABLE),
        sas_token=None if variables.get(_KEY_VARIABLE) else variables.get(_TOKEN_VARIABLE),
        endpoint_url=access.endpoint_url,
    )


def make_credential(address: Address, access: Access) -> Any:
    """Make the credential of the account; one that has a method `close` is to be closed."""
    try:
        base64.b64decode(access.access_key or "", validate=True)
    except binascii.Error:
        raise ValueError("the account's key is not in base64") from None
    return new_credential(
        address.account,
        account_key=access.access_key,
        sas_token=access.sas_token,
        tenant_id=access.tenant_id,
        client_id=access.client_id,
        client_secret=access.client_secret,
    )


def new_session() -> requests.Session:
    """Make the connections of a queue, for all its threads; after `close` they are made again when they are needed."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS, pool_block=True))
    return session


def make_client(address: Address, credential: Any, session: requests.Session) -> QueueClient:
    """Make a client of the queue, which all threads may use. No request is made."""
    return QueueClient(
        address.service,
        address.queue,
        credential,
        transport=DirectTransport(session, _CONNECT_SECONDS, _READ_SECONDS),
        retry_policy=LinearRetry(backoff=1, retry_total=1, random_jitter_range=1),  # the receivers back off themselves
    )


# --- errors ----------------------------------------------------------------------------------------------------------

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
    except exceptions.HttpResponseError as error:  # of the service, or of the place that gives tokens
        code, status = error_code(error), error.status_code or 0
        problem = f"Azure answers {status} {code}: {_plain(error)}"
        ours = QueueError(queue, problem)
        if not code and isinstance(error, exceptions.ClientAuthenticationError):
            ours = QueueConfigurationError(queue, f"no credential is accepted: {_plain(error)}; {_CREDENTIALS}")
        elif code in _PASSING or status in _PASSING_STATUS or status >= 500:
            ours = QueueUnavailable(queue, problem)
        elif code == "QueueNotFound":
            ours = QueueNotFound(queue, f"{problem}; create it, or check account and name of the URL")
        elif code in _NEXT_STEPS:
            ours = QueueConfigurationError(queue, f"{problem}; {_NEXT_STEPS[code]}")
        elif status in (401, 403, 404):
            ours = QueueConfigurationError(queue, f"{problem}; check the account's name and the credentials")
        # no chain of causes where there is a request, whose URL may hold a token
        raise ours from None
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


def _plain(error: Exception) -> str:
    """Return the first line of an error: what follows are ids of the request, and the answer as XML."""
    text = str(getattr(error, "message", None) or error).strip()
    return redact_text(text.splitlines()[0] if text else type(error).__name__).rstrip(".")
