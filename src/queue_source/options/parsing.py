"""Spark's string maps become frozen options, or one `OptionError` that names the option and the next step.

Runs on the driver, each time Spark builds a reader, a writer or a view. No pydantic here: one table has to give the
parsing, the defaults, the refusals and the documentation, and `errors.OptionError` the texts; a model would be a
second list of the same names. Executors unpickle `groups`, which needs the standard library only.
"""

from __future__ import annotations

import difflib
import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queue_source.errors import OptionError
from queue_source.options import groups, kinds
from queue_source.options.connections import check_keys, connections
from queue_source.options.secrets import Secret, SecretUrl
from queue_source.options.table import (
    ALIASES,
    CANNOT,
    MEANINGLESS,
    READER_OPTIONS,
    SINK_OPTIONS,
    SPARK_OWN,
    VIEW_OPTIONS,
    Option,
)
from queue_source.options.units import format_duration

if TYPE_CHECKING:
    from queue_source.content.azure import AzureOptions
    from queue_source.content.files import StorageOptions
    from queue_source.content.formats import FormatOptions

_CLOUD_FILES = "cloudfiles."
_RESCUED = "_rescued_data"
_CATALOG = "catalog."
_CANNOT = {name.lower(): instead for name, instead in CANNOT.items()}
_ALIASES = {alias.lower(): name for alias, name in ALIASES.items()}
_MEANINGLESS = {name.lower() for name in MEANINGLESS}
_SPARK_OWN = {name.lower() for name in SPARK_OWN}
_PLACES = {"reader": READER_OPTIONS, "sink": SINK_OPTIONS, "views": VIEW_OPTIONS}
_CALLS = {"reader": "readStream", "sink": "writeStream", "views": "read"}
_NO_PATH = {
    "reader": "a streaming read takes no path: the queue announces what is read; call load() without an argument, "
    "and set allowedPrefixes to limit what may be read",
    "views": "a view takes no path: the store knows its files; call load() without an argument, and set store",
}
_NO_LISTING = "the queue announces what is read, nothing is listed; publish what is there with `cuesqueue publish`"
_NO_EQUAL = {"includeexistingfiles": _NO_LISTING, "backfillinterval": _NO_LISTING}


def parse_reader_options(options: Mapping[str, str]) -> groups.ReaderOptions:
    """The options of `spark.readStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = _read("reader", options)
    urls: tuple[SecretUrl, ...] = values["queueUrl"]
    source = values["source"] or _source_from(urls)
    parsed = groups.ReaderOptions(
        source=source,
        pipeline=values["pipeline"] or source,
        store=values["store"],
        queue=groups.QueueOptions(
            urls=urls, connections=connections(_all_urls(values), values), **_group(READER_OPTIONS, "queue", values)
        ),
        notifications=groups.NotificationOptions(**_group(READER_OPTIONS, "notifications", values)),
        batches=groups.BatchOptions(**_group(READER_OPTIONS, "batches", values)),
        leases=groups.LeaseOptions(**_group(READER_OPTIONS, "leases", values)),
        deduplication=groups.DeduplicationOptions(**_group(READER_OPTIONS, "deduplication", values)),
        delivery=groups.DeliveryOptions(**_group(READER_OPTIONS, "delivery", values)),
        content=groups.ContentOptions(
            **_group(READER_OPTIONS, "content", values),
            format=_format(values),
            storage=_storage(values),
            schema=_schema(values),
        ),
    )
    _check_content(values)
    _check_paths(parsed.notifications)
    _check_shares(parsed.queue)
    _check_times(parsed)
    return parsed


def parse_sink_options(options: Mapping[str, str]) -> groups.SinkOptions:
    """The options of `df.writeStream.format("cuesqueue")`; names in any case. Raises OptionError."""
    of_catalog = {name: text for name, text in options.items() if name.lower().startswith(_CATALOG)}
    values = _read("sink", {name: text for name, text in options.items() if name not in of_catalog})
    _check_target(values)
    table = _table(values, of_catalog)
    url: SecretUrl | None = values["queueUrl"]
    return groups.SinkOptions(
        pipelines=values["pipeline"],
        store=values["store"],
        path="" if table else _folder(values["path"]),
        compression=values["compression"],
        storage=_storage(values),
        table=table,
        queue=None if url is None else groups.TargetQueue(url, connections([url], values)),
    )


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
        properties={name[len(_CATALOG) :].lower(): Secret(text) for name, text in of_catalog.items()},
        warehouse=warehouse or path or None,
        partition_by=values["partitionBy"],
    )


def parse_view_options(options: Mapping[str, str]) -> groups.ViewOptions:
    """The options of `spark.read.format("cuesqueue")`; names in any case. Raises OptionError."""
    values = _read("views", options)
    _check_as_of(values)
    return groups.ViewOptions(
        view=values["view"],
        store=values["store"],
        pipeline=values["pipeline"],
        source=values["source"],
        as_of=values["asOf"],
        as_of_attempt=values["asOfAttempt"],
        storage=_storage(values),
    )


def _check_as_of(values: Mapping[str, Any]) -> None:
    """Only what is published keeps its past; the other tables tell how things stand."""
    given = [name for name in ("asOf", "asOfAttempt") if values[name] is not None]
    if len(given) == 2:
        raise OptionError("asOfAttempt", "and asOf both say which past is meant; keep one of them")
    if given and values["view"] not in ("data", "splits"):
        raise OptionError(given[0], f"acts only on the views data and splits, not on {values['view']}; leave it out")


def _read(place: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Every option of the place by its canonical name, defaults filled in."""
    table = {option.name.lower(): option for option in _PLACES[place]}
    given: dict[str, tuple[str, str]] = {}  # canonical name -> (name as written, text)
    for written, text in options.items():
        option = _resolve(place, table, written)
        if option is None:
            continue
        earlier = given.setdefault(option.name, (written, text))
        if earlier[1] != text:
            raise OptionError(option.name, f"is given twice, as {earlier[0]!r} and as {written!r}; keep one of them")
    values: dict[str, Any] = {}
    for option in table.values():
        if option.required and option.name not in given:
            raise OptionError(option.name, _missing(place, option))
        text_or_none = given[option.name][1] if option.name in given else option.default
        values[option.name] = None if text_or_none is None else _parse(option, text_or_none)
    for name in given:
        _check_format(table[name.lower()], values)
    if place == "reader" and values["minPartitions"] is None:
        values["minPartitions"] = os.cpu_count() or 1
    return values


def _resolve(place: str, table: Mapping[str, Option], written: str) -> Option | None:
    """The option that a name as written means; None for what is accepted without a meaning here."""
    name = written.lower()
    if place == "sink" and name in _SPARK_OWN:
        return None
    if place == "reader" and name in _MEANINGLESS:
        warnings.warn(
            f"option {written!r} has no meaning for cuesqueue, which always works by notifications; leave it out",
            UserWarning,
            stacklevel=2,
        )
        return None
    name = _ALIASES.get(name, name)
    if name.startswith(_CLOUD_FILES):
        name = name[len(_CLOUD_FILES) :]
        if name in _NO_EQUAL:
            raise OptionError(written, f"has no equal here: {_NO_EQUAL[name]}")
    option = table.get(name.lower())
    if option is None and place == "reader" and name.lower() in _CANNOT:
        raise OptionError(written, f"has no equal here: {_CANNOT[name.lower()]}")
    if option is None:
        raise OptionError(written, _unknown(place, table, name))
    return option


def _unknown(place: str, table: Mapping[str, Option], name: str) -> str:
    if name == "path" and place in _NO_PATH:
        return _NO_PATH[place]
    for other, options in _PLACES.items():
        if any(option.name.lower() == name for option in options):
            return f"belongs to {_CALLS[other]}, not to {_CALLS[place]}; leave it out here"
    close = difflib.get_close_matches(name, list(table), n=1)
    hint = f"did you mean {table[close[0]].name!r}?" if close else "see docs/reference/options.md for all options"
    return f"is unknown to {_CALLS[place]}; {hint}"


def _missing(place: str, option: Option) -> str:
    hint = {
        "fileFormat": "the objects need a format",
        "pipeline": "name the pipeline whose progress is published with the rows, as in the reader's option pipeline",
    }.get(option.name, "name the queue to read")
    return f"is required: {hint}; write .option({option.name!r}, {option.example!r}) after {_CALLS[place]}"


def _parse(option: Option, text: str) -> Any:
    try:
        return option.kind.parse(text)
    except ValueError as error:
        # "from None": the chain of causes could show the value of a secret
        raise OptionError(option.name, str(error)) from None


def _check_format(option: Option, values: Mapping[str, Any]) -> None:
    """An option of one file format does nothing with another: say so instead of ignoring it."""
    if option.formats and values["fileFormat"] not in option.formats:
        raise OptionError(
            option.name,
            f"acts only on fileFormat {' and '.join(option.formats)}, but fileFormat is {values['fileFormat']}; "
            "leave it out",
        )


def _group(table: Sequence[Option], group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {option.field: values[option.name] for option in table if option.group == group}


def _check_content(values: Mapping[str, Any]) -> None:
    """Objects need a format; messages may have one."""
    option = next(option for option in READER_OPTIONS if option.name == "fileFormat")
    if values["content"] == "object" and values["fileFormat"] is None:
        raise OptionError("fileFormat", _missing("reader", option))
    if values["content"] == "message" and values["fileFormat"] == "binaryFile":
        raise OptionError(
            "fileFormat", "binaryFile is for objects; leave it out, and the column `value` is the message"
        )
    if values["content"] == "message" and values["partitionColumns"]:
        raise OptionError("partitionColumns", "come from paths of objects, which messages do not have; leave it out")


def _check_paths(options: groups.NotificationOptions) -> None:
    """Form `json` says where its objects stand, and no other form does."""
    paths = {"uriPath": options.uri_path, "bucketPath": options.bucket_path, "keyPath": options.key_path}
    given = [name for name, path in paths.items() if path is not None]
    if options.notification_format != "json":
        if given:
            raise OptionError(given[0], "acts only on notificationFormat json; set that too, or leave it out")
    elif given not in (["uriPath"], ["bucketPath", "keyPath"]):
        raise OptionError("notificationFormat", "json needs the option uriPath, or bucketPath and keyPath together")


_TARGETS = ("table", "path", "queueUrl")


def _check_target(values: Mapping[str, Any]) -> None:
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


def _check_shares(options: groups.QueueOptions) -> None:
    kind, _, numbers = options.queue_shares.partition(":")
    if kind == "percentage" and len(numbers.split(",")) != len(options.urls):
        raise OptionError(
            "queueShares",
            f"gives {len(numbers.split(','))} numbers for {len(options.urls)} queue(s); write one a queue",
        )


def _format(values: Mapping[str, Any]) -> FormatOptions | None:
    if values["fileFormat"] is None:
        return None
    from queue_source.content.formats import FormatOptions  # here: it loads pyarrow, which the commands can do without

    fields = _group(READER_OPTIONS, "format", values)
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


def check_declared(options: groups.SchemaOptions) -> None:
    """Refuse what acts only on inferred schemas beside a declared one."""
    for name, given in (("schemaLocation", options.schema_location), ("schemaHints", options.schema_hints)):
        if given:
            raise OptionError(
                name,
                "is for schemas that are inferred, and this one is declared with .schema(...); leave one of them out",
            )


def _schema(values: Mapping[str, Any]) -> groups.SchemaOptions:
    fields = _group(READER_OPTIONS, "schema", values)
    location: str | None = fields["schema_location"]
    if location is not None:  # executors may stand in another folder
        location = (location if "://" in location else str(Path(location).absolute())).rstrip("/")
    types = fields["infer_column_types"]
    return groups.SchemaOptions(
        **{
            **fields,
            "schema_location": location,
            "schema_hints": fields["schema_hints"] or "",
            "schema_sample": fields["schema_sample"] or (),
            "schema_evolution_mode": _evolution_mode(values),
            "infer_column_types": values["fileFormat"] != "csv" if types is None else types,
        }
    )


def _storage(values: Mapping[str, Any]) -> StorageOptions:
    """`s3.X`, else `aws.X`; a key without its other half is refused, and a role or a profile beside keys."""
    from queue_source.content.azure import AzureOptions
    from queue_source.content.files import StorageOptions

    def given(name: str) -> Any:
        return values[f"s3.{name}"] or values[f"aws.{name}"]

    keys = {name: given(name) for name in ("accessKeyId", "secretAccessKey")}
    check_keys("aws", keys)
    if given("roleArn") and any(keys.values()):
        raise OptionError(
            "s3.roleArn" if values["s3.roleArn"] else "aws.roleArn",
            "cannot be assumed for object storage with keys from options; leave the keys to the SDK's own chain, or "
            "name the role of the queue alone, with sqs.roleArn",
        )
    # the narrower name wins: s3.profile over the keys of aws., keys of s3. over aws.profile
    profile = values["s3.profile"] or values["aws.profile"]
    own = values["s3.profile"], values["s3.accessKeyId"]
    if profile and any(keys.values()) and own[0] is None and own[1] is not None:
        profile = None
    if profile and (any(keys.values()) or given("roleArn")):
        name = "s3.profile" if values["s3.profile"] else "aws.profile"
        other = "keys" if any(keys.values()) else "roleArn"
        raise OptionError(name, f"and {other} contradict each other for object storage; leave one of them out")
    revealed = {name: None if key is None else key.reveal() for name, key in keys.items()}
    return StorageOptions(
        endpoint=given("endpointUrl"),
        region=given("region"),
        access_key=revealed["accessKeyId"],
        secret_key=revealed["secretAccessKey"],
        role_arn=given("roleArn"),
        external_id=given("roleExternalId"),
        profile=profile,
        azure=_azure(AzureOptions, values),
    )


def _azure(build: type[AzureOptions], values: Mapping[str, Any]) -> AzureOptions:
    """A key and a token exclude each other, and a secret needs all of its principal."""
    if values["azure.accountKey"] and values["azure.sasToken"]:
        raise OptionError("azure.sasToken", "and azure.accountKey exclude each other; leave one of them out")
    if values["azure.clientSecret"] and not (values["azure.clientId"] and values["azure.tenantId"]):
        raise OptionError("azure.clientSecret", "needs azure.clientId and azure.tenantId; set all three")

    def revealed(name: str) -> str | None:
        secret = values[f"azure.{name}"]
        return None if secret is None else str(secret.reveal())

    return build(
        account_name=values["azure.accountName"],
        account_key=revealed("accountKey"),
        sas_token=revealed("sasToken"),
        tenant_id=values["azure.tenantId"],
        client_id=values["azure.clientId"],
        client_secret=revealed("clientSecret"),
        endpoint=values["azure.endpointUrl"],
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


def _check_times(options: groups.ReaderOptions) -> None:
    """Times that contradict each other lose leases or deduplication: refused before anything is received."""
    leases = options.leases
    chain = (
        ("heartbeat (a quarter of commitTimeout)", "commitTimeout", leases.heartbeat),
        ("pendingTimeout", "pendingTimeout", leases.pending_timeout),
        ("visibilityTimeout", "visibilityTimeout", leases.visibility_timeout),
        ("deduplicationWindow", "deduplicationWindow", options.deduplication.deduplication_window),
    )
    for (shorter, lower, less), (_, higher, more) in itertools.pairwise(chain):
        if less >= more:
            rule = " < ".join(f"{label} = {format_duration(value)}" for label, _, value in chain)
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
