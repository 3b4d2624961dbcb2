"""All options of `spark.readStream`, as frozen groups that `parsing` builds once.

Only `content` travels to executors; the others stay on the driver. Durations are `timedelta`, sizes bytes. Secrets and
URLs are `Secret`s: `str()` is for people, `reveal()` for libraries.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from queue_source.common.globs import PathGlob
from queue_source.options import types
from queue_source.options.connections import store_url
from queue_source.options.content import ContentOptions, LogOptions
from queue_source.options.declaring import OnChange, excludes, only_with, option
from queue_source.options.types import SecretUrl
from shard_store.model import Semantics

DEFAULT_WINDOW = "30 days"
DEFAULT_RETENTION = timedelta(days=30)


class BatchLimits(NamedTuple):
    """How much one micro-batch takes; at least one object."""

    files: int
    bytes: int | None


EVERYTHING = BatchLimits(sys.maxsize, None)
"""What is there when it is asked for, in one micro-batch (`Trigger.Once`)."""

_NOTIFICATION_FORMS = (
    "uri", "s3", "minio", "sns", "eventbridge", "securitylake", "cloudtrail", "awsconfig", "crowdstrike", "eventgrid",
    "cloudevents", "r2", "b2", "oss", "obs", "oci", "gcs", "json",
)  # fmt: skip
_NO_QUEUE = "divides the messages of a queue, and there is none; name it in queueUrl, or leave routes out"
_PATHS = "json needs the option uriPath, or bucketPath and keyPath together"
_OF_JSON = only_with(
    "notificationFormat=json", problem="acts only on notificationFormat json; set that too, or leave it out"
)
_OF_OBJECTS = excludes(
    "content=message", problem="is about objects, and with content message there are none; leave it out"
)
_BY_MESSAGE = excludes(
    "queueUrl=store", "routes",
    problem="needs what a message says, and a receiver records URIs alone; leave it out with queueUrl store or routes, "
    "name tags in the file of routes, or read the queue",
)  # fmt: skip
_OF_RECEIVER = excludes(
    "queueUrl=store",
    problem="acts on what a queue announces, and with queueUrl store that is the receiver's: give it the option there",
)
_PRUNED = "With the next pruning. What was forgotten stays forgotten."
_LISTED = only_with(
    "backfillPrefixes",
    problem="acts only on what is listed; name the folders in backfillPrefixes, as in 's3://landing/orders/', or leave "
    "it out",
)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How messages are received (reader process). Sizes are bytes.

    Attributes:
        connections: Kind of queue -> the keywords of its adapter: region, endpoint, credentials (`connections`).
        from_store: Whether objects are taken that a receiver has recorded for the source (`queueUrl=store`).
    """

    TITLE: ClassVar = "Queue"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    connections: Mapping[str, Mapping[str, Any]]
    # fmt: off
    urls: tuple[SecretUrl, ...] = option("queueUrl", types.QUEUE_URLS, example="sql+sqlite:///jobs.db?queue=files",
        required="name the queue to read, or folders to list in backfillPrefixes",
        unless=("backfillPrefixes",),
        help="The queue, or several. `store`: what a receiver has recorded for the source "
        "([how](../how-to/routes.md)).",
        on_change="Another spelling is the same queue (RabbitMQ: under one name of its host). With another queue, a "
        "recorded batch is published; its messages stay in the old queue, where the next reader of the source "
        "acknowledges them unread.")
    receive_threads: int = option("receiveThreads", types.number(1, 256), "2", example="4",
        help="Threads for each queue that receive messages ahead of the micro-batches.")
    wait_time: timedelta = option(
        "waitTime", types.WAIT, example="1s", note="`20s`, at most half of `visibilityTimeout`",
        help="How long a receive request waits for the first message.")
    retry_timeout: timedelta = option("queueRetryTimeout", types.DURATION, "10m", example="1h",
        help="How long an unavailable queue is asked again, at most 30 s apart, before the query fails. A wrong name "
        "or a missing permission fails at once.")
    max_in_flight_messages: int = option("maxInFlightMessages", types.number(1), "10000", example="2000",
        help="Maximum number of messages that are received and not acknowledged; never more than three micro-batches "
        "take.")
    max_in_flight_bytes: int | None = option(
        "maxInFlightBytes", types.SIZE, example="50g", note="none; `256m` with `content` = `message`",
        help="Maximum size of the objects that these messages announce, or of messages as `content`.")
    starting_offsets: str = option("startingOffsets", types.choice("earliest", "latest"), "earliest", example="latest",
        help="Kafka: where a group without offsets begins. `latest` leaves out what is in the topic. Partitions that "
        "are added later are read from their beginning.",
        on_change="No effect once the group has offsets.")
    queue_shares: str = option("queueShares", types.SHARES, "round-robin", example="percentage:70,30",
        help="How several queues share the micro-batches: in turn, the first one first, or by weight. Listings "
        "(`backfillPrefixes`) are the last queue.")
    routes: str | None = option("routes", types.NON_EMPTY, example="/etc/cuesqueue/routes.json",
        rules=only_with("queueUrl", problem=_NO_QUEUE) + excludes("queueUrl=store", problem=_NO_QUEUE),
        help="File of [routes](../how-to/routes.md), by which this reader also records objects for other sources.",
        on_change=OnChange.ANNOUNCED)
    on_unrouted_object: str = option(
        "onUnroutedObject", types.choice("quarantine", "count"), "quarantine", example="count",
        rules=only_with("routes", problem="acts only on routes; name their file in routes, or leave it out"),
        help="An object that none of the `routes` takes goes to the error table, or is only counted, as `unrouted`.",
        on_change=OnChange.ANNOUNCED)
    # fmt: on
    from_store: bool = False


@dataclass(frozen=True, slots=True)
class NotificationOptions:
    """How a message becomes shards. Form `json` alone needs the paths.

    Attributes:
        assumed_zone: The zone in which a time without one was taken, where no option has it.
        by_reference: Whether facts in addition to URI, size and ETag are kept, for rows of `content=reference`.
    """

    TITLE: ClassVar = "Notifications"
    ON_CHANGE: ClassVar = OnChange.ANNOUNCED

    # fmt: off
    allowed_prefixes: tuple[str, ...] = option("allowedPrefixes", types.PREFIXES, example="s3://landing/orders/",
        required="name the folders that may be read, or whoever sends a message chooses what your credentials read",
        unless=("content=message", "backfillPrefixes"),
        help="Only URIs that start with one of these are read. Text is compared: end a folder with `/`. With "
        "`backfillPrefixes` these are the default.",
        on_change="Refused while an unfinished object is outside of the new prefixes (`cuesqueue shards quarantine` "
        "gives it up). Otherwise for what is received or listed from then on.")
    path_rewrites: tuple[tuple[str, str], ...] = option(
        "pathRewrites", types.REWRITES, "{}", example='{"s3://landing/": "file:///mnt/landing/"}',
        rules=_OF_RECEIVER,
        help="A URI that begins with a key is read at the key's value and the rest, which is the object's name "
        "everywhere. The longest key counts; a key without a scheme is of any scheme.",
        on_change="For what is received from then on. An object that was announced under its former name is another "
        "one.")
    on_foreign_object: str = option(
        "onForeignObject", types.choice("quarantine", "ignore"), "quarantine", example="ignore", rules=_OF_OBJECTS,
        help="An object outside of `allowedPrefixes` goes to the error table, unread; or, in queues of several "
        "streams, is only counted, as `foreign`.")
    notification_format: str = option(
        "notificationFormat", types.choice("auto", *_NOTIFICATION_FORMS), "auto", example="s3",
        rules=only_with("notificationFormat!=json", "uriPath", "bucketPath&keyPath", problem=_PATHS)
        + excludes("notificationFormat=json&uriPath&bucketPath", "notificationFormat=json&uriPath&keyPath",
        problem=_PATHS),
        help="[Form](notifications.md) of the notifications; `auto` recognises that of each message.")
    trust_notification: str = option(
        "trustNotification", types.choice("all", "size", "none"), "all", example="none",
        rules=_OF_OBJECTS + _OF_RECEIVER + excludes("notificationFormat=uri", "notificationFormat=json",
        problem="is about sizes and ETags, which this form has not; leave it out"),
        help="What is taken from a notification beside the name: `size` takes no ETag, `none` no size either; that is "
        "asked of the store. For services that announce wrong ones, so that objects are bad as `object-changed`.")
    max_objects_per_message: int = option("maxObjectsPerMessage", types.number(1, 10**6), "10000", example="500",
        help="A message with more objects goes to the error table.")
    allow_overwrites: bool = option("allowOverwrites", types.BOOLEAN, "false", example="true",
        rules=_OF_OBJECTS + _BY_MESSAGE,
        help="Read an object again when it was overwritten: its version, ETag or generation is part of its identity.",
        on_change="To `true`: refused while anything is unfinished; what was read is read again only in another "
        "version. To `false`: refused, since the source would not recognise what it has read; name another `source`.")
    path_glob_filter: re.Pattern[str] | None = option("pathGlobFilter", types.GLOB, example="*.{csv,csv.gz}",
        rules=_OF_OBJECTS,
        help="Only objects whose name (the last part of the path) matches are read. Objects that this and the next "
        "filters leave out count as `ignored`.")
    full_path_glob_filter: PathGlob | None = option(
        "fullPathGlobFilter", types.PATH_GLOB, example="s3://landing/**/2026-*/*.csv", rules=_OF_OBJECTS,
        help="The same for the whole URI; `**` is any number of folders, `*` anything without a slash.")
    read_hidden_files: bool = option("readHiddenFiles", types.BOOLEAN, "false", example="true", rules=_OF_OBJECTS,
        help="Read also names that begin with `_` or `.`, and what is in such folders, below the allowed prefix. Else "
        "they are left out as in Spark, except in folders of partition columns (`_year=2026`).")
    modified_after: datetime | None = option(
        "modifiedAfter", types.TIMESTAMP, example="2026-11-01T00:00:00Z", rules=_OF_OBJECTS + _BY_MESSAGE,
        help="Only objects that were modified after this time are read. A time without a zone is in `timeZone`, else "
        "in that of the driver's machine.")
    modified_before: datetime | None = option(
        "modifiedBefore", types.TIMESTAMP, example="2026-12-01T00:00:00Z", rules=_OF_OBJECTS + _BY_MESSAGE,
        help="The same, before this time.")
    max_file_age: timedelta | None = option(
        "maxFileAge", types.DURATION, example="7 days", rules=_OF_OBJECTS + _BY_MESSAGE,
        help="Only objects that are not older when the reader looks at them are read. Make it longer than the query "
        "ever stands still.")
    tag_filter: tuple[str, ...] | None = option(
        "tagFilter", types.TAG_FILTER, example="orders.#,returns.*", rules=_BY_MESSAGE,
        help="Only messages whose tag matches are read; others are acknowledged.")
    message_identity: str = option(
        "messageIdentity", types.choice("required", "content"), "required", example="content",
        help="Messages as `content` without an id (RabbitMQ's `message_id`): they go to the error table, or are one "
        "message if they are equal in everything (`content`).",
        on_change=OnChange.REFUSED_UNFINISHED)
    uri_path: str | None = option("uriPath", types.NON_EMPTY, example="files.uri", rules=_OF_JSON,
        help="Where the URI is in notifications of form `json`: names separated by dots; a list means each of its "
        "elements.")
    bucket_path: str | None = option("bucketPath", types.NON_EMPTY, example="detail.bucket", rules=_OF_JSON,
        help="The same for the bucket, written with its scheme (`gs://b`) if it is not one of S3. Needs `keyPath`.")
    key_path: str | None = option("keyPath", types.NON_EMPTY, example="detail.files.key", rules=_OF_JSON,
        help="The same for the key. Needs `bucketPath`.")
    # fmt: on
    assumed_zone: str | None = None
    by_reference: bool = False

    @property
    def chooses_by_time(self) -> bool:
        """Tell whether the modification time of an object has to be known."""
        return any(limit is not None for limit in (self.modified_after, self.modified_before, self.max_file_age))


BACKFILL_WITH_QUEUE = timedelta(days=1), timedelta(minutes=10)
BACKFILL_ALONE = timedelta(minutes=1), timedelta(0)
"""The defaults of interval and grace of listings, beside a queue and without one."""


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Listings that find objects that no message has announced; none while there are no `prefixes`."""

    TITLE: ClassVar = "Backfill"
    ON_CHANGE: ClassVar = OnChange.ANNOUNCED

    # fmt: off
    prefixes: tuple[str, ...] = option("backfillPrefixes", types.PREFIXES, example="s3://landing/orders/",
        rules=excludes("content=message", problem="lists objects, and with content message there are none; leave it "
        "out")
        + excludes("deliverySemantics=at-least-once", problem="needs a store that remembers what was read, and with "
        "deliverySemantics {deliverySemantics} it does not: each listing would read everything again; leave one of "
        "them out"),
        help="Folders or buckets that one pipeline of the source [lists](../how-to/backfill.md), to read unknown "
        "objects as if announced.")
    interval: timedelta = option(
        "backfillInterval", types.DURATION, example="1 week", note="`1 day`; `1m` without `queueUrl`", rules=_LISTED,
        help="Time between the beginnings of two listings of a prefix.")
    grace: timedelta = option(
        "backfillGrace", types.WAIT, example="1h", note="`10m`; `0s` without `queueUrl`", rules=_LISTED,
        help="A younger unknown object is left to its message, or to the next listing.")
    include_existing: bool = option(
        "includeExistingFiles", types.BOOLEAN, example="false", note="`true`", rules=_LISTED,
        help="Read objects that were there before the source's first listing, which alone looks at this option.",
        on_change="No effect.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The size of one micro-batch and of one partition (planning). Sizes are bytes."""

    TITLE: ClassVar = "Micro-batches"
    ON_CHANGE: ClassVar = OnChange.NEXT_BATCH

    # fmt: off
    max_files_per_trigger: int = option("maxFilesPerTrigger", types.number(1), "1000", example="200",
        help="Maximum number of objects in a micro-batch: those that were received first. From Spark 4.2 on "
             "`trigger(once=True)` has no limits.")
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", types.SIZE, example="10g",
        help="Maximum size of a micro-batch. At least one object is taken; of a larger object of plain lines, this "
        "many bytes.")
    min_partitions: int = option("minPartitions", types.number(1), example="8", note="cores of the driver",
        help="Least number of partitions of a micro-batch, if its objects can be split.",
        on_change=OnChange.AT_ONCE)
    max_partition_bytes: int = option(
        "maxPartitionBytes", types.SIZE, example="64m", note="`128m`; none with `content` = `reference`",
        help="Maximum size of a partition. Larger objects are split, but not references: set it there if your own "
        "code reads them in tasks.",
        on_change=OnChange.AT_ONCE)
    # fmt: on

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.max_files_per_trigger, self.max_bytes_per_trigger)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The time-outs of messages and shards. Checked: heartbeat <= visibility <= deduplication window."""

    TITLE: ClassVar = "Leases"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    visibility_timeout: timedelta = option("visibilityTimeout", types.DURATION, "5m", example="10m",
        help="How long a message is invisible to other consumers; extended while it is processed.")
    commit_timeout: timedelta = option("commitTimeout", types.DURATION, "60s", example="30s",
        help="A pipeline sends four heartbeats in this time; after twice this time without one, another may take over "
        "its shards.")
    # fmt: on

    @property
    def heartbeat(self) -> timedelta:
        """Time between two heartbeats of the shards owned: eight in a row have to fail before they are stale."""
        return self.commit_timeout / 4

    @property
    def stale_after(self) -> timedelta:
        """Time after a pipeline's last heartbeat at which others may take its shards."""
        return 2 * self.commit_timeout


@dataclass(frozen=True, slots=True)
class DeduplicationOptions:
    """How long and how many finished shards are remembered, and how often they are pruned."""

    TITLE: ClassVar = "Deduplication"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    deduplication_window: timedelta = option("deduplicationWindow", types.DURATION, DEFAULT_WINDOW, example="60 days",
        help="How long finished shards are remembered: longer than the queue keeps a message. The longest of a "
        "source's pipelines counts.",
        on_change=_PRUNED)
    deduplication_max_shards: int | None = option("deduplicationMaxShards", types.number(1, 10**12), example="50000000",
        # the busier the source, the shorter its memory; no number shows that it reaches back to the last listing
        rules=excludes("backfillPrefixes", problem="forgets what was read by number, however young it is, and a "
        "listing leaves alone whatever is as old as what is forgotten: objects that it has not come to yet are then "
        "never read; leave it out, and bound the memory by deduplicationWindow"),
        help="Maximum number of a source's finished shards that are remembered.",
        on_change=_PRUNED)
    prune_interval: timedelta = option("pruneInterval", types.DURATION, "60s", example="10m",
        help="How often one of a source's pipelines removes what is older than the window.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The guarantee, and what happens when the store was lost, objects end their readers' processes, or data is bad."""

    TITLE: ClassVar = "Delivery and errors"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    delivery_semantics: str = option(
        "deliverySemantics", types.choice(*(semantics.value for semantics in Semantics)), "exactly-once",
        example="at-least-once",
        rules=excludes("deliverySemantics=at-least-once&queueUrl=store", "deliverySemantics=at-least-once&routes",
        problem="{deliverySemantics} reads a queue; with queueUrl store write exactly-once, or leave it out"),
        help="What is [promised](../explanation/exactly-once.md) of each row. `at-least-once`: rows are repeated when "
        "a message is. `at-most-once`: the rows of a failed micro-batch are given up.",
        on_change=OnChange.REFUSED_UNFINISHED)
    fail_on_data_loss: bool = option("failOnDataLoss", types.BOOLEAN, "true", example="false",
        help="Fail when the checkpoint, or a table or output of the sink, knows more than the store (lost or "
        "replaced), or less (a table put back), and when Kafka has deleted unread messages.")
    on_unknown_takeover: str = option(
        "onUnknownTakeover", types.choice("wait", "repeat"), "wait", example="repeat",
        help="What becomes of a stopped pipeline's objects if its last batch may be in a table or output elsewhere, "
        "and this reader cannot look there: they wait for its query (`cuesqueue status` says so), or are read again.")
    max_attempts: int = option("maxAttempts", types.number(1, 1000), "3", example="5",
        help="How many readers an object may kill, each while reading it alone, before it is quarantined; and how "
        "often an object is tried that its store refuses.")
    error_queue_url: SecretUrl | None = option(
        "errorQueueUrl", types.QUEUE_URL, example="sql+sqlite:///jobs.db?queue=errors", note="the error table alone",
        help="Queue that receives what could not be processed, with cause and input, before it is acknowledged. It "
        "has the credentials of `queueUrl`.",
        on_change="Undelivered errors go to the new queue; with none they stay in the error table.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class CleaningOptions:
    """Deleting or moving objects some time after they were read; nothing where `clean_source` is off.

    Attributes:
        destination: A prefix that ends with a slash, or None where nothing is moved.
    """

    TITLE: ClassVar = "After reading"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    clean_source: str = option("cleanSource", types.CLEAN_SOURCE, "off", example="move",
        rules=excludes("content=message", problem="deletes or moves objects, and with content message there are none; "
        "leave it out")
        + excludes("deliverySemantics=at-least-once|at-most-once", problem="needs a store that knows when all rows of "
        "an object are published, and with deliverySemantics {deliverySemantics} it does not; leave one of them out"),
        help="[Delete or move](../how-to/clean-source.md) an object some time after all its rows were published.")
    destination: str | None = option("cleanSource.moveDestination", types.FOLDER, example="s3://landing/archive/",
        required="is required with cleanSource move: name a folder in the same bucket that is outside of "
        "allowedPrefixes, as in 's3://landing/archive/'",
        when=("cleanSource=move",),
        rules=only_with("cleanSource=move", problem="acts only with cleanSource move, and it is {cleanSource}; leave "
        "it out"),
        help="Folder that objects are moved to, with their whole path: in the same bucket, outside of "
        "`allowedPrefixes`.",
        on_change="What is not yet moved goes to the new folder.")
    retention: timedelta = option("cleanSource.retentionDuration", types.DURATION, example="7 days", note="`30 days`",
        rules=only_with("cleanSource=delete|move", problem="acts only with cleanSource delete or move; set that too, "
        "or leave it out"),
        help="How long an object stays: at least ten minutes, at most `deduplicationWindow`.",
        on_change="For what becomes due from then on.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """All options of one streaming reader.

    Attributes:
        settings: Option -> text, of those that the pipeline's next start compares with its own (`places.RECORDED`).
    """

    TITLE: ClassVar = "Names and store"

    queue: QueueOptions
    notifications: NotificationOptions
    backfill: BackfillOptions
    batches: BatchOptions
    leases: LeaseOptions
    deduplication: DeduplicationOptions
    delivery: DeliveryOptions
    cleaning: CleaningOptions
    content: ContentOptions
    logs: LogOptions
    store: SecretUrl = store_url()
    # fmt: off
    source: str = option("source", types.NAME, example="orders", note="the queue's name",
        help="Name under which an object is published once.",
        on_change="Refused: a pipeline belongs to one source. Another source, with another pipeline and a new "
        "checkpoint, knows nothing of what was read.")
    pipeline: str = option("pipeline", types.NAME, example="orders-eu", note="the source's name",
        help="Name of this query. Queries that share a source have different pipelines.",
        on_change="Another pipeline needs a new checkpoint. With the same source it takes over what is unpublished "
        "once the old one has had no heartbeat for twice `commitTimeout`; nothing published is read again.")
    # fmt: on
    settings: Mapping[str, str] = field(default_factory=dict)
