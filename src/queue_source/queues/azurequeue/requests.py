"""The two requests for single messages, which a reader makes for each message: deleting it, and extending its lease.

Azure's client takes longer to make them than they take. They go through azure-core's pipeline with the credential alone
in it (decision 0084).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import Pipeline, PipelineRequest
from azure.core.pipeline.policies import AzureSasCredentialPolicy, BearerTokenCredentialPolicy, SansIOHTTPPolicy
from azure.core.pipeline.transport import HttpTransport
from azure.core.rest import HttpRequest

_SCOPE = "https://storage.azure.com/.default"


class MessageRequests:
    """The messages of one queue; all threads may use it. Errors are those of azure-core."""

    def __init__(self, queue_url: str, version: str, credential: Any, transport: HttpTransport[Any, Any]) -> None:
        """`queue_url`: of the queue, without a query; `version`: of the service's interface."""
        self._url = f"{queue_url}/messages/"
        self._version = version
        self._pipeline: Pipeline[HttpRequest, Any] = Pipeline(transport, [_policy(credential)])

    def delete(self, message_id: str, pop_receipt: str) -> None:
        self._send("DELETE", f"{message_id}?popreceipt={quote(pop_receipt, safe='')}", 204)

    def update(self, message_id: str, pop_receipt: str, seconds: int) -> str:
        """Let the message become visible in so many seconds; return its next receipt."""
        place = f"{message_id}?popreceipt={quote(pop_receipt, safe='')}&visibilitytimeout={seconds}"
        return str(self._send("PUT", place, 204).headers["x-ms-popreceipt"])

    def _send(self, method: str, place: str, expected: int) -> Any:
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": self._version}
        if method == "PUT":
            headers["Content-Length"] = "0"
        answer = self._pipeline.run(HttpRequest(method, self._url + place, headers=headers)).http_response
        if answer.status_code != expected:
            answer.read()
            raise HttpResponseError(response=answer)
        return answer


def _policy(credential: Any) -> Any:
    if isinstance(credential, AzureNamedKeyCredential):
        return _SharedKeyPolicy(credential)
    if isinstance(credential, AzureSasCredential):
        return AzureSasCredentialPolicy(credential)
    return BearerTokenCredentialPolicy(credential, _SCOPE)


class _SharedKeyPolicy(SansIOHTTPPolicy[HttpRequest, Any]):
    """Signs a request that has no body and no headers but ours, as the service documents it (Shared Key)."""

    def __init__(self, credential: AzureNamedKeyCredential) -> None:
        self._account, key = credential.named_key
        try:
            self._key = base64.b64decode(key, validate=True)
        except binascii.Error:
            raise ValueError("the account's key is not in base64") from None

    def on_request(self, request: PipelineRequest[HttpRequest]) -> None:
        http = request.http_request
        parts = urlsplit(http.url)
        query = sorted(pair.partition("=")[::2] for pair in parts.query.split("&"))
        lines = [
            http.method + "\n" * 11,
            f"x-ms-date:{http.headers['x-ms-date']}",
            f"x-ms-version:{http.headers['x-ms-version']}",
            f"/{self._account}{parts.path}",
            *(f"{name}:{unquote(value)}" for name, value in query),
        ]
        signature = hmac.new(self._key, "\n".join(lines).encode(), hashlib.sha256).digest()
        http.headers["Authorization"] = f"SharedKey {self._account}:{base64.b64encode(signature).decode()}"
