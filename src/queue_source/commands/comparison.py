"""Compares a source with what is in its buckets, for `cuesqueue reconcile` and its certificates (decision 0048).

The pages of a listing or an inventory become counters, a digest and the first names of each kind, in bounded memory.
Nothing is written before the last page is compared: a listing that fails in the middle certifies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import tenacity

from queue_source.announcements.contents import announcement_of, listed_contents
from queue_source.errors import ObjectRefused, ObjectStoreError, OptionError, QueueError
from queue_source.messages import ListedObject, Outgoing
from queue_source.options import ListingOptions
from queue_source.queues import Queue
from queue_source.queues.base import Unsendable, send_messages
from queue_source.storage.buckets import Bucket, Page
from shard_store.completeness.certificates import EMPTY, Scope, Tally, verdict
from shard_store.completeness.comparing import MEASURED, UNMEASURED, UNPUBLISHED, Category, Clocks, Finding, ListedShard
from shard_store.model import micros, time_of
from shard_store.sql.database import ROWS_PER_STATEMENT, chunks
from shard_store.store import ShardStore

LISTED = "listing"
"""The evidence of a certificate that is no inventory."""

_HALF = ROWS_PER_STATEMENT // 2  # each object may have been read under two ids
_TRIES = 5
"""For one page: a job of thousands of requests meets one that fails."""
_WAIT: Any = tenacity.wait_random_exponential(0.5, 10)


@dataclass(frozen=True, slots=True)
class Period:
    """The objects to compare: last modified from `since` on (None: no limit) and before `until`.

    Times are by the object store's clock. Without `until` it is `grace` before its present time.
    """

    since: datetime | None = None
    until: datetime | None = None
    grace: timedelta = timedelta(minutes=10)

    def ending(self, now: datetime) -> datetime:
        """Return the end of the period. Raises OptionError where it is in the future: later objects are unknown."""
        until = self.until or now - self.grace
        if until > now:
            raise OptionError(
                "--until", f"{iso(until)} is after {iso(now)}, up to which the bucket is known; name a time before"
            )
        if self.since is not None and self.since >= until:
            raise OptionError("--since", f"{iso(self.since)} is not before {iso(until)}, where the period ends")
        return until


class Announcer:
    """Sends announcements of objects that are not read, a page at a time. With `queue` None it only counts them."""

    def __init__(self, queue: Queue | None, *, plain: bool = False) -> None:
        self.sent = 0
        self.unsendable: list[str] = []
        self._queue = queue
        self._plain = plain
        self._waiting: list[Outgoing] = []

    def put(self, listed: ListedObject) -> None:
        message = announcement_of(listed, plain=self._plain)
        if message is None:
            self.unsendable.append(listed.uri)
        else:
            self._waiting.append(message)

    def send(self) -> None:
        """Send the waiting announcements: at most those of a page. Raises QueueError."""
        messages, self._waiting = self._waiting, []
        if messages and self._queue is not None:
            try:
                send_messages(self._queue, messages)
            except Unsendable as error:
                raise QueueError(self._queue.name, f"cannot carry an announcement: {error}") from error
        self.sent += len(messages)


@dataclass(slots=True)
class Report:
    """The result for the objects of one prefix.

    Attributes:
        tally: Objects by category, and the first of each kind that is not published.
        outside: Objects that were last modified before the period, or after it; they are not counted.
        skipped: Folders that may not be read, and names that are no text: their content is unknown.
        clocks: How far the object store's clock is ahead of the database's.
    """

    scope: Scope
    evidence: str
    tally: Tally = field(default_factory=Tally)
    outside: int = 0
    skipped: int = 0
    clocks: Clocks = UNMEASURED

    @property
    def verdict(self) -> str:
        by_counts = verdict(self.tally.counts)
        return "unlisted" if by_counts == "complete" and self.skipped else by_counts

    @property
    def is_certificate(self) -> bool:
        """Tell whether it covers at least one object, and all that were to be compared."""
        return not self.skipped and self.verdict != EMPTY

    def sentence(self) -> str:
        """Describe the certificate in words."""
        counts, scope = self.tally.counts, self.scope
        since = "" if scope.modified_since is None else f" from {iso(scope.modified_since)} on, and"
        total = self.tally.objects
        until = iso(scope.modified_before)
        text = (
            f"Of the {total:,} objects under {scope.prefix} last modified{since} before {until}, "
            f"{counts['published']:,} are published"
        )
        if not total:
            text = f"No object under {scope.prefix} that is read was last modified{since} before {until}"
        others = [f"{counts[kind.value]:,} {words}" for kind, words in _WORDS.items() if counts[kind.value]]
        if not total and self.outside:
            others.append(f"and {self.outside:,} outside of that time")
        if self.skipped:
            others.append(f"and {self.skipped:,} folders or names could not be listed (the log names them)")
        return f"{', '.join([text, *others])}. {_MEANING[self.verdict]}"


_WORDS = {
    Category.MISSING: "missing",
    Category.QUARANTINED: "quarantined",
    Category.GIVEN_UP: "given up (their batch was begun, and nothing tells whether it was published)",
    Category.SKIPPED: "skipped, since they are bad (onCorruptObject and others, with 'skip')",
    Category.WAITING: "waiting",
    Category.CHANGED: "published in another version than there is now",
    Category.BEYOND_MEMORY: "unknown, and older than the store remembers",
    Category.BEFORE_BEGINNING: "older than the first start, and not wanted (includeExistingFiles)",
}
_MEANING = {
    "complete": "Complete: every one of them is accounted for.",
    "incomplete": "Not complete.",
    "unlisted": "Nothing is known to be missing, but not all of it was listed, so this is no certificate.",
    EMPTY: "There was nothing to compare, so this is no certificate. If objects are younger, wait, or give a shorter "
    "--grace (or a later --until); if they are elsewhere, name another PREFIX.",
    "unknown": "Nothing is known to be missing, but the store has forgotten too much to say that it is complete.",
}


def reconcile(
    store: ShardStore,
    source: str,
    prefix: str,
    options: ListingOptions,
    pages: Iterator[Page],
    *,
    period: Period = Period(),
    evidence: str = LISTED,
    announcer: Announcer | None = None,
    unpublished: Callable[[ListedObject, Finding], None] = lambda listed, finding: None,
    advance: Callable[[int], None] = lambda count: None,
) -> Report:
    """Compare the objects of a prefix with the shards of a source.

    Args:
        store: The store that has the source.
        source: Its name, as `store.source_of` returns it.
        prefix: What the objects begin with, in the one form of URIs.
        options: What the reader would have read, and under which names.
        pages: The objects, page by page; their times are by the clock that `Page.now` is of.
        period: Which of them are asked about.
        evidence: Where the pages come from. Of `LISTED` ones the clock is that of this moment, and is compared with the
            database's; that of an inventory is not.
        announcer: Is given what is missing, and what was read as zero bytes and has some now.
        unpublished: Called for each object that is not published.
        advance: Called with the number of objects compared so far.

    Raises:
        BadObject, ObjectStoreError: The listing failed; nothing is certified.
        OptionError: The period ends in the future.
        QueueError: What is missing cannot be announced; what was sent before is harmless.
        ShardStoreError: The store failed.
    """
    report: Report | None = None
    seen = 0
    for page in pages:
        if report is None:
            since = None if period.since is None else micros(period.since)
            scope = Scope(source, prefix, since, micros(period.ending(page.now)), options.choice)
            ahead = Clocks(micros(page.now) - store.database_time(), MEASURED) if evidence == LISTED else UNMEASURED
            report = Report(scope, evidence, clocks=ahead)
        for objects in chunks(page.objects, _HALF if options.notifications.allow_overwrites else ROWS_PER_STATEMENT):
            timed = [(listed, micros(listed.modified)) for listed in objects]
            begin, end = report.scope.modified_since, report.scope.modified_before
            asked = [(listed, at) for listed, at in timed if at < end and (begin is None or at >= begin)]
            report.outside += len(objects) - len(asked)
            for listed, finding in _compare(store, report, asked, options):
                if finding.category in UNPUBLISHED:
                    unpublished(listed, finding)
                if announcer is not None and (finding.category is Category.MISSING or finding.is_unread):
                    announcer.put(listed)
        if announcer is not None:
            announcer.send()
        report.skipped += page.skipped
        seen += len(page.objects)
        advance(seen)
    if report is None:
        raise ObjectStoreError(f"the listing of {prefix!r} has no page, not even an empty one")
    return report


def pages_of(bucket: Bucket, prefix: str, *, versions: bool) -> Generator[Page, None, None]:
    """Yield the pages of a listing; each is fetched while the one before is compared."""

    def fetched() -> Generator[Page, None, None]:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, ObjectStoreError) and not isinstance(error, ObjectRefused)
            ),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=_WAIT,
            reraise=True,
        )
        cursor: str | None = None
        while True:
            page = retrying(bucket.page, prefix, cursor, versions=versions)
            yield page
            if page.cursor is None:
                return
            cursor = page.cursor

    pages = fetched()
    with closing(pages), ThreadPoolExecutor(1, thread_name_prefix="cuesqueue-listing") as thread:
        coming = thread.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = thread.submit(next, pages, None)
            yield page


def iso(time: datetime | int) -> str:
    """Format a time, or one of the store, in UTC, as short as possible."""
    aware = time_of(time) if isinstance(time, int) else time
    return aware.astimezone(timezone.utc).isoformat(timespec="auto").replace("+00:00", "Z")


def _compare(
    store: ShardStore, report: Report, objects: list[tuple[ListedObject, int]], options: ListingOptions
) -> Iterator[tuple[ListedObject, Finding]]:
    """Compare and count a part of a page, each object with its time in microseconds; yield those that are read."""
    selected: list[tuple[ListedObject, ListedShard]] = []
    contents = listed_contents([listed for listed, _ in objects], options.notifications)
    for (listed, at), content in zip(objects, contents, strict=True):
        if content is None:
            report.tally.add(listed.uri, listed.size, listed.etag, Category.LEFT_OUT)
        else:
            plain = None if content.shard_id == listed.uri else listed.uri
            appeared = None if listed.appeared is None else micros(listed.appeared)
            shard = ListedShard(content.shard_id, listed.size, listed.etag, at, plain, appeared)
            selected.append((listed, shard))
    if not selected:
        return
    listed_shards = [shard for _, shard in selected]
    findings = store.compare(report.scope.source, listed_shards, report.clocks)
    for (listed, _), finding in zip(selected, findings, strict=True):
        report.tally.add(listed.uri, listed.size, listed.etag, finding.category)
        yield listed, finding
