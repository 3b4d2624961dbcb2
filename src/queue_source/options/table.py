"""The one table of all options: names, groups, kinds, defaults and help texts. The reference pages are made from it.

A new option is one entry here and one field of its group in `groups.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from queue_source.options import kinds
from queue_source.options.kinds import Kind, choice, number
from shard_store.semantics import Semantics

NOTIFICATION_FORMS = ("uri", "s3", "minio", "sns", "eventbridge", "gcs", "json")
"""The notification forms that can be forced with `notificationFormat`; `auto` finds out by looking."""

FILE_FORMATS = ("json", "csv", "parquet", "text", "orc", "avro", "binaryFile")
VIEWS = ("data", "splits", "shards", "attempts", "errors", "files_state")
DEFAULT_WINDOW = "30 days"
DEFAULT_ALLOWED_PREFIXES = "s3://,gs://,abfss://"
_RECORDS = ("json", "csv")
_LINES = ("json", "csv", "text")
_INFERRED = ("json", "csv", "parquet", "orc", "avro")

_FORM = choice("auto", *NOTIFICATION_FORMS)
_FILE_FORMAT = choice(*FILE_FORMATS, refused=("xml",))
_BAD_OBJECT = choice("quarantine", "fail", "skip")
_SEMANTICS = choice(*(semantics.value for semantics in Semantics))


def snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is text as a user would write it; None: there is none, or `default_note` says what.

    `formats`: the file formats that it acts on; with another it is refused, since it would do nothing.
    """

    name: str
    group: str
    kind: Kind
    default: str | None
    help: str
    example: str
    default_note: str = ""
    required: bool = False
    formats: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name of its field in the group: snake_case, without the prefix."""
        return snake_case(self.name.rpartition(".")[2].replace("NTZ", "Ntz"))


_STORE = Option(
    "store", "names", kinds.STORE_URL, "sqlite:///cuesqueue.db",
    "Database of shards, snapshots and attempts, as an SQLAlchemy URL.", "postgresql+psycopg://user:password@host/db",
)  # fmt: skip

_STORAGE = (
    Option("aws.region", "storage", kinds.GIVEN_TEXT, None, "AWS region.", "eu-central-1", "the SDK's own chain"),
    Option(
        "aws.endpointUrl", "storage", kinds.GIVEN_TEXT, None,
        "Address of a service that speaks S3, such as MinIO.", "http://localhost:9000", "AWS",
    ),
    Option(
        "aws.accessKeyId", "storage", kinds.SECRET, None,
        "Access key; only together with `aws.secretAccessKey`.", "", "the SDK's own chain",
    ),
    Option(
        "aws.secretAccessKey", "storage", kinds.SECRET, None,
        "Secret key; only together with `aws.accessKeyId`.", "", "the SDK's own chain",
    ),
    Option(
        "s3.region", "storage", kinds.GIVEN_TEXT, None,
        "As `aws.region`, for object storage only.", "eu-central-1", "`aws.region`",
    ),
    Option(
        "s3.endpointUrl", "storage", kinds.GIVEN_TEXT, None,
        "As `aws.endpointUrl`, for object storage only.", "http://localhost:9000", "`aws.endpointUrl`",
    ),
    Option(
        "s3.accessKeyId", "storage", kinds.SECRET, None,
        "As `aws.accessKeyId`, for object storage only.", "", "`aws.accessKeyId`",
    ),
    Option(
        "s3.secretAccessKey", "storage", kinds.SECRET, None,
        "As `aws.secretAccessKey`, for object storage only.", "", "`aws.secretAccessKey`",
    ),
    Option(
        "aws.roleArn", "storage", kinds.GIVEN_TEXT, None,
        "Role to assume, and to assume again before its credentials end.", "arn:aws:iam::123456789012:role/reader",
        "none",
    ),
    Option(
        "aws.roleExternalId", "storage", kinds.GIVEN_TEXT, None, "External id that the role asks for.", "reader-1",
        "none",
    ),
    Option(
        "s3.roleArn", "storage", kinds.GIVEN_TEXT, None,
        "As `aws.roleArn`, for object storage only; not together with keys.",
        "arn:aws:iam::123456789012:role/files", "`aws.roleArn`",
    ),
    Option(
        "s3.roleExternalId", "storage", kinds.GIVEN_TEXT, None, "As `aws.roleExternalId`, for object storage only.",
        "files-1", "`aws.roleExternalId`",
    ),
    Option(
        "aws.profile", "storage", kinds.GIVEN_TEXT, None,
        "Profile of the AWS configuration files, of any kind that botocore knows (needs the extra `sqs`); not together "
        "with keys.", "reader", "the SDK's own chain",
    ),
    Option(
        "s3.profile", "storage", kinds.GIVEN_TEXT, None,
        "As `aws.profile`, for object storage only; a role that is assumed for objects stands in the profile.", "files",
        "`aws.profile`",
    ),
    Option(
        "azure.accountName", "storage", kinds.GIVEN_TEXT, None,
        "Storage account of `az://CONTAINER/PATH`, and of the credentials; "
        "`abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH` names its own.", "lake", "the URI's",
    ),
    Option("azure.accountKey", "storage", kinds.SECRET, None, "Key of the account.", "", "Azure's default credential"),
    Option("azure.sasToken", "storage", kinds.SECRET, None, "SAS token, instead of a key.", "", "none"),
    Option(
        "azure.tenantId", "storage", kinds.GIVEN_TEXT, None, "Tenant of a service principal.",
        "00000000-0000-0000-0000-000000000000", "none",
    ),
    Option(
        "azure.clientId", "storage", kinds.GIVEN_TEXT, None,
        "Service principal (with `azure.tenantId` and `azure.clientSecret`), or a managed identity.",
        "00000000-0000-0000-0000-000000000000", "none",
    ),
    Option("azure.clientSecret", "storage", kinds.SECRET, None, "Secret of the service principal.", "", "none"),
    Option(
        "azure.endpointUrl", "storage", kinds.GIVEN_TEXT, None, "Address of an emulator, such as Azurite.",
        "http://localhost:10000", "Azure",
    ),
)  # fmt: skip

_QUEUE_ACCESS = (
    *(
        Option(
            f"sqs.{name}", "storage", kind, None, f"As `aws.{name}`, for Amazon SQS only.", example, f"`aws.{name}`",
        )
        for name, kind, example in (
            ("region", kinds.GIVEN_TEXT, "eu-central-1"),
            ("endpointUrl", kinds.GIVEN_TEXT, "http://localhost:4566"),
            ("accessKeyId", kinds.SECRET, ""),
            ("secretAccessKey", kinds.SECRET, ""),
            ("roleArn", kinds.GIVEN_TEXT, "arn:aws:iam::123456789012:role/queues"),
            ("roleExternalId", kinds.GIVEN_TEXT, "queues-1"),
        )
    ),
    Option(
        "sqs.profile", "storage", kinds.GIVEN_TEXT, None,
        "As `aws.profile`, for Amazon SQS only.", "queues", "`aws.profile`",
    ),
    Option(
        "gcp.project", "storage", kinds.GIVEN_TEXT, None,
        "Project of Pub/Sub subscriptions whose URL names none (`pubsub:///SUBSCRIPTION`).", "my-project", "the URL's",
    ),
    Option(
        "gcp.credentialsFile", "storage", kinds.GIVEN_TEXT, None,
        "Key file of a service account, for Pub/Sub; for objects, set `GOOGLE_APPLICATION_CREDENTIALS` on all "
        "machines.",
        "/etc/keys/reader.json", "the SDK's own chain",
    ),
    Option(
        "gcp.endpoint", "storage", kinds.GIVEN_TEXT, None,
        "Where Pub/Sub is: `HOST:PORT` of a regional endpoint, or `http://HOST:PORT` of an emulator.",
        "europe-west3-pubsub.googleapis.com:443", "`PUBSUB_EMULATOR_HOST`, else Google's own",
    ),
)  # fmt: skip

READER_OPTIONS = (
    Option(
        "queueUrl", "names", kinds.QUEUE_URLS, None,
        "The queue to read. A comma that precedes the next URL parts several.",
        "sql+sqlite:///jobs.db?queue=files", required=True,
    ),
    _STORE,
    Option(
        "source", "names", kinds.NAME, None,
        "Name of the deduplication domain: an object is published once for each source.", "orders", "the queue's name",
    ),
    Option(
        "pipeline", "names", kinds.NAME, None,
        "Name of this running query. Queries that share a source have different pipelines.",
        "orders-eu", "the source's name",
    ),
    Option(
        "notificationFormat", "notifications", _FORM, "auto",
        "Form of the notifications; `auto` finds it by looking at each message.", "s3",
    ),
    Option(
        "allowedPrefixes", "notifications", kinds.PREFIXES, DEFAULT_ALLOWED_PREFIXES,
        "Only URIs that start with one of these are read; all others go to the error table. Beyond the bucket's name "
        "it is a comparison of text: end a folder with `/`. Local files are read only when named here.",
        "s3://landing/,file:///data/in/",
    ),
    Option(
        "allowOverwrites", "notifications", kinds.BOOLEAN, "false",
        "Read an object again when it was overwritten: its version, ETag or generation becomes part of its identity.",
        "true",
    ),
    Option(
        "pathGlobFilter", "notifications", kinds.GLOB, None,
        "Only objects whose name (the last part of the path) matches are read; others are counted as ignored.",
        "*.{csv,csv.gz}", "none",
    ),
    Option(
        "tagFilter", "notifications", kinds.TAG_FILTER, None,
        "Only messages whose tag matches one of these are read (`*` is one word, `#` any number of them); others are "
        "acknowledged and counted as ignored.", "orders.#,returns.*", "none",
    ),
    Option(
        "messageIdentity", "notifications", choice("required", "content"), "required",
        "With `content` = `message`, of messages that have no id (RabbitMQ's property `message_id`): into the error "
        "table, or `content`: those that are equal in everything are one.", "content",
    ),
    Option(
        "uriPath", "notifications", kinds.GIVEN_TEXT, None,
        "Where the URI stands in notifications of form `json`: names parted by dots; lists are walked.",
        "files.uri", "none",
    ),
    Option(
        "bucketPath", "notifications", kinds.GIVEN_TEXT, None,
        "The same for the bucket; with a scheme, as in `gs://b`, if it is not one of S3. Needs `keyPath`.",
        "detail.bucket", "none",
    ),
    Option(
        "keyPath", "notifications", kinds.GIVEN_TEXT, None, "The same for the key. Needs `bucketPath`.",
        "detail.files.key", "none",
    ),
    Option(
        "content", "content", choice("object", "message"), "object",
        "What is read: the objects that messages announce, or the messages themselves.", "message",
    ),
    Option(
        "fileFormat", "format", _FILE_FORMAT, None,
        "Format of the objects, or of messages; `json` is one record a line. Messages without it are read as they are.",
        "json", "required for objects",
    ),
    Option(
        "onMissingObject", "content", _BAD_OBJECT, "quarantine",
        "What happens with an object that is not there: into the error table, fail the query, or leave it out.", "skip",
    ),
    Option(
        "onCorruptObject", "content", _BAD_OBJECT, "quarantine",
        "The same for an object that cannot be read, is truncated or in another format.", "fail",
    ),
    Option(
        "timeZone", "format", kinds.TIME_ZONE, "UTC",
        "Zone of timestamps that are written without one.", "Europe/Berlin", formats=_RECORDS,
    ),
    Option(
        "header", "format", kinds.BOOLEAN, "false", "The first line holds the columns' names.", "true",
        formats=("csv",),
    ),
    Option("sep", "format", kinds.SEPARATOR, ",", "Character between two fields.", ";", formats=("csv",)),
    Option(
        "quote", "format", kinds.CHARACTER, '"', "Character around fields that contain separators.", "'",
        formats=("csv",),
    ),
    Option(
        "escape", "format", kinds.CHARACTER, "\\", "Character before a quote within a quoted field.", '"',
        formats=("csv",),
    ),
    Option("nullValue", "format", kinds.TEXT, "", "The text that stands for null.", "NULL", formats=("csv",)),
    Option(
        "emptyValue", "format", kinds.TEXT, "", "The text that an empty quoted field stands for.", "-",
        formats=("csv",),
    ),
    Option(
        "comment", "format", kinds.CHARACTER, "", "Lines that begin with this character are passed over.", "#",
        formats=("csv",),
    ),
    Option(
        "ignoreLeadingWhiteSpace", "format", kinds.BOOLEAN, "false", "Spaces before a field are no part of it.", "true",
        formats=("csv",),
    ),
    Option(
        "ignoreTrailingWhiteSpace", "format", kinds.BOOLEAN, "false", "Spaces behind a field are no part of it.",
        "true", formats=("csv",),
    ),
    Option("nanValue", "format", kinds.TEXT, "NaN", "The text that is not a number.", "-", formats=("csv",)),
    Option("positiveInf", "format", kinds.TEXT, "Inf", "The text of positive infinity.", "+oo", formats=("csv",)),
    Option("negativeInf", "format", kinds.TEXT, "-Inf", "The text of negative infinity.", "-oo", formats=("csv",)),
    Option(
        "multiLine", "format", kinds.BOOLEAN, "false",
        "json: an object is one document, an array of records or one record. csv: quoted fields may hold line ends. "
        "Such objects are not cut into ranges.", "true", formats=_RECORDS,
    ),
    Option(
        "wholeText", "format", kinds.BOOLEAN, "false", "An object is one row.", "true", formats=("text",),
    ),
    Option(
        "lineSep", "format", kinds.TEXT, None, "What ends a record.", ";", r"`\n`, `\r\n` and `\r`", formats=_LINES,
    ),
    Option(
        "encoding", "format", kinds.ENCODING, "UTF-8",
        "Character set of the objects. Only UTF-8 is cut into ranges.", "ISO-8859-1", formats=_LINES,
    ),
    Option(
        "dateFormat", "format", kinds.GIVEN_TEXT, None, "Form of dates, in Spark's letters for numbers.", "dd.MM.yyyy",
        "`yyyy-MM-dd` and what Spark casts", formats=_RECORDS,
    ),
    Option(
        "timestampFormat", "format", kinds.GIVEN_TEXT, None, "The same for TIMESTAMP.", "dd.MM.yyyy HH:mm:ss",
        "ISO 8601 and what Spark casts", formats=_RECORDS,
    ),
    Option(
        "timestampNTZFormat", "format", kinds.GIVEN_TEXT, None, "The same for TIMESTAMP_NTZ.", "dd.MM.yyyy HH:mm:ss",
        "ISO 8601 and what Spark casts", formats=_RECORDS,
    ),
    Option(
        "mode", "format", choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"), "PERMISSIVE",
        "What happens with a bad record: it stays with what is good of it, it is left out, or its object is corrupt "
        "(`onCorruptObject`). The first two are entries of the error table.", "DROPMALFORMED", formats=_LINES,
    ),
    Option(
        "columnNameOfCorruptRecord", "format", kinds.GIVEN_TEXT, "_corrupt_record",
        "The STRING column that holds bad records as they were written, if the schema has it.", "_bad",
        formats=_RECORDS,
    ),
    Option(
        "rescuedDataColumn", "format", kinds.GIVEN_TEXT, None,
        "The STRING column of the schema that holds, as JSON, what the other columns have no place for. An inferred "
        "schema has it.",
        "_rest", "`_rescued_data` with `schemaEvolutionMode` = `rescue`, and for inferred json and csv but in mode "
        "`none`", formats=_INFERRED,
    ),
    Option(
        "partitionColumns", "format", kinds.NAMES, "",
        "Columns of the schema whose values are folders of the object's path (`.../day=2020-01-01/...`).",
        "day,country", "none",
    ),
    Option(
        "schemaLocation", "schema", kinds.GIVEN_TEXT, None,
        "Folder (or URI) where inferred schemas are kept, in versions; needed when no schema is declared. All machines "
        "have to reach it.", "s3://lake/schemas/orders", "none", formats=_INFERRED,
    ),
    Option(
        "schemaHints", "schema", kinds.COLUMNS, None,
        "Types of some columns of an inferred schema, as Spark's DDL; dots lead into columns.",
        "id BIGINT, tags.key STRING", "none",
    ),
    Option(
        "schemaEvolutionMode", "schema",
        choice("none", "rescue", "addNewColumns", "failOnNewColumns", refused=("addNewColumnsWithTypeWidening",)), None,
        "What happens with columns that the schema lacks: they are ignored; go to `rescuedDataColumn`; the query "
        "fails and goes on with them when it is started again; it fails.", "rescue",
        "`addNewColumns` with `schemaLocation`, else `none`", formats=_INFERRED,
    ),
    Option(
        "inferColumnTypes", "schema", kinds.BOOLEAN, None,
        "Infer types too; else all inferred columns are STRING. Acts on json and csv.", "true",
        "`true` for json, `false` for csv, as in Spark", formats=_RECORDS,
    ),
    Option(
        "schemaSample", "schema", kinds.URIS, None, "Objects to infer from, instead of those that the queue announces.",
        "s3://landing/orders/1.json", "none", formats=_INFERRED,
    ),
    Option(
        "schemaSampleFiles", "schema", number(1, 1000), "10", "Most objects (or messages) to infer from.", "100",
        formats=_INFERRED,
    ),
    Option(
        "schemaSampleBytes", "schema", kinds.SIZE, "8m", "Most bytes of json and csv to infer from, of all together.",
        "64m", formats=_INFERRED,
    ),
    Option(
        "maxFilesPerTrigger", "batches", number(1), "1000", "Most objects in one micro-batch.", "200",
    ),
    Option(
        "maxBytesPerTrigger", "batches", kinds.SIZE, None,
        "Most bytes in one micro-batch; at least one object is always taken, of a larger one of plain lines as many "
        "bytes as that. Both limits hold.", "10g", "none",
    ),
    Option(
        "minPartitions", "batches", number(1), None,
        "Least partitions of a micro-batch, as far as there is something to cut.", "8", "cores of the driver",
    ),
    Option(
        "maxPartitionBytes", "batches", kinds.SIZE, "128m", "Most bytes in one partition; bigger objects are cut.",
        "64m",
    ),
    Option(
        "receiveThreads", "queue", number(1, 256), "2", "Threads that receive messages ahead.", "4",
    ),
    Option(
        "waitTime", "queue", kinds.WAIT, "20s", "How long one receive waits for the first message.", "1s",
    ),
    Option(
        "maxInFlightMessages", "queue", number(1), "10000",
        "Most messages held at once; at the limit nothing is received.", "2000",
    ),
    Option(
        "maxInFlightBytes", "queue", kinds.SIZE, None,
        "Most bytes of announced objects (or of messages) held at once; at the limit nothing is received.",
        "50g", "none",
    ),
    Option(
        "queueShares", "queue", kinds.SHARES, "round-robin",
        "How several queues of one reader share its batches: in turn, the first queue first, or by weight.",
        "percentage:70,30",
    ),
    Option(
        "visibilityTimeout", "leases", kinds.DURATION, "5m",
        "How long a message stays invisible to others; extended while it is worked on.", "10m",
    ),
    Option(
        "commitTimeout", "leases", kinds.DURATION, "60s",
        "Heartbeats of owned shards are sent four times in this time; after twice this time without one, another "
        "pipeline may take a shard over.", "30s",
    ),
    Option(
        "pendingTimeout", "leases", kinds.DURATION, "2m",
        "A message that is ready, but not planned within this time, is given back to the queue.", "3m",
    ),
    Option(
        "deduplicationWindow", "deduplication", kinds.DURATION, DEFAULT_WINDOW,
        "How long finished shards are remembered; longer than the queue keeps a message.", "60 days",
    ),
    Option(
        "deduplicationMaxShards", "deduplication", number(1, 10**12), None,
        "Most finished shards that are remembered for a source.", "50000000", "none",
    ),
    Option(
        "pruneInterval", "deduplication", kinds.DURATION, "60s",
        "How often what is older than the window is removed, by one of all pipelines.", "10m",
    ),
    Option(
        "deliverySemantics", "delivery", _SEMANTICS, "exactly-once",
        "What is promised of each row. at-least-once remembers no announcement: rows come again when a message does. "
        "at-most-once gives up the rows of a micro-batch that fails. [All three](../explanation/exactly-once.md).",
        "at-least-once",
    ),
    Option(
        "failOnDataLoss", "delivery", kinds.BOOLEAN, "true",
        "Fail when the checkpoint knows more than the store, that is, when the store was lost or exchanged.", "false",
    ),
    Option(
        "maxAttempts", "delivery", number(1, 1000), "3",
        "Readers that an object may kill before it is quarantined, counted from the third attempt at a micro-batch on, "
        "when each object is read in a task of its own.", "5",
    ),
    Option(
        "errorQueueUrl", "delivery", kinds.QUEUE_URL, None,
        "Queue that receives what could not be processed, with its cause and input; reached as `queueUrl` is. Nothing "
        "is acknowledged before its errors are there.",
        "sql+sqlite:///jobs.db?queue=errors", "the error table alone",
    ),
    *_STORAGE,
    *_QUEUE_ACCESS,
)  # fmt: skip
"""Everything that `spark.readStream.format("cuesqueue")` knows, in the order of the documentation."""

SINK_OPTIONS = (
    _STORE,
    Option(
        "pipeline", "names", kinds.PIPELINES, None,
        "The pipeline whose progress is published with the rows: the reader's `pipeline`. For a query that joins or "
        "unions several sources, all of them; the rows are recorded under the first.", "orders", required=True,
    ),
    Option(
        "path", "files", kinds.GIVEN_TEXT, None,
        "Folder of the data files; also the argument of `start()`. A relative path counts from the driver's folder.",
        "s3://lake/orders", "required, or `table`, or `queueUrl`",
    ),
    Option(
        "compression", "files", choice("zstd", "snappy", refused=("gzip", "lz4", "none")), "zstd",
        "Compression of the Parquet files.", "snappy",
    ),
    Option(
        "table", "iceberg", kinds.TABLE, None,
        "Apache Iceberg table that the rows are appended to; made from their schema if it is not there.", "db.events",
        "none",
    ),
    Option(
        "warehouse", "iceberg", kinds.GIVEN_TEXT, None,
        "Folder of a table that is yet to be made; also the argument of `start()`.", "s3://lake/warehouse",
        "the catalog's",
    ),
    Option(
        "partitionBy", "iceberg", kinds.PARTITIONING, "",
        "Partitioning of a table that is yet to be made; an existing table must have it.",
        "day(ts), bucket(16, id), country",
    ),
    Option("catalog", "iceberg", kinds.NAME, "cuesqueue", "Name of the catalog.", "lake"),
    Option(
        "catalog.*", "iceberg", kinds.SECRET, None,
        "Properties of a catalog elsewhere, as PyIceberg knows them: `catalog.type`, `catalog.uri`, "
        "`catalog.credential` ...", "", "the catalog in the store's database",
    ),
    Option(
        "queueUrl", "sending", kinds.QUEUE_URL, None,
        "Queue that receives the rows as messages, instead of files.", "sqs://orders", "none",
    ),
    *_STORAGE,
    *_QUEUE_ACCESS,
)  # fmt: skip
"""Everything that `df.writeStream.format("cuesqueue")` knows."""

VIEW_OPTIONS = (
    _STORE,
    Option(
        "view", "names", choice(*VIEWS), "data",
        "What is read: the published rows, or a table of the store.", "shards",
    ),
    Option("pipeline", "names", kinds.NAME, None, "Only what belongs to this pipeline.", "orders", "all"),
    Option("source", "names", kinds.NAME, None, "Only what belongs to this source.", "orders", "all"),
    Option(
        "asOf", "names", kinds.TIME, None,
        "Only what was published at this time. Views `data` and `splits`.", "2026-11-20T08:30:00Z", "now",
    ),
    Option(
        "asOfAttempt", "names", kinds.DELIVERY_HASH, None,
        "Only what was published when this attempt had been. Views `data` and `splits`.", "", "the last one",
    ),
    *_STORAGE,
)  # fmt: skip
"""Everything that `spark.read.format("cuesqueue")` knows."""

CONNECTIONS = {"sqs": ("sqs", "aws"), "pubsub": ("gcp",)}
"""How kinds of queues are reached: adapter -> the prefixes whose options it takes, the first that is given wins."""

ALIASES = {
    "delimiter": "sep",
    "charset": "encoding",
    "inferSchema": "inferColumnTypes",
    "cloudFiles.format": "fileFormat",
    "cloudFiles.fetchParallelism": "receiveThreads",
    "cloudFiles.region": "aws.region",
    "cloudFiles.awsAccessKey": "aws.accessKeyId",
    "cloudFiles.awsSecretKey": "aws.secretAccessKey",
    "cloudFiles.roleArn": "aws.roleArn",
    "cloudFiles.roleExternalId": "aws.roleExternalId",
    "cloudFiles.projectId": "gcp.project",
}
"""Names of other sources with the same meaning as ours. Any other `cloudFiles.X` is taken as X."""

_INFERENCE = "schemas are inferred by other rules; leave it out, and name types in schemaHints"
_RELAXED = "JSON is read as it is standardised; leave it out, and records that need it are bad records"
_NO_LISTING = "the queue announces what is read, nothing is listed"
CANNOT = {
    "samplingRatio": _INFERENCE,
    "mergeSchema": _INFERENCE,
    "primitivesAsString": _INFERENCE,
    "prefersDecimal": _INFERENCE,
    "preferDate": _INFERENCE,
    "dropFieldIfAllNull": _INFERENCE,
    "avroSchema": _INFERENCE,
    "enforceSchema": "columns of CSV are matched by the names of the header; leave it out",
    "unescapedQuoteHandling": "a quote in the middle of a field is read as with STOP_AT_DELIMITER; leave it out",
    "charToEscapeQuoteEscaping": "there is no second escape character; leave it out",
    "maxColumns": "there is no limit of columns; leave it out",
    "maxCharsPerColumn": "records are limited to 128 MB; leave it out",
    "locale": "numbers and dates are read as in en-US; leave it out",
    "allowComments": _RELAXED,
    "allowUnquotedFieldNames": _RELAXED,
    "allowSingleQuotes": _RELAXED,
    "allowNumericLeadingZeros": _RELAXED,
    "allowNonNumericNumbers": _RELAXED,
    "allowBackslashEscapingAnyCharacter": _RELAXED,
    "allowUnquotedControlChars": _RELAXED,
    "datetimeRebaseMode": "dates are read as they stand, which is CORRECTED; leave it out",
    "int96RebaseMode": "dates are read as they stand, which is CORRECTED; leave it out",
    "ignoreCorruptFiles": "set onCorruptObject to quarantine or skip",
    "ignoreMissingFiles": "set onMissingObject to quarantine or skip",
    "recursiveFileLookup": _NO_LISTING,
    "modifiedBefore": _NO_LISTING,
    "modifiedAfter": _NO_LISTING,
    "latestFirst": _NO_LISTING,
    "maxFileAge": _NO_LISTING,
}
"""Options of Spark's own file sources that have no equal here, and what to do instead."""

MEANINGLESS = ("cloudFiles.useNotifications", "cloudFiles.useManagedFileEvents")
"""Accepted with a warning: this source always works by notifications."""

SPARK_OWN = ("checkpointLocation", "queryName")
"""What Spark hands to a sink, though it is meant for Spark itself (seen with PySpark 4: spark-facts)."""

GROUP_TITLES = {
    "names": "Names and store",
    "notifications": "Notifications",
    "content": "Content",
    "format": "File formats",
    "schema": "Inferred schemas",
    "batches": "Micro-batches",
    "queue": "Receiving",
    "leases": "Leases",
    "deduplication": "Deduplication",
    "delivery": "Delivery and errors",
    "files": "Files",
    "iceberg": "Iceberg table",
    "sending": "Sending",
    "storage": "Storage and credentials",
}
