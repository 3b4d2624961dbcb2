"""Lists the names of options elsewhere (earlier versions, Spark, Auto Loader), and what each means here."""

from __future__ import annotations

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
_RELAXED = "JSON that needs it is a bad record; leave it out"
_OF_XML = (
    "rowTag",
    "excludeAttribute",
    "attributePrefix",
    "valueTag",
    "ignoreSurroundingSpaces",
    "rowValidationXSDPath",
    "ignoreNamespace",
    "rootTag",
    "declaration",
    "arrayElementName",
    "validateName",
    "wildcardColName",
)
_XML = "XML is read by Spark itself, from references to the objects: see docs/how-to/references.md"
_AS_BY_DEFAULT = "as by default in Spark; leave it out"
CANNOT = {
    "samplingRatio": _INFERENCE,
    "mergeSchema": _INFERENCE,
    "primitivesAsString": _INFERENCE,
    "prefersDecimal": _INFERENCE,
    "preferDate": _INFERENCE,
    "inferTimestamp": _INFERENCE,
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

NOT_WITH = {
    "cloudFiles.useStrictGlobber": {
        "false": "globs are strict: `*` ends at a slash; write ** where it should not, as in /a/**/c/** for /a/*/c/, "
        "in fullPathGlobFilter",
    },
}
"""Values of these that would have an effect elsewhere, and what to do instead."""
