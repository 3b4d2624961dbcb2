"""The options of reader, sink and views: one table, parsed once into frozen groups (design section 9)."""

from __future__ import annotations

from queue_source.options.checks import check_declared
from queue_source.options.connections import connection_options
from queue_source.options.groups import (
    BatchOptions,
    ContentOptions,
    DeduplicationOptions,
    DeliveryOptions,
    LeaseOptions,
    NotificationOptions,
    QueueOptions,
    ReaderOptions,
    SchemaOptions,
    SinkOptions,
    TableOptions,
    TargetQueue,
    ViewOptions,
)
from queue_source.options.parsing import parse_reader_options, parse_sink_options, parse_view_options
from queue_source.options.secrets import Secret, SecretUrl, redact_text, redact_url

__all__ = [
    "BatchOptions",
    "ContentOptions",
    "DeduplicationOptions",
    "DeliveryOptions",
    "LeaseOptions",
    "NotificationOptions",
    "QueueOptions",
    "ReaderOptions",
    "SchemaOptions",
    "Secret",
    "SecretUrl",
    "SinkOptions",
    "TableOptions",
    "TargetQueue",
    "ViewOptions",
    "check_declared",
    "connection_options",
    "parse_reader_options",
    "parse_sink_options",
    "parse_view_options",
    "redact_text",
    "redact_url",
]
