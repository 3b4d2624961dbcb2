"""Spark's string maps become frozen options, or one `OptionError` that names the option and the next step.

Runs on the driver, each time Spark builds a reader, a writer or a view. No pydantic here: one table has to give the
parsing, the defaults, the refusals and the documentation, and `errors.OptionError` the texts; a model would be a
second list of the same names. Executors unpickle `groups`, which needs the standard library only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queue_source.errors import OptionError
from queue_source.options import checks, groups, kinds
from queue_source.options.connections import connections
from queue_source.options.secrets import Secret, SecretUrl
from queue_source.options.storage import storage_options
from queue_source.options.tables import READER_OPTIONS
from queue_source.options.values import read

if TYPE_CHECKING:
    from queue_source.formats.base import FormatOptions

logger = logging.getLogger("cuesqueue")

_RESCUED = "_rescued_data"
_CATALOG = "catalog."


def parse_reader_options(options: Mapping[str, str]) -> groups.ReaderOptions:
    """The options of `spark.readStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = read("reader", options)
    if values["minPartitions"] is None:
        values["minPartitions"] = os.cpu_count() or 1
    given = {name.lower() for name in options}
    if "waittime" not in given:  # a receive may not wait longer than its messages stay invisible
        values["waitTime"] = min(values["waitTime"], values["visibilityTimeout"] / 2)
    if "pendingtimeout" in given:
        _warn_of_pending_timeout()
    urls: tuple[SecretUrl, ...] = values["queueUrl"]
    source = values["source"] or _source_from(urls)
    parsed = groups.ReaderOptions(
        source=source,
        pipeline=values["pipeline"] or source,
        store=values["store"],
        queue=groups.QueueOptions(
            urls=urls, connections=connections(_all_urls(values), values), **_group("queue", values)
        ),
        notifications=groups.NotificationOptions(**_group("notifications", values)),
        batches=groups.BatchOptions(**_group("batches", values)),
        leases=groups.LeaseOptions(**_group("leases", values)),
        deduplication=groups.DeduplicationOptions(**_group("deduplication", values)),
        delivery=groups.DeliveryOptions(**_group("delivery", values)),
        content=groups.ContentOptions(
            **_group("content", values),
            format=_format(values),
            storage=storage_options(values),
            schema=_schema(values),
        ),
    )
    checks.check_content(values)
    checks.check_paths(parsed.notifications)
    checks.check_shares(parsed.queue)
    checks.check_times(parsed)
    return parsed


def parse_sink_options(options: Mapping[str, str]) -> groups.SinkOptions:
    """The options of `df.writeStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    of_catalog = {name: text for name, text in options.items() if name.lower().startswith(_CATALOG)}
    values = read("sink", {name: text for name, text in options.items() if name not in of_catalog})
    checks.check_target(values)
    table = _table(values, of_catalog)
    url: SecretUrl | None = values["queueUrl"]
    return groups.SinkOptions(
        pipelines=values["pipeline"],
        store=values["store"],
        path="" if table else _folder(values["path"]),
        compression=values["compression"],
        storage=storage_options(values),
        table=table,
        queue=None if url is None else groups.TargetQueue(url, connections([url], values)),
    )


def parse_view_options(options: Mapping[str, str]) -> groups.ViewOptions:
    """The options of `spark.read.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = read("views", options)
    checks.check_as_of(values)
    return groups.ViewOptions(
        view=values["view"],
        store=values["store"],
        pipeline=values["pipeline"],
        source=values["source"],
        as_of=values["asOf"],
        as_of_attempt=values["asOfAttempt"],
        storage=storage_options(values),
    )


@cache
def _warn_of_pending_timeout() -> None:
    """Once in a process, however often Spark has the options parsed."""
    logger.warning("option 'pendingTimeout' is ignored: what is received stays held until it is planned; leave it out")


def _folder(path: str | None) -> str:
    if path and "://" not in path:  # executors may stand in another folder
        path = str(Path(path).absolute())
    return (path or "").rstrip("/") or path or ""


def _table(values: Mapping[str, Any], of_catalog: Mapping[str, str]) -> groups.TableOptions | None:
    """The Iceberg table, where one is named; its warehouse may also be the argument of `start()`."""
    warehouse, path = _folder(values["warehouse"]), _folder(values["path"])
    if values["table"] is None:
        given = {"warehouse": warehouse, "partitionBy": values["partitionBy"], **of_catalog}
        if alone := next((name for name, value in given.items() if value), None):
            raise OptionError(alone, "acts only on an Iceberg table; name it with the option table, or leave this out")
        return None
    if warehouse and path and warehouse != path:
        raise OptionError("path", "of a table is its warehouse, which is given too; keep one of them")
    return groups.TableOptions(
        name=values["table"],
        catalog=values["catalog"],
        properties={name.lower().removeprefix(_CATALOG): Secret(text) for name, text in of_catalog.items()},
        warehouse=warehouse or path or None,
        partition_by=values["partitionBy"],
    )


def _group(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the reader's options of a group make of its fields."""
    return {option.field: values[option.name] for option in READER_OPTIONS if option.group == group}


def _format(values: Mapping[str, Any]) -> FormatOptions | None:
    if values["fileFormat"] is None:
        return None
    from queue_source.formats.base import FormatOptions  # here: it loads pyarrow, which the commands can do without

    fields = _group("format", values)
    mode = _evolution_mode(values)
    inferred_text = values["schemaLocation"] is not None and mode != "none" and values["fileFormat"] in ("json", "csv")
    if fields["rescued_data_column"] is None and (mode == "rescue" or inferred_text):
        fields["rescued_data_column"] = _RESCUED
    watch = mode in ("addNewColumns", "failOnNewColumns")
    return FormatOptions(timezone=fields.pop("time_zone"), watch_new_columns=watch, **fields)


def _evolution_mode(values: Mapping[str, Any]) -> str:
    given: str | None = values["schemaEvolutionMode"]
    if given is None:
        return "none" if values["schemaLocation"] is None else "addNewColumns"
    if given == "addNewColumns" and values["schemaLocation"] is None:
        raise OptionError(
            "schemaEvolutionMode",
            "addNewColumns widens an inferred schema: leave .schema(...) out and set schemaLocation; with a declared "
            "schema, write rescue or failOnNewColumns",
        )
    return given


def _schema(values: Mapping[str, Any]) -> groups.SchemaOptions:
    fields = _group("schema", values)
    types = fields["infer_column_types"]
    return groups.SchemaOptions(
        **{
            **fields,
            "schema_location": _folder(fields["schema_location"]) or None,
            "schema_hints": fields["schema_hints"] or "",
            "schema_sample": fields["schema_sample"] or (),
            "schema_evolution_mode": _evolution_mode(values),
            "infer_column_types": values["fileFormat"] != "csv" if types is None else types,
        }
    )


def _all_urls(values: Mapping[str, Any]) -> list[SecretUrl]:
    """The queues that are read, and the one for errors: never one of those, or each error would be one more message."""
    urls: list[SecretUrl] = list(values["queueUrl"])
    errors: SecretUrl | None = values["errorQueueUrl"]
    if errors is None:
        return urls
    if errors.reveal() in {url.reveal() for url in urls}:
        raise OptionError("errorQueueUrl", f"{errors} is the queue that is read; name another one for errors")
    return [*urls, errors]


def _source_from(urls: Sequence[SecretUrl]) -> str:
    """The queue's name as the source's name, where there is one queue and its name will do."""
    if len(urls) > 1:
        raise OptionError(
            "source", f"is required when {len(urls)} queues are read; write .option('source', 'orders') to name it"
        )
    from queue_source.queues import queue_name  # here: adapters are loaded only when a queue is named

    name = queue_name(urls[0].reveal())
    try:
        return kinds.check_name(name)
    except ValueError as error:
        raise OptionError("source", f"cannot be the queue's name: {error}, or set the option source") from None
