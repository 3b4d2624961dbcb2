"""Values that contradict each other, the session or the opened queues: each check raises an OptionError.

What else an option requires or excludes is declared with the option.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from queue_source.common.times import format_duration, parse_time_zone
from queue_source.errors import OptionError
from queue_source.options.content import ContentOptions, SchemaOptions
from queue_source.options.reader import NotificationOptions, ReaderOptions
from queue_source.queues.base import Queue, identity_of
from shard_store.redaction import quote

logger = logging.getLogger("cuesqueue")
_SURE = timedelta(hours=1)  # by which an object has to be younger than the forgotten shards (`SURE` of listings)


def check_reader(options: ReaderOptions) -> None:
    """Run all checks of a reader's values."""
    after, before = options.notifications.modified_after, options.notifications.modified_before
    if after is not None and before is not None and after >= before:
        raise OptionError(
            "modifiedBefore",
            f"is {before.isoformat()}, which is not after modifiedAfter ({after.isoformat()}): no object is between "
            "them; write a later time",
        )
    kind, _, numbers = options.queue.queue_shares.partition(":")
    queues, listed = len(options.queue.urls), bool(options.backfill.prefixes)
    if kind == "percentage" and len(numbers.split(",")) != queues + listed:
        more = ", and a last one for what listings find (backfillPrefixes)" if listed else ""
        raise OptionError(
            "queueShares", f"gives {len(numbers.split(','))} numbers for {queues} queue(s); write one a queue{more}"
        )
    if options.backfill.prefixes:
        _check_backfill(options)
    if options.cleaning.clean_source != "off":
        _check_cleaning(options)
    _check_times(options)


def _check_backfill(options: ReaderOptions) -> None:
    backfill, name = options.backfill, "backfillPrefixes"
    for prefix in backfill.prefixes:
        if not prefix.startswith(options.notifications.allowed_prefixes):
            raise OptionError(
                name, f"{quote(prefix)} is outside of allowedPrefixes; name it there too, or leave allowedPrefixes out"
            )
        if prefix.endswith("://"):
            raise OptionError(
                name, f"{quote(prefix)} is no folder and no bucket; write s3://bucket/folder/ or file:///folder/"
            )
    # versions of objects would be one store's where they are announced, and another's where they are listed
    for prefix, target in options.notifications.path_rewrites if options.notifications.allow_overwrites else ():
        is_listed = any(target.startswith(listed) or listed.startswith(target) for listed in backfill.prefixes)
        if is_listed and prefix.partition("://")[:2] != target.partition("://")[:2]:
            raise OptionError(
                "pathRewrites",
                f"leads to another store, {quote(target)}, which has versions of its own: with allowOverwrites a "
                "listing would read again what was announced; leave backfillPrefixes or allowOverwrites out",
            )
    least = _SURE + 2 * backfill.interval + backfill.grace
    if options.deduplication.deduplication_window < least:
        raise OptionError(
            "deduplicationWindow",
            f"= {format_duration(options.deduplication.deduplication_window)} is less than "
            f"{format_duration(least)} (two times backfillInterval, backfillGrace and an hour): an object could be "
            "forgotten before a listing has seen it, and is then never read; raise it, or lower backfillInterval",
        )


def _check_times(options: ReaderOptions) -> None:
    """Refuse times that contradict each other, before anything is received: they lose leases or deduplication."""
    leases = options.leases
    chain = (
        ("heartbeat (a quarter of commitTimeout)", "commitTimeout", leases.heartbeat),
        ("visibilityTimeout", "visibilityTimeout", leases.visibility_timeout),
        ("deduplicationWindow", "deduplicationWindow", options.deduplication.deduplication_window),
    )
    for (shorter, lower, less), (_, higher, more) in itertools.pairwise(chain):
        if less > more:
            rule = " <= ".join(f"{label} = {format_duration(value)}" for label, _, value in chain)
            raise OptionError(
                higher,
                f"the times must rise, but these do not: {rule}; {shorter} is not below {higher}: "
                f"raise {higher} or lower {lower}",
            )
    wait = options.queue.wait_time
    if wait >= leases.visibility_timeout:  # deadlines count from the start of the receive request
        raise OptionError(
            "waitTime",
            f"waitTime = {format_duration(wait)} is not below visibilityTimeout = "
            f"{format_duration(leases.visibility_timeout)}: messages could be lost to others while one receive waits; "
            "lower waitTime or raise visibilityTimeout",
        )


def _check_cleaning(options: ReaderOptions) -> None:
    """Check that cleaned objects are known as done, and that moved ones are never read again."""
    cleaning = options.cleaning
    window = options.deduplication.deduplication_window
    if cleaning.retention > window:
        raise OptionError(
            "cleanSource.retentionDuration",
            f"= {format_duration(cleaning.retention)} is more than deduplicationWindow = {format_duration(window)}: "
            "what is forgotten cannot be cleaned; lower it, or raise deduplicationWindow",
        )
    name, destination = "cleanSource.moveDestination", cleaning.destination
    if destination is None:
        return
    for prefix in (*options.notifications.allowed_prefixes, *options.backfill.prefixes):
        if _bucket(prefix) != _bucket(destination):
            raise OptionError(
                name,
                f"{destination!r} is not in the bucket of {prefix!r}, which is read; name a folder in the same bucket",
            )
        if destination.startswith(prefix) or prefix.startswith(destination):
            raise OptionError(
                name,
                f"{destination!r} overlaps with {prefix!r}, which is read: what is moved there could be read again; "
                "name another folder, or narrow allowedPrefixes and backfillPrefixes to the folders that are read",
            )


def _bucket(prefix: str) -> str:
    scheme, _, location = prefix.partition("://")
    return f"{scheme}://" if scheme == "file" else f"{scheme}://{location.partition('/')[0]}"


def check_declared(options: SchemaOptions) -> None:
    """Refuse options that act only on inferred schemas, together with a declared one."""
    for name, value in (("schemaLocation", options.schema_location), ("schemaHints", options.schema_hints)):
        if value:
            raise OptionError(
                name,
                "is for schemas that are inferred, and this one is declared with .schema(...); leave one of them out",
            )


def check_zone(options: NotificationOptions, session: str) -> None:
    """Check that the session's zone is the one in which times without a zone were taken.

    Called in a task, which has the session's zone: the process that parses options has not.
    """
    assumed = options.assumed_zone
    if assumed is not None and parse_time_zone(session) != assumed:
        name = "modifiedAfter" if options.modified_after is not None else "modifiedBefore"
        raise OptionError(
            name,
            f"has no zone, and was taken to be in {assumed}, that of the driver's machine, but the session's zone is "
            f"{session}; write the zone, as in 2026-11-20T08:30:00Z",
        )


def in_zone(content: ContentOptions, zone: str) -> ContentOptions:
    """Return the options with the session's zone for timestamps without one, where they name none.

    Raises OptionError.
    """
    format = content.format
    if format is None or format.timezone is not None:
        return content
    try:
        timezone = parse_time_zone(zone)
    except ValueError as error:
        raise OptionError("timeZone", f"the session's: {error}") from None
    return replace(content, format=replace(format, timezone=timezone))


# checks of the queues of a reader, when options and opened queues first come together


def check_suitability(queues: Sequence[Queue], options: ReaderOptions) -> None:
    """Raise OptionError for a queue that cannot keep the promise of `deliverySemantics`, or that occurs twice."""
    names: dict[str, str] = {}
    for queue in queues if len(queues) > 1 else ():  # it would be received, counted and given its share twice
        if (identity := identity_of(queue)) in names:
            raise OptionError(
                "queueUrl", f"names one queue twice: {names[identity]} and {queue.name}; leave one of them out"
            )
        names[identity] = queue.name
    semantics = options.delivery.delivery_semantics
    for queue in queues:
        if queue.capabilities.loses_while_closed and semantics != "at-most-once":
            raise OptionError(
                "queueUrl",
                f"{queue.name} is a listener: what is sent while it is not connected is lost, so it can be read with "
                f"deliverySemantics at-most-once and not with {semantics}; read a pool (pool=NAME instead of "
                "listener=true), which keeps its messages",
            )


def check_not_read(errors: Queue, queues: Iterable[Queue]) -> None:
    """Raise OptionError where errors would go to a queue that is read: each would be one more message."""
    if identity_of(errors) in map(identity_of, queues):
        raise OptionError("errorQueueUrl", f"{errors.name} is the queue that is read; name another one for errors")


def check_error_queue(queue: Queue) -> None:
    """Raise OptionError for a queue in which errors would not stay until they are read."""
    if queue.capabilities.loses_while_closed:
        raise OptionError(
            "errorQueueUrl",
            f"{queue.name} is a listener: its messages are gone with its connection; name a pool (pool=NAME instead of "
            "listener=true), which keeps them",
        )


def warn_of_retention(queues: Iterable[Queue], window: timedelta) -> None:
    """Warn of a queue whose messages outlive the memory of their shards: they would be published twice."""
    for queue in queues:
        kept = queue.capabilities.retention
        if kept is not None and kept > window.total_seconds():
            logger.warning(
                "queue %r keeps messages for %s, longer than deduplicationWindow = %s: one that is delivered again "
                "after the window is published again; raise 'deduplicationWindow'",
                queue.name,
                format_duration(timedelta(seconds=kept)),
                format_duration(window),
            )
