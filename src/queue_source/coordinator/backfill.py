"""Listings that find what no message has announced: on threads of their own, page by page (decision 0047)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from queue_source.announcements.contents import Stat, is_chosen, with_versions
from queue_source.announcements.listed import listed_contents
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.ownership import Ownership
from queue_source.coordinator.ready import may_come_in_pieces
from queue_source.coordinator.session import Session, with_back_off
from queue_source.coordinator.threads import Threads
from queue_source.errors import BadObject, CuesqueueError, ObjectRefused, ObjectStoreError, OptionError
from queue_source.storage.buckets.base import Bucket, Page
from shard_store.completeness.listing import Claim, Found
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import micros

logger = logging.getLogger("cuesqueue")

OpenBucket = Callable[[str], Bucket]
"""Opens the bucket of a prefix, without a request; raises BadObject and ObjectStoreError."""

_SIDE_BY_SIDE = 4  # prefixes that are listed at the same time, each on a thread
_POLL = 0.5  # seconds: what changes without a sign is noticed as late as this
_GIVES_WAY = 19, 1.0  # times as long as a page was compared, and seconds, at most: busy readers are to list as well
_ABANDONED = 1000  # shards of pipelines that have stopped that are taken over at a time


@dataclass(slots=True)
class _Prefix:
    """What is to be done about a prefix, and when: by the session's clock.

    `looked`: since the start, or since AvailableNow began, it is known whether its listing was due, and if so, it has
    ended or failed. `at_once`: the first listing is due however short a while ago the last one was.
    """

    due: float
    at_once: bool
    busy: bool = False
    looked: bool = False


class Backfill:
    """Lists each prefix when it is due, and whenever it is our turn among the pipelines of the source.

    What fails is logged, counted (`listingFailures`) and tried again at the next interval, from where it was, and when
    the same page has failed twice, from the beginning; it ends no query. Only that a newer incarnation runs
    (PipelineTakenOver) does.
    """

    def __init__(
        self, session: Session, in_flight: InFlight, ownership: Ownership, open_bucket: OpenBucket, stat: Stat
    ) -> None:
        options = session.options
        self._session = session
        self._in_flight = in_flight
        self._ownership = ownership
        self._open_bucket = open_bucket
        self._stat = stat
        self._draining = False
        self._has_taken = False
        self._lock = threading.Lock()
        # a reader that has nothing else shows what is there when it is started, as often as it is
        now, alone = session.clock(), not options.queue.urls
        self._prefixes = {name: _Prefix(now, at_once=alone) for name in options.backfill.prefixes}

    def prepare(self) -> None:
        """Raises ShardStoreError, and OptionError for a prefix of which no bucket can be opened at any time."""
        session = self._session
        for prefix in self._prefixes:
            try:
                self._open_bucket(prefix).close()
            except (BadObject, ObjectStoreError) as error:  # without a request
                raise OptionError("backfillPrefixes", str(error)) from error
        if self._prefixes and not session.options.backfill.include_existing:
            session.store.leave_existing(session.token, session.options.source)
        self._in_flight.expect_listing(bool(self._prefixes))

    def start(self, threads: Threads) -> None:
        for number in range(min(_SIDE_BY_SIDE, len(self._prefixes))):
            threads.start(f"backfill-{number}", self._run)

    def drain(self) -> None:
        """AvailableNow: what is due now is listed to its end, once; a listing that comes due later is not begun.

        What stopped pipelines have left is taken first, all of it: they had no more than they could read soon.
        """
        while self._take() == _ABANDONED:
            pass
        with self._lock:
            self._draining = True
            for prefix in self._prefixes.values():
                if prefix.looked and not prefix.busy and prefix.due <= self._session.clock():
                    prefix.looked = False
            self._expect()

    def take_abandoned(self) -> None:
        """Read what pipelines that have stopped found by listing: nobody has a message that leads to it."""
        if (self._prefixes or not self._has_taken) and self._in_flight.wait_for_listed(0.0):
            self._take()  # once also by a reader that does not list any more: it may have left some itself

    def _take(self) -> int:
        session = self._session
        found = []
        if session.semantics.keeps_shards:
            found = session.store.abandoned(session.options.source, _ABANDONED)
            self._ownership.resolve(found)
        self._has_taken = True
        return len(found)

    def let_go(self) -> None:
        """After the threads have ended: others may go on with our listings. Raises ShardStoreError."""
        session = self._session
        if self._prefixes:
            session.store.let_go_of_listings(session.token, session.options.source, list(self._prefixes))

    def _run(self) -> None:
        while not self._session.stopping.is_set():
            prefix = self._next()
            if prefix is None:
                self._in_flight.wait(self._rest)
                continue
            pause = self._pause
            try:
                self._list(prefix)
            except (PipelineTakenOver, LostProgress):
                raise
            except (CuesqueueError, ShardStoreError) as error:
                pause = self._interval
                self._session.metrics.add(listingFailures=1)
                logger.error(
                    "source %s: listing %s: %s; it is tried again, from %s, at the next backfillInterval",
                    self._session.options.source,
                    prefix,
                    error,
                    "its beginning" if self._begins_anew(prefix, error) else "where it was",
                )
            self._end(prefix, pause)

    def _begins_anew(self, prefix: str, error: Exception) -> bool:
        """Write down that a page has failed; of the store's own failures it need not know."""
        session = self._session
        if isinstance(error, ShardStoreError):
            return False
        try:
            return session.store.fail_listing(session.token, session.options.source, prefix)
        except (PipelineTakenOver, LostProgress):
            raise
        except ShardStoreError as failure:
            logger.warning(
                "source %s: listing %s: %s; a failure is not counted", session.options.source, prefix, failure
            )
            return False

    def _next(self) -> str | None:
        """A prefix that nobody works on, and whose turn it may be."""
        now = self._session.clock()
        with self._lock:
            for name, prefix in self._prefixes.items():
                if not prefix.busy and prefix.due <= now and not (self._draining and prefix.looked):
                    prefix.busy = True
                    return name
        return None

    @property
    def _rest(self) -> float:
        """Seconds until a prefix comes due; what changes that is noticed as late as `_POLL`."""
        now = self._session.clock()
        with self._lock:
            due = [prefix.due - now for prefix in self._prefixes.values() if not prefix.busy]
        return min([_POLL, *(seconds for seconds in due if seconds > 0)])

    def _end(self, name: str, pause: float) -> None:
        with self._lock:
            prefix = self._prefixes[name]
            prefix.busy, prefix.looked = False, True
            prefix.due = self._session.clock() + pause
            self._expect()

    def _expect(self) -> None:
        self._in_flight.expect_listing(any(prefix.busy or not prefix.looked for prefix in self._prefixes.values()))

    @property
    def _interval(self) -> float:
        return self._session.options.backfill.interval.total_seconds()

    @property
    def _pause(self) -> float:
        """Seconds until the store is asked again whether the listing is due."""
        return min(self._interval, self._session.heartbeat)

    def _list(self, prefix: str) -> None:
        """All pages of a listing, if it is due and ours."""
        session, began = self._session, self._session.clock()
        at_once = self._prefixes[prefix].at_once
        source = session.options.source
        claim = session.store.claim_listing(session.token, source, prefix, self._interval, at_once=at_once)
        self._prefixes[prefix].at_once = False
        if claim is None:
            return
        if claim.cursor is not None:
            logger.info("source %s: listing %s goes on after %r", source, prefix, claim.cursor)
        bucket = self._open_bucket(prefix)
        try:
            after = self._pages(bucket, claim)
        finally:
            bucket.close()
        if after is not None:
            logger.info(
                "source %s: listed %d object(s) under %s, of which %d were unknown and are read now, %d are beyond "
                "memory, and %d existed before the first listing; this reader took %.1f s",
                source,
                after.objects,
                prefix,
                after.opened,
                after.beyond_memory,
                after.existing,
                session.clock() - began,
            )

    def _pages(self, bucket: Bucket, claim: Claim) -> Claim | None:
        """The listing at its end; None when we stop before, or when it has passed to another pipeline."""
        session, compared = self._session, 0.0
        while self._has_room():
            page = self._page(bucket, claim)
            reach("page-listed")
            times, seconds = _GIVES_WAY
            session.batches.give_way(min(times * compared, seconds))
            began = time.monotonic()
            after = self._compare(claim, page)
            compared = time.monotonic() - began
            if after is None:
                logger.info("source %s: another pipeline goes on with listing %s", claim.source, claim.prefix)
                return None
            claim = after
            if page.cursor is None:
                return claim
        return None

    def _has_room(self) -> bool:
        """Wait until a page may bring work; False when we stop before."""
        while not self._session.stopping.is_set():
            if self._in_flight.wait_for_listed(_POLL):
                return True
        return False

    def _page(self, bucket: Bucket, claim: Claim) -> Page:
        session = self._session
        seconds = session.options.queue.retry_timeout.total_seconds()
        versions = session.options.notifications.allow_overwrites
        return with_back_off(session.stopping, seconds, session.clock, _is_passing)(
            bucket.page, claim.prefix, claim.cursor, versions=versions
        )

    def _compare(self, claim: Claim, page: Page) -> Claim | None:
        session, read_at = self._session, time.monotonic()
        options = session.options.notifications
        announced = [
            (listed, content)
            for listed, content in zip(
                page.objects, listed_contents(page.objects, options, whatever_time=True), strict=True
            )
            if content is not None
        ]
        contents = with_versions(
            [content for _, content in announced], self._stat, partial(may_come_in_pieces, session.options)
        )
        found = [
            Found(
                content,
                micros(listed.modified),
                None if listed.appeared is None else micros(listed.appeared),
                is_chosen(listed.modified, options, page.now),
            )
            for (listed, _), content in zip(announced, contents, strict=True)
        ]
        compared = session.store.compare_listed(
            session.token,
            claim,
            found,
            objects=len(page.objects),
            cursor=page.cursor,
            grace=session.options.backfill.grace.total_seconds(),
            clock=lambda: _now(page.now, read_at),
        )
        if compared is None:
            return None
        reach("page-opened")
        session.metrics.add(
            listed=len(page.objects),
            backfilled=compared.opened,
            reopened=compared.reopened,
            beyondMemory=compared.beyond_memory,
            existing=compared.existing,
        )
        self._ownership.resolve(compared.shards)
        return compared.claim


def _now(answered: datetime, read_at: float) -> int:
    """The time by the object store's clock now: `answered` was in its answer, which was read at `read_at`."""
    return micros(answered) + int((time.monotonic() - read_at) * 1_000_000)


def _is_passing(error: BaseException) -> bool:
    return isinstance(error, ObjectStoreError) and not isinstance(error, ObjectRefused)
