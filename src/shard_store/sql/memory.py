"""What a reader remembers of its pipeline's row: a store that says less has gone back in time (invariant 11).

A database may be replaced under a query that runs: by a replica that had not received everything, by a backup, by an
older copy of its file. Whatever took its place is as the store was at some moment. A reader counts its changes in the
row that it locks anyway. If the row has all that it has counted, then all that it has seen before is there as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shard_store.errors import LostProgress
from shard_store.model import PublishToken

if TYPE_CHECKING:
    from sqlalchemy.engine import Row


@dataclass
class Memory:
    """Of the incarnations that have started here: their drivers, and how many changes are committed.

    A process in which none has started remembers nothing, and checks nothing.
    """

    _drivers: dict[PublishToken, str] = field(default_factory=dict)
    _changes: dict[PublishToken, int] = field(default_factory=dict)
    _breaks: int = 0  # of connections to the database
    _planned: dict[PublishToken, int] = field(default_factory=dict)  # how many there were when a plan was made last

    def begin(self, token: PublishToken, driver: str, changes: int) -> None:
        self._drivers[token], self._changes[token] = driver, changes

    def keep(self, token: PublishToken, changes: int) -> None:
        """Remember the changes. Two threads may commit in one order and come here in another."""
        if token in self._changes:
            self._changes[token] = max(self._changes[token], changes)

    def connection_broke(self) -> None:
        """Note that from now on another server, or another file, may be behind the database's URL."""
        self._breaks += 1

    def plan(self, token: PublishToken) -> None:
        """Note that the plan on record is made by us."""
        self._planned[token] = self._breaks

    def may_have_changed(self, token: PublishToken) -> bool:
        """Return whether another database may have taken the place of the one in which the last plan was made."""
        return self._breaks != self._planned.get(token, self._breaks)

    def lacks(self, row: Row[Any], token: PublishToken) -> str | None:
        """Return what the row, whose incarnation is that of the token, lacks of what is known of it."""
        if token not in self._changes:
            return None
        if row.driver not in ("", self._drivers[token]):
            return f"its incarnation {token.incarnation} was started by another driver"
        if (row.changes or 0) < self._changes[token]:
            return f"it has {row.changes or 0} changes of this reader, which has made {self._changes[token]}"
        return None


def went_back(store: str, token: PublishToken, lacking: str) -> LostProgress:
    """Return the error. `store` is its URL without secrets; `lacking`: by what that is seen."""
    return LostProgress(
        f"pipeline {token.pipeline!r}: the store {store} has gone back in time under the running query: {lacking}. A "
        "replica that had not received everything took the place of the database, or a backup was restored. The query "
        "acknowledges nothing more; start it again: what was not published is read again, and if something that was "
        "published is missing it says so"
    )
