"""How store, object storage and queues are reached: the options that reader, sink and views share."""

from __future__ import annotations

from queue_source.options import kinds
from queue_source.options.tables.entry import Option

STORE_OPTION = Option(
    "store", "names", kinds.STORE_URL, "sqlite:///cuesqueue.db",
    "Database of shards, snapshots and attempts, as an SQLAlchemy URL.", "postgresql+psycopg://user:password@host/db",
)  # fmt: skip

STORAGE_OPTIONS = (
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

QUEUE_ACCESS_OPTIONS = (
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
            ("profile", kinds.GIVEN_TEXT, "queues"),
        )
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

CONNECTIONS = {"sqs": ("sqs", "aws"), "pubsub": ("gcp",)}
"""How kinds of queues are reached: adapter -> the prefixes whose options it takes, the first that is given wins."""
