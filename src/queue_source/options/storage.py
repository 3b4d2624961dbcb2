"""How object storage is reached: `s3.X`, else `aws.X`, and `azure.X`, for `content.files`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from queue_source.errors import OptionError
from queue_source.options.connections import check_keys
from queue_source.options.secrets import Secret

if TYPE_CHECKING:
    from queue_source.storage.azure import AzureOptions
    from queue_source.storage.files import StorageOptions


def storage_options(values: Mapping[str, Any]) -> StorageOptions:
    """`s3.X`, else `aws.X`; a key without its other half is refused, and a role or a profile beside keys."""
    from queue_source.storage.files import StorageOptions  # here: it loads pyarrow, which the commands can do without

    def given(name: str) -> Any:
        return values[f"s3.{name}"] or values[f"aws.{name}"]

    keys = {name: given(name) for name in ("accessKeyId", "secretAccessKey")}
    check_keys("aws", keys)
    if given("roleArn") and any(keys.values()):
        raise OptionError(
            "s3.roleArn" if values["s3.roleArn"] else "aws.roleArn",
            "cannot be assumed for object storage with keys from options; leave the keys to the SDK's own chain, or "
            "name the role of the queue alone, with sqs.roleArn",
        )
    # the narrower name wins: s3.profile over the keys of aws., keys of s3. over aws.profile
    profile = values["s3.profile"] or values["aws.profile"]
    if values["s3.profile"] is None and values["s3.accessKeyId"] is not None:
        profile = None
    if profile and (any(keys.values()) or given("roleArn")):
        name = "s3.profile" if values["s3.profile"] else "aws.profile"
        other = "keys" if any(keys.values()) else "roleArn"
        raise OptionError(name, f"and {other} contradict each other for object storage; leave one of them out")
    return StorageOptions(
        endpoint=given("endpointUrl"),
        region=given("region"),
        access_key=_revealed(keys["accessKeyId"]),
        secret_key=_revealed(keys["secretAccessKey"]),
        role_arn=given("roleArn"),
        external_id=given("roleExternalId"),
        profile=profile,
        azure=_azure(values),
    )


def _azure(values: Mapping[str, Any]) -> AzureOptions:
    """A key and a token exclude each other, and a secret needs all of its principal."""
    from queue_source.storage.azure import AzureOptions  # here: it loads pyarrow, which the commands can do without

    if values["azure.accountKey"] and values["azure.sasToken"]:
        raise OptionError("azure.sasToken", "and azure.accountKey exclude each other; leave one of them out")
    if values["azure.clientSecret"] and not (values["azure.clientId"] and values["azure.tenantId"]):
        raise OptionError("azure.clientSecret", "needs azure.clientId and azure.tenantId; set all three")

    return AzureOptions(
        account_name=values["azure.accountName"],
        account_key=_revealed(values["azure.accountKey"]),
        sas_token=_revealed(values["azure.sasToken"]),
        tenant_id=values["azure.tenantId"],
        client_id=values["azure.clientId"],
        client_secret=_revealed(values["azure.clientSecret"]),
        endpoint=values["azure.endpointUrl"],
    )


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()
