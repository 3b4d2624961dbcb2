"""All options of `spark.readStream` and `spark.read`, as frozen groups that `parsing` builds once.

Only `content` travels to executors; the others stay on the driver. Durations are `timedelta`, sizes bytes. Secrets and
URLs are `Secret`s: `str()` is for people, `reveal()` for libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from queue_source.options import types
from queue_source.options.connections import StorageOptions
from queue_source.options.content import ContentOptions
from queue_source.options.declaring import OnChange, option
from queue_source.options.receiving import BackfillOptions, NotificationOptions, QueueOptions
from queue_source.options.secrets import SecretUrl
from shard_store.model import Semantics

DEFAULT_STORE = "sqlite:///cuesqueue.db"
DEFAULT_WINDOW = "30 days"
DEFAULT_RETENTION = timedelta(days=30)
# "data", and the keys of `shard_store.operators.views.VIEWS`, which loads SQLAlchemy: executors read options without it
_VIEWS = ("data", "splits", "shards", "attempts", "errors", "cleanings", "files_state", "completeness")


def store_url() -> Any:
    """Declare the field `storeUrl`, which reader, sink and views have alike."""
    return option(
        "storeUrl",
        types.STORE_URL,
        DEFAULT_STORE,
        help="Database of shards, snapshots and attempts, as an SQLAlchemy URL. The default is a file in the folder in "
        "which Spark was started; [with Spark Connect](../how-to/clusters.md#relative-paths) name another.",
        example="postgresql+psycopg://user:password@host/db",
        on_change="Another store knows nothing of what was read: with a checkpoint it is refused (`failOnDataLoss`), "
        "with a new one it reads whatever comes. `cuesqueue export` and `import` move a source to it.",
    )


class BatchLimits(NamedTuple):
    """How much one micro-batch takes; at least one object."""

    files: int
    bytes: int | None


EVERYTHING = BatchLimits(sys.maxsize, None)
"""What is there when it is asked for, in one micro-batch (`Trigger.Once`)."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The size of one micro-batch and of one partition (planning). Sizes are bytes."""

    TITLE: ClassVar = "Micro-batches"
    ON_CHANGE: ClassVar = OnChange.NEXT_BATCH

    # fmt: off
    max_files_per_trigger: int = option(
        "maxFilesPerTrigger", types.number(1), "1000", example="200",
        help="Maximum number of objects in one micro-batch. From Spark 4.2 on `trigger(once=True)` has no such limit, "
        "nor one of bytes.",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger", types.SIZE, example="10g",
        help="Maximum size of one micro-batch, beside `maxFilesPerTrigger`. At least one object is taken; of a larger "
        "object of plain lines, this many bytes.",
    )
    min_partitions: int = option(
        "minPartitions", types.number(1), example="8", note="cores of the driver",
        help="Minimum number of partitions of a micro-batch, if its objects can be split.",
        on_change=OnChange.AT_ONCE,
    )
    max_partition_bytes: int = option(
        "maxPartitionBytes", types.SIZE, example="64m", note="`128m`; none with `content` = `reference`",
        help="Maximum size of one partition; larger objects are split. With `content` = `reference` they never are; "
        "set it if your own code reads them in tasks.",
        on_change=OnChange.AT_ONCE,
    )
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
    visibility_timeout: timedelta = option(
        "visibilityTimeout", types.DURATION, "5m", example="10m",
        help="How long a message is invisible to other consumers; extended while it is being processed.",
    )
    commit_timeout: timedelta = option(
        "commitTimeout", types.DURATION, "60s", example="30s",
        help="A pipeline sends four heartbeats in this time; after twice this time without one, another may take over "
        "its shards.",
    )
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
    deduplication_window: timedelta = option(
        "deduplicationWindow", types.DURATION, DEFAULT_WINDOW, example="60 days",
        help="How long finished shards are remembered; make it longer than the queue keeps a message. Of a source's "
        "pipelines the longest holds.",
        on_change="It takes effect with the next pruning. What was forgotten stays forgotten.",
    )
    deduplication_max_shards: int | None = option(
        "deduplicationMaxShards", types.number(1, 10**12), example="50000000",
        help="Maximum number of finished shards that are remembered for a source.",
    )
    prune_interval: timedelta = option(
        "pruneInterval", types.DURATION, "60s", example="10m",
        help="How often one of all pipelines removes what is older than the window.",
    )
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
        help="What is promised of each row. `at-least-once` remembers no announcements: rows are repeated when a "
        "message is. `at-most-once` gives up the rows of a micro-batch that fails. [All "
        "three](../explanation/exactly-once.md).",
        on_change=OnChange.REFUSED_UNFINISHED,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss", types.BOOLEAN, "true", example="false",
        help="Fail when the checkpoint knows more than the store, that is, when the store was lost or replaced; and "
        "when Kafka has deleted messages before they were read.",
    )
    max_attempts: int = option(
        "maxAttempts", types.number(1, 1000), "3", example="5",
        help="How many readers an object may kill, each while reading it alone, before it is quarantined; and how "
        "often an object is tried that its store refuses (`onForbiddenObject`).",
    )
    error_queue_url: SecretUrl | None = option(
        "errorQueueUrl", types.QUEUE_URL, example="sql+sqlite:///jobs.db?queue=errors", note="the error table alone",
        help="Queue that receives what could not be processed, with its cause and input; it has the credentials of "
        "`queueUrl`. Nothing is acknowledged before its errors are there.",
        on_change="Undelivered errors go to the new queue, or with none stay in the error table.",
    )
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
    clean_source: str = option(
        "cleanSource", types.CLEAN_SOURCE, "off", example="move",
        help="What becomes of an object once all of its rows have been published for `cleanSource.retentionDuration`: "
        "nothing, or it is deleted, or moved. Only within `allowedPrefixes`, and only if it is still the object that "
        "was read. [How to clean a source](../how-to/clean-source.md).",
    )
    destination: str | None = option(
        "cleanSource.moveDestination", types.FOLDER, example="s3://landing/archive/",
        help="Folder that objects are moved to, with their whole path: in the same bucket, outside of "
        "`allowedPrefixes`.",
        on_change="What is not yet moved goes to the new folder.",
    )
    retention: timedelta = option(
        "cleanSource.retentionDuration", types.DURATION, example="7 days", note="`30 days`",
        help="How long an object stays: at least ten minutes, at most `deduplicationWindow`.",
        on_change="Takes effect for what becomes due from then on.",
    )
    # fmt: on


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The log lines of the reader process, and of the tasks of executors."""

    TITLE: ClassVar = "Logs"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    level: str = option(
        "logLevel", types.choice("debug", "info", "warning", "error"), "info", example="debug",
        help="The least level of lines on the standard error of Spark's Python processes: of the driver for the "
        "reader, of the executors for tasks. [All messages](logs.md), and how to send them elsewhere.",
    )
    form: str = option(
        "logFormat", types.choice("text", "json"), "text", example="json",
        help="Form of a log line: text, or a JSON object.",
    )
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
    source: str = option(
        "source", types.NAME, example="orders", note="the queue's name",
        help="Name of the deduplication domain: an object is published once for each source.",
        on_change="Refused: a pipeline belongs to one source. Another source, with another pipeline and a new "
        "checkpoint, knows nothing of what was read.",
    )
    pipeline: str = option(
        "pipeline", types.NAME, example="orders-eu", note="the source's name",
        help="Name of this running query. Queries that share a source have different pipelines.",
        on_change="Another pipeline needs a new checkpoint. With the same source it takes over what is unpublished "
        "once the old one has had no heartbeat for twice `commitTimeout`; nothing published is read again.",
    )
    # fmt: on
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """All options of a batch view. `pipeline` and `source` are filters, None for all; of the last two one is given."""

    TITLE: ClassVar = "View and store"

    storage: StorageOptions
    store: SecretUrl = store_url()
    # fmt: off
    view: str = option(
        "view", types.choice(*_VIEWS), "data", example="shards",
        help="What is read: the published rows, or a table of the store.",
    )
    pipeline: str | None = option(
        "pipeline", types.NAME, help="Only what belongs to this pipeline.", example="orders", note="all"
    )
    source: str | None = option(
        "source", types.NAME, help="Only what belongs to this source.", example="orders", note="all"
    )
    as_of: datetime | None = option(
        "asOf", types.TIME, example="2026-11-20T08:30:00Z", note="now",
        help="Only what was published at this time. Views `data` and `splits`.",
    )
    as_of_attempt: str | None = option(
        "asOfAttempt", types.DELIVERY_HASH, note="the last one",
        help="Only what was published by this attempt and those before it. Views `data` and `splits`.",
    )
    # fmt: on
