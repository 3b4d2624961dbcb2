"""What the queues and the object stores of a cloud do alike: sessions of botocore, credentials of Azure.

botocore is loaded by the calls: it is not installed where nothing of AWS is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any


def new_session(profile: str | None, find_credentials: Callable[[], Any] | None = None) -> Any:
    """Make a session of botocore; with `find_credentials` it has those, instead of what botocore finds."""
    from botocore import session

    made = session.Session(profile=profile)
    made.register_component("data_loader", _descriptions())
    if find_credentials is not None:
        made.register_component("credential_provider", SimpleNamespace(load_credentials=find_credentials))
    return made


@cache
def _descriptions() -> Any:
    """Read botocore's descriptions of services, once for all clients of the process."""
    from botocore import session

    return session.Session().get_component("data_loader")


def role_session(source: Any, profile: str | None, role_arn: str, external_id: str | None, region: str) -> Any:
    """Make a session of botocore that acts as a role, whose keys are asked for when needed, and again before they end.

    Args:
        source: The session with whose keys the role is asked for.
        region: Where it is asked for.

    Raises:
        NoCredentialsError: The source has no keys.
    """
    from botocore import credentials, exceptions

    if (own := source.get_credentials()) is None:
        raise exceptions.NoCredentialsError
    arguments = {"RoleSessionName": "cuesqueue"} | ({} if external_id is None else {"ExternalId": external_id})
    client = partial(source.create_client, region_name=region)
    fetcher = credentials.AssumeRoleCredentialFetcher(client, own, role_arn, extra_args=arguments)
    role = credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "cuesqueue-role")
    return new_session(profile, lambda: role)


def new_credential(
    account: str,
    *,
    account_key: str | None,
    sas_token: str | None,
    tenant_id: str | None,
    client_id: str | None,
    client_secret: str | None,
) -> Any:
    """Make the credential of an account by pyarrow's rules.

    A key, token, service principal or managed identity, else Azure's default chain. One that has a method `close` is to
    be closed.
    """
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if account_key is not None:
        return AzureNamedKeyCredential(account, account_key)
    if sas_token is not None:
        return AzureSasCredential(sas_token.lstrip("?"))
    from azure.identity import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential

    if client_secret is not None:
        assert tenant_id is not None  # checked with the options
        assert client_id is not None
        return ClientSecretCredential(tenant_id, client_id, client_secret)
    if client_id is not None:
        return ManagedIdentityCredential(client_id=client_id)
    return DefaultAzureCredential()
