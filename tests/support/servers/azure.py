"""As much of Azure's Blob Storage over HTTP as `pyarrow.fs` asks for, in this process: `with azure_server() as azure:`.

There is no emulator of it on PyPI. Accounts are flat (no hierarchical namespace). Requests must be signed with a shared
key or carry a token; signatures are not checked, but who signed is.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "Fri, 20 Nov 2026 00:00:00 GMT"
_HEADERS = {  # the SDK takes them for granted: without one of them it ends the process
    "Last-Modified": _DATE,
    "Connection": "close",
    "Content-Type": "application/octet-stream",
    "x-ms-version": "2024-01-01",
    "x-ms-server-encrypted": "true",
    "x-ms-request-server-encrypted": "true",
}
TOKEN = "sv=2024-01-01&sig=secret"


class AzureServer:
    """A running server: `url` is its endpoint, `blobs` what it holds, by `account/container/path`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.blobs: dict[str, bytes] = {}
        self.blocks: dict[tuple[str, str], bytes] = {}


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """A server on a free port of 127.0.0.1 that keeps everything in memory."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    azure = AzureServer(f"http://127.0.0.1:{server.server_address[1]}")
    server.azure = azure  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield azure
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_PUT(self) -> None:
        azure, path, asked = self._request()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._may(path):
            return
        if asked.get("comp") == ["block"]:
            azure.blocks[path, asked["blockid"][0]] = body
        elif asked.get("comp") == ["blocklist"]:
            ids = re.findall(rb"<(?:Latest|Uncommitted|Committed)>([^<]+)<", body)
            azure.blobs[path] = b"".join(azure.blocks[path, one.decode()] for one in ids)
        elif asked.get("restype") != ["container"]:
            azure.blobs[path] = body
        self._answer(201, b"", {"ETag": '"1"'})

    def _get(self) -> None:
        azure, path, asked = self._request()
        if not self._may(path):
            return
        if asked.get("comp") == ["list"]:
            self._list(azure, path, asked.get("prefix", [""])[0])
        elif "action" in asked:  # of the Data Lake: there is no hierarchical namespace
            self._fail(400, "HierarchicalNamespaceNotEnabled")
        elif asked.get("restype") == ["container"]:
            self._answer(200, b"", {"ETag": '"1"'})
        elif path not in azure.blobs:
            self._fail(404, "BlobNotFound")
        else:
            self._blob(azure.blobs[path])

    def _blob(self, data: bytes) -> None:
        headers = {"ETag": f'"{len(data)}"', "x-ms-blob-type": "BlockBlob", "x-ms-creation-time": _DATE}
        wanted = self.headers.get("x-ms-range") or self.headers.get("Range")
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
        if found is None:
            self._answer(200, data, headers)
            return
        start, end = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
        self._answer(206, data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})

    def _list(self, azure: AzureServer, path: str, prefix: str) -> None:
        names = [name[len(path) + 1 :] for name in sorted(azure.blobs) if name.startswith(f"{path}/{prefix}")]
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Creation-Time>{_DATE}</Creation-Time><Last-Modified>{_DATE}"
            f"</Last-Modified><Etag>1</Etag><Content-Length>{len(azure.blobs[f'{path}/{name}'])}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in names
        )
        body = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>'
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _request(self) -> tuple[AzureServer, str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        azure: AzureServer = self.server.azure  # type: ignore[attr-defined]
        return azure, unquote(parts.path).strip("/"), parse_qs(parts.query, keep_blank_values=True)

    def _may(self, path: str) -> bool:
        """Whether the request is that of the account, or carries the token."""
        account = path.partition("/")[0]
        signed = self.headers.get("Authorization", "").startswith(f"SharedKey {account}:")
        if signed or "sig=secret" in self.path:
            return True
        self._fail(403, "AuthenticationFailed")
        return False

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode(), {"x-ms-error-code": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.close_connection = True  # or its thread would wait for the next request
        for name, value in (_HEADERS | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


KEY = base64.b64encode(b"a key of an account").decode("ascii")
