"""`cuesqueue reconcile`: compares a bucket with what is published, with proof (decision 0047), and with the next steps.

The pages of a listing or an inventory become counters, a digest and the first names of each kind, in bounded memory.
Nothing is written before the last page is compared: a listing that fails in the middle certifies nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, cast

import tenacity
import typer

from queue_source.announcements.contents import announcement_of, is_refused, listed_contents
from queue_source.commands.output import FAILED, Json, print_result, progress, tell, without_unknown
from queue_source.commands.parameters import DryRun, Store, argument, duration_of, flag, named_options, option
from queue_source.errors import ObjectRefused, ObjectStoreError, OptionError
from queue_source.messages import ListedObject, Outgoing
from queue_source.options import ListingOptions, options_of_choice, parse_listing_options
from queue_source.options.types import TIME
from queue_source.queues import Queue, open_queue
from queue_source.queues.base import send_possible
from queue_source.storage import inventory as inventories
from queue_source.storage.buckets import Bucket, Page, open_bucket
from queue_source.storage.inventory import Inventory
from queue_source.uris import plain_prefix
from shard_store import open_store
from shard_store.completeness.comparing import (
    EMPTY,
    MEASURED,
    UNMEASURED,
    UNPUBLISHED,
    Category,
    Certificate,
    Clocks,
    Finding,
    ListedShard,
    Scope,
    Tally,
    verdict,
)
from shard_store.completeness.comparing import since as changes_since
from shard_store.model import micros, time_of
from shard_store.shards.changes import Audit
from shard_store.sql.database import ROWS_PER_STATEMENT, chunks
from shard_store.store import ShardStore

LISTED = "listing"
"""The evidence of a certificate that is no inventory."""

_SHOWN = 10  # names of each kind that people see; --list has all
_CHANGED = (
    "changed objects are published as they were before, and are not read again by themselves, unless they were empty "
    "then (--send announces those); `cuesqueue shards forget URI`, and then --send, adds the rows of the new versions "
    "to those of the old ones, which you remove where they went"
)
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
        self._waiting: list[tuple[str, Outgoing]] = []

    def put(self, listed: ListedObject) -> None:
        message = announcement_of(listed, plain=self._plain)
        if message is None:
            self.unsendable.append(listed.uri)
        else:
            self._waiting.append((listed.uri, message))

    def send(self) -> None:
        """Send the waiting announcements: at most those of a page. Raises QueueError."""
        waiting, self._waiting, refused = self._waiting, [], dict[int, str]()
        if self._queue is not None:
            refused = send_possible(self._queue, [message for _, message in waiting])
            self.unsendable += [waiting[place][0] for place in refused]
        self.sent += len(waiting) - len(refused)


@dataclass(slots=True)
class Report:
    """The result for the objects of one prefix.

    Attributes:
        tally: Objects by category, and the first of each kind that is not published.
        outside: Objects that were last modified before the period, or after it; they are not counted.
        skipped: Folders that may not be read, and names that are no text: their content is unknown.
        clocks: How far the object store's clock is ahead of the database's.
        began: When the comparison began, by the database's clock.
    """

    scope: Scope
    evidence: str
    tally: Tally = field(default_factory=Tally)
    outside: int = 0
    skipped: int = 0
    clocks: Clocks = UNMEASURED
    began: int | None = None

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

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        scope = self.scope
        return {
            "verdict": self.verdict,
            "says": self.sentence(),
            "source": scope.source,
            "prefix": scope.prefix,
            "modified_since": None if scope.modified_since is None else iso(scope.modified_since),
            "modified_before": iso(scope.modified_before),
            "objects": self.tally.objects,
            **self.tally.counts,
            "outside_of_the_period": self.outside,
            "not_listed": self.skipped,
            "evidence": self.evidence,
            "digest": self.tally.digest,
            "certificate": None,
            "unpublished": {kind: uris for kind, uris in self.tally.unpublished.items() if uris},
        }


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


def compare(
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
            began = store.database_time()
            ahead = Clocks(micros(page.now) - began, MEASURED) if evidence == LISTED else UNMEASURED
            report = Report(scope, evidence, clocks=ahead, began=began)
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
        if content is None and is_refused(listed, options.notifications):
            report.tally.add(listed.uri, listed.size, listed.etag, Category.MISSING)
            yield listed, Finding(Category.MISSING)
        elif content is None:
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


# the command


class Form(str, Enum):
    OWN = "own"
    URI = "uri"


def reconcile(
    store: Store,
    prefixes: Annotated[
        list[str] | None, argument("PREFIX...", "What is compared, as in s3://landing/orders/ or file:///data/in/.")
    ] = None,
    source: Annotated[str | None, option("S", "The source that reads it, if the store has several.")] = None,
    option: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            (
                "A reader's option that chooses objects (allowedPrefixes ...) or reaches the bucket (s3.* ...); may "
                "be repeated."
            ),
        ),
    ] = None,
    profile: Annotated[str | None, option("P", "Profile of the AWS configuration files.")] = None,
    endpoint_url: Annotated[str | None, option("URL", "Address of a service that speaks AWS's protocols.")] = None,
    inventory: Annotated[
        str | None, option("MANIFEST", "Take the objects from an S3 Inventory: URI of its manifest.json.")
    ] = None,
    since: Annotated[str | None, option("TIME", "Only objects last modified from this time on (UTC).")] = None,
    until: Annotated[
        str | None,
        option("TIME", "Only objects last modified before this time (UTC, by the bucket's clock); else --grace ago."),
    ] = None,
    grace: Annotated[str, option("D", "How long an object may take to be announced and published.")] = "10m",
    certificate: Annotated[
        int | None,
        option("ID", "Check this certificate again, as it was."),
    ] = None,
    send: Annotated[
        str | None,
        option(
            "QUEUE_URL",
            "Announce what is missing, or was read while empty, to this queue.",
        ),
    ] = None,
    notification: Annotated[
        Form, option("own|uri", "With --send: events as the object's store sends them, or plain URIs.")
    ] = Form.OWN,
    certify: Annotated[bool, flag("--certify", "Write a certificate for each prefix.")] = False,
    names: Annotated[
        str | None,
        option(
            "FILE",
            "Write each unpublished object into this file, as lines of JSON.",
            "--list",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compare what is in a bucket with what was published, and say what is missing.

    Exit code 0: complete. 1: something is not published, or changed since; the store has forgotten too much to say;
    not all could be listed; or there is no object.
    """
    configured = {"aws.profile": profile, "aws.endpointUrl": endpoint_url}
    reader_options = {name: text for name, text in configured.items() if text is not None} | named_options(option)
    period = Period(_time("--since", since), _time("--until", until), duration_of("--grace", grace))
    with ExitStack() as stack:
        opened = stack.enter_context(open_store(store, create=False))
        checked: Certificate | None = None
        if certificate is not None:
            if prefixes or since or until or source:
                raise OptionError(
                    "--certificate", "says what is compared; leave out PREFIX, --source, --since and --until"
                )
            checked = opened.certificate(certificate)
            scope = checked.scope
            begins = None if scope.modified_since is None else time_of(scope.modified_since)
            period = replace(period, since=begins, until=time_of(scope.modified_before))
            source, prefixes = scope.source, [scope.prefix]
            reader_options = {**options_of_choice(scope.choice), **reader_options}
        if not prefixes:
            raise OptionError("PREFIX", "nothing is named; write what to compare, as in s3://landing/orders/")
        options = parse_listing_options(prefixes, reader_options)
        source_read = opened.source_of(source)
        manifest = _inventory(inventory, options)
        evidence = LISTED if manifest is None else manifest.manifest
        announcer: Announcer | None = None
        if send is not None:
            queue = None if dry_run else stack.enter_context(open_queue(send))
            announcer = Announcer(queue, plain=notification is Form.URI)
        named = None
        if names is not None:
            named = sys.stdout if names == "-" else stack.enter_context(Path(names).open("w", encoding="utf-8"))

        def write_name(listed: ListedObject, finding: Finding) -> None:
            if named is not None:
                entry = {
                    "uri": listed.uri,
                    "category": finding.category.value,
                    "size": listed.size,
                    "etag": listed.etag,
                    "last_modified": iso(listed.modified),
                    "pipeline": finding.pipeline,
                }
                named.write(json.dumps(entry) + "\n")

        results = []
        for prefix in options.prefixes:
            sent, unsendable = (0, 0) if announcer is None else (announcer.sent, len(announcer.unsendable))
            try:
                with _pages(prefix, manifest, options) as pages, progress("objects compared", None, not as_json) as bar:
                    report = compare(
                        opened,
                        source_read,
                        prefix,
                        options,
                        pages,
                        period=period,
                        evidence=evidence,
                        announcer=announcer,
                        unpublished=write_name,
                        advance=bar,
                    )
            except BaseException:
                if announcer is not None and announcer.sent:
                    tell(f"{announcer.sent} missing objects were announced before this; it does no harm to repeat it")
                raise
            earlier = checked or opened.newest_certificate(report.scope)
            result = report.as_dict()
            if certify and not dry_run and report.is_certificate:
                actor = Audit.of_user().actor
                result["certificate"] = opened.certify(report.scope, evidence, report.tally, actor, report.began)
            if announcer is not None:
                result["announced"] = announcer.sent - sent
                result["cannot_be_announced"] = len(announcer.unsendable) - unsendable
            if earlier is not None:
                difference = changes_since(earlier, report.tally)
                result["compared_with"] = {
                    "certificate": earlier.id,
                    "written_at": iso(earlier.written_at),
                    "same": difference.same,
                    "counts": {name: list(pair) for name, pair in difference.counts.items()},
                    "appeared": difference.appeared,
                    "gone": difference.gone,
                    "all_names_kept": difference.whole,
                }
            results.append(result)
    complete = all(result["verdict"] == "complete" for result in results)
    if as_json:
        print_result({"complete": complete, "prefixes": results, "dry_run": dry_run}, as_json, title="reconcile")
    else:
        for result in results:
            _print(result)
            if dry_run and certify:
                tell("no certificate was written (--dry-run)")
    if not complete:
        raise typer.Exit(FAILED)


def _time(option: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else cast("datetime", TIME.parse(text))
    except ValueError as error:
        raise OptionError(option, str(error)) from None


@contextmanager
def _pages(prefix: str, manifest: Inventory | None, options: ListingOptions) -> Iterator[Iterator[Page]]:
    if manifest is None:
        with (
            closing(open_bucket(prefix, options.storage)) as bucket,
            closing(pages_of(bucket, prefix, versions=options.notifications.allow_overwrites)) as pages,
        ):
            yield pages
        return
    place = f"s3://{manifest.bucket}/"
    if not prefix.startswith(place):
        raise OptionError("--inventory", f"is of {place}, and {prefix!r} is not in it; name prefixes of that bucket")
    with closing(inventories.pages(manifest, options.storage)) as pages:
        yield (replace(page, objects=[o for o in page.objects if o.uri.startswith(prefix)]) for page in pages)


def _inventory(manifest: str | None, options: ListingOptions) -> Inventory | None:
    if manifest is None:
        return None
    try:
        uri = plain_prefix(manifest)
    except ValueError as error:
        raise OptionError("--inventory", str(error)) from None
    opened = inventories.open_inventory(uri, options.storage)
    if options.notifications.allow_overwrites and not opened.has_versions:
        tell(
            "the inventory has no versions: with allowOverwrites, objects of a bucket that keeps versions are not "
            "recognised, and would all be missing; add VersionId to the inventory, or compare with a listing"
        )
    return opened


def _print(result: dict[str, Any]) -> None:
    hidden = ("says", "unpublished", "compared_with", "digest")
    rows = without_unknown({name: value for name, value in result.items() if name not in hidden})
    print_result(rows, False, title=result["prefix"])
    tell(result["says"])
    for kind, uris in result["unpublished"].items():
        _tell_names("", kind, uris, result[kind], "--list FILE writes all")
    if result["changed"]:
        tell(_CHANGED)
    if (comparison := result.get("compared_with")) is None:
        return
    name = f"certificate {comparison['certificate']} of {comparison['written_at']}"
    if comparison["same"]:
        tell(f"the same objects and numbers as in {name}")
        return
    counts = ", ".join(
        f"{kind.replace('_', ' ')} {was:,} -> {now:,}" for kind, (was, now) in comparison["counts"].items()
    )
    tell(f"changed since {name}: {counts or 'the same numbers, and other objects or versions'}")
    for words, part in (("now ", "appeared"), ("no longer ", "gone")):
        for kind, uris in comparison[part].items():
            _tell_names(words, kind, uris, len(uris), "--json has them")
    if not comparison["all_names_kept"]:
        tell("a certificate keeps the first 1,000 names of each kind, so not every change has a name here")


def _tell_names(words: str, kind: str, uris: Sequence[str], count: int, hint: str) -> None:
    """Name the first objects of a kind, and say how many more there are."""
    what = f"{words}{kind.replace('_', ' ')}"
    for uri in uris[:_SHOWN]:
        tell(f"{what}: {uri}")
    if count > _SHOWN:
        tell(f"and {count - _SHOWN:,} more {'that are ' if words else ''}{what}; {hint}")
