"""The forms of notifications that object stores send, as data: where each has the fields that the parser reads.

A new form is one more entry of `DIALECTS`. Names that are separated by dots lead from object to object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from queue_source.errors import MalformedNotification
from queue_source.uris import azure_event_uri, unquoted

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where one form of notification has its records, and a record its fields.

    `events` tells for an event's name, or for its beginning up to and with a `separator`, whether it announces an
    object. An unknown name may announce one: such a message is malformed, and not ignored.
    """

    recognises: Callable[[Json], bool]
    scheme: str  # of the URIs
    bucket: str
    key: str
    etag: str
    version: str
    item: str = ""  # the object that holds key, size, etag and version
    about: str = ""  # the object that every record has, whatever its event
    size: str = "size"
    records: str | None = None  # the list of records; None: the document itself is the only record
    event: str | None = None  # the name of the event; None: no record has it
    event_label: str = "event name"  # the name of that field in errors
    events: Mapping[str, bool] = field(default_factory=dict)
    separator: str = ":"
    deleted: str | None = None  # a field that only the record of a deleted object has
    is_test: Callable[[Json], bool] = lambda document: False  # sent to test the connection; announces nothing
    sequencer: str | None = None  # in the item: hexadecimal, of the order of events about one key
    generation: str | None = None  # in the item: a number that rises with each version
    time: str | None = None  # in the record: when it happened, for senders without a better time
    event_time: str | None = None  # in the record: the same, where it is surely the time of the event
    decode_key: Callable[[str], str] = str
    missing_size: int | None = None  # the meaning of a missing size; None: unknown
    is_sizeless: Callable[[Json], bool] = lambda item: False  # the size of such an item is 0 whatever the object has
    senders: Mapping[str, Dialect] = field(default_factory=dict)  # senders that differ, by what `sender_of` says
    sender_of: Callable[[Json], str] = lambda record: str(record.get("eventSource"))
    uri_of: Callable[[Json, Json], str] | None = None  # the object's name from record and item, in place of both parts
    begun: Callable[[Json], bool] = lambda item: False  # the object has been begun: another event announces it
    moved: Mapping[str, Dialect] = field(default_factory=dict)  # by event: events whose fields are elsewhere
    shared: tuple[str, ...] = ()  # fields of the document that its records get; one that is text gets it as its key
    near: tuple[str, ...] = ()  # fields of the document: one with some of them is nearly of this form
    in_lists: bool = False  # several may come in one message, as a list

    def announces(self, event: str) -> bool | None:
        """Tell whether such an event announces an object; None where the name is unknown."""
        first, last = event.find(self.separator) + 1, event.rfind(self.separator) + 1
        names = (event, event[:first], event[:last])
        return next((self.events[name] for name in names if name in self.events), None)


def _families(*names: str, announces: bool) -> Mapping[str, bool]:
    return {name + end: announces for name in names for end in ("", ":")}


_S3_EVENTS = {
    **_families("ObjectCreated", announces=True),
    "ObjectSynced:Create": True,
    # MinIO's names for changes of an object's metadata
    **{f"ObjectCreated:{change}": False for change in ("PutRetention", "PutLegalHold", "PutTagging", "DeleteTagging")},
    # all other families of S3, MinIO and Ceph
    **_families(
        "BucketCreated", "BucketRemoved", "IntelligentTiering", "LifecycleDelMarkerExpiration", "LifecycleExpiration",
        "LifecycleTransition", "ObjectAccessed", "ObjectAcl", "ObjectAnnotation", "ObjectLifecycle", "ObjectRemoved",
        "ObjectRestore", "ObjectSynced", "ObjectTagging", "ObjectTransition", "ReducedRedundancyLostObject",
        "Replication", "Scanner", "TestEvent",
        announces=False,
    ),
}  # fmt: skip


def _is_s3_test(document: Json) -> bool:
    records = document.get("Records", ())
    if isinstance(records, list) and len(records) == 1 and isinstance(records[0], dict):  # NooBaa's
        return records[0].get("Event") == "s3:TestEvent" and "s3" not in records[0]
    return document.get("Event") == "s3:TestEvent" and "Records" not in document


_NOOBAA = "noobaa"
_OTHERS = ("aws:s3", "minio:s3", "ceph:s3", "rustfs:s3")


def _sender_of_s3(record: Json) -> str:
    """Return the `eventSource`. That of NooBaa is the name of its system, or host; it says no region, as others do."""
    source = str(record.get("eventSource"))
    is_named = source.endswith(":s3") and source not in _OTHERS
    return _NOOBAA if is_named and "awsRegion" not in record else source


_S3 = Dialect(
    recognises=lambda document: "Records" in document or _is_s3_test(document),
    is_test=_is_s3_test,
    records="Records",
    near=("Records", "eventName", "s3"),
    event="eventName",
    events=_S3_EVENTS,
    about="s3",
    scheme="s3",
    bucket="s3.bucket.name",
    item="s3.object",
    key="key",
    etag="eTag",
    version="versionId",
    sequencer="sequencer",
    time="eventTime",
    event_time="eventTime",
    decode_key=lambda key: unquoted(key, plus=True),
)

_GCS_OBJECT = Dialect(
    recognises=lambda document: document.get("kind") == "storage#object",
    near=("kind", "bucket", "name"),
    scheme="gs",
    bucket="bucket",
    key="name",
    etag="etag",
    version="generation",
    generation="generation",
    time="updated",
    deleted="timeDeleted",
)

GCS_ATTRIBUTES = replace(
    _GCS_OBJECT,
    event="eventType",
    event_label="GCS event type",
    events={
        "OBJECT_FINALIZE": True,
        **dict.fromkeys(("OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE"), False),
    },
    bucket="bucketId",
    key="objectId",
    version="objectGeneration",
    generation="objectGeneration",
    event_time="eventTime",
    deleted=None,
)
"""Cloud Storage through Pub/Sub: the attributes of the message, together with the fields of its body."""


def _azure_object(record: Json, item: Json, field: str) -> str:
    url, subject = item.get(field), record.get("subject")
    if not isinstance(url, str):
        raise MalformedNotification(f"{field!r} has to be text")
    return azure_event_uri(url, subject if isinstance(subject, str) else "")


_AZURE_EVENTS = {
    "Microsoft.Storage.BlobCreated": True,
    "Microsoft.Storage.BlobRenamed": True,  # the name is new, as that of a copy
    **{
        f"Microsoft.Storage.{name}": False
        for name in (
            "AsyncOperationInitiated", "BlobDeleted", "BlobInventoryPolicyCompleted", "BlobTierChanged",
            "DirectoryCreated", "DirectoryDeleted", "DirectoryRenamed", "LifecyclePolicyCompleted",
            "LifecyclePolicyRunCompleted", "StorageTaskAssignmentCompleted", "StorageTaskAssignmentQueued",
            "StorageTaskCompleted", "StorageTaskQueued",
        )
    },
    # sent to test the connection, and when it ends
    "Microsoft.EventGrid.SubscriptionValidationEvent": False,
    "Microsoft.EventGrid.SubscriptionDeletedEvent": False,
}  # fmt: skip

_EVENT_GRID = Dialect(
    recognises=lambda document: "eventType" in document and "data" in document,
    near=("eventType", "data", "topic"),
    event="eventType",
    event_label="event type of Event Grid",
    events=_AZURE_EVENTS,
    scheme="abfss",
    bucket="",
    key="",
    uri_of=lambda record, item: _azure_object(record, item, "url"),
    item="data",
    etag="eTag",
    version="",
    size="contentLength",
    sequencer="sequencer",
    time="eventTime",
    event_time="eventTime",
    # files of Data Lake Storage are created, written and closed; SFTP does the same, and may say nothing of the size
    begun=lambda item: item.get("api") in ("CreateFile", "SftpCreate", "SftpWrite"),
    is_sizeless=lambda item: item.get("api") == "SftpCommit",
    in_lists=True,
)
_RENAMED = replace(_EVENT_GRID, etag="", size="", uri_of=lambda record, item: _azure_object({}, item, "destinationUrl"))


_EVENTBRIDGE = Dialect(
    # another source may forward S3's events under its own name
    recognises=lambda document: (
        "detail-type" in document
        and (document.get("source") == "aws.s3" or document["detail-type"] == "Object Created")
    ),
    near=("detail-type", "source", "detail"),
    event="detail-type",
    event_label="detail-type",
    # CloudTrail's "AWS API Call via CloudTrail" has the source aws.s3 too, and may be about a new object
    events={"Object Created": True, "Object ": False},
    separator=" ",
    about="detail",
    scheme="s3",
    bucket="detail.bucket.name",
    item="detail.object",
    key="key",
    etag="etag",
    version="version-id",
    sequencer="sequencer",
    time="time",
    event_time="time",
)


def _in_events(document: Json, field: str) -> list[object]:
    """List what the events of the document have in this field."""
    events = document.get("events")
    return [event.get(field) for event in events if isinstance(event, dict)] if isinstance(events, list) else []


_OBS = replace(
    _S3,
    about="obs",
    bucket="obs.bucket.name",
    item="obs.object",
    sequencer=None,  # a hint, says Huawei, that may be wrong
)

DIALECTS: Mapping[str, Dialect] = {
    "s3": replace(
        _S3,
        senders={
            "ceph:s3": replace(_S3, decode_key=str),
            "minio:s3": replace(_S3, missing_size=0),
            "OBS": _OBS,  # Huawei's
            # keys as they are; size and ETag may be those of the request, and not of the object
            _NOOBAA: replace(_S3, decode_key=str, size="", etag=""),
        },
        sender_of=_sender_of_s3,
    ),
    "eventbridge": _EVENTBRIDGE,
    # as Security Lake tells its subscribers: without a type of event, since all of them are of new objects
    "securitylake": replace(
        _EVENTBRIDGE,
        recognises=lambda document: (
            "detail-type" not in document
            and isinstance(detail := document.get("detail"), dict)
            and detail.get("requester") == "securitylake.amazonaws.com"
        ),
        event=None,
        near=(),
    ),
    # of Cloudflare's R2, which a Worker passes on from Cloudflare's queue
    "r2": Dialect(
        recognises=lambda document: "action" in document and "account" in document and "bucket" in document,
        near=("account", "action", "bucket", "object"),
        event="action",
        event_label="action of R2",
        events={
            **dict.fromkeys(("PutObject", "CopyObject", "CompleteMultipartUpload"), True),
            **dict.fromkeys(("DeleteObject", "LifecycleDeletion"), False),
        },
        scheme="s3",
        bucket="bucket",
        item="object",
        key="key",
        etag="eTag",
        version="",
        time="eventTime",
        event_time="eventTime",
    ),
    # of Backblaze's B2, which a webhook passes on
    "b2": Dialect(
        recognises=lambda document: any(str(kind).startswith("b2:") for kind in _in_events(document, "eventType")),
        records="events",
        event="eventType",
        event_label="event type of B2",
        events={
            **_families("b2:ObjectCreated", announces=True),
            **_families("b2:ObjectDeleted", "b2:HideMarkerCreated", "b2:MultipartUploadCreated", announces=False),
            "b2:TestEvent": False,
        },
        scheme="s3",
        bucket="bucketName",
        key="objectName",
        etag="",
        version="objectVersionId",
        size="objectSize",
    ),
    # of Alibaba's OSS, which its queues wrap in base64
    "oss": Dialect(
        recognises=lambda document: "acs:oss" in _in_events(document, "eventSource"),
        records="events",
        event="eventName",
        event_label="event name of OSS",
        events={
            **{
                f"ObjectCreated:{done}": True
                for done in ("PutObject", "PostObject", "CopyObject", "CompleteMultipartUpload", "AppendObject")
            },
            # no object yet: its upload is complete with another event
            **{
                f"ObjectCreated:{begun}": False for begun in ("InitiateMultipartUpload", "UploadPart", "UploadPartCopy")
            },
            **dict.fromkeys(("ObjectReplication:ObjectCreated", "ObjectReplication:ObjectModified"), True),
            "ObjectReplication:ObjectRemoved": False,
            **_families("ObjectDownloaded", "ObjectRemoved", announces=False),
        },
        about="oss",
        scheme="s3",
        bucket="oss.bucket.name",
        item="oss.object",
        key="key",
        etag="eTag",
        version="",
        time="eventTime",
        event_time="eventTime",
    ),
    # of Oracle's object storage; its ETag is not the one of the API that is compatible with S3
    "oci": Dialect(
        recognises=lambda document: str(document.get("eventType")).startswith("com.oraclecloud."),
        event="eventType",
        event_label="event type of OCI",
        events={
            **{f"com.oraclecloud.objectstorage.{name}object": True for name in ("create", "update")},
            "com.oraclecloud.objectstorage.deleteobject": False,
            **{f"com.oraclecloud.objectstorage.{name}bucket": False for name in ("create", "update", "delete")},
        },
        scheme="s3",
        bucket="data.additionalDetails.bucketName",
        item="data",
        key="resourceName",
        etag="",
        version="",
        time="eventTime",
        event_time="eventTime",
    ),
    # of AWS Config through SNS: names of files, as they are
    "awsconfig": Dialect(
        recognises=lambda document: "messageType" in document and "notificationCreationTime" in document,
        near=("messageType", "notificationCreationTime", "recordVersion"),
        event="messageType",
        event_label="message type of AWS Config",
        events={
            **{f"Configuration{what}DeliveryCompleted": True for what in ("History", "Snapshot")},
            **{
                f"Configuration{what}Delivery{how}": False
                for what in ("History", "Snapshot", "Item")
                for how in ("Started", "Failed")
            },
            **dict.fromkeys(
                (
                    "ComplianceChangeNotification",
                    "ConfigRulesEvaluationStarted",
                    "ConfigurationItemChangeNotification",
                    "OversizedConfigurationItemChangeNotification",
                    "OversizedConfigurationItemNotification",
                    "ScheduledNotification",
                ),
                False,
            ),
        },
        scheme="s3",
        bucket="s3Bucket",
        key="s3ObjectKey",
        etag="",
        version="",
        event_time="notificationCreationTime",
    ),
    # one of CloudTrail through SNS: names of files, as they are
    "cloudtrail": Dialect(
        recognises=lambda document: "s3Bucket" in document and "s3ObjectKey" in document,
        records="s3ObjectKey",
        shared=("s3Bucket",),
        near=("s3Bucket", "s3ObjectKey"),
        scheme="s3",
        bucket="s3Bucket",
        key="key",
        etag="",
        version="",
    ),
    # of Falcon Data Replicator: a batch of files; the checksum of a file is no ETag
    "crowdstrike": Dialect(
        recognises=lambda document: "bucket" in document and "files" in document,
        records="files",
        shared=("bucket",),
        near=("bucket", "files"),
        scheme="s3",
        bucket="bucket",
        key="path",
        etag="",
        version="",
    ),
    "cloudevents": replace(
        _EVENT_GRID,
        recognises=lambda document: "specversion" in document and "type" in document,
        near=("specversion", "type", "data"),
        event="type",
        event_label="type of the CloudEvent",
        time="time",
        event_time="time",
        moved={"Microsoft.Storage.BlobRenamed": replace(_RENAMED, time="time", event_time="time")},
    ),
    "eventgrid": replace(_EVENT_GRID, moved={"Microsoft.Storage.BlobRenamed": _RENAMED}),
    "gcs": _GCS_OBJECT,  # the body alone, where the attributes were lost on the way
}
"""The forms that are recognised by their documents; the first that recognises one reads it."""
