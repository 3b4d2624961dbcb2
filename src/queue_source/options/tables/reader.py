"""What `spark.readStream.format("cuesqueue")` knows, in the order of the documentation."""

from __future__ import annotations

from queue_source.options import kinds
from queue_source.options.kinds import choice, number
from queue_source.options.tables.access import QUEUE_ACCESS_OPTIONS, STORAGE_OPTIONS, STORE_OPTION
from queue_source.options.tables.content import CONTENT_OPTIONS
from queue_source.options.tables.entry import Option
from shard_store.semantics import Semantics

_NOTIFICATION_FORMS = ("uri", "s3", "minio", "sns", "eventbridge", "gcs", "json")
DEFAULT_WINDOW = "30 days"

READER_OPTIONS = (
    Option(
        "queueUrl", "names", kinds.QUEUE_URLS, None,
        "The queue to read. A comma that precedes the next URL parts several.",
        "sql+sqlite:///jobs.db?queue=files", required=True,
    ),
    STORE_OPTION,
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
        "notificationFormat", "notifications", choice("auto", *_NOTIFICATION_FORMS), "auto",
        "Form of the notifications; `auto` finds it by looking at each message.", "s3",
    ),
    Option(
        "allowedPrefixes", "notifications", kinds.PREFIXES, "s3://,gs://,abfss://",
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
    *CONTENT_OPTIONS,
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
        "deliverySemantics", "delivery", choice(*(semantics.value for semantics in Semantics)), "exactly-once",
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
        "Readers that an object may kill before it is quarantined. Only those count that read it with nothing else of "
        "its micro-batch beside it.", "5",
    ),
    Option(
        "errorQueueUrl", "delivery", kinds.QUEUE_URL, None,
        "Queue that receives what could not be processed, with its cause and input; reached as `queueUrl` is. Nothing "
        "is acknowledged before its errors are there.",
        "sql+sqlite:///jobs.db?queue=errors", "the error table alone",
    ),
    *STORAGE_OPTIONS,
    *QUEUE_ACCESS_OPTIONS,
)  # fmt: skip
