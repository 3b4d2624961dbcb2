"""Sends the requests of Azure's client through urllib3 itself: a third of the processor time of its own way.

Storage queues have no requests for many messages: each is deleted, and its lease extended, by a request of its own. So
the time of one request decides how many messages a second there are (decision 0084).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, MutableMapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import HttpTransport, RequestsTransport
from azure.core.rest import HttpRequest, HttpResponse
from urllib3 import exceptions

_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_UNSENT = (exceptions.ConnectTimeoutError, exceptions.NewConnectionError, exceptions.SSLError)


def new_transport(url: str, connections: int, connect_seconds: float, read_seconds: float) -> HttpTransport[Any, Any]:
    """Make a transport to one host that keeps so many connections; the client's own where a proxy is between."""
    parts = urlsplit(url)
    if parts.scheme in getproxies() and not proxy_bypass(parts.hostname or ""):
        made: HttpTransport[Any, Any] = RequestsTransport(connection_timeout=connect_seconds, read_timeout=read_seconds)
        return made
    timeout = urllib3.Timeout(connect=connect_seconds, read=read_seconds)
    more: dict[str, Any] = {}
    if parts.scheme == "https":
        certificates = next((os.environ[name] for name in _CERTIFICATES if os.environ.get(name)), certifi.where())
        more = {"cert_reqs": "CERT_REQUIRED", "ca_certs": certificates}
    pool: urllib3.HTTPConnectionPool = urllib3.connection_from_url(url, maxsize=connections, timeout=timeout, **more)
    return PooledTransport(pool)


class PooledTransport(HttpTransport[HttpRequest, HttpResponse]):
    """A pool of connections to one host, for all threads. Redirections and repetitions are left to the client."""

    def __init__(self, pool: urllib3.HTTPConnectionPool) -> None:
        self._pool = pool
        self._start = len(f"{pool.scheme}://")

    def send(self, request: HttpRequest, **_: Any) -> HttpResponse:
        """Send a request. Raises ServiceRequestError where it was certainly not sent, else ServiceResponseError."""
        target = request.url[request.url.index("/", self._start) :]
        try:
            answer = self._pool.urlopen(
                request.method,
                target,
                body=request.content or None,
                headers=request.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
            )
        except _UNSENT as error:
            raise ServiceRequestError(str(error), error=error) from error
        except exceptions.HTTPError as error:
            raise ServiceResponseError(str(error), error=error) from error
        return _Answer(request, answer)

    def open(self) -> None:
        """Do nothing: connections are made when they are needed."""

    def close(self) -> None:
        self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Answer(HttpResponse):
    """An answer whose body has been read."""

    def __init__(self, request: HttpRequest, answer: urllib3.BaseHTTPResponse) -> None:
        self._request = request
        self._answer = answer
        self._encoding: str | None = None

    @property
    def request(self) -> HttpRequest:
        return self._request

    @property
    def status_code(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> MutableMapping[str, str]:
        return self._answer.headers

    @property
    def reason(self) -> str:
        return self._answer.reason or ""

    @property
    def content_type(self) -> str | None:
        return self._answer.headers.get("Content-Type")

    @property
    def is_closed(self) -> bool:
        return True

    @property
    def is_stream_consumed(self) -> bool:
        return True

    @property
    def encoding(self) -> str | None:
        return self._encoding

    @encoding.setter
    def encoding(self, value: str | None) -> None:
        self._encoding = value

    @property
    def url(self) -> str:
        return self._request.url

    @property
    def content(self) -> bytes:
        return self._answer.data

    def read(self) -> bytes:
        return self._answer.data

    def text(self, encoding: str | None = None) -> str:
        return self.content.decode(encoding or self._encoding or "utf-8-sig", "replace")

    def json(self) -> Any:
        return json.loads(self.text())

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise HttpResponseError(response=self)

    def iter_raw(self, **_: Any) -> Iterator[bytes]:
        yield self.content

    def iter_bytes(self, **_: Any) -> Iterator[bytes]:
        yield self.content

    def close(self) -> None:
        """Do nothing: the connection is back in the pool."""

    def __enter__(self) -> HttpResponse:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, as `close`."""
