"""The lives of queries and receivers: how they start, what their drivers do when a call fails, and how they end."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from queue_source.errors import CuesqueueError
from shard_store.errors import PipelineTakenOver, ShardsLost, ShardStoreError
from shard_store.model import shard_key
from support.explorer.casts import Kind
from support.explorer.points import Death
from support.explorer.promises import Broken
from support.explorer.query import Query
from support.explorer.reader import Router
from support.explorer.world import World

_LACKING = re.compile(r"may have gone back in time .* shard\(s\) that this reader has opened, such as '(.+?)'\. ")


class Noticed(Exception):
    """A loss was noticed and said, as it must be; people decide how it goes on."""


class Lives:
    """What runs now in a world.

    `zombies`: queries that were replaced, and do not know. `may_notice`: something was put back, exchanged or lost, so
    that an error may say so. `is_batch_left`: a driver died in its batch, and no query has started since.
    """

    def __init__(self, world: World, choose: random.Random, *, reorders: bool) -> None:
        self.world, self.choose = world, choose
        self.kinds = world.cast.kinds
        self.queries: dict[Kind, Query] = {}
        self.zombies: list[Query] = []
        self.router: Router | None = None
        self.may_notice = self.is_batch_left = False
        self._reorders = reorders

    def running(self, *, start: bool = False) -> Query | None:
        kind = self.choose.choice(self.kinds)
        if start and kind not in self.queries:
            self.start(kind)
        return self.queries.get(kind)

    def start(self, kind: Kind) -> None:
        self.is_batch_left = False
        order = list(kind.names)
        if self._reorders:
            self.choose.shuffle(order)
        try:
            self.queries[kind] = Query(self.world, kind, self.choose, order)
        except Death:
            pass  # while it starts
        except ShardStoreError as error:
            self.notice(error)

    def end(self, query: Query) -> None:
        query.die()
        self.queries.pop(query.kind, None)

    def end_all(self) -> None:
        for query in (*self.queries.values(), *self.zombies):
            query.die()
        self.queries, self.zombies = {}, []
        self.end_router()

    def guarded(self, query: Query, call: Callable[[], object]) -> bool:
        """The call, and what a query's driver does when it fails: it ends."""
        try:
            call()
            return True
        except Death:
            self.is_batch_left = True
        except (ShardsLost, PipelineTakenOver):
            pass
        except (ShardStoreError, CuesqueueError) as error:
            was_there = query in (*self.queries.values(), *self.zombies) and not query.is_stopping
            self.end(query)
            if was_there:  # else it was stopped while this turn of it waited for another one
                self.notice(error)
        self.end(query)
        return False

    def notice(self, error: Exception) -> None:
        if self.world.half_reset and "a reset of source" in str(error):
            return
        if self._may_be_pruned(error):
            return
        if not self.may_notice:
            raise Broken(f"a loss was told where nothing was lost: {error}") from error
        raise Noticed(str(error)) from error

    def _may_be_pruned(self, error: Exception) -> bool:
        """A reader that slept cannot tell a loss from what another pipeline has taken over, and a prune has forgotten.

        Then it says both, and ends.
        """
        lacking = _LACKING.search(str(error))
        return lacking is not None and any(
            shard_key(source, lacking[1]) in self.world.passed
            and (source, lacking[1].partition("#")[0]) in self.world.anew
            for source in self.world.names
        )

    def route(self, die_at: str | None) -> None:
        """The receiver takes what is in its queue."""
        try:
            if self.router is None:
                self.router = Router(self.world)
            self.router.work(die_at)
        except Death:
            self.end_router()
        except ShardStoreError as error:
            self.end_router()
            self.notice(error)

    def end_router(self) -> None:
        if self.router is not None:
            self.router.die()
            self.router = None
