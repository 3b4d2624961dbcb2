"""Objects that are listed, and not announced: backfills, once or regularly."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from queue_source.announcements.contents import is_chosen, listed_contents
from queue_source.coordinator.in_flight import InFlight
from queue_source.coordinator.opening import Ownership
from queue_source.coordinator.session import Session, Threads, with_back_off
from queue_source.errors import BadObject, CuesqueueError, ObjectRefused, ObjectStoreError, OptionError
from queue_source.storage.buckets import Bucket, Page
from shard_store.completeness.listing import Claim, Found
from shard_store.errors import LostProgress, PipelineTakenOver, ShardStoreError
from shard_store.failpoints import reach
from shard_store.model import micros, shard_key

logger = logging.getLogger("cuesqueue")

OpenBucket = Callable[[str], Bucket]
"""Opens the bucket of a prefix, without a request; raises BadObject and ObjectStoreError."""

_SIDE_BY_SIDE = 4  # prefixes that are listed at the same time, each on a thread
_POLL = 0.5  # seconds: how late changes are noticed that wake no thread
_YIELD = 19  # times as long as a page took to compare it yields to batches
_LONGEST_YIELD = 1.0  # seconds


@dataclass(slots=True)
class _Prefix:
    """The state of one prefix's listing; times are those of the session's clock.

    `checked`: since the start, or since AvailableNow began, it was checked whether its listing was due, and a due one
    has ended or failed. `at_once`: the first listing is due however recent the last one was. `rest`: the last one was
    the rest of an earlier one: of AvailableNow that is not all, since more may have come before where that one was.
    """

    due: float
    at_once: bool
    busy: bool = False
    checked: bool = False
    rest: bool = False


class Backfill:
    """Lists each prefix when it is due and this pipeline's turn has come among those of the source.

    A failure is logged, counted (`listingFailures`) and tried again at the next interval, from where it was, and when
    the same page has failed twice, from the beginning; it ends no query. Only a newer incarnation (PipelineTakenOver)
    does. When it is made, it checks the prefixes and writes down where listing begins: that raises ShardStoreError, and
    OptionError for a prefix whose bucket can never be opened.
    """

    def __init__(self, session: Session, in_flight: InFlight, ownership: Ownership, open_bucket: OpenBucket) -> None:
        options = session.options
        self._session = session
        self._in_flight = in_flight
        self._ownership = ownership
        self._open_bucket = open_bucket
        self._draining = False
        self._lock = threading.Lock()
        # a reader that only lists shows every object when it starts, however often it starts
        now, alone = session.clock(), not (options.queue.urls or options.queue.from_store)
        self._prefixes = {name: _Prefix(now, at_once=alone) for name in options.backfill.prefixes}
        self._interval = options.backfill.interval.total_seconds()
        for prefix in self._prefixes:
            try:
                open_bucket(prefix).close()
            except (BadObject, ObjectStoreError) as error:  # without a request
                raise OptionError("backfillPrefixes", str(error)) from error
        if not options.backfill.include_existing:
            session.store.leave_existing(session.token, options.source)
        in_flight.expect_listing(True)

    def start(self, threads: Threads) -> None:
        for number in range(min(_SIDE_BY_SIDE, len(self._prefixes))):
            threads.start(f"backfill-{number}", self._run)

    def drain(self) -> None:
        """List what is due now to its end, once, for AvailableNow; begin no listing that comes due later."""
        with self._lock:
            self._draining = True
            for prefix in self._prefixes.values():
                now = self._session.clock()
                if prefix.checked and not prefix.busy and (prefix.rest or prefix.due <= now):
                    prefix.checked, prefix.due = False, min(prefix.due, now)
            self._expect()

    def let_go(self) -> None:
        """Let others go on with our listings, after the threads have ended. Raises ShardStoreError."""
        session = self._session
        session.store.let_go_of_listings(session.token, session.options.source, list(self._prefixes))

    def _run(self) -> None:
        while not self._session.stopping.is_set():
            prefix = self._next()
            if prefix is None:
                now = self._session.clock()
                with self._lock:
                    due = [state.due - now for state in self._prefixes.values() if not state.busy]
                # a change of that is noticed up to `_POLL` seconds late
                self._in_flight.wait(min([_POLL, *(seconds for seconds in due if seconds > 0)]))
                continue
            # then the store is asked again whether the listing is due
            pause = min(self._interval, self._session.heartbeat)
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
            with self._lock:
                state = self._prefixes[prefix]
                again = state.rest and self._draining
                state.busy, state.checked = False, not again
                state.due = self._session.clock() + (0 if again else pause)
                self._expect()

    def _begins_anew(self, prefix: str, error: Exception) -> bool:
        """Record that a page has failed; return whether the listing begins again.

        Failures of the store itself do not count.
        """
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
        """Select a due prefix that no thread works on."""
        now = self._session.clock()
        with self._lock:
            for name, prefix in self._prefixes.items():
                if not prefix.busy and prefix.due <= now and not (self._draining and prefix.checked):
                    prefix.busy = True
                    return name
        return None

    def _expect(self) -> None:
        self._in_flight.expect_listing(any(prefix.busy or not prefix.checked for prefix in self._prefixes.values()))

    def _list(self, prefix: str) -> None:
        """List all pages of a prefix, if it is due and ours."""
        session, began = self._session, self._session.clock()
        state, source = self._prefixes[prefix], session.options.source
        at_once, state.rest = state.at_once and (self._draining or not state.rest), False
        claim = session.store.claim_listing(session.token, source, prefix, self._interval, at_once=at_once)
        is_rest = claim is not None and claim.cursor is not None
        state.at_once = state.at_once and is_rest
        if claim is None:
            return
        if is_rest:
            logger.info("source %s: listing %s goes on after %r", source, prefix, claim.cursor)
        bucket = self._open_bucket(prefix)
        try:
            after = self._pages(bucket, claim)
        finally:
            bucket.close()
        if after is not None:
            state.rest = is_rest
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
        """Compare the pages up to the end of the listing, and return the claim there.

        None when we stop before, or lose the listing to another pipeline.
        """
        session, compared = self._session, 0.0
        seconds = session.options.queue.retry_timeout.total_seconds()
        versions = session.options.notifications.allow_overwrites
        while not session.stopping.is_set():
            if not self._in_flight.wait_for_listed(_POLL):
                continue
            patiently = with_back_off(
                session.stopping,
                seconds,
                session.clock,
                lambda error: isinstance(error, ObjectStoreError) and not isinstance(error, ObjectRefused),
            )
            asked = session.store.database_time()
            page: Page = patiently(bucket.page, claim.prefix, claim.cursor, versions=versions)
            reach("page-listed")
            session.batches.wait_for_batch_end(min(_YIELD * compared, _LONGEST_YIELD))
            began = time.monotonic()
            after = self._compare(claim, page, asked)
            compared = time.monotonic() - began
            if after is None:
                logger.info("source %s: another pipeline goes on with listing %s", claim.source, claim.prefix)
                return None
            claim = after
            if page.cursor is None:
                return claim
        return None

    def _compare(self, claim: Claim, page: Page, asked: int) -> Claim | None:
        session, read_at, look = self._session, time.monotonic(), self._in_flight.look()
        options = session.options.notifications
        announced = [
            (listed, content)
            for listed, content in zip(
                page.objects, listed_contents(page.objects, options, whatever_time=True), strict=True
            )
            if content is not None
        ]
        candidates = [
            Found(
                content,
                micros(listed.modified),
                None if listed.appeared is None else micros(listed.appeared),
                is_chosen(listed.modified, options, page.now),
            )
            for listed, content in announced
        ]
        compared = session.store.compare_listed(
            session.token,
            claim,
            candidates,
            objects=len(page.objects),
            cursor=page.cursor,
            grace=session.options.backfill.grace.total_seconds(),
            # the present time of the object store's clock
            clock=lambda: micros(page.now) + int((time.monotonic() - read_at) * 1_000_000),
            at_most=micros(page.now) - asked,
        )
        if compared is None:  # lost, perhaps behind a commit of ours whose answer was: what that opened is ours
            shards = session.store.look({shard_key(claim.source, entry.content.shard_id) for entry in candidates})
            self._ownership.resolve([shard for shard in shards.values() if shard.token == session.token], look)
            return None
        reach("page-opened")
        session.metrics.add(
            listed=len(page.objects),
            backfilled=compared.opened,
            reopened=compared.reopened,
            beyondMemory=compared.beyond_memory,
            existing=compared.existing,
        )
        self._ownership.resolve(compared.shards, look)
        return compared.claim
