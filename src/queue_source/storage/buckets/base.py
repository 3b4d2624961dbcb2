"""What is done with many objects of one bucket at once: listed, deleted, moved. One class for each kind of store.

Used in the reader process and by commands; executors only read single objects (`storage/files.py`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.messages import ListedObject

logger = logging.getLogger("cuesqueue")

PAGE = 1000
"""Objects of one page of a listing at most, and of one request that deletes."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, in the order of the store.

    Attributes:
        objects: At most `PAGE` of them; may be none though more follow.
        cursor: What the next page goes on after, also in another process; None: this is the last page.
        now: The time by the clock of the store that said when its objects were modified (aware).
        skipped: How many names are left out since they are no text, and folders since they may not be read; logged.
    """

    objects: Sequence[ListedObject]
    cursor: str | None
    now: datetime
    skipped: int = 0


class Known(NamedTuple):
    """What is known of an object that is to go: it goes only if it is still that one.

    `etag` decides where the store has ETags: without it (and without `version`) the object stays. Of local files `size`
    and that it was not modified after `read_at` decide. `version`: the version or ETag that is part of its identity:
    where versions are kept, the same content once more is another object.
    """

    uri: str
    size: int | None
    etag: str | None
    read_at: datetime
    version: str | None = None


def if_changed(
    known: Known, size: int, etag: str | None, modified: datetime, version: str | None = None
) -> BadObject | None:
    """What is to be said when what is there now is not the object that is known."""
    etag = None if etag is None else etag.strip('"')
    if known.version is not None and version is not None and known.version not in (version, etag):
        there, expected, same = f"the version {version}", known.version, False
    elif known.version is not None and version is not None:
        return None
    elif known.etag is not None and etag is not None:
        there, expected, same = f"the ETag {etag}", known.etag, etag == known.etag.strip('"')
    elif known.size is not None and known.size != size:
        there, expected, same = f"{size} bytes", str(known.size), False
    elif etag is not None:
        # its time is by another clock than `read_at`, and it may have been overwritten while it was read
        return BadObject("etag-unknown", f"{known.uri!r} was read without its ETag, and may be another object by now")
    else:
        there, expected, same = f"the time {modified}", f"up to {known.read_at}", modified <= known.read_at
    return None if same else BadObject("object-changed", f"{known.uri!r} has {there} by now, {expected} was read")


def is_text(name: str) -> bool:
    """Whether a name is that of Unicode text: it has no lone surrogates, which stand for bytes that are not UTF-8."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def in_bytes(name: str) -> bytes:
    """A name as the store has it and orders by."""
    return name.encode("utf-8", "surrogateescape")


Outcome = BadObject | ObjectStoreError | None
"""What came of one object: None: done, also when it had been done before (nothing is there any more).

BadObject("object-changed") when it is another one by now, BadObject("etag-unknown") when nobody can tell; any other
error is the store's, and may be tried again.
"""


class Bucket(ABC):
    """A bucket or container (of local files: this machine), opened for one prefix. Close it."""

    def page(self, prefix: str, cursor: str | None = None, *, versions: bool = False) -> Page:
        """One request for the objects whose URI begins with `prefix` (a URI), after `cursor`.

        Names that are no text are left out: no notification can say them, and no column of Spark can hold them.

        Raises ObjectRefused, ObjectStoreError (also when the listing would never end), and BadObject("missing-object")
        when there is no such bucket or folder.
        """
        page = self._page(prefix, cursor, versions)
        if page.cursor is not None and not self._goes_on(cursor or "", page.cursor):
            raise ObjectStoreError(
                f"{prefix!r} cannot be listed: the page after {cursor!r} ends at {page.cursor!r}, so the listing does "
                "not go on"
            )
        objects = [one for one in page.objects if is_text(one.uri)]
        odd = len(page.objects) - len(objects)
        if odd:
            first = next(one.uri for one in page.objects if not is_text(one.uri))
            logger.warning("listing %s: %d name(s) that are not UTF-8 are left out; the first: %r", prefix, odd, first)
        return replace(page, objects=objects, skipped=page.skipped + odd) if odd else page

    @abstractmethod
    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """What `page` promises; the names may be no text, with lone surrogates for the bytes that are not UTF-8."""

    def _goes_on(self, before: str, after: str) -> bool:
        """Whether a cursor comes after the one before; here they are names, in the order of their bytes."""
        return in_bytes(before) < in_bytes(after)

    @abstractmethod
    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        """Delete those that are still the ones that are known, at most `PAGE`; an outcome for each, in their order."""

    @abstractmethod
    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        """Move each to the URI beside it, in the same bucket, by copying and deleting; an outcome for each.

        May be repeated after a death at any moment. A target that is there already, and is another object, is
        BadObject("target-exists").
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""
