"""Containers of Azure's Blob Storage and Data Lake Storage, through azure-storage-blob."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import AzureOptions, StorageOptions, with_secrets
from queue_source.storage.azure import azure_place, blob_service
from queue_source.storage.buckets.base import PAGE, Bucket, Known, Outcome, Page, if_changed
from queue_source.storage.buckets.outcomes import THREADS, exchanged, occupied, one_by_one
from queue_source.storage.refusals import AZURE_OWN
from shard_store.failpoints import reach
from shard_store.redaction import redact_text

_ORIGIN = "cuesqueue_moved_from"
"""Metadata of a moved object: the ETag that it had."""
_POLLS = 60
_POLL_SECONDS = 0.5


class AzureBucket(Bucket):
    """One container, with the credentials that its objects are read with."""

    def __init__(self, root: str, storage: StorageOptions) -> None:
        """`root`: the container's URI up to its slash. Raises what `azure_place` raises."""
        try:
            from azure.storage.blob import ContainerClient
        except ImportError as error:
            raise ObjectStoreError(
                f"{root!r} is listed by azure-storage-blob: pip install 'cuesqueue[azure]' on the driver"
            ) from error
        self._root = root
        scheme, _, rest = root.partition("://")
        options = with_secrets(storage).azure
        account, domain, container = azure_place(root, scheme, rest.rstrip("/"), options)
        self._sas = None if options.sas_token is None else options.sas_token.lstrip("?")
        self._credential: Any = None if storage.anonymous else _credential(account, options)
        self._client = ContainerClient(blob_service(account, domain, options), container, self._credential)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cuesqueue-azure")

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """The cursor is Azure's marker, which encodes a name. Folders of a hierarchical account are left out.

        Versions are told apart by their ETags, as notifications tell them.
        """
        said: list[str] = []
        pages: Any
        try:
            with _mapped(prefix, "listed"):
                pages = self._client.list_blobs(
                    name_starts_with=prefix[len(self._root) :] or None,
                    include=["metadata"],
                    results_per_page=PAGE,
                    raw_response_hook=lambda answer: said.append(answer.http_response.headers.get("Date", "")),
                ).by_page(cursor)
                blobs = list(next(pages))
        except FileNotFoundError as error:
            raise BadObject("missing-object", f"{prefix!r} cannot be listed: {error}") from None
        objects = [
            ListedObject(self._root + blob.name, blob.size, blob.etag.strip('"'), blob.last_modified)
            for blob in blobs
            if (blob.metadata or {}).get("hdi_isfolder") != "true"
        ]
        now = parsedate_to_datetime(said[-1]) if said and said[-1] else datetime.now(timezone.utc)
        return Page(objects, pages.continuation_token or None, now)

    def _goes_on(self, before: str, after: str) -> bool:
        """Markers are Azure's own, and have no order that we know."""
        return before != after

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        """Each is looked at, and deleted under the condition that its ETag stays. One that has snapshots stays, with
        Azure's answer: they are not ours."""
        return one_by_one(self._threads, self._delete, objects)

    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        """By a copy within the account, under the conditions that the ETag stays and that nothing is there."""
        return one_by_one(self._threads, lambda one: self._move(*one), objects)

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()
        if hasattr(self._credential, "close"):
            self._credential.close()

    def _blob(self, uri: str) -> Any:
        if not uri.startswith(self._root):
            raise ValueError(f"{uri!r} is not in {self._root!r}")
        return self._client.get_blob_client(uri[len(self._root) :])

    def _properties(self, uri: str) -> Any:
        with _mapped(uri, "looked at"):
            return self._blob(uri).get_blob_properties()

    def _delete(self, known: Known) -> Outcome:
        there = self._properties(known.uri)
        changed = if_changed(known, there.size, there.etag, there.last_modified)
        return self._remove(known.uri, there.etag) if changed is None else changed

    def _remove(self, uri: str, etag: str) -> Outcome:
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError

        with _mapped(uri, "deleted"):
            try:
                self._blob(uri).delete_blob(etag=etag, match_condition=MatchConditions.IfNotModified)
            except ResourceModifiedError:
                return exchanged(uri)
        return None

    def _move(self, known: Known, target: str) -> Outcome:
        if target == known.uri:
            return occupied(known.uri, target)
        source = self._properties(known.uri)
        changed = if_changed(known, source.size, source.etag, source.last_modified)
        if changed is not None:
            return changed
        try:
            there = self._properties(target)
        except FileNotFoundError:
            self._start_copy(known.uri, source, target)
            there = self._properties(target)
        if not _is_copy(there, source):
            return occupied(known.uri, target)
        self._wait(known.uri, target, there)
        reach("object-copied", known.uri)
        return self._remove(known.uri, source.etag)

    def _start_copy(self, uri: str, source: Any, target: str) -> None:
        from azure.core import MatchConditions

        url = self._blob(uri).url
        if self._sas is not None and "?" not in url:
            url = f"{url}?{self._sas}"
        with _mapped(uri, f"copied to {target!r}"):
            self._blob(target).start_copy_from_url(
                url,
                metadata={**(source.metadata or {}), _ORIGIN: source.etag.strip('"')},
                source_etag=source.etag,
                source_match_condition=MatchConditions.IfNotModified,
                match_condition=MatchConditions.IfMissing,
            )

    def _wait(self, uri: str, target: str, there: Any) -> None:
        """Azure copies in its own time; within an account mostly at once."""
        for _ in range(_POLLS):
            if there.copy.status in (None, "success"):
                return
            if there.copy.status != "pending":
                raise ObjectStoreError(
                    f"{uri!r} cannot be copied to {target!r}: {there.copy.status}; delete what is there"
                )
            time.sleep(_POLL_SECONDS)
            there = self._properties(target)
        raise ObjectStoreError(f"{uri!r} is still being copied to {target!r}")


def _credential(account: str, options: AzureOptions) -> Any:
    """As pyarrow takes them: key, token, service principal, managed identity, else Azure's default chain."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if options.account_key is not None:
        return AzureNamedKeyCredential(account, options.account_key)
    if options.sas_token is not None:
        return AzureSasCredential(options.sas_token.lstrip("?"))
    from azure.identity import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential

    if options.client_secret is not None:
        assert options.tenant_id is not None  # checked with the options
        assert options.client_id is not None
        return ClientSecretCredential(options.tenant_id, options.client_id, options.client_secret)
    if options.client_id is not None:
        return ManagedIdentityCredential(client_id=options.client_id)
    return DefaultAzureCredential()


def _is_copy(there: Any, source: Any) -> bool:
    """Whether an object is what an earlier move has made, or another way has: the same bytes."""
    if there.size != source.size and there.copy.status != "pending":
        return False
    if (there.metadata or {}).get(_ORIGIN) == source.etag.strip('"'):
        return True
    ours, theirs = source.content_settings.content_md5, there.content_settings.content_md5
    return bool(ours) and ours == theirs


@contextmanager
def _mapped(uri: str, done: str) -> Iterator[None]:
    """The edge: what Azure's libraries raise leaves under our names; FileNotFoundError for what is not there."""
    from azure.core.exceptions import AzureError, HttpResponseError

    try:
        yield
    except HttpResponseError as error:
        status, code = error.status_code, str(getattr(error, "error_code", None) or "")
        text = redact_text(f"Azure answers {status} {code}: {(error.reason or '')}")
        if status == 404:
            raise FileNotFoundError(text) from None
        if status in (401, 403) or code in AZURE_OWN:
            raise ObjectRefused(f"{uri!r} is refused: {text}", own=code in AZURE_OWN) from None
        raise ObjectStoreError(f"{uri!r} cannot be {done}: {text}") from None
    except AzureError as error:
        raise ObjectStoreError(f"{uri!r} cannot be {done}: {redact_text(str(error))}") from None
