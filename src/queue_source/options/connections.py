"""How to reach store, objects and queues: `s3.X`, `sqs.X`, else `aws.X`; `azureQueue.X`, else `azure.X`; `gcp.X`.

One way for all kinds of queues: the option `PREFIX.someName` becomes the keyword `some_name` of the adapters that name
its prefixes (`queues.urls.KINDS`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from queue_source.errors import OptionError
from queue_source.options import types
from queue_source.options.declaring import OnChange, Option, build, declared, excludes, only_with, option, options_of
from queue_source.options.types import Literal, Secret, SecretUrl, is_reference, revealed
from queue_source.queues import adapter_name
from queue_source.queues.urls import KAFKA_REFUSED, KINDS, is_kafka_secret
from shard_store.redaction import redact_url

_SDK = "the SDK's"
_KEYS = ("accessKeyId", "secretAccessKey")


DEFAULT_STORE = "sqlite:///cuesqueue.db"
SPARK_HIDES = re.compile("url|secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of options whose values Spark replaces wherever it prints options: its defaults of `spark.redaction.regex` and
`spark.sql.redaction.options.regex`, as far as all supported versions agree.
"""


def store_url() -> Any:
    """Declare the field `storeUrl`, which reader, sink and views have alike."""
    return option(
        "storeUrl",
        types.STORE_URL,
        DEFAULT_STORE,
        help="Database of progress and results. The default is a file in the folder in which "
        "Spark was started; [with Spark Connect](../how-to/clusters.md#relative-paths) name another.",
        example="postgresql+psycopg://user:password@host/db",
        on_change="Another store knows nothing of what was read: with a checkpoint it is refused (`failOnDataLoss`), "
        "with a new one it reads whatever comes. [A dump of the database](../how-to/backup.md) moves what is known.",
    )


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """How Azure is reached; without a key, a token or a secret, as Azure's own SDK finds its credentials.

    Attributes:
        endpoint: URL of an emulator (`http://localhost:10000`), where paths begin with the account.
    """

    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    account_name: str | None = option("azure.accountName", types.NON_EMPTY, example="lake", note="the URI's",
        help="Storage account of `az://CONTAINER/PATH`, and of the credentials.")
    account_key: str | None = option(
        "azure.accessKey", types.SECRET, help="Key of the account.", note="Azure's default credential")
    sas_token: str | None = option("azure.sasToken", types.SECRET, help="SAS token, instead of a key.",
        rules=excludes("azure.accessKey", problem="and azure.accessKey exclude each other; leave one of them out"))
    tenant_id: str | None = option("azure.tenantId", types.NON_EMPTY, example="00000000-0000-0000-0000-000000000000",
        help="Tenant of a service principal.")
    client_id: str | None = option("azure.clientId", types.NON_EMPTY, example="00000000-0000-0000-0000-000000000000",
        help="Service principal (with `azure.tenantId` and `azure.clientSecret`), or a managed identity.")
    client_secret: str | None = option("azure.clientSecret", types.SECRET, help="Secret of the service principal.",
        rules=only_with("azure.clientId&azure.tenantId", problem="needs azure.clientId and azure.tenantId; set all "
        "three"))
    domains: tuple[str, ...] = option(
        "azure.domains", types.DOMAINS, "", example="z01.dfs.storage.azure.net", note="Azure's own",
        help="Further domains of `abfss://CONTAINER@ACCOUNT.DOMAIN/PATH` to which credentials may be sent.")
    endpoint: str | None = option("azure.endpointUrl", types.NON_EMPTY, example="http://localhost:10000", note="Azure",
        help="Address of an emulator, such as Azurite.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How object stores are reached; None leaves it to the SDK's own chain. Picklable; secrets are not in its repr.

    The names of the options are those after `aws.`, `s3.` and `sqs.`: each is declared once for the three.

    Attributes:
        endpoint: Of S3: a URL (`http://localhost:9000`), or `host:port`, which is reached by https.
        anonymous: Send no credentials.
        local_prefixes: Of URIs (`file:///...`): a local file is read only where its real path begins with one of these.
            Without any, wherever a link leads.
    """

    TITLE: ClassVar = "Storage and credentials"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    endpoint: str | None = option("endpointUrl", types.NON_EMPTY, example="http://localhost:9000", note=_SDK,
        help="Address of a service that speaks the protocols of AWS, such as MinIO.")
    region: str | None = option("region", types.NON_EMPTY, help="AWS region.", example="eu-central-1", note=_SDK)
    access_key: str | None = option(
        "accessKeyId", types.SECRET, help="Access key, with `aws.secretAccessKey`.", note=_SDK)
    secret_key: str | None = option(
        "secretAccessKey", types.SECRET, help="Secret key, with `aws.accessKeyId`.", note=_SDK)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = option("roleArn", types.NON_EMPTY, example="arn:aws:iam::123456789012:role/reader",
        help="Role to assume, and again before its credentials expire. For objects, not together with keys.")
    external_id: str | None = option(
        "roleExternalId", types.NON_EMPTY, help="External id that the role asks for.", example="reader-1")
    anonymous: bool = False
    profile: str | None = option("profile", types.NON_EMPTY, example="reader", note=_SDK,
        help="Profile of the AWS configuration files, of any kind that botocore knows (extra `aws`); not together "
        "with keys. A role for objects must be in the profile.")
    # fmt: on
    azure: AzureOptions = field(default_factory=AzureOptions)
    local_prefixes: tuple[str, ...] = ()


def _narrower(prefix: str, purpose: str) -> tuple[Option, ...]:
    return tuple(
        replace(
            option,
            name=f"{prefix}.{option.name}",
            help=f"As `aws.{option.name}`, for {purpose} only.",
            note=f"`aws.{option.name}`",
        )
        for option in options_of(StorageOptions)
    )


_AWS = tuple(replace(option, name=f"aws.{option.name}") for option in options_of(StorageOptions))
STORAGE_OPTIONS = (*_AWS, *_narrower("s3", "object storage"), *options_of(AzureOptions))
SQS_OPTIONS = _narrower("sqs", "Amazon SQS")
# fmt: off
AZURE_QUEUE_OPTIONS = (
    *(
        replace(
            option, name=option.name.replace("azure.", "azureQueue."), note=f"`{option.name}`", rules=(),
            help=f"As `{option.name}`, for Azure Storage Queue only.",
        )
        for option in options_of(AzureOptions) if option.name != "azure.domains"
    ),
    Option("azureQueue.connectionStringSecret", types.SECRET, on_change=OnChange.AT_ONCE,
        help="Connection string of the queue's account, instead of key, token and endpoint."),
    Option("azureQueue.messageEncoding", types.choice("auto", "base64", "text"), "auto", example="base64",
        help="What messages are: `text`, `base64`, or `auto`: text, but notifications in base64, as Event Grid sends "
        "them, are decoded. Only with `base64` are messages sent in base64.",
        on_change=OnChange.ANNOUNCED),
)
"""Keywords of the adapter of Azure Storage Queue."""

GOOGLE_OPTIONS = (
    Option("gcp.project", types.NON_EMPTY, example="my-project", note="the URL's", on_change=OnChange.AT_ONCE,
        help="Project of subscriptions whose URL names none (`pubsub:///SUBSCRIPTION`)."),
    Option("gcp.credentialsFile", types.FILE, example="/etc/keys/reader.json", note=_SDK, on_change=OnChange.AT_ONCE,
        help="Key file of a service account, for Pub/Sub; for objects, set `GOOGLE_APPLICATION_CREDENTIALS` on all "
        "machines."),
    Option("gcp.endpoint", types.NON_EMPTY, example="europe-west3-pubsub.googleapis.com:443",
        note="`PUBSUB_EMULATOR_HOST`, else Google's own", on_change=OnChange.AT_ONCE,
        help="`HOST:PORT` of a regional endpoint, or `http://HOST:PORT` of an emulator."),
)
"""Keywords of the adapter of Pub/Sub, which has no group: `connections` hands them over."""
KAFKA_OPTIONS = (
    Option("kafka.*", types.SECRET, note="librdkafka's", on_change=OnChange.AT_ONCE,
        help="Settings by [librdkafka's names](../how-to/kafka.md#security): `kafka.security.protocol`, "
        "`kafka.sasl.password` ..."),
)
"""The settings of librdkafka, which defines them: `kafka_settings` reads them."""
# fmt: on
ACCESS_OPTIONS = (*STORAGE_OPTIONS, *AZURE_QUEUE_OPTIONS, *SQS_OPTIONS, *GOOGLE_OPTIONS, *KAFKA_OPTIONS)
"""How objects and queues are reached, in the order of the reference page."""
_KAFKA = "kafka."


def storage_options(values: Mapping[str, Any]) -> StorageOptions:
    """Build the storage options from `s3.X`, else `aws.X`, of those that were given.

    Raises OptionError for half a key pair, and for a role or a profile together with keys.
    """
    own = _with_prefixes(("s3", "aws"), values)
    check_keys("aws", own)
    has_keys, has_role = "accessKeyId" in own, "roleArn" in own
    if has_role and has_keys:
        raise OptionError(
            "s3.roleArn" if "s3.roleArn" in values else "aws.roleArn",
            "cannot be assumed for object storage with keys from options; leave the keys to the SDK's own chain, or "
            "name the role of the queue alone, with sqs.roleArn",
        )
    # the narrower name wins: s3.profile over the keys of aws., keys of s3. over aws.profile
    if "s3.profile" not in values and "s3.accessKeyId" in values:
        own.pop("profile", None)
    if "profile" in own and (has_keys or has_role):
        raise OptionError(
            "s3.profile" if "s3.profile" in values else "aws.profile",
            f"and {'keys' if has_keys else 'roleArn'} contradict each other for object storage; leave one of them out",
        )
    return build(StorageOptions, _as_given(own), azure=build(AzureOptions, _as_given(values)))


def check_keys(service: str, values: Mapping[str, Any]) -> None:
    """Refuse a key without its other half: OptionError."""
    for missing, present in (_KEYS, _KEYS[::-1]):
        if present in values and missing not in values:
            raise OptionError(
                f"{service}.{missing}",
                "is missing while its other half is given; set both accessKeyId and secretAccessKey",
            )


def check_shown(written: str, own: str, text: str, secret: bool) -> None:
    """Refuse a secret under a name whose value Spark prints: in errors, in `explain`, in the event log. OptionError."""
    if (secret or redact_url(text) != text) and not SPARK_HIDES.search(written) and not is_reference(text.strip()):
        better = f"write {own!r}, or " if SPARK_HIDES.search(own) else "write "
        raise OptionError(
            written, f"holds a secret, and Spark shows options of this name; {better}env:NAME or file:PATH"
        )


def with_secrets(options: StorageOptions) -> StorageOptions:
    """Look up the secrets that `env:` and `file:` refer to, for the libraries. Raises OptionError."""
    secrets, of_azure = _looked_up(options), _looked_up(options.azure)
    if not secrets and not of_azure:
        return options
    return replace(options, **secrets, azure=replace(options.azure, **of_azure))


def _looked_up(group: Any) -> dict[str, Any]:
    """Return field -> secret, for the fields that hold a reference."""
    secrets: dict[str, Any] = {}
    options = declared(type(group))  # type: ignore[arg-type]  # a class is hashable
    for name, declaration in options.items():
        text = getattr(group, name)
        if declaration.type is types.SECRET and text is not None and is_reference(text):
            try:
                secrets[name] = revealed(text)
            except ValueError as error:
                raise OptionError(declaration.name, str(error)) from None
    return secrets


def _as_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return secrets or references as text; the fields that take them are not in the repr."""
    return {name: value.as_given() if isinstance(value, Secret) else value for name, value in values.items()}


# queues

_AZURE_WAYS = ("accessKey", "sasToken", "connectionStringSecret", "clientSecret")
_AZURE_CREDENTIALS = (*_AZURE_WAYS, "clientId", "tenantId")


def kafka_settings(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Secret]]:
    """Divide the options into those of ours, and the settings of librdkafka. Raises OptionError for a secret in sight.

    Secrets are recognised by their names; the adapter refuses settings that are its own when it is opened.
    """
    others = {name: text for name, text in options.items() if not name.lower().startswith(_KAFKA)}
    if len(others) == len(options):
        return others, {}
    settings: dict[str, Secret] = {}
    for written, text in options.items():
        setting = written.lower().removeprefix(_KAFKA)
        if written in others:
            continue
        if setting in KAFKA_REFUSED:
            raise OptionError(written, f"is the reader's own: {KAFKA_REFUSED[setting]}")
        if setting in settings:
            raise OptionError(written, "is given twice; keep one of them")
        if is_kafka_secret(setting):
            check_shown(written, written, text, secret=True)
        settings[setting] = Secret(text) if is_kafka_secret(setting) else Literal(text)
        try:
            settings[setting].reveal()  # a reference that leads nowhere is reported before anything starts
        except ValueError as error:
            raise OptionError(written, str(error)) from None
    return others, settings


class HasConnections(Protocol):
    """The options of what has queues: of a reader, or of a sink."""

    @property
    def connections(self) -> Mapping[str, Mapping[str, Any]]:
        """Return kind of queue -> the keywords of its adapter, as the function `connections` makes them."""


def connections(urls: Sequence[SecretUrl], values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return kind of queue -> the keywords of its adapter, of the options that were given."""
    kinds = {adapter_name(url.reveal()) for url in urls}
    keywords: dict[str, dict[str, Any]] = {}
    for kind, prefixes in {kind.module: kind.prefixes for kind in KINDS.values() if kind.prefixes}.items():
        own = _with_prefixes(prefixes, values)
        if kind in kinds:
            check_keys(prefixes[-1], own)
        if kind == "azurequeue":
            own = _for_azure_queue(values, own, check=kind in kinds)
        # `someName` is the keyword `some_name`
        keywords[kind] = {re.sub("[A-Z]", lambda c: f"_{c[0].lower()}", name): value for name, value in own.items()}
    return keywords


def _for_azure_queue(values: Mapping[str, Any], either: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    """Return the options of a storage queue: a credential of its own replaces that of objects as a whole.

    `either`: the options `azureQueue.X`, else `azure.X`.

    Raises OptionError for two credentials at once, and for half of a service principal.
    """
    own = {name for name in _AZURE_CREDENTIALS if f"azureQueue.{name}" in values}
    left_out = {"domains"} | (set(_AZURE_CREDENTIALS) - own if own else set())
    mine = {name: value for name, value in either.items() if name not in left_out}
    if check:
        ways = [name for name in _AZURE_WAYS if name in mine]
        if len(ways) > 1:
            prefix = "azureQueue" if own else "azure"
            raise OptionError(
                f"{prefix}.{ways[1]}", f"and {prefix}.{ways[0]} exclude each other; leave one of them out"
            )
        if "clientSecret" in mine and not ("clientId" in mine and "tenantId" in mine):
            raise OptionError("azureQueue.clientSecret", "needs the client's id and tenant too; set all three")
    return mine


def connection_options(url: SecretUrl, options: HasConnections) -> dict[str, Any]:
    """Return the keywords of `open_queue` for this queue, secrets revealed: for the adapter, never for a message."""
    keywords = options.connections.get(adapter_name(url.reveal()), {})
    return {name: _revealed(value) for name, value in keywords.items()}


def _revealed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _revealed(item) for name, item in value.items()}
    return value.reveal() if isinstance(value, Secret) else value


def _with_prefixes(prefixes: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return option name without its prefix -> value, for the options that are set."""
    values_by_name: dict[str, Any] = {}
    for prefix in prefixes:
        for name, value in values.items():
            if name.startswith(f"{prefix}."):
                values_by_name.setdefault(name.removeprefix(f"{prefix}."), value)
    return values_by_name
