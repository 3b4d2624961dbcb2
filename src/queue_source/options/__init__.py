"""The options of reader, sink and views: each declared once, parsed once into frozen groups.

No pyarrow, no Spark and no library of a queue is loaded here: commands and executors use these modules too.
"""

from __future__ import annotations

from queue_source.options.checks import check_declared, check_zone, in_zone
from queue_source.options.connections import AzureOptions, StorageOptions, connection_options
from queue_source.options.content import ContentOptions, FormatOptions, SchemaOptions
from queue_source.options.parsing import (
    ListingOptions,
    parse_listing_options,
    parse_reader_options,
    parse_receiver_options,
    parse_sink_options,
    parse_view_options,
)
from queue_source.options.reader import (
    EVERYTHING,
    BackfillOptions,
    BatchLimits,
    BatchOptions,
    CleaningOptions,
    DeduplicationOptions,
    DeliveryOptions,
    LeaseOptions,
    LogOptions,
    NotificationOptions,
    QueueOptions,
    ReaderOptions,
    ReceiverOptions,
)
from queue_source.options.secrets import Secret, SecretUrl
from queue_source.options.sink import DeltaOptions, LoadOptions, SinkOptions, TableOptions, TargetQueue, ViewOptions

__all__ = [
    "EVERYTHING",
    "AzureOptions",
    "BackfillOptions",
    "BatchLimits",
    "BatchOptions",
    "CleaningOptions",
    "ContentOptions",
    "DeduplicationOptions",
    "DeliveryOptions",
    "DeltaOptions",
    "FormatOptions",
    "LeaseOptions",
    "ListingOptions",
    "LoadOptions",
    "LogOptions",
    "NotificationOptions",
    "QueueOptions",
    "ReaderOptions",
    "ReceiverOptions",
    "SchemaOptions",
    "Secret",
    "SecretUrl",
    "SinkOptions",
    "StorageOptions",
    "TableOptions",
    "TargetQueue",
    "ViewOptions",
    "check_declared",
    "check_zone",
    "connection_options",
    "in_zone",
    "parse_listing_options",
    "parse_reader_options",
    "parse_receiver_options",
    "parse_sink_options",
    "parse_view_options",
]
