"""Buckets of Google Cloud Storage, through google-cloud-storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets import PAGE, OneByOne, Outcome, Page, Present, exchanged
from shard_store.redaction import redact_text

_FIELDS = "items(name,size,etag,timeCreated,generation,metageneration),nextPageToken"


class GcsBucket(OneByOne):
    """One bucket, with the application's default credentials, with which objects are read too."""

    def __init__(self, root: str, storage: StorageOptions) -> None:
        """Open the bucket; `root` is its URI up to its slash."""
        try:
            from google.cloud import storage as library
        except ImportError as error:
            raise ObjectStoreError(
                f"{root!r} is listed by google-cloud-storage: pip install 'cuesqueue[gcs]' on the driver"
            ) from error
        self._library = library
        super().__init__(root, "gcs")
        self._anonymous = storage.anonymous
        self._name = root.partition("://")[2].rstrip("/")
        self._now: datetime | None = None

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """Request a page; the cursor is the last name, the version is the generation, as in notifications.

        The time is that of the generation too: that of its last update changes with its metadata or its storage class.
        So does the ETag, which is left out then.
        """
        objects: list[ListedObject] = []
        blobs: list[Any] = []
        try:
            with _mapped(prefix, "listed"):
                pages = self._client.list_blobs(
                    self._name,
                    prefix=prefix[len(self._root) :],
                    start_offset=cursor,  # it is listed again
                    page_size=PAGE,
                    fields=_FIELDS,
                    timeout=60,
                )
                for page in pages.pages:
                    blobs = list(page)
                    objects = [
                        ListedObject(
                            self._root + blob.name,
                            int(blob.size),
                            _etag(blob),
                            blob.time_created,
                            str(blob.generation) if versions else None,
                        )
                        for blob in blobs
                        if blob.name != cursor
                    ]
                    if objects:
                        break
        except FileNotFoundError as error:
            raise BadObject("missing-object", f"{prefix!r} cannot be listed: {error}") from None
        more = pages.next_page_token is not None
        return Page(objects, blobs[-1].name if more else None, self._now or datetime.now(timezone.utc))

    def close(self) -> None:
        self._threads.shutdown()
        if "_client" in self.__dict__:
            self._client.close()

    @cached_property
    def _client(self) -> Any:
        """The client of this bucket alone; its variable of an emulator is Google's own."""

        def note_date(response: Any, *_: Any, **__: Any) -> None:
            if "Date" in response.headers:
                self._now = parsedate_to_datetime(response.headers["Date"])

        with _mapped(self._root, "opened"):
            client = self._library.Client.create_anonymous_client() if self._anonymous else self._library.Client()
            client._bucket_metadata_cache = None  # for traces; or it asks for the bucket, on a thread of its own
            client._http.hooks["response"].append(note_date)  # the library does not return the headers of its answers
        return client

    def _blob(self, uri: str) -> Any:
        return self._client.bucket(self._name).blob(self._key(uri))

    def _present(self, uri: str) -> Present:
        blob = self._blob(uri)
        with _mapped(uri, "looked at"):
            blob.reload()
        return Present(int(blob.size), _etag(blob), blob.time_created, str(blob.generation), blob)

    def _remove(self, uri: str, present: Present) -> Outcome:
        from google.api_core.exceptions import PreconditionFailed

        with _mapped(uri, "deleted"):
            try:
                self._blob(uri).delete(if_generation_match=present.facts.generation)
            except PreconditionFailed:
                return exchanged(uri)
        return None

    def _copy(self, uri: str, source: Present, target: str) -> None:
        """Copy by a rewrite, as copies of any size need."""
        made, blob, token = self._blob(target), source.facts, None
        with _mapped(uri, f"copied to {target!r}"):
            while True:
                token, _, _ = made.rewrite(
                    blob, token=token, if_generation_match=0, if_source_generation_match=blob.generation
                )
                if token is None:
                    return

    def _is_copy(self, copy: Present, source: Present) -> bool:
        return bool((copy.size, copy.facts.crc32c) == (source.size, source.facts.crc32c))


def _etag(blob: Any) -> str | None:
    """Return the ETag that the notification of the object had; None where its metadata was changed since."""
    etag: str | None = blob.etag if blob.metageneration == 1 else None
    return etag


@contextmanager
def _mapped(uri: str, done: str) -> Iterator[None]:
    """Map the errors of Google's libraries in the block to ours; FileNotFoundError for missing objects."""
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(redact_text(error.message)) from None
    except (Forbidden, Unauthorized) as error:
        text = redact_text(error.message)
        raise ObjectRefused(f"{uri!r} is refused: {text}", own="kms" in text.lower()) from None
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise ObjectStoreError(f"{uri!r} cannot be {done}: {redact_text(str(error))}") from None
