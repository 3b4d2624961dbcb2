"""Containers of Azure's Blob Storage and Data Lake Storage, through azure-storage-blob."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from queue_source.common.clouds import new_credential
from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions, with_secrets
from queue_source.storage.buckets import PAGE, OneByOne, Outcome, Page, Present, exchanged, occupied
from queue_source.storage.files import azure_place, blob_service
from queue_source.storage.open_files import AZURE_OWN
from shard_store.redaction import redact_text

_ORIGIN = "cuesqueue_moved_from"
"""Metadata of a moved object: the ETag that it had."""
_POLLS = 60
_POLL_SECONDS = 0.5


class AzureBucket(OneByOne):
    """One container, with the credentials that its objects are read with."""

    def __init__(self, root: str, storage: StorageOptions) -> None:
        """Open the container; `root` is its URI up to its slash. Raises what `azure_place` raises."""
        try:
            from azure.storage.blob import ContainerClient
        except ImportError as error:
            raise ObjectStoreError(
                f"{root!r} is listed by azure-storage-blob: pip install 'cuesqueue[azure]' on the driver"
            ) from error
        super().__init__(root, "azure")
        scheme, _, location = root.partition("://")
        options = with_secrets(storage).azure
        account, domain, container = azure_place(root, scheme, location.rstrip("/"), options)
        self._sas = None if options.sas_token is None else options.sas_token.lstrip("?")
        self._credential: Any = None
        if not storage.anonymous:
            self._credential = new_credential(
                account,
                account_key=options.account_key,
                sas_token=options.sas_token,
                tenant_id=options.tenant_id,
                client_id=options.client_id,
                client_secret=options.client_secret,
            )
        self._client = ContainerClient(blob_service(account, domain, options), container, self._credential)

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """Request a page; the cursor is Azure's marker, which encodes a name.

        Folders of hierarchical accounts are left out.

        Versions are distinguished by their ETags, as in notifications.
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
        """Tell whether the markers differ: they are Azure's own, without a known order."""
        return before != after

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()
        if hasattr(self._credential, "close"):
            self._credential.close()

    def _blob(self, uri: str) -> Any:
        return self._client.get_blob_client(self._key(uri))

    def _present(self, uri: str) -> Present:
        with _mapped(uri, "looked at"):
            properties = self._blob(uri).get_blob_properties()
        return Present(properties.size, properties.etag, properties.last_modified, None, properties)

    def _remove(self, uri: str, present: Present) -> Outcome:
        """Delete the object; one that has snapshots stays, with Azure's answer: they are not ours."""
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError

        with _mapped(uri, "deleted"):
            try:
                self._blob(uri).delete_blob(etag=present.etag, match_condition=MatchConditions.IfNotModified)
            except ResourceModifiedError:
                return exchanged(uri)
        return None

    def _copy(self, uri: str, source: Present, target: str) -> None:
        from azure.core import MatchConditions

        url, facts = self._blob(uri).url, source.facts
        if self._sas is not None and "?" not in url:
            url = f"{url}?{self._sas}"
        with _mapped(uri, f"copied to {target!r}"):
            self._blob(target).start_copy_from_url(
                url,
                metadata={**(facts.metadata or {}), _ORIGIN: facts.etag.strip('"')},
                source_etag=facts.etag,
                source_match_condition=MatchConditions.IfNotModified,
                match_condition=MatchConditions.IfMissing,
            )
        copy = self._present(target)
        if not self._is_copy(copy, source):
            raise occupied(uri, target)
        self._wait(uri, target, copy)

    def _wait(self, uri: str, target: str, copy: Present) -> None:
        """Wait for the copy: Azure makes it in its own time; within an account mostly at once."""
        for _ in range(_POLLS):
            if (status := copy.facts.copy.status) in (None, "success"):
                return
            if status != "pending":
                raise ObjectStoreError(f"{uri!r} cannot be copied to {target!r}: {status}; delete what is there")
            time.sleep(_POLL_SECONDS)
            copy = self._present(target)
        raise ObjectStoreError(f"{uri!r} is still being copied to {target!r}")

    def _is_copy(self, copy: Present, source: Present) -> bool:
        if copy.size != source.size and copy.facts.copy.status != "pending":
            return False
        if (copy.facts.metadata or {}).get(_ORIGIN) == source.facts.etag.strip('"'):
            return True
        ours, theirs = source.facts.content_settings.content_md5, copy.facts.content_settings.content_md5
        return bool(ours) and ours == theirs


@contextmanager
def _mapped(uri: str, done: str) -> Iterator[None]:
    """Map the errors of Azure's libraries in the block to ours; FileNotFoundError for missing objects."""
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
