"""How large a source's objects usually are, and which of them are planned without asking for their own sizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from queue_source.announcements.contents import Stat, Stated
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.coordinator.session import Session
from queue_source.storage.fetching import WHOLE
from shard_store.model import DELIVERY, Content

_FRESH = 60.0  # seconds for which what the store says of them is taken


class Sizes:
    """Looks up what plans need to know of objects that were announced without a size.

    An object that one request brings whole says its size and version in the answer to that, and its task records them
    (`Work.meets`): it is not looked up where the source's objects are that small on the average. `answers_with_facts`
    tells of which objects the answers have both. Any thread may use it.
    """

    def __init__(self, session: Session, stat: Stat, answers_with_facts: Callable[[str], bool] | None) -> None:
        self._session, self._stat, self._answers_with_facts = session, stat, answers_with_facts
        content, notifications = session.options.content, session.options.notifications
        # rows of references have sizes and times; and without shards nothing could be recorded
        self.spares = (
            answers_with_facts is not None
            and session.semantics.final_at_delivery
            and content.kind.is_announced
            and not (notifications.by_reference or notifications.chooses_by_time)
        )
        self._lock = threading.Lock()
        self._recent: int | None = None  # on the average, of those that were finished last
        self._sink: str | None = None  # what takes the batches
        self._asked = 0.0

    @property
    def usual(self) -> int | None:
        """The average size; None until something is finished, and it is known what takes the batches."""
        options = self._session.options
        with self._lock:
            if self._recent is None or self._sink is None or time.monotonic() - self._asked >= _FRESH:
                self._recent, self._sink = self._session.store.usual_size(options.source, options.pipeline)
                self._asked = time.monotonic()
            # outputs of `delivery` in other databases know a batch by its hash alone, which is made of what is known
            return None if self._sink in (None, DELIVERY) else self._recent

    def usual_of(self, contents: Iterable[Content]) -> int:
        """Return the bytes that those of unknown size count for; 0 where there are none."""
        return (self.usual or 0) if self.spares and any(content.size is None for content in contents) else 0

    def spared(self, uris: Iterable[str]) -> list[str]:
        """Select those of these objects, whose sizes are unknown, that are planned without a look-up."""
        answers_with_facts, options = self._answers_with_facts, self._session.options
        candidates = [] if answers_with_facts is None or not self.spares else [*filter(answers_with_facts, uris)]
        if not candidates or (usual := self.usual) is None or usual > WHOLE:
            return []
        return [uri for uri in candidates if not may_come_in_pieces(options, uri, usual)]

    def stat(self, uris: Iterable[str], needed: Collection[str] = ()) -> dict[str, Stated | None]:
        """Look up those of these objects, whose sizes are unknown, that are `needed`, or not spared."""
        uris = list(dict.fromkeys(uris))
        spared = set(self.spared(uris)).difference(needed)
        asked = [uri for uri in uris if uri not in spared]
        return dict(zip(asked, self._stat(asked) if asked else (), strict=True))
