"""Reads an object that its store may refuse: tries again, and then distinguishes the object from its bucket.

A refused object is a bad object, of which there may be some. A refused bucket, by wrong credentials say, would make bad
objects of all that is announced: that fails the query instead, and nothing of it is given up. So an object is only
given up for a reason of its own, or when another one of its bucket can be read now.

This state need not outlive the task: the tries are its own, and its verdict is an error of the plan, which holds at
every later attempt (decision 0010).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from queue_source.errors import BadObject, ObjectRefused, ObjectReplaced, ObjectStoreError
from queue_source.options import StorageOptions
from queue_source.storage.files import bucket_of, open_object

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before a next try, for all refused objects of a task together: what was just permitted takes a while."""

PROBES = 256
"""How many other objects of a bucket are tried, at most: nearly all of a plan may be forbidden."""

_Item = TypeVar("_Item")


class Refusals:
    """The refused objects of one task.

    `others`: URIs that may be readable, the likeliest ones first; used when nothing of the bucket was read yet.
    `fails`: no object is tried again, since the first bad one ends the query.
    """

    def __init__(
        self, storage: StorageOptions, max_attempts: int, others: Callable[[], Iterable[str]], *, fails: bool = False
    ) -> None:
        self._storage = storage
        self._max_attempts = max_attempts
        self._others = others
        self._fails = fails
        self._pauses = iter(PAUSES)
        self._known: list[str] | None = None
        self._read: dict[str, str] = {}

    def read(self, uri: str, read: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
        """Yield what `read` yields; it is called again where the object is refused, or replaced, before the first item.

        Raises BadObject for what is given up, and ObjectReplaced after as many tries.
        """
        for tries in itertools.count(1):
            try:
                yield from read()
                self.was_read(uri)
                return
            except ObjectReplaced:  # the next try reads the present version
                if tries >= self._max_attempts:
                    raise
            except ObjectRefused as refused:
                if (bad := self.give_up(uri, refused, tries)) is not None:
                    raise bad from refused

    def was_read(self, uri: str) -> None:
        """Remember the object as the likeliest one of its bucket to be readable."""
        self._read[bucket_of(uri)] = uri

    def give_up(self, uri: str, refused: ObjectRefused, tries: int) -> BadObject | None:
        """Return the verdict after so many tries, or None for another try. Waits a moment, in which a refusal may pass.

        Raises ObjectStoreError when everything may be refused.
        """
        if self._fails:
            return BadObject("forbidden-object", str(refused))
        if tries < self._max_attempts:
            time.sleep(next(self._pauses, 0.0))
            return None
        if refused.own or self._others_are_readable(uri):
            return BadObject("forbidden-object", f"{refused} (after {tries} tries)")
        raise ObjectStoreError(
            f"{refused}, after {tries} tries, and nothing else of {bucket_of(uri)} could be read: if that is wrong, "
            "correct the credentials or the permissions; if it is right, send the query a message that announces an "
            "object of it that can be read, or take this one out with `cuesqueue shards quarantine`"
        ) from refused

    def _others_are_readable(self, uri: str) -> bool:
        """Tell whether another object of the bucket can be read now: credentials may have ended during the task."""
        bucket = bucket_of(uri)
        read = self._read.get(bucket)
        if read is not None and read != uri and self._can_be_read(read):
            return True
        if self._known is None:
            self._known = list(self._others())
        others = (other for other in self._known if other not in (uri, read) and bucket_of(other) == bucket)
        readable = next(filter(self._can_be_read, itertools.islice(others, PROBES)), None)
        if readable is not None:
            self.was_read(readable)
        return readable is not None

    def _can_be_read(self, uri: str) -> bool:
        try:
            with open_object(uri, self._storage) as file:
                file.read(1)  # the size of an archived object is reported even so
        except (BadObject, ObjectStoreError):
            return False
        return True
