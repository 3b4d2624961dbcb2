"""Azure Blob Storage and Data Lake Storage, through `pyarrow.fs`.

The URI names the host that gets the credentials, and the sender of a message writes the URI: so only domains of Azure,
and those that the user adds, are allowed.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.options.connections import AzureOptions

SCHEMES = frozenset({"abfs", "abfss", "az"})
_PUBLIC = "dfs.core.windows.net"
_CLOUDS = ("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net", "fabric.microsoft.com")
_DOMAINS = frozenset(f"{service}.{cloud}" for service in ("dfs", "blob") for cloud in _CLOUDS)
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


def azure_place(uri: str, scheme: str, bucket: str, options: AzureOptions) -> tuple[str, str, str]:
    """Return (account, the rest of the host's name, container) of a URI's first part.

    Raises BadObject for a URI without them, whose host is not one of Azure's, or of another account than the
    credentials; ObjectStoreError when an option is missing.
    """
    if scheme == "az":
        if options.account_name is None:
            raise ObjectStoreError(f"{uri!r} names no account; set azure.accountName")
        return options.account_name, _PUBLIC, bucket
    container, at, host = bucket.partition("@")
    account, _, domain = host.partition(".")
    if not at or not container or not _ACCOUNT.fullmatch(account):
        raise BadObject("missing-object", f"{uri!r} is not abfss://container@account.dfs.core.windows.net/path")
    if options.account_name not in (None, account):
        raise BadObject(
            "missing-object",
            f"{uri!r} is of the account {account!r}, and azure.accountName is {options.account_name!r}",
        )
    # URIs have come in their one form since 0.3, whichever service's domain the option names
    own = {*options.domains, *(domain.replace("blob.", "dfs.", 1) for domain in options.domains)}
    if domain and domain not in _DOMAINS and domain not in own:
        raise BadObject(
            "missing-object",
            f"{uri!r} is at {domain!r}, which is no domain of Azure, so no credentials are sent there; if it is yours, "
            f"add it to the option azure.domains",
        )
    return account, domain or _PUBLIC, container


def azure_arguments(account: str, domain: str, options: AzureOptions) -> dict[str, Any]:
    """Return the keywords of `pyarrow.fs.AzureFileSystem`."""
    arguments: dict[str, Any] = {
        "account_name": account,
        "account_key": options.account_key,
        "sas_token": None if options.sas_token is None else f"?{options.sas_token.lstrip('?')}",  # put behind a URL
        "tenant_id": options.tenant_id,
        "client_id": options.client_id,
        "client_secret": options.client_secret,
    }
    if options.endpoint is not None:
        parts = urlsplit(options.endpoint if "://" in options.endpoint else f"https://{options.endpoint}")
        arguments |= dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), parts.netloc)
        arguments |= dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), parts.scheme)
    elif domain != _PUBLIC:  # a cloud of its own, such as China's
        arguments["dfs_storage_authority"] = f".{domain}"
        arguments["blob_storage_authority"] = f".{domain.replace('dfs.', 'blob.', 1)}"
    return {name: value for name, value in arguments.items() if value is not None}


def blob_service(account: str, domain: str, options: AzureOptions) -> str:
    """Return the URL of the account's Blob service; the host's name may be that of its other service."""
    if options.endpoint is not None:
        url = options.endpoint if "://" in options.endpoint else f"https://{options.endpoint}"
        return f"{url.rstrip('/')}/{account}"
    return f"https://{account}.{domain.replace('dfs.', 'blob.', 1)}"
