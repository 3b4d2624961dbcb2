"""The options as frozen groups, built once by `parsing`. Plain dataclasses: what executors unpickle needs no library.

Only `ContentOptions` (reader), `SinkOptions` and `StorageOptions` (views) travel to executors; all else stays on the
driver.
Durations are `timedelta`, sizes bytes. Secrets and URLs are `Secret`s: `str()` is for people, `reveal()` for libraries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from queue_source.options.partitioning import PartitionField
from queue_source.options.secrets import Secret, SecretUrl

if TYPE_CHECKING:  # they load pyarrow, which the commands can do without
    from queue_source.formats.base import FormatOptions
    from queue_source.storage.files import StorageOptions


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How messages are received (reader process).

    `connections`: kind of queue -> what its adapter is told of region, endpoint and credentials (`connections.py`).
    """

    urls: tuple[SecretUrl, ...]
    connections: Mapping[str, Mapping[str, Any]]
    receive_threads: int
    wait_time: timedelta
    max_in_flight_messages: int
    max_in_flight_bytes: int | None
    queue_shares: str


@dataclass(frozen=True, slots=True)
class NotificationOptions:
    """How a message becomes shards. Form `json` alone needs the paths."""

    notification_format: str
    allowed_prefixes: tuple[str, ...]
    allow_overwrites: bool
    path_glob_filter: re.Pattern[str] | None
    tag_filter: tuple[str, ...] | None
    message_identity: str
    uri_path: str | None
    bucket_path: str | None
    key_path: str | None


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How much one micro-batch and one partition take (planning)."""

    max_files_per_trigger: int
    max_bytes_per_trigger: int | None
    min_partitions: int
    max_partition_bytes: int


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The time-outs of messages and shards. Checked: heartbeat <= visibility < deduplication window."""

    visibility_timeout: timedelta
    commit_timeout: timedelta
    pending_timeout: timedelta

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

    deduplication_window: timedelta
    deduplication_max_shards: int | None
    prune_interval: timedelta


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The guarantee, and what happens when the store was lost, objects kill their readers, or anything is bad."""

    delivery_semantics: str
    fail_on_data_loss: bool
    max_attempts: int
    error_queue_url: SecretUrl | None


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """How a schema that nobody declared is found, and what happens when objects outgrow it.

    `schema_location` is a URI or an absolute path, None where the columns are declared. `schema_hints` is DDL.
    """

    schema_location: str | None
    schema_hints: str
    schema_evolution_mode: str
    infer_column_types: bool
    schema_sample: tuple[str, ...]
    schema_sample_files: int
    schema_sample_bytes: int


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """What executors need to read content: the only part of the reader's options that is sent to them.

    `format` is None where messages are read as they are.
    """

    content: str
    on_missing_object: str
    on_corrupt_object: str
    format: FormatOptions | None
    storage: StorageOptions
    schema: SchemaOptions

    @property
    def stops_at_bad_objects(self) -> bool:
        """Whether nothing of a micro-batch is published when any of its objects cannot be read to its end."""
        return self.on_missing_object == self.on_corrupt_object == "fail"

    def may_be_cut(self, uri: str) -> bool:
        """Whether parts of the object may be read by several tasks, or in several micro-batches. Driver."""
        from queue_source.read.objects import may_be_cut  # here: it loads pyarrow, which the commands can do without

        return self.format is not None and may_be_cut(uri, self.format, all_or_nothing=self.stops_at_bad_objects)


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """All options of one streaming reader."""

    source: str
    pipeline: str
    store: SecretUrl
    queue: QueueOptions
    notifications: NotificationOptions
    batches: BatchOptions
    leases: LeaseOptions
    deduplication: DeduplicationOptions
    delivery: DeliveryOptions
    content: ContentOptions


@dataclass(frozen=True, slots=True)
class TableOptions:
    """An Iceberg table: in the catalog in the store's database, or in another one, which `properties` describe."""

    name: str
    catalog: str
    properties: Mapping[str, Secret]
    warehouse: str | None
    partition_by: tuple[PartitionField, ...]


@dataclass(frozen=True, slots=True)
class TargetQueue:
    """The queue that a sink sends to; `connections` as in `QueueOptions`."""

    url: SecretUrl
    connections: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of the cuesqueue sink. `path` is a URI, or an absolute local path; no slash at its end.

    Rows go to one of `path`, `table` and `queue`; the others are "" or None. They are recorded under the first of the
    `pipelines`; a query that joins or unions sources has several.
    """

    pipelines: tuple[str, ...]
    store: SecretUrl
    path: str
    compression: str
    storage: StorageOptions
    table: TableOptions | None = None
    queue: TargetQueue | None = None


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """All options of a batch view. `pipeline` and `source` are filters, None for all; of the last two one is given."""

    view: str
    store: SecretUrl
    pipeline: str | None
    source: str | None
    as_of: datetime | None
    as_of_attempt: str | None
    storage: StorageOptions
