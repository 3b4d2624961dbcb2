"""Many objects of one bucket at once: listed, deleted, moved; a module for each kind of store.

Used in the reader process and by commands; executors only read single objects (`storage/files.py`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.open_files import AZURE_SCHEMES, S3_SCHEMES, is_local
from queue_source.uris import climbs, is_text
from shard_store.failpoints import reach

logger = logging.getLogger("cuesqueue")

PAGE = 1000
"""Objects of one page of a listing at most."""
THREADS = 10
"""Requests side by side: as many connections as the clients keep."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, in the order of the store.

    Attributes:
        objects: At most `PAGE` of them; may be none though more follow.
        cursor: Where the next page begins, also in another process; None: this is the last page.
        now: The time by the store's clock of the modification times (aware).
        skipped: The number of omitted names that are no text, and of folders that may not be read; logged.
    """

    objects: Sequence[ListedObject]
    cursor: str | None
    now: datetime
    skipped: int = 0


class Known(NamedTuple):
    """The known facts of an object that is to be removed: it is only removed if it is still that one.

    `etag` decides where both sides have one; else `size`, and that it was not modified after `known_at` (by the clock
    of the store): before any reader began to read it. `version`: the version or ETag that is part of its identity:
    where versions are kept, the same content once more is another object.
    """

    uri: str
    size: int | None
    etag: str | None
    known_at: datetime
    version: str | None = None


def if_changed(
    planned: Known, size: int, etag: str | None, modified: datetime, version: str | None = None
) -> BadObject | None:
    """Return the error where the present object is not the planned one."""
    etag = None if etag is None else etag.strip('"')
    if planned.version is not None and version is not None and planned.version not in (version, etag):
        present, expected, same = f"the version {version}", planned.version, False
    elif planned.version is not None and version is not None:
        return None
    elif planned.etag is not None and etag is not None:
        present, expected, same = f"the ETag {etag}", planned.etag, etag == planned.etag.strip('"')
    elif planned.size is not None and planned.size != size:
        present, expected, same = f"{size} bytes", str(planned.size), False
    else:
        present, expected, same = f"the time {modified}", f"up to {planned.known_at}", modified <= planned.known_at
    return None if same else BadObject("object-changed", f"{planned.uri!r} has {present} by now, {expected} was read")


def in_bytes(name: str) -> bytes:
    """Return a name as the bytes by which the store has it and orders."""
    return name.encode("utf-8", "surrogateescape")


Outcome = BadObject | ObjectStoreError | None
"""What came of one object: None: done, also when it had been done before (nothing is there any more).

BadObject("object-changed") when it is another one by now; any other error is the store's, and may be tried again.
"""


class Bucket(ABC):
    """A bucket or container (of local files: this machine), opened for one prefix. Close it."""

    def page(self, prefix: str, cursor: str | None = None, *, versions: bool = False) -> Page:
        """Request the objects whose URI begins with `prefix` (a URI), after `cursor`; once.

        Names that are no text are left out: no notification can name them, and no column of Spark can hold them.

        Raises ObjectRefused, ObjectStoreError (also when the listing would never end), and BadObject("missing-object")
        when there is no such bucket or folder.
        """
        page = self._page(prefix, cursor, versions)
        if page.cursor is not None and not self._goes_on(cursor or "", page.cursor):
            raise ObjectStoreError(
                f"{prefix!r} cannot be listed: the page after {cursor!r} ends at {page.cursor!r}, so the listing does "
                "not go on"
            )
        objects = [listed for listed in page.objects if is_text(listed.uri)]
        odd = len(page.objects) - len(objects)
        if odd:
            first = next(listed.uri for listed in page.objects if not is_text(listed.uri))
            logger.warning("listing %s: %d name(s) that are not UTF-8 are left out; the first: %r", prefix, odd, first)
        return replace(page, objects=objects, skipped=page.skipped + odd) if odd else page

    def now(self, uri: str) -> datetime:
        """Return the time by the clock of the modification times; `uri` is that of an object. Raises as `page`."""
        return self.page(uri).now

    @abstractmethod
    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """Request a page as `page`; names may be no text, with lone surrogates for the bytes that are not UTF-8."""

    def _goes_on(self, before: str, after: str) -> bool:
        """Tell whether a cursor comes after the one before; here they are names, in the order of their bytes."""
        return in_bytes(before) < in_bytes(after)

    @abstractmethod
    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        """Delete the objects that are unchanged, at most `PAGE`; return an outcome for each, in their order."""

    @abstractmethod
    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        """Move each object to its URI, in the same bucket, by copying and deleting; return an outcome for each.

        May be repeated after a crash at any moment. A target that exists already, and is another object, is
        BadObject("target-exists").
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


class Present(NamedTuple):
    """What a store says of an object now; `facts` in the words of its library."""

    size: int
    etag: str | None
    modified: datetime
    version: str | None
    facts: Any


class OneByOne(Bucket):
    """A bucket of a store that is asked for each object separately, several at a time."""

    def __init__(self, root: str, name: str) -> None:
        """Open it; `root` is its URI up to its slash, `name` is the store's."""
        self._root = root
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"cuesqueue-{name}")

    @abstractmethod
    def _present(self, uri: str) -> Present:
        """Return the object's present state. Raises FileNotFoundError, ObjectStoreError."""

    @abstractmethod
    def _remove(self, uri: str, present: Present) -> Outcome:
        """Delete the object, on the condition that it is still this one."""

    @abstractmethod
    def _copy(self, uri: str, source: Present, target: str) -> None:
        """Copy the object, on the conditions that it stays and that the target is free."""

    @abstractmethod
    def _is_copy(self, copy: Present, source: Present) -> bool:
        """Tell whether an object is the result of an earlier move, or has the same bytes in another way."""

    def _wait(self, uri: str, target: str, copy: Present) -> None:
        """Wait until the copy is complete."""

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        """Check each object, and delete it on the condition that it stays."""

        def delete(planned: Known) -> Outcome:
            present = self._present(planned.uri)
            return if_changed(planned, *present[:4]) or self._remove(planned.uri, present)

        return self._each(delete, objects)

    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        def move(pair: tuple[Known, str]) -> Outcome:
            planned, target = pair
            if target == planned.uri:
                return occupied(planned.uri, target)
            source = self._present(planned.uri)
            if (changed := if_changed(planned, *source[:4])) is not None:
                return changed
            try:
                copy = self._present(target)
            except FileNotFoundError:
                self._copy(planned.uri, source, target)
            else:
                if not self._is_copy(copy, source):
                    return occupied(planned.uri, target)
                self._wait(planned.uri, target, copy)
            reach("object-copied", planned.uri)
            return self._remove(planned.uri, source)

        return self._each(move, objects)

    def _each(self, act: Callable[[_T], Outcome], things: Iterable[_T]) -> list[Outcome]:
        """Return the outcome of each, in order; a missing object needs nothing more."""

        def outcome_of(thing: _T) -> Outcome:
            try:
                return act(thing)
            except FileNotFoundError:
                return None
            except (BadObject, ObjectStoreError) as error:
                return error

        return list(self._threads.map(outcome_of, things))

    def _key(self, uri: str) -> str:
        if not uri.startswith(self._root):
            raise ValueError(f"{uri!r} is not in {self._root!r}")
        return uri[len(self._root) :]


def exchanged(uri: str) -> BadObject:
    """Return the error for a condition of a request that did not hold."""
    return BadObject("object-changed", f"{uri!r} was exchanged in the moment before it was deleted")


def occupied(uri: str, target: str) -> BadObject:
    """Return the error for a target that is something else."""
    return BadObject("target-exists", f"{target!r} is there already, and is not {uri!r}")


def open_bucket(prefix: str, storage: StorageOptions | None = None) -> Bucket:
    """Open the bucket of a prefix (a URI in its one form, see `uris.plain_prefix`). No request is made.

    Raises BadObject("missing-object") for a prefix that can be that of no object, ObjectStoreError when the library of
    its store is not installed.
    """
    storage = storage or StorageOptions()
    if climbs(prefix):
        raise BadObject("missing-object", f"{prefix!r} has a segment '.' or '..'; write the path that it stands for")
    if is_local(prefix):
        from queue_source.storage.buckets.local import LocalBucket

        return LocalBucket(storage)
    scheme, _, location = prefix.partition("://")
    bucket = location.partition("/")[0]
    if not bucket:
        raise BadObject("missing-object", f"{prefix!r} names no bucket; write scheme://bucket/ or file:///folder/")
    if scheme in S3_SCHEMES:
        from queue_source.storage.buckets.s3 import S3Bucket

        return S3Bucket(f"{scheme}://{bucket}/", storage)
    if scheme == "gs":
        from queue_source.storage.buckets.gcs import GcsBucket

        return GcsBucket(f"gs://{bucket}/", storage)
    if scheme in AZURE_SCHEMES:
        from queue_source.storage.buckets.azure import AzureBucket

        return AzureBucket(f"{scheme}://{bucket}/", storage)
    raise BadObject("missing-object", f"the scheme of {prefix!r} is not one of file, s3, gs, abfs, abfss, az")
