"""Spark's string maps become frozen options, or one `OptionError` that names the option and the next step.

Runs on the driver, each time Spark builds a reader, a writer or a view. No pydantic here: one declaration has to give
the parsing, the defaults, the errors and the documentation, and a model would be a second list of the same names.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from queue_source.common.local_paths import absolute_path, absolute_url
from queue_source.errors import OptionError
from queue_source.options import checks, types
from queue_source.options.connections import StorageOptions, connections, kafka_settings, storage_options
from queue_source.options.content import (
    ADDING,
    RECORD_FORMATS,
    WIDENING,
    ContentKind,
    ContentOptions,
    FormatOptions,
    SchemaOptions,
)
from queue_source.options.declaring import build, declared
from queue_source.options.places import LISTING, READER, RECORDED, ROUTING, SINK, VIEWS, WHILE_PARTLY_READ
from queue_source.options.reader import (
    DEFAULT_RETENTION,
    BatchOptions,
    CleaningOptions,
    DeduplicationOptions,
    DeliveryOptions,
    LeaseOptions,
    LogOptions,
    ReaderOptions,
    ViewOptions,
)
from queue_source.options.receiving import (
    BACKFILL_ALONE,
    BACKFILL_WITH_QUEUE,
    BackfillOptions,
    NotificationOptions,
    QueueOptions,
    ReceiverOptions,
)
from queue_source.options.secrets import SPARK_HIDES, Literal, Secret, SecretUrl, check_shown, quote
from queue_source.options.sink import DeltaOptions, LoadOptions, SinkOptions, TableOptions, TargetQueue
from queue_source.options.times import instant, machine_time_zone
from queue_source.options.values import given_texts, read
from queue_source.uris import plain_prefix
from shard_store.model import STORE

_WAIT = timedelta(seconds=20)
_PARTITION = 128 << 20
_RESCUED = "_rescued_data"
_CATALOG = "catalog."
_SECRET_PROPERTY = re.compile("credential|account-?key|connection-?string|authorization", re.IGNORECASE)


def parse_reader_options(options: Mapping[str, str]) -> ReaderOptions:
    """Parse the options of `spark.readStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    others, kafka = kafka_settings(options)
    values = _with_kafka(read(READER, others), kafka)
    if values["waitTime"] is None:  # no receive waits longer than its messages are invisible
        values["waitTime"] = min(_WAIT, values["visibilityTimeout"] / 2)
    if values["maxPartitionBytes"] is None:  # unread content may be in one partition, however large it is
        is_read = ContentKind(values["content"]).is_read or values["fileFormat"] is not None  # by a sink, as it may be
        values["maxPartitionBytes"] = _PARTITION if is_read else sys.maxsize
    queues: tuple[SecretUrl, ...] = values["queueUrl"] or ()
    without_queue = any(url.reveal() == STORE for url in queues)
    urls = () if without_queue else queues
    checks.check_routes(values, urls)
    prefixes: tuple[str, ...] = values["backfillPrefixes"] or ()
    values["allowedPrefixes"] = values["allowedPrefixes"] or prefixes
    source = values["source"] or _source_from(urls)
    partitions = values["minPartitions"] or os.cpu_count() or 1
    parsed = ReaderOptions(
        queue=build(
            QueueOptions,
            values,
            urls=urls,
            connections=connections(_all_urls(values, urls), values),
            routes=_absolute_file("routes", values["routes"]),
            from_store=without_queue or values["routes"] is not None,
        ),
        notifications=_notifications(values),
        backfill=_backfill(values, prefixes, alone=not queues),
        batches=build(BatchOptions, values, min_partitions=partitions),
        leases=build(LeaseOptions, values),
        deduplication=build(DeduplicationOptions, values),
        delivery=build(DeliveryOptions, values),
        cleaning=_cleaning(values),
        content=build(ContentOptions, values, format=_format(values), storage=_storage(values), schema=_schema(values)),
        logs=build(LogOptions, values),
        store=_absolute("storeUrl", values["storeUrl"]),
        source=source,
        pipeline=values["pipeline"] or source,
        settings={name: _setting(values[name]) for name in RECORDED},
    )
    checks.check_reader(parsed)
    return parsed


def _with_kafka(values: dict[str, Any], settings: Mapping[str, Secret]) -> dict[str, Any]:
    """Return the values with what Kafka's adapter takes of them, under its own names."""
    return values | {
        "kafka.settings": settings or None,
        "kafka.startingOffsets": values["startingOffsets"],
        "kafka.failOnDataLoss": values["failOnDataLoss"],
    }


def parse_receiver_options(url: str, options: Mapping[str, str], *, quarantines: bool = True) -> ReceiverOptions:
    """Parse the options of a receiver (names in any case) of the queue at `url`. Raises OptionError."""
    others, kafka = kafka_settings(options)
    values = _with_kafka(read(ROUTING, others), kafka)
    urls = types.queue_url(url)
    chosen = [option.name for option in ROUTING.sections[NotificationOptions.TITLE]]
    fields = {field: option.name for field, option in declared(NotificationOptions).items() if option.name in chosen}
    arguments: dict[str, Any] = {field: values[name] for field, name in fields.items()}
    # readers choose among what is recorded, each by its own options
    notifications = NotificationOptions(allowed_prefixes=("",), read_hidden_files=True, by_reference=True, **arguments)
    checks.check_paths(notifications)
    return ReceiverOptions(
        url=urls,
        connections=connections([urls], values),
        notifications=notifications,
        threads=values["receiveThreads"],
        lease=values["visibilityTimeout"],
        retry_timeout=values["queueRetryTimeout"],
        quarantines=quarantines,
    )


def _setting(value: object) -> str:
    """Return a value as text, "" for None."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of `df.writeStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    of_catalog = {name: text for name, text in options.items() if name.lower().startswith(_CATALOG)}
    others, kafka = kafka_settings({name: text for name, text in options.items() if name not in of_catalog})
    values = read(SINK, others)
    values["kafka.settings"] = kafka or None
    checks.check_target(values)
    table = _table(values, of_catalog)
    url: SecretUrl | None = None if values["queueUrl"] is None else _absolute("queueUrl", values["queueUrl"])
    return build(
        SinkOptions,
        values,
        store=_absolute("storeUrl", values["storeUrl"]),
        path="" if table else values["path"] or "",
        storage=storage_options(values),
        table=table,
        delta=_delta(values),
        logs=build(LogOptions, values),
        queue=None if url is None else TargetQueue(connections([url], values), url),
        load=_load(values, given_texts(SINK, others)),
    )


def _load(values: Mapping[str, Any], texts: Mapping[str, str]) -> LoadOptions | None:
    """Build the options of objects that the sink reads; None where it writes rows. `texts`: of the given options."""
    if values["load"] is None:
        checks.check_nothing_is_loaded(texts)
        return None
    as_of_reader = {**values, "fileFormat": values["load"], "content": ContentKind.OBJECT.value}
    content = build(
        ContentOptions,
        as_of_reader,
        format=_format(as_of_reader),
        storage=storage_options(values),
        schema=_schema(as_of_reader),
    )
    checks.check_loading(values, content)
    cutting = {name: _setting(as_of_reader[name]) for name in WHILE_PARTLY_READ}
    return build(LoadOptions, values, content=content, cutting=cutting)


def parse_view_options(options: Mapping[str, str]) -> ViewOptions:
    """Parse the options of `spark.read.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = read(VIEWS, options)
    store = _absolute("storeUrl", values["storeUrl"])
    parsed = build(ViewOptions, values, storage=storage_options(values), store=store)
    checks.check_as_of(parsed)
    return parsed


def _absolute(name: str, url: SecretUrl) -> SecretUrl:
    """Return a URL with the whole path: options are read on the driver, and tasks may run in another folder."""
    try:
        written = url.reveal()
        whole = absolute_url(written)
    except ValueError as error:
        raise OptionError(name, str(error)) from None
    return url if whole == written else SecretUrl(whole)


def _absolute_file(name: str, path: str | None) -> str | None:
    try:
        return None if path is None else absolute_path(path)
    except ValueError as error:
        raise OptionError(name, str(error)) from None


def _table(values: Mapping[str, Any], of_catalog: Mapping[str, str]) -> TableOptions | None:
    """Build the Iceberg table's options, where one is named; its warehouse may also be the argument of `start()`."""
    warehouse, path = values["warehouse"], values["path"]
    checks.check_registering(values)
    if values["table"] is None:
        needing_table = {"register": values["register"], "warehouse": warehouse, **of_catalog}
        if alone := next((name for name, value in needing_table.items() if value), None):
            raise OptionError(alone, "acts only on an Iceberg table; name it with the option table, or leave this out")
        if values["partitionBy"] and values["delta"] is None:
            raise OptionError(
                "partitionBy", "acts only on a table; name it with the option table or delta, or leave this out"
            )
        return None
    if warehouse and path and warehouse != path:
        raise OptionError("path", "of a table is its warehouse, which is given too; keep one of them")
    if code := next((name for name in of_catalog if name.lower().endswith("impl")), None):
        raise OptionError(
            code, "names Python code, which no option does; use a catalog that PyIceberg knows by its catalog.type"
        )
    with_paths = _with_whole_paths(of_catalog)
    properties = {name.lower().removeprefix(_CATALOG): _property(name, text) for name, text in with_paths.items()}
    return build(TableOptions, values, properties=properties, warehouse=warehouse or path)


def _delta(values: Mapping[str, Any]) -> DeltaOptions | None:
    """Build the Delta table's options, where one is named."""
    if values["delta"] is None:
        return None
    if transform := next((field for field in values["partitionBy"] if field.transform != "identity"), None):
        raise OptionError(
            "partitionBy",
            f"asks for {transform}, and a Delta table is partitioned by columns alone; add a column in the query, such "
            "as CAST(ts AS DATE), and name that",
        )
    return build(DeltaOptions, values, partition_by=tuple(field.column for field in values["partitionBy"]))


def _with_whole_paths(of_catalog: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a catalog in a database with whole paths of its file and warehouse.

    For other catalogs the warehouse may be a name.
    """
    names = {name.lower().removeprefix(_CATALOG): name for name in of_catalog}
    properties = dict(of_catalog)
    for key, whole in (("uri", absolute_url), ("warehouse", absolute_path)):
        name, uri = names.get(key), of_catalog.get(names.get("uri", ""), "")
        if name is not None and uri.startswith(("sqlite", "postgresql")):
            try:
                properties[name] = whole(of_catalog[name])
            except ValueError as error:
                raise OptionError(name, str(error)) from None
    return properties


def _property(name: str, text: str) -> Secret:
    """Build a property of a catalog; PyIceberg defines them, so secrets are recognised by their names."""
    secret = _SECRET_PROPERTY.search(name) is not None
    check_shown(name, name, text, secret)
    return Secret(text) if secret or SPARK_HIDES.search(name) or name.lower().endswith("uri") else Literal(text)


def _notifications(values: Mapping[str, Any]) -> NotificationOptions:
    """Build the options of notifications, with times as instants: this process may lack the session's zone."""
    times = {name: values[name] for name in ("modifiedAfter", "modifiedBefore") if values[name] is not None}
    without_zone = any(time.tzinfo is None for time in times.values())
    assumed = machine_time_zone() if without_zone and values["timeZone"] is None else None
    for name, time in times.items():
        try:
            times[name] = instant(time, values["timeZone"] or assumed or "UTC")
        except ValueError as error:
            raise OptionError(name, f"{time.isoformat()} is {error}; write another one") from None
    return build(
        NotificationOptions,
        {**values, **times},
        allowed_prefixes=values["allowedPrefixes"] or (),
        assumed_zone=assumed,
        by_reference=not ContentKind(values["content"]).is_read,
    )


def _format(values: Mapping[str, Any]) -> FormatOptions | None:
    if values["fileFormat"] is None:
        checks.check_nothing_is_parsed(values)
        return None
    mode = _evolution_mode(values)
    infers_text = values["schemaLocation"] is not None and mode != "none" and values["fileFormat"] in RECORD_FORMATS
    default = _RESCUED if mode == "rescue" or infers_text else None
    return build(
        FormatOptions,
        values,
        rescued_data_column=values["rescuedDataColumn"] or default,
        watch_new_columns=mode in (*ADDING, "failOnNewColumns"),
        watch_wider_types=mode == WIDENING,
    )


def _evolution_mode(values: Mapping[str, Any]) -> str:
    mode: str | None = values["schemaEvolutionMode"]
    if mode is None:
        return "none" if values["schemaLocation"] is None else "addNewColumns"
    if mode in ADDING and values["schemaLocation"] is None:
        raise OptionError(
            "schemaEvolutionMode",
            f"{mode} widens an inferred schema: leave .schema(...) out and set schemaLocation; with a declared "
            "schema, write rescue or failOnNewColumns",
        )
    return mode


def _storage(values: Mapping[str, Any]) -> StorageOptions:
    """Build the storage options for announced objects: a name may lead elsewhere, so local prefixes are included."""
    local = tuple(prefix for prefix in values["allowedPrefixes"] if prefix.startswith("file://"))
    return replace(storage_options(values), local_prefixes=local)


def _schema(values: Mapping[str, Any]) -> SchemaOptions:
    types = values["inferColumnTypes"]
    return build(
        SchemaOptions,
        values,
        schema_hints=values["schemaHints"] or "",
        schema_sample=values["schemaSample"] or (),
        schema_evolution_mode=_evolution_mode(values),
        infer_column_types=values["fileFormat"] != "csv" if types is None else types,
    )


def _backfill(values: Mapping[str, Any], prefixes: tuple[str, ...], *, alone: bool) -> BackfillOptions:
    """Build the options of listings; a prefix below another one is listed with that one."""
    checks.check_backfill_is_given(values)
    outer = tuple(p for p in prefixes if not any(p.startswith(other) for other in prefixes if other != p))
    interval, grace = BACKFILL_ALONE if alone else BACKFILL_WITH_QUEUE
    return BackfillOptions(
        outer,
        values["backfillInterval"] or interval,
        grace if values["backfillGrace"] is None else values["backfillGrace"],
        values["includeExistingFiles"] is not False,
    )


def _cleaning(values: Mapping[str, Any]) -> CleaningOptions:
    checks.check_cleaning_is_given(values)
    return build(CleaningOptions, values, retention=values["cleanSource.retentionDuration"] or DEFAULT_RETENTION)


def _all_urls(values: Mapping[str, Any], urls: Sequence[SecretUrl]) -> list[SecretUrl]:
    """Return the queues that are read, and the one for errors: never one of those, or errors would be messages.

    They stay as they are written, since messages are identified by the name of their queue: the reader process alone
    opens them, in the folder from which their relative paths count.
    """
    whole = {_absolute("queueUrl", url).reveal() for url in urls}
    errors: SecretUrl | None = values["errorQueueUrl"]
    if errors is None:
        return list(urls)
    if _absolute("errorQueueUrl", errors).reveal() in whole:
        raise OptionError("errorQueueUrl", f"{errors} is the queue that is read; name another one for errors")
    return [*urls, errors]


def _source_from(urls: Sequence[SecretUrl]) -> str:
    """Derive the source's name from the queue's, where there is one queue with a suitable name.

    Never from a prefix: another prefix, or the same in another order, would be a source without its history.
    """
    if not urls:
        raise OptionError(
            "source",
            "is required without a queue, whose name it would be; write .option('source', 'orders') to name it",
        )
    if len(urls) > 1:
        raise OptionError(
            "source", f"is required when {len(urls)} queues are read; write .option('source', 'orders') to name it"
        )
    from queue_source.queues import queue_name  # here: adapters are loaded only when a queue is named

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
    listed = _prefixes(prefixes)
    allowed = values["allowedPrefixes"] or listed
    if outside := next((prefix for prefix in listed if not prefix.startswith(allowed)), None):
        raise OptionError(
            "PREFIX", f"{quote(outside)} begins with none of the allowedPrefixes, so the reader reads nothing of it"
        )
    texts = given_texts(LISTING, options)
    chosen = [option.name for option in LISTING.sections[NotificationOptions.TITLE]]
    written = {
        name: _written(name, values[name], texts[name])
        for name in chosen
        if name in texts and values[name] not in (False, None)
    }
    fields = {field: option.name for field, option in declared(NotificationOptions).items() if option.name in chosen}
    arguments = {field: values[name] for field, name in fields.items()} | {"allowed_prefixes": allowed}
    notifications = NotificationOptions(**arguments)
    return ListingOptions(listed, notifications, storage_options(values), json.dumps(written, sort_keys=True))


def options_of_choice(choice: str) -> dict[str, str]:
    """Return the options of a choice, as texts."""
    values = json.loads(choice)
    return {name: _text(value) for name, value in values.items()}


def _written(name: str, value: object, text: str) -> object:
    """Return the value in a form that is the same for texts that mean the same."""
    if isinstance(value, datetime):
        if value.tzinfo is None:  # the zone that the reader takes is unknown here
            raise OptionError(name, f"{quote(text)} has no time zone; write one, as in 2026-11-01T00:00:00Z")
        return value.astimezone(timezone.utc).isoformat()
    return value if isinstance(value, bool | tuple) else text.strip()


def _text(value: bool | str | Sequence[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else ",".join(value)


def _prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    plain_prefixes: list[str] = []
    for prefix in prefixes:
        try:
            plain_prefixes.append(plain_prefix(prefix))
        except ValueError as error:
            raise OptionError("PREFIX", str(error)) from None
    for prefix in plain_prefixes:
        if wider := next((other for other in plain_prefixes if other != prefix and prefix.startswith(other)), None):
            raise OptionError(
                "PREFIX",
                f"{quote(prefix)} is under {quote(wider)}, so its objects would be counted twice; leave one out",
            )
    return tuple(dict.fromkeys(plain_prefixes))
