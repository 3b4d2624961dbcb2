"""The options of reader, sink and views: each declared once, parsed once into frozen groups.

Spark's string maps become these groups, or one `OptionError` that names the option and the next step, on the driver,
each time Spark builds a reader, a writer or a view. What else an option requires is declared with the option; here
are defaults that depend on other options, and `checks` compares values. No pyarrow, no Spark and no library of a queue
is loaded here: commands and executors use these modules too.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from queue_source.common.local_paths import absolute_path, absolute_url
from queue_source.common.times import instant, machine_time_zone
from queue_source.errors import OptionError
from queue_source.options import checks, content, reader, sink, types
from queue_source.options.checks import check_declared, check_zone, in_zone
from queue_source.options.connections import (
    SPARK_HIDES,
    AzureOptions,
    StorageOptions,
    check_shown,
    connection_options,
    connections,
    kafka_settings,
    storage_options,
)
from queue_source.options.content import ContentOptions, FormatOptions
from queue_source.options.declaring import Values, as_text, build
from queue_source.options.places import (
    LISTING,
    READER,
    RECORDED,
    ROUTING,
    SINK,
    VIEWS,
    WHILE_PARTLY_READ,
    Place,
    given_texts,
    read,
)
from queue_source.options.reader import EVERYTHING, BatchLimits, NotificationOptions, ReaderOptions
from queue_source.options.sink import SinkOptions, TableOptions, TargetQueue, ViewOptions
from queue_source.options.types import Literal, Secret, SecretUrl
from queue_source.queues.urls import queue_name
from queue_source.uris import plain_prefix
from shard_store.redaction import quote

__all__ = [
    "EVERYTHING",
    "AzureOptions",
    "BatchLimits",
    "ContentOptions",
    "FormatOptions",
    "ListingOptions",
    "NotificationOptions",
    "ReaderOptions",
    "ReceiverOptions",
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
    "options_of_choice",
    "parse_listing_options",
    "parse_reader_options",
    "parse_receiver_options",
    "parse_sink_options",
    "parse_view_options",
]  # fmt: skip

_WAIT = timedelta(seconds=20)
_PARTITION = 128 << 20
_RESCUED = "_rescued_data"
_CATALOG = "catalog."
_WHOLE: dict[str, Callable[[str], str]] = {"uri": absolute_url, "warehouse": absolute_path}
_MODIFIED = {"modified_after": "modifiedAfter", "modified_before": "modifiedBefore"}
_SECRET_PROPERTY = re.compile("credential|account-?key|connection-?string|authorization", re.IGNORECASE)


def parse_reader_options(options: Mapping[str, str]) -> ReaderOptions:
    """Parse the options of `spark.readStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = _with_kafka(READER, options)
    queue_urls: tuple[SecretUrl, ...] = values["queueUrl"] or ()
    urls = () if values.holds("queueUrl=store") else queue_urls
    prefixes: tuple[str, ...] = values["backfillPrefixes"] or ()
    values["allowedPrefixes"] = allowed = values["allowedPrefixes"] or prefixes
    source = values["source"] or _source_from(urls)
    wait = values["waitTime"]  # no receive waits longer than its messages are invisible
    # by a sink, unread content may be in one partition, however large it is
    is_read = content.ContentKind(values["content"]).is_read or values["fileFormat"] is not None
    # a name may lead elsewhere, so local prefixes are included
    local = tuple(prefix for prefix in allowed if prefix.startswith("file://"))
    interval, grace = reader.BACKFILL_WITH_QUEUE if queue_urls else reader.BACKFILL_ALONE
    parsed = ReaderOptions(
        queue=build(
            reader.QueueOptions,
            values,
            urls=urls,
            connections=connections(_all_urls(values, urls), values),
            routes=_whole("routes", values["routes"], absolute_path),
            from_store=queue_urls != urls or values["routes"] is not None,
            wait_time=min(_WAIT, values["visibilityTimeout"] / 2) if wait is None else wait,
        ),
        notifications=_notifications(values, allowed),
        backfill=reader.BackfillOptions(
            # a prefix below another one is listed with that one
            tuple(p for p in prefixes if not any(p.startswith(other) for other in prefixes if other != p)),
            values["backfillInterval"] or interval,
            grace if values["backfillGrace"] is None else values["backfillGrace"],
            values["includeExistingFiles"] is not False,
        ),
        batches=build(
            reader.BatchOptions,
            values,
            min_partitions=values["minPartitions"] or os.cpu_count() or 1,
            max_partition_bytes=values["maxPartitionBytes"] or (_PARTITION if is_read else sys.maxsize),
        ),
        leases=build(reader.LeaseOptions, values),
        deduplication=build(reader.DeduplicationOptions, values),
        delivery=build(reader.DeliveryOptions, values),
        cleaning=build(
            reader.CleaningOptions,
            values,
            retention=values["cleanSource.retentionDuration"] or reader.DEFAULT_RETENTION,
        ),
        content=build(
            ContentOptions,
            values,
            format=None if values["fileFormat"] is None else _format(values),
            storage=replace(storage_options(values), local_prefixes=local),
            schema=_schema(values),
        ),
        logs=build(content.LogOptions, values),
        store=_whole("storeUrl", values["storeUrl"], absolute_url),
        source=source,
        pipeline=values["pipeline"] or source,
        settings={name: as_text(values[name]) for name in RECORDED},
    )
    checks.check_reader(parsed)
    return parsed


def _with_kafka(place: Place, options: Mapping[str, str]) -> Values:
    """Return the values, and what Kafka's adapter takes of them under its own names."""
    others, settings = kafka_settings(options)
    values = read(place, others)
    for name in ("startingOffsets", "failOnDataLoss"):
        if name in values:
            values[f"kafka.{name}"] = values[name]
    if settings:
        values["kafka.settings"] = settings
    return values


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


def parse_receiver_options(url: str, options: Mapping[str, str], *, quarantines: bool = True) -> ReceiverOptions:
    """Parse the options of a receiver (names in any case) of the queue at `url`. Raises OptionError."""
    values = _with_kafka(ROUTING, options)
    queue = types.queue_url(url)
    return ReceiverOptions(
        url=queue,
        connections=connections([queue], values),
        # readers choose among what is recorded, each by its own options
        notifications=build(
            NotificationOptions, values, allowed_prefixes=("",), read_hidden_files=True, by_reference=True
        ),
        threads=values["receiveThreads"],
        lease=values["visibilityTimeout"],
        retry_timeout=values["queueRetryTimeout"],
        quarantines=quarantines,
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of `df.writeStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    of_catalog = {name: text for name, text in options.items() if name.lower().startswith(_CATALOG)}
    values = _with_kafka(SINK, {name: text for name, text in options.items() if name not in of_catalog})
    if of_catalog and values["table"] is None:
        raise OptionError(next(iter(of_catalog)), sink.OF_ICEBERG[0].problem)
    url: SecretUrl | None = _whole("queueUrl", values["queueUrl"], absolute_url)
    is_table = values["table"] is not None
    delta: sink.DeltaOptions | None = None
    if values["delta"] is not None:
        if transform := next((field for field in values["partitionBy"] if field.transform != "identity"), None):
            raise OptionError(
                "partitionBy",
                f"asks for {transform}, and a Delta table is partitioned by columns alone; add a column in the query, "
                "such as CAST(ts AS DATE), and name that",
            )
        columns = tuple(field.column for field in values["partitionBy"])
        delta = build(sink.DeltaOptions, values, partition_by=columns)
    return build(
        SinkOptions,
        values,
        store=_whole("storeUrl", values["storeUrl"], absolute_url),
        path="" if is_table else values["path"] or "",
        storage=storage_options(values),
        table=_table(values, of_catalog) if is_table else None,
        delta=delta,
        logs=build(content.LogOptions, values),
        queue=None if url is None else TargetQueue(connections([url], values), url),
        load=None if values["load"] is None else _load(values),
    )


def _load(values: Values) -> sink.LoadOptions:
    """Build the options of objects that the sink reads."""
    if len(values["pipeline"]) > 1:
        raise OptionError("load", f"takes one pipeline, and pipeline names {len(values['pipeline'])}; name one of them")
    values = Values(values.options, {**values, "fileFormat": values["load"]})
    return build(
        sink.LoadOptions,
        values,
        content=build(
            ContentOptions,
            values,
            format=_format(values),
            storage=storage_options(values),
            schema=_schema(values),
        ),
        cutting={name: as_text(values[name]) for name in WHILE_PARTLY_READ},
    )


def parse_view_options(options: Mapping[str, str]) -> ViewOptions:
    """Parse the options of `spark.read.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = read(VIEWS, options)
    store = _whole("storeUrl", values["storeUrl"], absolute_url)
    return build(ViewOptions, values, storage=storage_options(values), store=store)


def _whole(name: str, value: Any, whole: Callable[[str], str]) -> Any:
    """Return a URL or a path as a whole: options are read on the driver, and tasks may run in another folder."""
    if value is None:
        return None
    try:
        written = value.reveal() if isinstance(value, SecretUrl) else value
        absolute = whole(written)
    except ValueError as error:
        raise OptionError(name, str(error)) from None
    return value if absolute == written else type(value)(absolute)


def _table(values: Values, of_catalog: Mapping[str, str]) -> TableOptions:
    """Build the Iceberg table's options; its warehouse may also be the argument of `start()`."""
    warehouse, path = values["warehouse"], values["path"]
    if warehouse and path and warehouse != path:
        raise OptionError("path", "of a table is its warehouse, which is given too; keep one of them")
    properties: dict[str, Secret] = {}
    names = {name.lower().removeprefix(_CATALOG): name for name in of_catalog}
    in_database = of_catalog.get(names.get("uri", ""), "").startswith(("sqlite", "postgresql"))
    for own, name in names.items():
        if own.endswith("impl"):
            raise OptionError(
                name, "names Python code, which no option does; use a catalog that PyIceberg knows by its catalog.type"
            )
        text = of_catalog[name]
        if in_database and own in _WHOLE:  # of other catalogs the warehouse may be a name
            text = _whole(name, text, _WHOLE[own])
        # PyIceberg defines the properties, so secrets are recognised by their names
        is_secret = _SECRET_PROPERTY.search(name) is not None
        check_shown(name, name, text, is_secret)
        hides = is_secret or SPARK_HIDES.search(name) or own.endswith("uri")
        properties[own] = Secret(text) if hides else Literal(text)
    return build(TableOptions, values, properties=properties, warehouse=warehouse or path)


def _notifications(values: Values, allowed: tuple[str, ...]) -> NotificationOptions:
    """Build the options of notifications, with times as instants: this process may lack the session's zone."""
    times = {field: values[name] for field, name in _MODIFIED.items() if name in values}
    without_zone = any(time.tzinfo is None for time in times.values())
    assumed = machine_time_zone() if without_zone and values["timeZone"] is None else None
    for field, time in times.items():
        try:
            times[field] = instant(time, values["timeZone"] or assumed or "UTC")
        except ValueError as error:
            raise OptionError(_MODIFIED[field], f"{time.isoformat()} is {error}; write another one") from None
    return build(
        NotificationOptions,
        values,
        allowed_prefixes=allowed,
        assumed_zone=assumed,
        by_reference=not content.ContentKind(values["content"]).is_read,
        **times,
    )


def _format(values: Values) -> FormatOptions:
    mode = _evolution_mode(values)
    infers_text = (
        values["schemaLocation"] is not None and mode != "none" and values["fileFormat"] in content.RECORD_FORMATS
    )
    # the columns were not declared; of the reader's own ones that is known only by this
    is_inferred = values["schemaLocation"] is not None or ("load" in values and values.get("schema") is None)
    format = build(
        FormatOptions,
        values,
        rescued_data_column=values["rescuedDataColumn"] or (_RESCUED if mode == "rescue" or infers_text else None),
        watch_new_columns=mode in (*content.ADDING, "failOnNewColumns"),
        watch_wider_types=mode == content.WIDENING,
        tells_new_columns=mode == "none" and is_inferred and values["rescuedDataColumn"] is None,
    )
    if format.sep in (format.quote, format.escape, format.comment):
        raise OptionError(
            "sep", f"{format.sep!r} is also the quote, the escape or the comment character; write another one"
        )
    return format


def _evolution_mode(values: Values) -> str:
    return values["schemaEvolutionMode"] or ("none" if values["schemaLocation"] is None else "addNewColumns")


def _schema(values: Values) -> content.SchemaOptions:
    infers = values["inferColumnTypes"]
    return build(
        content.SchemaOptions,
        values,
        schema_hints=values["schemaHints"] or "",
        schema_sample=values["schemaSample"] or (),
        schema_evolution_mode=_evolution_mode(values),
        infer_column_types=values["fileFormat"] != "csv" if infers is None else infers,
    )


def _all_urls(values: Values, urls: Sequence[SecretUrl]) -> list[SecretUrl]:
    """Return the queues that are read, and the one for errors: never one of those, or errors would be messages.

    They stay as they are written, since messages are identified by the name of their queue: the reader process alone
    opens them, in the folder from which their relative paths count.
    """
    whole = {_whole("queueUrl", url, absolute_url).reveal() for url in urls}
    errors: SecretUrl | None = values["errorQueueUrl"]
    if errors is None:
        return list(urls)
    if _whole("errorQueueUrl", errors, absolute_url).reveal() in whole:
        raise OptionError("errorQueueUrl", f"{errors} is the queue that is read; name another one for errors")
    return [*urls, errors]


def _source_from(urls: Sequence[SecretUrl]) -> str:
    """Derive the source's name from the queue's, where there is one queue with a suitable name.

    Never from a prefix: another prefix, or the same in another order, would be a source without its history.
    """
    if not urls:
        raise OptionError(
            "source",
            "is required without a queue, whose name it would be; write .option('source', 'orders') to name it, or "
            "--option source=orders",
        )
    if len(urls) > 1:
        raise OptionError(
            "source", f"is required when {len(urls)} queues are read; write .option('source', 'orders') to name it"
        )
    name = queue_name(urls[0].reveal())
    try:
        return types.check_name(name)
    except ValueError as error:
        raise OptionError("source", f"cannot be the queue's name: {error}, or set the option source") from None


# the reader's options that a comparison of its source with a listing needs: its choice of objects, and their names


@dataclass(frozen=True, slots=True)
class ListingOptions:
    """The options of a listing.

    Attributes:
        prefixes: The prefixes to list, in the one form of URIs.
        notifications: The reader's options that choose objects and make their ids.
        choice: Those of them that were set, as JSON: equal for options that mean the same.
    """

    prefixes: tuple[str, ...]
    notifications: NotificationOptions
    storage: StorageOptions
    choice: str


def parse_listing_options(prefixes: Sequence[str], options: Mapping[str, str]) -> ListingOptions:
    """Parse options of a reader (names in any case) for the objects under `prefixes`. Raises OptionError."""
    values = read(LISTING, options)
    listed: tuple[str, ...] = ()
    for prefix in prefixes:
        try:
            listed = tuple(dict.fromkeys((*listed, plain_prefix(prefix))))
        except ValueError as error:
            raise OptionError("PREFIX", str(error)) from None
    for inner, wider in itertools.permutations(listed, 2):
        if inner.startswith(wider):
            problem = f"{quote(inner)} is under {quote(wider)}, so its objects would be counted twice; leave one out"
            raise OptionError("PREFIX", problem)
    allowed = values["allowedPrefixes"] or listed
    if outside := next((prefix for prefix in listed if not prefix.startswith(allowed)), None):
        raise OptionError(
            "PREFIX", f"{quote(outside)} begins with none of the allowedPrefixes, so the reader reads nothing of it"
        )
    texts = given_texts(LISTING, options)
    written: dict[str, object] = {}  # in a form that is the same for texts that mean the same
    for name in (option.name for option in LISTING.sections[NotificationOptions.TITLE]):
        if name not in values or (value := values[name]) is False:
            continue
        if isinstance(value, datetime):
            if value.tzinfo is None:  # the zone that the reader takes is unknown here
                problem = f"{quote(texts[name])} has no time zone; write one, as in 2026-11-01T00:00:00Z"
                raise OptionError(name, problem)
            written[name] = value.astimezone(timezone.utc).isoformat()
        else:
            written[name] = value if isinstance(value, bool) or type(value) is tuple else texts[name].strip()
    notifications = build(NotificationOptions, values, allowed_prefixes=allowed)
    return ListingOptions(listed, notifications, storage_options(values), json.dumps(written, sort_keys=True))


def options_of_choice(choice: str) -> dict[str, str]:
    """Return the options of a choice, as texts."""
    return {name: ",".join(v) if isinstance(v, list) else as_text(v) for name, v in json.loads(choice).items()}
