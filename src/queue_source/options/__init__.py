"""The options of reader, sink and views: each declared once, parsed once into frozen groups.

No pyarrow, no Spark and no library of a queue is loaded here: commands and executors use these modules too.
"""

from __future__ import annotations

from queue_source.options.backfill import BackfillOptions
from queue_source.options.checks import check_declared, check_zone
from queue_source.options.cleaning import CleaningOptions
from queue_source.options.connections import connection_options
from queue_source.options.content import ContentOptions, SchemaOptions
from queue_source.options.file_format import FormatOptions
from queue_source.options.listing import ListingOptions, parse_listing_options
from queue_source.options.logs import LogOptions
from queue_source.options.parsing import parse_reader_options, parse_sink_options, parse_view_options
from queue_source.options.reader import (
    BatchOptions,
    DeduplicationOptions,
    DeliveryOptions,
    LeaseOptions,
    ReaderOptions,
)
from queue_source.options.receiving import NotificationOptions, QueueOptions
from queue_source.options.secrets import Secret, SecretUrl
from queue_source.options.sink import SinkOptions, TableOptions, TargetQueue
from queue_source.options.storage import AzureOptions, StorageOptions
from queue_source.options.views import ViewOptions

__all__ = [
    "AzureOptions",
    "BackfillOptions",
    "BatchOptions",
    "CleaningOptions",
    "ContentOptions",
    "DeduplicationOptions",
    "DeliveryOptions",
    "FormatOptions",
    "LeaseOptions",
    "ListingOptions",
    "LogOptions",
    "NotificationOptions",
    "QueueOptions",
    "ReaderOptions",
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
    "parse_listing_options",
    "parse_reader_options",
    "parse_sink_options",
    "parse_view_options",
]
