"""Where options are given: to a reader, a sink or a view; their names there and in other sources; how they are read."""

from __future__ import annotations

import difflib
import itertools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from queue_source.errors import OptionError
from queue_source.options import content, reader, sink, types
from queue_source.options.connections import ACCESS_OPTIONS, STORAGE_OPTIONS, StorageOptions, check_shown
from queue_source.options.declaring import OnChange, Option, Values, options_of
from queue_source.options.types import Secret


@dataclass(frozen=True)
class Place:
    """A place where options are set.

    Attributes:
        call: What a user calls before `format("cuesqueue")`.
        sections: Title -> options, in the order of the reference page.
        no_path: Why `load()` takes no path here; "" where there is one.
        others: Options of another place that act here too, with what is in the sections; documented there.
    """

    call: str
    sections: Mapping[str, tuple[Option, ...]]
    no_path: str = ""
    others: tuple[Option, ...] = ()

    @cached_property
    def options(self) -> tuple[Option, ...]:
        return (*itertools.chain.from_iterable(self.sections.values()), *self.others)

    @cached_property
    def by_name(self) -> Mapping[str, Option]:
        return {option.name: option for option in self.options}

    @cached_property
    def by_lower_name(self) -> Mapping[str, Option]:
        return {option.name.lower(): option for option in self.options}


def _sections(*groups: type, access: tuple[Option, ...]) -> dict[str, tuple[Option, ...]]:
    return {**{group.TITLE: options_of(group) for group in groups}, StorageOptions.TITLE: access}  # type: ignore[attr-defined]


def _named(group: type, *names: str) -> tuple[Option, ...]:
    """Return these options of a group."""
    return tuple(option for option in options_of(group) if option.name in names)


# fmt: off
READER = Place(
    "readStream",
    _sections(
        reader.QueueOptions, reader.ReaderOptions, reader.NotificationOptions, reader.BackfillOptions,
        content.ContentOptions, content.FormatOptions, content.SchemaOptions, reader.BatchOptions, reader.LeaseOptions,
        reader.DeduplicationOptions, reader.DeliveryOptions, reader.CleaningOptions, content.LogOptions,
        access=ACCESS_OPTIONS,
    ),
    no_path="a streaming read takes no path: the queue announces what is read; call load() without an argument, and "
    "set allowedPrefixes to limit what may be read; a folder that is to be listed is named in backfillPrefixes",
)
SINK = Place(
    "writeStream",
    _sections(
        sink.SinkOptions, sink.TableOptions, sink.DeltaOptions, sink.LoadOptions, sink.TargetQueue, content.LogOptions,
        access=ACCESS_OPTIONS,
    ),
    others=tuple(
        replace(option, rules=sink.LOADED + option.rules)
        for option in options_of(content.ContentOptions, content.FormatOptions, content.SchemaOptions)
        if option.name not in ("content", "fileFormat")
    ),
)
VIEWS = Place(
    "read",
    _sections(sink.ViewOptions, access=STORAGE_OPTIONS),
    no_path="a view takes no path: the store knows its files; call load() without an argument, and set storeUrl",
)
_CHOOSING = (
    "allowedPrefixes", "allowOverwrites", "pathGlobFilter", "fullPathGlobFilter", "readHiddenFiles", "modifiedAfter",
    "modifiedBefore",
)
LISTING = Place(
    "reconcile",
    {
        reader.NotificationOptions.TITLE: tuple(
            replace(option, required="", rules=()) for option in _named(reader.NotificationOptions, *_CHOOSING)
        ),
        StorageOptions.TITLE: STORAGE_OPTIONS,
    },
)
"""Options of a reader that `cuesqueue reconcile` needs: which objects it would read, and how they are reached."""

_PARSING = (
    *("pathRewrites", "notificationFormat", "trustNotification", "maxObjectsPerMessage"),
    *("uriPath", "bucketPath", "keyPath"),
)
ROUTING = Place(
    "route",
    {
        reader.QueueOptions.TITLE: _named(
            reader.QueueOptions, "receiveThreads", "queueRetryTimeout", "startingOffsets"
        ),
        reader.NotificationOptions.TITLE: _named(reader.NotificationOptions, *_PARSING),
        reader.LeaseOptions.TITLE: _named(reader.LeaseOptions, "visibilityTimeout"),
        reader.DeliveryOptions.TITLE: _named(reader.DeliveryOptions, "failOnDataLoss"),
        StorageOptions.TITLE: ACCESS_OPTIONS,
    },
)
"""Options of a reader that `cuesqueue route` needs: how messages are received and parsed."""
# fmt: on

PLACES = (READER, SINK, VIEWS)


def _refused(on_change: OnChange) -> tuple[str, ...]:
    return tuple(option.name for option in READER.options if option.on_change is on_change)


WHILE_UNFINISHED = (*_refused(OnChange.REFUSED_UNFINISHED), "allowOverwrites")
WHILE_PARTLY_READ = _refused(OnChange.REFUSED_IN_PART)
RECORDED = (*WHILE_UNFINISHED, *WHILE_PARTLY_READ, "allowedPrefixes", "failOnDataLoss")
"""Options of a reader that its pipeline's next start compares with its own, or that its sink goes by."""


# names of options elsewhere: of earlier versions, of Spark, of Auto Loader

ALIASES = {
    "store": "storeUrl",
    "azure.accountKey": "azure.accessKey",
    "azureQueue.accountKey": "azureQueue.accessKey",
    "azureQueue.connectionString": "azureQueue.connectionStringSecret",
    "delimiter": "sep",
    "sourceArchiveDir": "cleanSource.moveDestination",
    "charset": "encoding",
    "inferSchema": "inferColumnTypes",
    "cloudFiles.format": "fileFormat",
    "cloudFiles.connectionString": "azureQueue.connectionStringSecret",
    "cloudFiles.fetchParallelism": "receiveThreads",
    "cloudFiles.region": "aws.region",
    "cloudFiles.awsAccessKey": "aws.accessKeyId",
    "cloudFiles.awsSecretKey": "aws.secretAccessKey",
    "cloudFiles.roleArn": "aws.roleArn",
    "cloudFiles.roleExternalId": "aws.roleExternalId",
    "cloudFiles.projectId": "gcp.project",
    "cloudFiles.clientId": "azure.clientId",
    "cloudFiles.clientSecret": "azure.clientSecret",
    "cloudFiles.tenantId": "azure.tenantId",
    "fileNamePattern": "pathGlobFilter",
}
"""Names of earlier versions and of other sources with the same meaning. Any other `cloudFiles.X` is taken as X."""

_INFERENCE = "schemas are inferred by other rules; leave it out, and name types in schemaHints"
_INFERRING = (
    "samplingRatio", "mergeSchema", "primitivesAsString", "prefersDecimal", "preferDate", "inferTimestamp",
    "dropFieldIfAllNull", "avroSchema",
)  # fmt: skip
_RELAXED = "JSON that needs it is a bad record; leave it out"
_OF_XML = (
    "rowTag", "excludeAttribute", "attributePrefix", "valueTag", "ignoreSurroundingSpaces", "rowValidationXSDPath",
    "ignoreNamespace", "rootTag", "declaration", "arrayElementName", "validateName", "wildcardColName",
)  # fmt: skip
_XML = "XML is read by Spark itself, from references to the objects: see docs/how-to/foreach-batch.md"
_AS_BY_DEFAULT = "as by default in Spark; leave it out"
CANNOT = {
    **dict.fromkeys(_INFERRING, _INFERENCE),
    "enforceSchema": "columns of CSV are matched by the names of the header; leave it out",
    "unescapedQuoteHandling": "a quote in the middle of a field is read as with STOP_AT_DELIMITER; leave it out",
    "charToEscapeQuoteEscaping": "there is no second escape character; leave it out",
    "maxColumns": "a record has up to 20,480 columns, or as many as are declared; leave it out",
    "maxCharsPerColumn": "a whole record is limited; set maxRecordBytes, or leave it out",
    "locale": "numbers and dates are read as in en-US; leave it out",
    "allowComments": _RELAXED,
    "allowUnquotedFieldNames": _RELAXED,
    "allowSingleQuotes": f"single quotes are read, {_AS_BY_DEFAULT}",
    "allowNumericLeadingZeros": _RELAXED,
    "allowNonNumericNumbers": f"NaN and Infinity are read, {_AS_BY_DEFAULT}",
    "allowBackslashEscapingAnyCharacter": _RELAXED,
    "allowUnquotedControlChars": _RELAXED,
    "datetimeRebaseMode": "dates are read as they are written, which is CORRECTED; leave it out",
    "int96RebaseMode": "dates are read as they are written, which is CORRECTED; leave it out",
    "ignoreCorruptFiles": "set onCorruptObject to quarantine or skip",
    "ignoreMissingFiles": "set onMissingObject to quarantine or skip",
    "badRecordsPath": "bad records are in the store, with their causes: see cuesqueue errors list, or the view errors",
    "parserCaseSensitive": "set readerCaseSensitive, or leave it out",
    "skipRows": "lines before the header cannot be left out; set comment to the character that they begin with",
    **dict.fromkeys(_OF_XML, _XML),
    "databricks.serviceCredential": "set the options aws.X, azure.X or gcp.X, or leave it out where the machine has an "
    "account",
    "recursiveFileLookup": "a prefix stands for all that is below it; leave it out",
    "latestFirst": "objects are read in the order in which they were announced or listed; leave it out",
}
"""Options of Spark's own file sources that have no equal here, and what to do instead."""

_QUEUE_BY_URL = "set queueUrl to azurequeue://ACCOUNT/NAME"
_GOOGLE_KEY = "set gcp.credentialsFile to the key's file, or leave it out where the machine has an account"
CLOUD_FILES_CANNOT = {
    "subscription": "write the subscription as a queue: set queueUrl to pubsub://PROJECT/SUBSCRIPTION",
    "client": _GOOGLE_KEY,
    "clientEmail": _GOOGLE_KEY,
    "privateKey": _GOOGLE_KEY,
    "privateKeyId": _GOOGLE_KEY,
    "queueName": _QUEUE_BY_URL,
    "stsEndpoint": "set the environment variable AWS_ENDPOINT_URL_STS for the driver and the executors",
    "maxFileAge": "there it is how long a file is remembered: set deduplicationWindow; maxFileAge without cloudFiles "
    "is Spark's, and leaves out what is older",
}
"""The same for options `cloudFiles.X`, by X."""

_LISTINGS = "each listing is a whole one, at the start and every backfillInterval, and what is known is not read again"
_BY_QUEUE = "notifications are used where queueUrl is set, listings where backfillPrefixes is"
_SET_UP = "a stream makes no queue and no subscription; cuesqueue setup does"
MEANINGLESS = {
    "cloudFiles.useNotifications": _BY_QUEUE,
    "cloudFiles.useManagedFileEvents": _BY_QUEUE,
    "cloudFiles.useIncrementalListing": _LISTINGS,
    "cloudFiles.listOnStart": _LISTINGS,
    "cloudFiles.useStrictGlobber": "globs are strict, as those of Spark's own file source",
    "cloudFiles.validateOptions": "unknown options are always refused",
    "cloudFiles.resourceTag*": _SET_UP,
    "cloudFiles.resourceGroup": _SET_UP,
    "cloudFiles.subscriptionId": _SET_UP,
    "cloudFiles.restrictNotificationSetupToSameAWSAccountId": _SET_UP,
    "cloudFiles.roleSessionName": "the session of a role is named cuesqueue",
    "pendingTimeout": "what is received stays held until it is acknowledged, or its reader ends",
}
"""Accepted with a warning, and why they have no effect. `X*`: all that begin with X."""

_STRICT = "globs are strict: `*` ends at a slash; write ** where it should not, as in /a/**/c/** for /a/*/c/, in \
fullPathGlobFilter"

SPARK_OWN = ("checkpointLocation", "queryName")
"""What Spark hands to a sink, though it is meant for Spark itself (seen with PySpark 4: spark-facts)."""

_CLOUD_FILES = "cloudfiles."
_CANNOT = {name.lower(): instead for name, instead in CANNOT.items()}
_CLOUD_FILES_CANNOT = {name.lower(): why for name, why in CLOUD_FILES_CANNOT.items()}
_ALIASES = {alias.lower(): name.lower() for alias, name in ALIASES.items()}
_MEANINGLESS = {name.lower(): why for name, why in MEANINGLESS.items()}
_MEANINGLESS_GROUPS = tuple(name.removesuffix("*") for name in _MEANINGLESS if name.endswith("*"))
_SPARK_OWN = {name.lower() for name in SPARK_OWN}


def read(place: Place, options: Mapping[str, str]) -> Values:
    """Return the values of the options that are set, each by its own name and checked beside the others.

    Raises OptionError, which names the option and the next step.
    """
    texts = given_texts(place, options)
    parsed: dict[str, Any] = {}
    for option in place.options:
        if option.name not in texts:
            continue
        try:
            value = parsed[option.name] = option.type.parse(texts[option.name])
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Secret):
                    # a reference that leads nowhere is reported with the option's name, before anything starts
                    item.reveal()
        except ValueError as error:
            # "from None": the chain of causes could show the value of a secret
            raise OptionError(option.name, str(error)) from None
    values = Values(place.by_name, parsed)
    values.check(place.call)
    return values


def given_texts(place: Place, options: Mapping[str, str]) -> dict[str, str]:
    """Return option name -> text, for the options that are set. Raises OptionError."""
    texts: dict[str, tuple[str, str]] = {}  # own name -> (name as written, text)
    for written, text in options.items():
        option = _resolve(place, written, text)
        if option is None:
            continue
        if option.type in (types.SECRET, types.STORE_URL):
            check_shown(written, option.name, text, secret=option.type is types.SECRET)
        earlier = texts.setdefault(option.name, (written, text))
        if earlier[1] != text:
            raise OptionError(option.name, f"is given twice, as {earlier[0]!r} and as {written!r}; keep one of them")
    return {name: text for name, (_, text) in texts.items()}


def _resolve(place: Place, written: str, text: str) -> Option | None:
    """Return the option with a name as written; None for a name that is accepted without a meaning here."""
    name = written.lower()
    if place is SINK and name in _SPARK_OWN:
        return None
    if place is READER:
        group = next((f"{group}*" for group in _MEANINGLESS_GROUPS if name.startswith(group)), name)
        if group == "cloudfiles.usestrictglobber" and text.strip().lower() == "false":
            raise OptionError(written, f"cannot be {text.strip()}: {_STRICT}")
        if why := _MEANINGLESS.get(group):
            warnings.warn(f"option {written!r} has no meaning: {why}; leave it out", UserWarning, stacklevel=2)
            return None
    name = _ALIASES.get(name, name)
    if name.startswith(_CLOUD_FILES):
        name = name.removeprefix(_CLOUD_FILES)
        if name in _CLOUD_FILES_CANNOT:
            raise OptionError(written, f"has no equivalent here: {_CLOUD_FILES_CANNOT[name]}")
    if name in place.by_lower_name:
        return place.by_lower_name[name]
    if place is READER and name in _CANNOT:
        raise OptionError(written, f"has no equivalent here: {_CANNOT[name]}")
    if name == "path" and place.no_path:
        raise OptionError(written, place.no_path)
    if other := next((other for other in PLACES if name in other.by_lower_name), None):
        raise OptionError(written, f"belongs to {other.call}, not to {place.call}; leave it out here")
    raise OptionError(written, f"is unknown to {place.call}; {nearest(name, place.options)}")


def nearest(name: str, options: Iterable[Option]) -> str:
    """Return the next step for an unknown option: the name of the option that it may be meant for."""
    names = {option.name.lower(): option.name for option in options}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"did you mean {names[close[0]]!r}?" if close else "see docs/reference/options.md for all options"
