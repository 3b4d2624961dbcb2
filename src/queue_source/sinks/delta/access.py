"""How delta-rs reaches a table: our storage options in its words, with the keys that all else here would use."""

from __future__ import annotations

import os

from queue_source.errors import OptionError
from queue_source.options.connections import AzureOptions, StorageOptions, with_secrets
from queue_source.storage import s3_client
from queue_source.storage.files import GCS_EMULATOR, azure_place, blob_service, is_local
from queue_source.storage.open_files import AZURE_SCHEMES

_S3_SCHEMES = ("s3", "s3a")  # of those that pyarrow reads, delta-rs does not know s3n


def delta_uri(uri: str) -> str:
    """Return the table's place as delta-rs takes it. Raises OptionError for one that it would misread."""
    if "%" in uri or "?" in uri or "#" in uri:
        raise OptionError("delta", f"names {uri!r}: deltalake misreads a '%', '?' or '#' in a path; use another folder")
    scheme = uri.partition("://")[0].lower()
    if not is_local(uri) and scheme not in (*_S3_SCHEMES, "gs", *AZURE_SCHEMES):
        raise OptionError("delta", f"names {uri!r}, and its scheme is not one of file, s3, s3a, gs, abfs, abfss, az")
    return uri[len("file://") :] if is_local(uri) and not uri.startswith("/") else uri


def delta_storage_options(uri: str, storage: StorageOptions) -> dict[str, str]:
    """Return the `storage_options` of `deltalake.DeltaTable`. Raises OptionError, ObjectStoreError."""
    scheme = uri.partition("://")[0].lower()
    if is_local(uri):
        return {}
    if scheme in _S3_SCHEMES:
        return _of_s3(storage)
    if scheme in AZURE_SCHEMES:
        return _of_azure(uri, scheme, with_secrets(storage).azure)
    emulator = os.environ.get(GCS_EMULATOR)
    anonymous = storage.anonymous or bool(emulator)
    return {"google_skip_signature": "true"} if anonymous else {}  # else Google's own chain, as for pyarrow


def _of_s3(storage: StorageOptions) -> dict[str, str]:
    completed, _ = s3_client.for_pyarrow(storage)
    access_key, secret_key, token = completed.access_key, completed.secret_key, completed.session_token
    anonymous = completed.anonymous
    if s3_client.is_installed():
        keys = s3_client.keys_of(storage)
        anonymous = anonymous or keys is None
        access_key, secret_key, token = keys or (None, None, None)
    elif completed.role_arn is not None:
        raise OptionError(
            "s3.roleArn", "is assumed by boto3 for a Delta table: pip install 'cuesqueue[sqs]' on all machines"
        )
    endpoint = completed.endpoint
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    values = {
        "aws_access_key_id": access_key,
        "aws_secret_access_key": secret_key,
        "aws_session_token": token,
        "aws_region": completed.region,
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true" if endpoint is not None and endpoint.startswith("http://") else None,
        "aws_skip_signature": "true" if anonymous else None,
        "conditional_put": "etag",  # a version that another writer has committed is never overwritten
    }
    return {name: value for name, value in values.items() if value is not None}


def _of_azure(uri: str, scheme: str, azure: AzureOptions) -> dict[str, str]:
    account, domain, _ = azure_place(uri, scheme, uri.partition("://")[2].partition("/")[0], azure)
    endpoint = blob_service(account, domain, azure) if azure.endpoint is not None else None
    values = {
        "azure_storage_account_name": account,
        "azure_storage_account_key": azure.account_key,
        "azure_storage_sas_token": azure.sas_token,
        "azure_storage_tenant_id": azure.tenant_id,
        "azure_storage_client_id": azure.client_id,
        "azure_storage_client_secret": azure.client_secret,
        "azure_storage_endpoint": endpoint,
        "azure_allow_http": "true" if endpoint is not None and endpoint.startswith("http://") else None,
    }
    return {name: value for name, value in values.items() if value is not None}
