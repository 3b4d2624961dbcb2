"""Other names of options: those of earlier versions, of other sources and of Spark, and what becomes of them here."""

from __future__ import annotations

import re

ALIASES = {
    "store": "storeUrl",
    "azure.accountKey": "azure.accessKey",
    "delimiter": "sep",
    "sourceArchiveDir": "cleanSource.moveDestination",
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
"""Names of earlier versions and of other sources with the same meaning. Any other `cloudFiles.X` is taken as X."""

_INFERENCE = "schemas are inferred by other rules; leave it out, and name types in schemaHints"
_RELAXED = "JSON that needs it is a bad record; leave it out"
_AS_BY_DEFAULT = "as by default in Spark; leave it out"
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
    "recursiveFileLookup": "a prefix stands for all that is below it; leave it out",
    "latestFirst": "objects are read in the order in which they were announced or listed; leave it out",
}
"""Options of Spark's own file sources that have no equal here, and what to do instead."""

_GOOGLE_KEY = "set gcp.credentialsFile to the key's file, or leave it out where the machine has an account"
CLOUD_FILES_CANNOT = {
    "subscription": "write the subscription as a queue: set queueUrl to pubsub://PROJECT/SUBSCRIPTION",
    "client": _GOOGLE_KEY,
    "clientEmail": _GOOGLE_KEY,
    "privateKey": _GOOGLE_KEY,
    "privateKeyId": _GOOGLE_KEY,
    "maxFileAge": "there it is how long a file is remembered: set deduplicationWindow; maxFileAge without cloudFiles "
    "is Spark's, and leaves out what is older",
}
"""The same for options `cloudFiles.X`, by X."""

_BY_QUEUE = "notifications are used where queueUrl is set, listings where backfillPrefixes is"
MEANINGLESS = {
    "cloudFiles.useNotifications": _BY_QUEUE,
    "cloudFiles.useManagedFileEvents": _BY_QUEUE,
    "pendingTimeout": "what is received stays held until it is acknowledged, or its reader ends",
}
"""Accepted with a warning, and why they have no effect."""

SPARK_OWN = ("checkpointLocation", "queryName")
"""What Spark hands to a sink, though it is meant for Spark itself (seen with PySpark 4: spark-facts)."""

SPARK_HIDES = re.compile("url|secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of options whose values Spark replaces wherever it prints options: its defaults of `spark.redaction.regex` and
`spark.sql.redaction.options.regex`, as far as all supported versions agree.
"""
