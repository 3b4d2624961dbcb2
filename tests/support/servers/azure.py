"""As much of Azure's Blob Storage over HTTP as is asked for, in this process: `with azure_server() as azure:`.

There is no emulator of it on PyPI; the contract of buckets runs over Azurite as well, where that is installed.
Accounts are flat (no hierarchical namespace). Requests must be signed with a shared
key or carry a token; signatures are not checked, but who signed is.
"""

from __future__ import annotations

import base64
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
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
        self.written: dict[str, Written] = {}
        self.containers: set[str] = set()
        """Those that are there, though they are empty, as `account/container`."""
        self.listings = 0

    def write(self, path: str, body: bytes, metadata: dict[str, str] | None = None) -> None:
        """An object with an ETag of its own, and the time of now."""
        now = datetime.now(timezone.utc).replace(microsecond=0)
        self.blobs[path] = body
        self.written[path] = Written(f"0x{next(_etags):X}", format_datetime(now, usegmt=True), metadata or {})

    def remove(self, path: str) -> None:
        del self.blobs[path]
        self.written.pop(path, None)


class Written(NamedTuple):
    """What is known of an object that was not put into `blobs` by hand."""

    etag: str
    modified: str
    metadata: dict[str, str]


_etags = itertools.count(0x8DE000)


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

    def do_DELETE(self) -> None:
        azure, path, _ = self._request()
        if not self._may(path):
            return
        if path not in azure.blobs:
            self._fail(404, "BlobNotFound")
        elif self._holds(azure, path):
            azure.remove(path)
            self._answer(202, b"", {})

    def do_PUT(self) -> None:
        azure, path, asked = self._request()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._may(path):
            return
        origin = self.headers.get("x-ms-copy-source")
        if origin is not None:
            self._copy(azure, unquote(urlsplit(origin).path).strip("/"), path)
            return
        if asked.get("comp") == ["block"]:
            azure.blocks[path, asked["blockid"][0]] = body
        elif asked.get("comp") == ["blocklist"]:
            ids = re.findall(rb"<(?:Latest|Uncommitted|Committed)>([^<]+)<", body)
            azure.write(path, b"".join(azure.blocks[path, one.decode()] for one in ids))
        elif asked.get("restype") == ["container"]:
            azure.containers.add(path)
        else:
            azure.write(path, body)
        self._answer(201, b"", {"ETag": '"1"'})

    def _get(self) -> None:
        azure, path, asked = self._request()
        if not self._may(path):
            return
        if asked.get("comp") == ["list"]:
            self._list(azure, path, asked)
        elif "action" in asked:  # of the Data Lake: there is no hierarchical namespace
            self._fail(400, "HierarchicalNamespaceNotEnabled")
        elif asked.get("restype") == ["container"]:
            self._answer(200, b"", {"ETag": '"1"'})
        elif path not in azure.blobs:
            self._fail(404, "BlobNotFound")
        else:
            self._blob(azure, path)

    def _copy(self, azure: AzureServer, origin: str, path: str) -> None:
        if origin not in azure.blobs:
            self._fail(404, "CannotVerifyCopySource")
        elif self.headers.get("x-ms-source-if-match") not in (None, _etag(azure, origin)):
            self._fail(412, "SourceConditionNotMet")
        elif self.headers.get("If-None-Match") == "*" and path in azure.blobs:
            self._fail(409, "BlobAlreadyExists")
        else:
            prefix = "x-ms-meta-"
            given = {
                name.lower()[len(prefix) :]: value
                for name, value in self.headers.items()
                if name.lower().startswith(prefix)
            }
            azure.write(path, azure.blobs[origin], given)
            self._answer(202, b"", {"ETag": _etag(azure, path), "x-ms-copy-id": "1", "x-ms-copy-status": "success"})

    def _holds(self, azure: AzureServer, path: str) -> bool:
        if self.headers.get("If-Match") in (None, _etag(azure, path)):
            return True
        self._fail(412, "ConditionNotMet")
        return False

    def _blob(self, azure: AzureServer, path: str) -> None:
        data = azure.blobs[path]
        headers = {"ETag": _etag(azure, path), "x-ms-blob-type": "BlockBlob", "x-ms-creation-time": _DATE}
        if path in azure.written:
            headers["Last-Modified"] = azure.written[path].modified
            headers |= {f"x-ms-meta-{name}": value for name, value in azure.written[path].metadata.items()}
        wanted = self.headers.get("x-ms-range") or self.headers.get("Range")
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
        if found is None:
            self._answer(200, data, headers)
            return
        start, end = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
        self._answer(206, data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})

    def _list(self, azure: AzureServer, path: str, asked: dict[str, list[str]]) -> None:
        azure.listings += 1
        if not any(name.startswith(f"{path}/") for name in azure.blobs) and path not in azure.containers:
            self._fail(404, "ContainerNotFound")
            return
        prefix, marker = asked.get("prefix", [""])[0], asked.get("marker", [""])[0]
        most = int(asked.get("maxresults", ["5000"])[0])
        names = sorted(name[len(path) + 1 :] for name in azure.blobs if name.startswith(f"{path}/{prefix}"))
        names = [name for name in names if name.encode().hex() > marker]
        more = names[most - 1].encode().hex() if len(names) > most else ""
        blobs = "".join(_listed(azure, path, name) for name in names[:most])
        body = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{blobs}</Blobs>'
        body += f"<NextMarker>{more}</NextMarker></EnumerationResults>"
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
        headers = {"x-ms-error-code": code}
        if self.command != "HEAD":  # or the SDK of C++ parses a body that there is not
            headers["Content-Type"] = "application/xml"
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(), headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.close_connection = True  # or its thread would wait for the next request
        for name, value in (_HEADERS | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(azure: AzureServer, path: str) -> str:
    return f'"{azure.written[path].etag if path in azure.written else len(azure.blobs[path])}"'


def _listed(azure: AzureServer, path: str, name: str) -> str:
    whole = f"{path}/{name}"
    written = azure.written.get(whole, Written("1", _DATE, {}))
    metadata = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in written.metadata.items())
    plain = name.isprintable()
    shown = f"<Name>{escape(name)}</Name>" if plain else f'<Name Encoded="true">{quote(name)}</Name>'
    return (
        f"<Blob>{shown}<Properties><Creation-Time>{_DATE}</Creation-Time><Last-Modified>{written.modified}"
        f"</Last-Modified><Etag>{written.etag}</Etag><Content-Length>{len(azure.blobs[whole])}</Content-Length>"
        f"<BlobType>BlockBlob</BlobType></Properties><Metadata>{metadata}</Metadata></Blob>"
    )


KEY = base64.b64encode(b"a key of an account").decode("ascii")
