"""How messages are received, what they announce, and what is listed in addition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from queue_source.common.globs import PathGlob
from queue_source.options import types
from queue_source.options.declaring import OnChange, option
from queue_source.options.secrets import SecretUrl

_NOTIFICATION_FORMS = (
    "uri", "s3", "minio", "sns", "eventbridge", "securitylake", "cloudtrail", "crowdstrike", "eventgrid", "cloudevents",
    "r2", "b2", "oss", "obs", "oci", "gcs", "json",
)  # fmt: skip


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
    urls: tuple[SecretUrl, ...] = option(
        "queueUrl", types.QUEUE_URLS, example="sql+sqlite:///jobs.db?queue=files",
        required="name the queue to read, or folders to list in backfillPrefixes",
        unless=(("backfillPrefixes", None),),
        help="The queue to read, or several, separated by commas. `store`: no queue, but what a receiver has recorded "
        "for the source; [one queue for many sources](../how-to/routes.md).",
        on_change="The same queue in another spelling is the same queue (RabbitMQ: under one name of its host). With "
        "another queue, a recorded batch is published; its messages stay in the old queue, where the next reader with "
        "the same source acknowledges them unread.",
    )
    receive_threads: int = option(
        "receiveThreads", types.number(1, 256), "2", example="4",
        help="Threads that receive messages before a micro-batch asks for them.",
    )
    wait_time: timedelta = option(
        "waitTime", types.WAIT, example="1s", note="`20s`, at most half of `visibilityTimeout`",
        help="How long one receive request waits for the first message.",
    )
    retry_timeout: timedelta = option(
        "queueRetryTimeout", types.DURATION, "10m", example="1h",
        help="How long an unavailable queue is asked again, with growing pauses of at most 30 seconds, before the "
        "query fails. A wrong name or a missing permission fails at once.",
    )
    max_in_flight_messages: int = option(
        "maxInFlightMessages", types.number(1), "10000", example="2000",
        help="Maximum number of messages that are received and not yet acknowledged; never more than three "
        "micro-batches can take. At the limit nothing more is received.",
    )
    max_in_flight_bytes: int | None = option(
        "maxInFlightBytes", types.SIZE, example="50g", note="none; `256m` with `content` = `message`",
        help="Maximum size of the objects that such messages announce, or with `content` = `message` of the messages, "
        "which are held in memory. At the limit nothing more is received.",
    )
    starting_offsets: str = option(
        "startingOffsets", types.choice("earliest", "latest"), "earliest", example="latest",
        help="Kafka: where a group begins that has no offsets, because it is new or was not read for long. `latest` "
        "leaves out what is in the topic already. Partitions that are added later are read from their beginning.",
        on_change="No effect once the group has offsets.",
    )
    queue_shares: str = option(
        "queueShares", types.SHARES, "round-robin", example="percentage:70,30",
        help="How several queues share the micro-batches: in turn, the first queue first, or by weight. With "
        "`backfillPrefixes` the listings are one more queue, the last one.",
    )
    routes: str | None = option(
        "routes", types.NON_EMPTY, example="/etc/cuesqueue/routes.json",
        help="File of [routes](../how-to/routes.md): this reader receives for all of their sources, records what each "
        "is to read, and reads its own.",
    )
    on_unrouted_object: str = option(
        "onUnroutedObject", types.choice("quarantine", "count"), "quarantine", example="count",
        help="What happens with a message that announces an object which none of the `routes` takes. `quarantine`: it "
        "goes to the error table; what else it announces is read. `count`: it is only counted, as `unrouted`.",
    )
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
    allowed_prefixes: tuple[str, ...] = option(
        "allowedPrefixes", types.PREFIXES, example="s3://landing/orders/",
        required="name the folders that may be read, or whoever sends a message chooses what your credentials read",
        unless=(("content", "message"), ("backfillPrefixes", None)),
        help="Folders or buckets whose objects are read: URIs that start with one of these; all others go to the "
        "error table. Text is compared: end a folder with `/`. With `backfillPrefixes` it is these, unless it is "
        "given.",
        on_change="Refused while an unfinished object is outside of the new prefixes; `cuesqueue shards quarantine` "
        "gives it up. Otherwise for what is received or listed from then on.",
    )
    path_rewrites: tuple[tuple[str, str], ...] = option(
        "pathRewrites", types.REWRITES, "{}", example='{"s3://landing/": "file:///mnt/landing/"}',
        help="Objects whose announced URI begins with a key are read at the key's value followed by the rest, as where "
        "a bucket is mounted; a key without a scheme is of any scheme. The longest key counts. The new URI is the "
        "object's name everywhere: for `allowedPrefixes`, identities, `_metadata`.",
        on_change="For what is received from then on. An object that was announced under its former name before is "
        "another one.",
    )
    on_foreign_object: str = option(
        "onForeignObject", types.choice("quarantine", "ignore"), "quarantine", example="ignore",
        help="What happens with a message that announces an object outside of `allowedPrefixes`. `quarantine`: it "
        "goes to the error table, unread. `ignore`, for queues of several streams: such objects are left out and "
        "counted as `foreign`.",
    )
    notification_format: str = option(
        "notificationFormat", types.choice("auto", *_NOTIFICATION_FORMS), "auto", example="s3",
        help="Form of the notifications; `auto` recognises the form of each message.",
    )
    max_objects_per_message: int = option(
        "maxObjectsPerMessage", types.number(1, 10**6), "10000", example="500",
        help="Maximum number of objects in one message; a message with more goes to the error table.",
    )
    allow_overwrites: bool = option(
        "allowOverwrites", types.BOOLEAN, "false", example="true",
        help="Read an object again when it was overwritten: its version, ETag or generation is part of its identity.",
        on_change="To `true`: refused while anything is unfinished; what was read is read again only in another "
        "version. To `false`: refused, since the source would not recognise what it has read; name another `source`.",
    )
    path_glob_filter: re.Pattern[str] | None = option(
        "pathGlobFilter", types.GLOB, example="*.{csv,csv.gz}",
        help="Only objects whose name (the last part of the path) matches are read; others are counted as ignored.",
    )
    full_path_glob_filter: PathGlob | None = option(
        "fullPathGlobFilter", types.PATH_GLOB, example="s3://landing/**/2026-*/*.csv",
        help="The same for the whole URI; `**` is any number of folders, `*` anything without a slash.",
    )
    read_hidden_files: bool = option(
        "readHiddenFiles", types.BOOLEAN, "false", example="true",
        help="Read objects with a name that begins with `_` or `.`, or in a folder with such a name, below the "
        "allowed prefix. Otherwise they are counted as ignored, as in Spark (`_temporary/`, `_delta_log/`, "
        "`.part-0`), except folders of partition columns (`_year=2026`).",
    )
    modified_after: datetime | None = option(
        "modifiedAfter", types.TIMESTAMP, example="2026-11-01T00:00:00Z",
        help="Only objects that were modified after this time are read; others are counted as ignored. A time without "
        "a zone is in that of `timeZone`, else of the driver's machine.",
    )
    modified_before: datetime | None = option(
        "modifiedBefore", types.TIMESTAMP, example="2026-12-01T00:00:00Z",
        help="The same, modified before this time.",
    )
    max_file_age: timedelta | None = option(
        "maxFileAge", types.DURATION, example="7 days",
        help="Only objects that are not older than this when the reader looks at them are read; others are counted as "
        "ignored. Make it longer than the query ever stands still. How long objects are remembered "
        "(`cloudFiles.maxFileAge`) is `deduplicationWindow`.",
    )
    tag_filter: tuple[str, ...] | None = option(
        "tagFilter", types.TAG_FILTER, example="orders.#,returns.*",
        help="Only messages whose tag matches are read; others are acknowledged and counted as ignored.",
    )
    message_identity: str = option(
        "messageIdentity", types.choice("required", "content"), "required", example="content",
        help="For messages as `content` that have no id (RabbitMQ's `message_id`). `required`: they go to the error "
        "table. `content`: messages that are equal in everything are one message.",
        on_change=OnChange.REFUSED_UNFINISHED,
    )
    uri_path: str | None = option(
        "uriPath", types.NON_EMPTY, example="files.uri",
        help="Where the URI is in notifications of form `json`: names separated by dots; a list means each of its "
        "elements.",
    )
    bucket_path: str | None = option(
        "bucketPath", types.NON_EMPTY, example="detail.bucket",
        help="The same for the bucket, written with its scheme (`gs://b`) if it is not one of S3. Needs `keyPath`.",
    )
    key_path: str | None = option(
        "keyPath", types.NON_EMPTY, help="The same for the key. Needs `bucketPath`.", example="detail.files.key"
    )
    # fmt: on
    assumed_zone: str | None = None
    by_reference: bool = False

    @property
    def chooses_by_time(self) -> bool:
        """Tell whether the modification time of an object has to be known."""
        return any(limit is not None for limit in (self.modified_after, self.modified_before, self.max_file_age))


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """How one receiver takes messages of one queue for the sources of its routes.

    Attributes:
        url: The queue.
        connections: As those of `QueueOptions`.
        notifications: How messages are parsed; they choose nothing, which readers do.
        threads: Each receives and records for itself.
        lease: How long a message is invisible to others: many times as long as recording it takes.
        retry_timeout: How long an unavailable queue is asked again.
        quarantines: Whether a message with an object that no route takes goes to the error table; else it is counted.
    """

    url: SecretUrl
    connections: Mapping[str, Mapping[str, Any]]
    notifications: NotificationOptions
    threads: int
    lease: timedelta
    retry_timeout: timedelta
    quarantines: bool = True


BACKFILL_WITH_QUEUE = timedelta(days=1), timedelta(minutes=10)
BACKFILL_ALONE = timedelta(minutes=1), timedelta(0)
"""The defaults of interval and grace of listings, beside a queue and without one."""


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Listings that find objects that no message has announced; none while there are no `prefixes`."""

    TITLE: ClassVar = "Backfill"
    ON_CHANGE: ClassVar = OnChange.ANNOUNCED

    # fmt: off
    prefixes: tuple[str, ...] = option(
        "backfillPrefixes", types.PREFIXES, example="s3://landing/orders/",
        help="Folders or buckets that one pipeline of the source lists: unknown objects are read as if announced. "
        "Without `queueUrl` only listings are read. [How to backfill](../how-to/backfill.md).",
    )
    interval: timedelta = option(
        "backfillInterval", types.DURATION, example="1 week", note="`1 day`; `1m` without `queueUrl`",
        help="How often each prefix is listed, from one beginning to the next.",
    )
    grace: timedelta = option(
        "backfillGrace", types.WAIT, example="1h", note="`10m`; `0s` without `queueUrl`",
        help="How old an unknown object must be; a younger one is left to its message, or to the next listing.",
    )
    include_existing: bool = option(
        "includeExistingFiles", types.BOOLEAN, example="false", note="`true`",
        help="Read objects that were there before the source was first listed. Looked at then, and never again.",
        on_change="No effect.",
    )
    # fmt: on
