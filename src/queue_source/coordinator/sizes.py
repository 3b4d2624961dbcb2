"""How large a source's objects usually are, and which of them are planned without asking for their own sizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from queue_source.announcements.contents import Stat, Stated
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.coordinator.session import Session
from queue_source.storage.fetching import WHOLE
from shard_store.model import Content

_FIRST = 32
"""Objects of a source that are looked up to learn how large they are."""
_FRESH = 60.0  # seconds for which what the store says of them is taken


class Sizes:
    """Looks up what plans need to know of objects that were announced without a size.

    An object that one request brings whole says its size and version in the answer to that, and its task records them
    (`Work.meets`): it is not looked up where the source's objects are that small on the average. `is_told` says of
    which objects the answers have both. Any thread may use it.
    """

    def __init__(self, session: Session, stat: Stat, is_told: Callable[[str], bool] | None) -> None:
        self._session, self._stat, self._is_told = session, stat, is_told
        content, notifications = session.options.content, session.options.notifications
        # rows of references have sizes and times; and without shards nothing could be recorded
        self.spares = (
            is_told is not None
            and session.semantics.final_at_delivery
            and content.kind.is_announced
            and not (notifications.by_reference or notifications.chooses_by_time)
        )
        self._lock = threading.Lock()
        self._recent: int | None = None  # of those that were finished last
        self._asked = float("-inf")
        self._met = [0, 0]  # bytes, and of how many objects

    @property
    def usual(self) -> int | None:
        """The average size; None until it is known."""
        if not self.spares:
            return None
        with self._lock:
            if (now := time.monotonic()) - self._asked >= _FRESH:
                self._recent, self._asked = self._session.store.usual_size(self._session.options.source), now
            if self._recent is None and self._met[1] >= _FIRST:
                return self._met[0] // self._met[1]
            return self._recent

    def usual_of(self, contents: Iterable[Content]) -> int:
        """Return the bytes that those of unknown size count for; 0 where there are none."""
        return (self.usual or 0) if any(content.size is None for content in contents) else 0

    def spared(self, uris: Iterable[str]) -> list[str]:
        """Select those of these objects, whose sizes are unknown, that are planned without a look-up."""
        told = [uri for uri in uris if self._is_told is not None and self._is_told(uri)]
        if not told or (usual := self.usual) is None or usual > WHOLE:
            return []
        return [uri for uri in told if not may_come_in_pieces(self._session.options, uri, usual)]

    def stat(self, uris: Iterable[str], needed: Collection[str] = ()) -> dict[str, Stated | None]:
        """Look up those of these objects, whose sizes are unknown, that are `needed`, or not spared."""
        found: dict[str, Stated | None] = {}
        remaining = list(dict.fromkeys(uris))
        while remaining:
            spared = set(self.spared(remaining)).difference(needed)
            asked = [uri for uri in remaining if uri not in spared]
            if self._met[1] < _FIRST:  # these may tell that the others are spared
                asked = asked[:_FIRST]
            stated = self._stat(asked) if asked else ()
            found |= zip(asked, stated, strict=True)
            sizes = [each.size for each in stated if each is not None]
            with self._lock:
                self._met = [self._met[0] + sum(sizes), self._met[1] + len(sizes)]
            remaining = [uri for uri in remaining if uri not in spared and uri not in found]
        return found
