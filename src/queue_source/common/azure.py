"""What Azure's queues and its object store do alike: the credential of an account.

Azure's libraries are loaded by the call: they are not installed where nothing of Azure is read.
"""

from __future__ import annotations

from typing import Any


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
