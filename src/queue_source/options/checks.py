"""Options that contradict or need each other: each check raises an OptionError with the next step."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from queue_source.errors import OptionError
from queue_source.options.content import (
    INFERRED_FORMATS,
    MESSAGE_FORMATS,
    ContentKind,
    ContentOptions,
    FormatOptions,
    SchemaOptions,
)
from queue_source.options.declaring import options_of
from queue_source.options.reader import ReaderOptions, ViewOptions
from queue_source.options.receiving import NotificationOptions
from queue_source.options.secrets import quote
from queue_source.options.sink import LoadOptions
from queue_source.options.times import format_duration, parse_time_zone
from queue_source.queues.base import Queue, identity_of
from shard_store.model import Semantics

logger = logging.getLogger("cuesqueue")
_TARGETS = ("table", "delta", "path", "queueUrl")
_SURE = timedelta(hours=1)  # by which an object has to be younger than the forgotten shards (`SURE` of listings)


def check_reader(options: ReaderOptions) -> None:
    """Run all checks of a reader's options."""
    _check_content(options.content)
    if options.content.format is not None:
        _check_format(options.content.format)
        _check_single_variant(options.content.format, options.content.schema)
    check_paths(options.notifications)
    _check_choice(options.notifications, options.content.kind)
    _check_shares(options)
    _check_backfill(options)
    _check_recorded(options)
    _check_cleaning(options)
    _check_times(options)


def _check_content(options: ContentOptions) -> None:
    """Check that objects have a format, and that unread content has no options for bad records."""
    format = options.format
    if not options.kind.is_read:
        _check_unread(options)
    if options.kind.is_announced or format is None:
        return
    if format.file_format not in MESSAGE_FORMATS:
        raise OptionError(
            "fileFormat",
            f"{format.file_format} is for objects; leave it out, and the column `value` is the message",
        )
    if format.partition_columns:
        raise OptionError("partitionColumns", "come from paths of objects, which messages do not have; leave it out")


def check_nothing_is_parsed(values: Mapping[str, Any]) -> None:
    """Check that no option of a format is given without one: all columns are fixed then."""
    if values["partitionColumns"]:
        raise OptionError("partitionColumns", "acts only on objects that are read in a fileFormat; leave it out")


def _check_unread(options: ContentOptions) -> None:
    acting = {
        "schemaHints": bool(options.schema.schema_hints),
        "onMissingObject": options.on_missing_object != "quarantine",
        "onCorruptObject": options.on_corrupt_object != "quarantine",
        "onForbiddenObject": options.on_forbidden_object != "quarantine",
        "schemaLocation": options.schema.schema_location is not None,
    }
    if name := next((name for name, is_given in acting.items() if is_given), None):
        raise OptionError(
            name,
            "is about reading objects, and with content reference that is left to your own code, or to a sink with the "
            "option load; leave it out",
        )


def _check_format(options: FormatOptions) -> None:
    """Check that no character of csv has two meanings, and that records can end as the options say."""
    if options.sep in (options.quote, options.escape, options.comment):
        raise OptionError(
            "sep", f"{options.sep!r} is also the quote, the escape or the comment character; write another one"
        )
    if options.line_sep is not None and (options.multi_line or options.whole_text):
        other = "multiLine" if options.multi_line else "wholeText"
        raise OptionError("lineSep", f"has no meaning with {other}; leave one of them out")


def _check_single_variant(format: FormatOptions, schema: SchemaOptions) -> None:
    """Check that no option is about the columns of records where each record is one column."""
    name = format.single_variant_column
    acting = {
        "schemaLocation": schema.schema_location is not None,
        "schemaHints": bool(schema.schema_hints),
        "schemaSample": bool(schema.schema_sample),
        "schemaEvolutionMode": schema.schema_evolution_mode != "none",
        "rescuedDataColumn": format.rescued_data_column is not None,
    }
    if name is not None and (other := next((other for other, is_given in acting.items() if is_given), None)):
        raise OptionError(
            other,
            f"is about the columns of records, and with singleVariantColumn a record is one column, {name}; leave one "
            "of them out",
        )


def check_paths(options: NotificationOptions) -> None:
    """Check that form `json` has the paths of its URIs, and no other form does."""
    paths = {"uriPath": options.uri_path, "bucketPath": options.bucket_path, "keyPath": options.key_path}
    paths_given = [name for name, path in paths.items() if path is not None]
    if options.notification_format != "json":
        if paths_given:
            raise OptionError(paths_given[0], "acts only on notificationFormat json; set that too, or leave it out")
    elif paths_given not in (["uriPath"], ["bucketPath", "keyPath"]):
        raise OptionError("notificationFormat", "json needs the option uriPath, or bucketPath and keyPath together")


def _check_choice(options: NotificationOptions, content: ContentKind) -> None:
    """Check that options that choose objects are not set for messages, and that they choose something."""
    acting = {
        "onForeignObject": options.on_foreign_object != "quarantine",
        "modifiedAfter": options.modified_after is not None,
        "modifiedBefore": options.modified_before is not None,
        "maxFileAge": options.max_file_age is not None,
    }
    name = next((name for name, is_given in acting.items() if is_given), None)
    if name is not None and not content.is_announced:
        raise OptionError(name, "is about objects, and with content message there are none; leave it out")
    after, before = options.modified_after, options.modified_before
    if after is not None and before is not None and after >= before:
        raise OptionError(
            "modifiedBefore",
            f"is {before.isoformat()}, which is not after modifiedAfter ({after.isoformat()}): no object is between "
            "them; write a later time",
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


def _check_shares(options: ReaderOptions) -> None:
    kind, _, numbers = options.queue.queue_shares.partition(":")
    queues, listed = len(options.queue.urls), bool(options.backfill.prefixes)
    if kind == "percentage" and len(numbers.split(",")) != queues + listed:
        more = ", and a last one for what listings find (backfillPrefixes)" if listed else ""
        raise OptionError(
            "queueShares", f"gives {len(numbers.split(','))} numbers for {queues} queue(s); write one a queue{more}"
        )


def check_backfill_is_given(values: Mapping[str, Any]) -> None:
    """Check that options of listings are set only where prefixes are listed, except for the one that disables them."""
    names = ("backfillInterval", "backfillGrace", "includeExistingFiles")
    if values["backfillPrefixes"] is None and (alone := next((name for name in names if values[name]), None)):
        raise OptionError(
            alone,
            "acts only on what is listed; name the folders in backfillPrefixes, as in 's3://landing/orders/', or leave "
            "it out",
        )


def check_routes(values: Mapping[str, Any], urls: Sequence[object]) -> None:
    """Check that there is a queue whose messages routes divide, and that what acts on routes has some."""
    if values["routes"] is None:
        if values["onUnroutedObject"] != "quarantine":
            raise OptionError("onUnroutedObject", "acts only on routes; name their file in routes, or leave it out")
    elif not urls:
        raise OptionError(
            "routes", "divides the messages of a queue, and there is none; name it in queueUrl, or leave routes out"
        )


def _check_recorded(options: ReaderOptions) -> None:
    """Check that a reader of recorded objects asks for nothing that their receiver does not record."""
    if not options.queue.from_store:
        return
    semantics, chooses = Semantics(options.delivery.delivery_semantics), options.notifications
    if not options.content.kind.is_announced:
        raise OptionError(
            "content",
            "message needs the messages, and with queueUrl store, or routes, there are none; read their queue",
        )
    if not semantics.keeps_shards:
        raise OptionError(
            "deliverySemantics",
            f"{semantics.value} reads a queue; with queueUrl store write exactly-once, or leave it out",
        )
    if options.queue.routes is None and chooses.path_rewrites:
        raise OptionError(
            "pathRewrites",
            "acts on what a queue announces, and with queueUrl store that is the receiver's: give it the option there",
        )
    by_message = {
        "allowOverwrites": chooses.allow_overwrites,
        "tagFilter": chooses.tag_filter is not None,
        "modifiedAfter": chooses.modified_after is not None,
        "modifiedBefore": chooses.modified_before is not None,
        "maxFileAge": chooses.max_file_age is not None,
    }
    if unknown := next((name for name, is_given in by_message.items() if is_given), None):
        raise OptionError(
            unknown,
            "needs what a message says, and a receiver records URIs alone; leave it out with queueUrl store or routes, "
            "name tags in the file of routes, or read the queue",
        )


def _check_backfill(options: ReaderOptions) -> None:
    backfill, name = options.backfill, "backfillPrefixes"
    if not backfill.prefixes:
        return
    if not options.content.kind.is_announced:
        raise OptionError(name, "lists objects, and with content message there are none; leave it out")
    semantics = Semantics(options.delivery.delivery_semantics)
    if not semantics.keeps_shards:
        raise OptionError(
            name,
            f"needs a store that remembers what was read, and with deliverySemantics {semantics.value} it does not: "
            "each listing would read everything again; leave one of them out",
        )
    for prefix in backfill.prefixes:
        if not prefix.startswith(options.notifications.allowed_prefixes):
            raise OptionError(
                name, f"{quote(prefix)} is outside of allowedPrefixes; name it there too, or leave allowedPrefixes out"
            )
        if prefix.endswith("://"):
            raise OptionError(
                name, f"{quote(prefix)} is no folder and no bucket; write s3://bucket/folder/ or file:///folder/"
            )
    _check_rewrites(options)
    if options.deduplication.deduplication_max_shards is not None:
        # the busier the source, the shorter its memory; no number shows that it reaches back to the last listing
        raise OptionError(
            "deduplicationMaxShards",
            "forgets what was read by number, however young it is, and a listing leaves alone whatever is as old as "
            "what is forgotten: objects that it has not come to yet are then never read; leave it out, and bound the "
            "memory by deduplicationWindow",
        )
    least = _SURE + 2 * backfill.interval + backfill.grace
    if options.deduplication.deduplication_window < least:
        raise OptionError(
            "deduplicationWindow",
            f"= {format_duration(options.deduplication.deduplication_window)} is less than "
            f"{format_duration(least)} (two times backfillInterval, backfillGrace and an hour): an object could be "
            "forgotten before a listing has seen it, and is then never read; raise it, or lower backfillInterval",
        )


def _check_rewrites(options: ReaderOptions) -> None:
    """Refuse objects whose versions are one store's where they are announced, and another's where they are listed."""
    if not options.notifications.allow_overwrites:
        return
    for prefix, target in options.notifications.path_rewrites:
        is_listed = any(target.startswith(listed) or listed.startswith(target) for listed in options.backfill.prefixes)
        if is_listed and prefix.partition("://")[:2] != target.partition("://")[:2]:
            raise OptionError(
                "pathRewrites",
                f"leads to another store, {quote(target)}, which has versions of its own: with allowOverwrites a "
                "listing would read again what was announced; leave backfillPrefixes or allowOverwrites out",
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


def check_cleaning_is_given(values: Mapping[str, Any]) -> None:
    """Check that a destination is set only for moving, and a time only for moving or deleting."""
    action, destination = values["cleanSource"], "cleanSource.moveDestination"
    if action == "move" and values[destination] is None:
        raise OptionError(
            destination,
            "is required with cleanSource move: name a folder in the same bucket that is outside of allowedPrefixes, "
            "as in 's3://landing/archive/'",
        )
    if action != "move" and values[destination] is not None:
        raise OptionError(destination, f"acts only with cleanSource move, and it is {action}; leave it out")
    if action == "off" and values["cleanSource.retentionDuration"] is not None:
        raise OptionError(
            "cleanSource.retentionDuration", "acts only with cleanSource delete or move; set that too, or leave it out"
        )


def _check_cleaning(options: ReaderOptions) -> None:
    """Check that cleaned objects are known as done, and that moved ones are never read again."""
    cleaning, name = options.cleaning, "cleanSource"
    if cleaning.clean_source == "off":
        return
    if not options.content.kind.is_announced:
        raise OptionError(name, "deletes or moves objects, and with content message there are none; leave it out")
    if (semantics := options.delivery.delivery_semantics) != Semantics.EXACTLY_ONCE.value:
        raise OptionError(
            name,
            f"needs a store that knows when all rows of an object are published, and with deliverySemantics "
            f"{semantics} it does not; leave one of them out",
        )
    window = options.deduplication.deduplication_window
    if cleaning.retention > window:
        raise OptionError(
            "cleanSource.retentionDuration",
            f"= {format_duration(cleaning.retention)} is more than deduplicationWindow = {format_duration(window)}: "
            "what is forgotten cannot be cleaned; lower it, or raise deduplicationWindow",
        )
    if cleaning.destination is not None:
        _check_destination(cleaning.destination, (*options.notifications.allowed_prefixes, *options.backfill.prefixes))


def _check_destination(destination: str, prefixes: Iterable[str]) -> None:
    name = "cleanSource.moveDestination"
    for prefix in prefixes:
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


def check_target(values: Mapping[str, Any]) -> None:
    """Check that rows go to one place; the path of a table is its warehouse."""
    targets = [name for name in _TARGETS if values[name] is not None]
    if not targets:
        raise OptionError(
            "path",
            "is required: name the folder of the data files, here or in start(), or an Iceberg table in option "
            "'table', or the folder of a Delta table in option 'delta', or the queue that receives the rows in option "
            "'queueUrl'; write .option('path', 's3://lake/orders') after writeStream",
        )
    if len(targets) > 1 and targets != ["table", "path"]:
        raise OptionError(
            targets[1], f"cannot be given beside {targets[0]!r}: rows go to one place; leave one of them out"
        )


def check_nothing_is_loaded(texts: Mapping[str, str]) -> None:
    """Check that no option about reading objects is set where the sink writes rows."""
    reading = options_of(ContentOptions, FormatOptions, SchemaOptions, LoadOptions)
    if name := next((option.name for option in reading if option.name in texts), None):
        raise OptionError(
            name,
            "acts in a sink only with load, by which it reads objects itself; set load to their format, or leave this "
            "out here: rows are read as the reader's options say",
        )


def check_loading(values: Mapping[str, Any], content: ContentOptions) -> None:
    """Check that objects can be loaded into the target, and that their columns are said in one way."""
    if values["queueUrl"] is not None:
        raise OptionError("load", "writes tables and files, and queueUrl sends messages; leave one of them out")
    if values["register"] is not None:
        raise OptionError("register", "leaves the objects where they are, and load copies their rows; keep one of them")
    if len(values["pipeline"]) > 1:
        raise OptionError("load", f"takes one pipeline, and pipeline names {len(values['pipeline'])}; name one of them")
    assert content.format is not None
    _check_format(content.format)
    if content.format.single_variant_column is not None:
        raise OptionError(
            "singleVariantColumn",
            "makes a VARIANT, which load cannot write; read rows (content object) and let a sink of Spark write them, "
            "or load columns",
        )
    is_said = any(values[name] is not None for name in ("table", "delta", "schema", "schemaLocation"))
    if not is_said and values["load"] in INFERRED_FORMATS:
        raise OptionError(
            "schema",
            "is needed to load objects into a folder: declare the columns, as in 'id BIGINT, name STRING', or set "
            "schemaLocation to a folder, where the columns that are inferred are kept",
        )
    if values["schema"] is not None:
        for name in ("schemaLocation", "schemaHints"):
            if values[name]:
                raise OptionError(
                    name, "is for columns that are inferred, and schema declares them; leave one of them out"
                )


def check_registering(values: Mapping[str, Any]) -> None:
    """Check that the option for unregistrable objects is set only where objects are registered."""
    name = "onUnregistrable"
    if values["register"] is None and values[name] != "error":
        raise OptionError(
            name, "acts only with register; set register to the column with the objects' URIs, or leave this out"
        )


def check_as_of(options: ViewOptions) -> None:
    """Check that a past state is asked only of published data; the other tables show the present."""
    if options.as_of is not None and options.as_of_attempt is not None:
        raise OptionError("asOfAttempt", "and asOf both say which past is meant; keep one of them")
    name = "asOf" if options.as_of is not None else "asOfAttempt"
    asks_for_past = options.as_of is not None or options.as_of_attempt is not None
    if asks_for_past and options.view not in ("data", "splits"):
        raise OptionError(name, f"acts only on the views data and splits, not on {options.view}; leave it out")


# checks of the queues of a reader, when options and opened queues first come together


def check_suitability(queues: Sequence[Queue], options: ReaderOptions) -> None:
    """Raise OptionError for a queue that cannot keep the promise of `deliverySemantics`, or that occurs twice."""
    _check_different(queues)
    semantics = options.delivery.delivery_semantics
    for queue in queues:
        if queue.capabilities.loses_while_closed and semantics != "at-most-once":
            raise OptionError(
                "queueUrl",
                f"{queue.name} is a listener: what is sent while it is not connected is lost, so it can be read with "
                f"deliverySemantics at-most-once and not with {semantics}; read a pool (pool=NAME instead of "
                "listener=true), which keeps its messages",
            )


def _check_different(queues: Sequence[Queue]) -> None:
    """Refuse two names of one queue: it would be received, counted and given its share twice."""
    if len(queues) < 2:
        return
    names: dict[str, str] = {}
    for queue in queues:
        if (identity := identity_of(queue)) in names:
            raise OptionError(
                "queueUrl", f"names one queue twice: {names[identity]} and {queue.name}; leave one of them out"
            )
        names[identity] = queue.name


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
