"""Classifies failures of object stores: which are refusals for good, and which of those are the object's own. Pure.

Failures that are not known refusals count as passing: the task fails, and Spark tries it again.
"""

from __future__ import annotations

import re

from queue_source.storage.azure import SCHEMES as AZURE

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
REFUSED = frozenset({400, 401, 403, 405, 451})
"""Statuses that another request does not change. 400: SSE-C, a key that is too long; expired credentials too."""

_OWN_CODES = frozenset({"InvalidObjectState", "InvalidRequest", "KeyTooLongError", "MethodNotAllowed"})
_PASSING = re.compile(r"Time-?out|Throttl|SlowDown|IncompleteBody", re.IGNORECASE)
_HIDDEN_ANSWER = "Failed to flush response stream"
_S3_STATUS = re.compile(r"AWS Error UNKNOWN \(HTTP status (\d+)\)")
_S3_EXCEPTION = re.compile(r"Unable to parse ExceptionName: (\S+)")
_S3_NAMED = {
    "AWS Error ACCESS_DENIED": "AccessDenied",
    "AWS Error INVALID_ACCESS_KEY_ID": "InvalidAccessKeyId",
    "AWS Error INVALID_CLIENT_TOKEN_ID": "InvalidClientTokenId",
    "AWS Error SIGNATURE_DOES_NOT_MATCH": "SignatureDoesNotMatch",
    "AWS Error UNRECOGNIZED_CLIENT": "UnrecognizedClient",
    "AWS Error INVALID_OBJECT_STATE": "InvalidObjectState",
    "operation is not valid for the object's storage class": "InvalidObjectState",  # pyarrow has no name for the code
    "operation is not valid for the object's access tier": "InvalidObjectState",
}
_GOOGLE = re.compile(r"Status\((PERMISSION_DENIED|UNAUTHENTICATED):")
_AZURE = re.compile(r"Azure Error: \[(\w*)\] (\d{3})")
AZURE_OWN = frozenset({"BlobArchived", "BlobBeingRehydrated"})


def of_s3(status: int, code: str, message: str) -> bool | None:
    """Tell whether S3's answer refuses the object for a reason of its own; None when it is no refusal."""
    if status not in REFUSED or _PASSING.search(code):
        return None
    return code in _OWN_CODES or code.startswith("KMS.") or "kms:" in message.lower()


def of_text(scheme: str, text: str) -> bool | None:
    """Tell the same for an error text of pyarrow, which has less than the store's answer."""
    if scheme in S3_SCHEMES:
        named = next((code for words, code in _S3_NAMED.items() if words in text), None)
        if named is not None:
            return of_s3(403, named, text)
        status, exception = _S3_STATUS.search(text), _S3_EXCEPTION.search(text)
        return None if status is None else of_s3(int(status[1]), exception[1] if exception else "", text)
    if scheme == "gs":
        return None if _GOOGLE.search(text) is None else "kms" in text.lower()
    if scheme in AZURE and (match := _AZURE.search(text)) is not None:
        if match[1] in AZURE_OWN:
            return True
        return False if int(match[2]) in (401, 403) else None
    return None


def hides_the_reason(text: str) -> bool:
    """Tell whether pyarrow hides the answer of S3: for a small object it is cut off."""
    return _HIDDEN_ANSWER in text and of_text("s3", text) is None
