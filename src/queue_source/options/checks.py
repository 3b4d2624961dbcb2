"""What options must not be together, or not be without: each check raises an OptionError with the next step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from queue_source.errors import OptionError
from queue_source.options import groups
from queue_source.options.tables import READER_OPTIONS
from queue_source.options.units import format_duration
from queue_source.options.values import missing

_TARGETS = ("table", "path", "queueUrl")


def check_content(values: Mapping[str, Any]) -> None:
    """Objects need a format; messages may have one."""
    option = next(option for option in READER_OPTIONS if option.name == "fileFormat")
    if values["content"] == "object" and values["fileFormat"] is None:
        raise OptionError("fileFormat", missing("reader", option))
    if values["content"] == "message" and values["fileFormat"] == "binaryFile":
        raise OptionError(
            "fileFormat", "binaryFile is for objects; leave it out, and the column `value` is the message"
        )
    if values["content"] == "message" and values["partitionColumns"]:
        raise OptionError("partitionColumns", "come from paths of objects, which messages do not have; leave it out")


def check_paths(options: groups.NotificationOptions) -> None:
    """Form `json` says where its objects stand, and no other form does."""
    paths = {"uriPath": options.uri_path, "bucketPath": options.bucket_path, "keyPath": options.key_path}
    given = [name for name, path in paths.items() if path is not None]
    if options.notification_format != "json":
        if given:
            raise OptionError(given[0], "acts only on notificationFormat json; set that too, or leave it out")
    elif given not in (["uriPath"], ["bucketPath", "keyPath"]):
        raise OptionError("notificationFormat", "json needs the option uriPath, or bucketPath and keyPath together")


def check_shares(options: groups.QueueOptions) -> None:
    kind, _, numbers = options.queue_shares.partition(":")
    if kind == "percentage" and len(numbers.split(",")) != len(options.urls):
        raise OptionError(
            "queueShares",
            f"gives {len(numbers.split(','))} numbers for {len(options.urls)} queue(s); write one a queue",
        )


def check_times(options: groups.ReaderOptions) -> None:
    """Times that contradict each other lose leases or deduplication: refused before anything is received."""
    leases = options.leases
    chain = (
        ("heartbeat (a quarter of commitTimeout)", "commitTimeout", leases.heartbeat),
        ("visibilityTimeout", "visibilityTimeout", leases.visibility_timeout),
        ("deduplicationWindow", "deduplicationWindow", options.deduplication.deduplication_window),
    )
    for (shorter, lower, less), (_, higher, more) in itertools.pairwise(chain):
        if less > more:
            rule = " <= ".join(f"{label} = {format_duration(value)}" for label, _, value in chain)
            raise OptionError(
                higher,
                f"the times must rise, but these do not: {rule}; {shorter} is not below {higher}: "
                f"raise {higher} or lower {lower}",
            )
    wait = options.queue.wait_time
    if wait >= leases.visibility_timeout:  # deadlines count from the start of the receive request
        raise OptionError(
            "waitTime",
            f"waitTime = {format_duration(wait)} is not below visibilityTimeout = "
            f"{format_duration(leases.visibility_timeout)}: messages could be lost to others while one receive waits; "
            "lower waitTime or raise visibilityTimeout",
        )


def check_declared(options: groups.SchemaOptions) -> None:
    """Refuse what acts only on inferred schemas beside a declared one."""
    for name, given in (("schemaLocation", options.schema_location), ("schemaHints", options.schema_hints)):
        if given:
            raise OptionError(
                name,
                "is for schemas that are inferred, and this one is declared with .schema(...); leave one of them out",
            )


def check_target(values: Mapping[str, Any]) -> None:
    """Rows go to one place; the path of a table is its warehouse."""
    given = [name for name in _TARGETS if values[name] is not None]
    if not given:
        raise OptionError(
            "path",
            "is required: name the folder of the data files, here or in start(), or an Iceberg table in option "
            "'table', or the queue that receives the rows in option 'queueUrl'; write .option('path', "
            "'s3://lake/orders') after writeStream",
        )
    if len(given) > 1 and given != ["table", "path"]:
        raise OptionError(given[1], f"cannot be given beside {given[0]!r}: rows go to one place; leave one of them out")


def check_as_of(values: Mapping[str, Any]) -> None:
    """Only what is published keeps its past; the other tables tell how things stand."""
    given = [name for name in ("asOf", "asOfAttempt") if values[name] is not None]
    if len(given) == 2:
        raise OptionError("asOfAttempt", "and asOf both say which past is meant; keep one of them")
    if given and values["view"] not in ("data", "splits"):
        raise OptionError(given[0], f"acts only on the views data and splits, not on {values['view']}; leave it out")
