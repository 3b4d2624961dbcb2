"""The way from a queue's URL and options to an SQS client and to a new queue, and from botocore's errors to ours.

| URL | endpoint | region |
|---|---|---|
| `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME` | of the region | in the URL |
| `http(s)://HOST:PORT/ACCOUNT/NAME` (an emulator, an endpoint of a VPC) | `http(s)://HOST:PORT` | option, the SDK's own chain, us-east-1 |
| `sqs://NAME` | of the region | option, the SDK's own chain |

The option `endpointUrl` goes before the endpoint, the URL's region before the option.
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore import exceptions
from botocore.config import Config

from queue_source.common.clouds import new_session, role_session
from queue_source.errors import QueueConfigurationError, QueueError, QueueNotFound, QueueUnavailable
from queue_source.queues.urls import checked_parameters, query_of
from shard_store.redaction import redact_text, redact_url

LONGEST_WAIT = 20
_AWS_HOST = re.compile(r"(?:[\w-]+\.)?sqs(?:-fips)?\.(?P<region>[a-z]{2}(?:-[a-z]+)+-\d+)\.(?P<domain>.+)")
_STANDARD_DOMAINS = ("amazonaws.com", "amazonaws.com.cn")
_ACCOUNT = re.compile(r"/(\d{12})/[^/]+$")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
RETENTION = "1209600"  # 14 days, the maximum: a pipeline may stand still for a while
_DEFAULT_REGION = "us-east-1"  # of emulators, and of roles
_FORMS = "https://sqs.REGION.amazonaws.com/ACCOUNT/NAME, http://HOST:PORT/ACCOUNT/NAME or sqs://NAME"
_POOL = 300  # connections that are kept: more than there can be threads; they are made as they are needed


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach SQS; None leaves a value to the SDK's own chain. Secrets are not in its repr."""

    region: str | None = None
    endpoint_url: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    profile: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """A queue's URL taken apart. `url` is None where only SQS knows it (`sqs://NAME`)."""

    shown: str
    queue: str
    url: str | None
    region: str | None
    endpoint: str | None

    @property
    def fifo(self) -> bool:
        """Tell whether it is a FIFO queue, which its name shows."""
        return self.queue.endswith(".fifo")


def parse_address(url: str) -> Address:
    """Return the queue that the URL names."""
    url, name = url.partition("?")[0], redact_url(url)
    try:
        parts = urlsplit(url)
        port, parameters = parts.port, query_of(name)
    except ValueError:
        raise QueueConfigurationError(name, f"not a URL; write {_FORMS}") from None
    checked_parameters(name, parameters)
    if parts.fragment or "@" in parts.netloc:
        raise QueueConfigurationError(name, "the URL of an SQS queue has no password; set the options sqs.* instead")
    name = redact_url(url)
    if parts.scheme == "sqs":
        if not _NAME.fullmatch(parts.netloc) or parts.path.strip("/"):
            raise QueueConfigurationError(name, f"names no SQS queue; write {_FORMS}")
        return Address(name, parts.netloc, None, None, None)
    _, _, account_path = parts.path.partition("/")
    account, _, queue = account_path.partition("/")
    if not account or not _NAME.fullmatch(queue) or not parts.hostname:
        raise QueueConfigurationError(name, f"names no SQS queue; write {_FORMS}")
    aws = _AWS_HOST.fullmatch(parts.hostname)
    if aws and aws["domain"] in _STANDARD_DOMAINS and port is None and parts.hostname.startswith("sqs."):
        return Address(name, queue, url, aws["region"], None)
    region, endpoint = aws["region"] if aws else None, f"{parts.scheme}://{parts.netloc}"
    return Address(name, queue, url, region, endpoint)


def make_client(address: Address, access: Access, service: str = "sqs") -> Any:
    """Make a client of the service; all threads may use it. No request is made yet, except for a role's credentials."""
    with service_errors(address.shown):
        source = new_session(access.profile)
        made = boto3.session.Session(
            botocore_session=source,
            aws_access_key_id=access.access_key_id,
            aws_secret_access_key=access.secret_access_key,
            region_name=address.region or access.region,
        )
        if access.role_arn is not None:
            own_region = made.region_name or _DEFAULT_REGION
            assumed = role_session(source, access.profile, access.role_arn, access.role_external_id, own_region)
            made = boto3.session.Session(botocore_session=assumed, region_name=made.region_name)
        endpoint = access.endpoint_url or address.endpoint
        region = made.region_name or (_DEFAULT_REGION if endpoint else None)
        config = Config(
            max_pool_connections=_POOL,
            connect_timeout=10,
            read_timeout=LONGEST_WAIT + 20,
            retries={"mode": "standard", "total_max_attempts": 2},  # the receivers back off themselves
        )
        return made.client(service, region_name=region, endpoint_url=endpoint, config=config)


# --- a new queue -----------------------------------------------------------------------------------------------------


def create(client: Any, address: Address) -> str:
    """Make the queue and return its URL; an existing one with the same attributes is that queue.

    SQS makes queues in the caller's own account, whatever account a URL names: raises where that is another one.
    """
    attributes = {"MessageRetentionPeriod": RETENTION, **({"FifoQueue": "true"} if address.fifo else {})}
    with service_errors(address.shown):
        made = str(client.create_queue(QueueName=address.queue, Attributes=attributes)["QueueUrl"])
    expected, own = (_ACCOUNT.search(url or "") for url in (address.url, made))  # some emulators have none
    if expected and own and expected[1] != own[1]:
        raise QueueConfigurationError(
            address.shown,
            f"the credentials are those of account {own[1]}, so that there is {made} now; delete it if it is not "
            f"needed, and use credentials of account {expected[1]}",
        )
    return made


# --- errors ----------------------------------------------------------------------------------------------------------

_DENIED = "check the permissions of docs/how-to/sqs.md, the queue's policy and its KMS key"
_CREDENTIALS = "set sqs.accessKeyId and sqs.secretAccessKey, sqs.profile, or what the AWS SDK reads by itself"
_NEXT_STEPS = {
    "InvalidAddress": "check name, account and region of the URL",
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    "KmsAccessDenied": _DENIED,
    "KmsDisabled": "enable the queue's KMS key",
    "KmsInvalidState": "check the state of the queue's KMS key",
    "KmsNotFound": "the queue's KMS key is gone; give it another",
    "KmsInvalidKeyUsage": "check the queue's KMS key",
    "KmsOptInRequired": "check the queue's KMS key",
    "OptInRequired": "enable the region for the account",
    "InvalidClientTokenId": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "AuthFailure": _CREDENTIALS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "SignatureDoesNotMatch": "check sqs.secretAccessKey, and the clock of this machine",
    "InvalidSignatureException": "check sqs.secretAccessKey, and the clock of this machine",
    "ExpiredToken": "the credentials are over; renew them, or name a role that can be assumed again (sqs.roleArn)",
    "ExpiredTokenException": "the credentials are over; renew them, or name a role that can be assumed again",
    "InvalidSecurity": "write the URL with https",
}
"""Error codes for which waiting does not help, and what does."""

_MISSING = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_WAITS = {
    "PurgeQueueInProgress": "SQS empties a queue once in 60 seconds; try again after that time",
    "QueueDeletedRecently": "SQS makes a queue of the same name 60 seconds after the last one was deleted; try again",
}
"""Error codes for which a minute helps, and nothing else."""

_PASSING = frozenset(
    {
        "OverLimit",  # as many messages in flight as a queue may have: some will be done
        "RequestThrottled", "Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException",
        "RequestLimitExceeded", "RequestThrottledException", "SlowDown", "KmsThrottled", "PriorRequestNotComplete",
        "InternalError", "InternalFailure", "ServiceUnavailable", "ServiceUnavailableException", "RequestTimeout",
        "RequestTimeoutException",
    }
)  # fmt: skip
_CONNECTION = (
    exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.ConnectionClosedError,
    exceptions.IncompleteReadError, exceptions.ResponseStreamingError, exceptions.MetadataRetrievalError,
)  # fmt: skip
_NO_CREDENTIALS = (
    exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError, exceptions.SSOError, exceptions.NoAuthTokenError,
)  # fmt: skip
_SPOILED = {"MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidIdFormat"}
_SPOILED_TEXTS = ("receipt handle has expired", "not available for visibility timeout", "beyond the limit")


@contextmanager
def service_errors(queue: str, client: Any = None) -> Iterator[None]:
    """Map the errors that botocore raises in the block to ours, without secrets.

    `client`: given at a start, where its region and its address may be the mistake, and are said.
    """
    try:
        yield
    except exceptions.ClientError as error:
        answer = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        place = "" if client is None else f" in {client.meta.region_name} at {redact_text(client.meta.endpoint_url)}"
        code, text = answer.get("Code", ""), answer.get("Message", "")
        raise error_of(queue, code, text, status, error.operation_name, place) from error
    except _CONNECTION as error:
        raise QueueUnavailable(queue, f"cannot be reached: {redact_text(str(error))}") from error
    except _NO_CREDENTIALS as error:
        raise QueueConfigurationError(queue, f"{redact_text(str(error))}; {_CREDENTIALS}") from error
    except exceptions.NoRegionError as error:
        raise QueueConfigurationError(queue, "no region is known; set sqs.region, or name it in the URL") from error
    except exceptions.ProfileNotFound as error:
        raise QueueConfigurationError(queue, f"{error}; check sqs.profile") from error
    except (exceptions.BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise QueueConfigurationError(queue, f"{redact_text(str(error))}; check the options sqs.* and aws.*") from error


_IN_XML = re.compile(r"<Code>([^<]+)</Code>\s*<Message>([^<]*)</Message>")
"""Some endpoints refuse in the form of SQS's older protocol, which botocore hands on as it is."""
ENDPOINT = "check the address of the endpoint, and a proxy before it"


def error_of(queue: str, code: str, text: str, status: int = 0, operation: str = "", place: str = "") -> QueueError:
    """Return our error for the answer of SQS to a request or to one entry of it. `place`: where it was asked."""
    if (in_xml := _IN_XML.search(text)) is not None:
        code, text = in_xml.groups()
    is_foreign = in_xml is None and status > 0 and (not text or text.lstrip().startswith("<"))
    if is_foreign:
        text = "the answer is no error of SQS"
    short = short_code(code)
    problem = f"{f'{operation}{place}: ' if operation else ''}{short}: {redact_text(text).rstrip('.')}"
    if is_passing(code) or status >= 500:
        return QueueUnavailable(queue, problem)
    if short in _WAITS:
        return QueueUnavailable(queue, f"{problem}; {_WAITS[short]}")
    if short in _MISSING:
        return QueueNotFound(queue, f"{problem}; create it, or check name, account and region of the URL")
    if operation == "AssumeRole":
        return QueueConfigurationError(queue, f"{problem}; check sqs.roleArn, its trust policy and sqs.roleExternalId")
    if short in _NEXT_STEPS:
        return QueueConfigurationError(queue, f"{problem}; {_NEXT_STEPS[short]}")
    if status in (401, 403):
        return QueueConfigurationError(queue, f"{problem}; {_DENIED}")
    return QueueError(queue, f"{problem}; {ENDPOINT}" if is_foreign else problem)


def short_code(code: str) -> str:
    """Return the last word of a code, as of `AWS.SimpleQueueService.NonExistentQueue` or `com.amazonaws.sqs#X`."""
    return re.split(r"[.#]", code)[-1]


def is_passing(code: str) -> bool:
    return short_code(code) in _PASSING


def is_stale(code: str, text: str) -> bool:
    """Tell whether the answer says that a receipt is stale. SQS does not always say so."""
    if short_code(code) in _SPOILED:
        return True
    return short_code(code) == "InvalidParameterValue" and any(part in text.lower() for part in _SPOILED_TEXTS)
