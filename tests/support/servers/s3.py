"""As much of S3 over HTTP as readers of objects ask for, in this process: `with s3_server() as s3:`.

Unlike the emulators it refuses what a test says, with S3's own codes, and takes keys as they are written, `a//b` too.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "Sun, 22 Nov 2026 04:00:00 GMT"


def etag_of(data: bytes) -> str:
    """As S3 makes it of what is written at once."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class Refusal(NamedTuple):
    """What is answered instead of an object; `get_only`: its size and time are told, as of an archived object."""

    status: int
    code: str
    message: str = ""
    get_only: bool = False
    times: int = 1 << 30


DENIED = Refusal(403, "AccessDenied", "Access Denied")
ARCHIVED = Refusal(
    403, "InvalidObjectState", "The operation is not valid for the object's storage class", get_only=True
)
NO_KEY_OF_KMS = Refusal(
    403,
    "AccessDenied",
    "User: arn:aws:iam::1:user/reader is not authorized to perform: kms:Decrypt on the resource",
    get_only=True,
)
NOT_IMPLEMENTED = Refusal(501, "NotImplemented")
SLOW_DOWN = Refusal(503, "SlowDown", "Please reduce your request rate.")


@dataclass
class S3Server:
    """A running server: `objects` and `refusals` by `bucket/key`; a refusal of `bucket/` is one of all its objects."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    cuts: dict[str, Collection[int]] = field(default_factory=dict)
    """By `bucket/key` which GETs of it, counted from 1, get half of their answer."""

    @property
    def options(self) -> dict[str, str]:
        """The reader's options by which its objects are read."""
        keys = {"s3.accessKeyId": "test", "s3.secretAccessKey": "test", "s3.region": "us-east-1"}
        return {**keys, "s3.endpointUrl": self.url}

    def refusal(self, method: str, name: str) -> Refusal | None:
        found = self.refusals.get(name) or self.refusals.get(name.partition("/")[0] + "/")
        if found is None or (found.get_only and method == "HEAD"):
            return None
        return found if self.requests[method, name] <= found.times else None


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port of 127.0.0.1 that keeps everything in memory."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    s3 = S3Server(f"http://127.0.0.1:{server.server_address[1]}")
    server.s3 = s3  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_PUT(self) -> None:
        self._refuse()

    def do_POST(self) -> None:
        self._refuse()

    def _refuse(self) -> None:
        """Nothing can be written here."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = unquote(urlsplit("http://host" + self.path).path)[1:]
        self._fail(*(self.server.s3.refusal(self.command, name) or NOT_IMPLEMENTED)[:3])  # type: ignore[attr-defined]

    def _get(self) -> None:
        s3: S3Server = self.server.s3  # type: ignore[attr-defined]
        name = unquote(urlsplit("http://host" + self.path).path)[1:]
        s3.requests[self.command, name] += 1
        if (refused := s3.refusal(self.command, name)) is not None:
            self._fail(refused.status, refused.code, refused.message)
        elif name not in s3.objects:
            self._fail(404, "NoSuchKey", "The specified key does not exist.")
        else:
            self._object(s3.objects[name], is_cut=s3.requests["GET", name] in s3.cuts.get(name, ()))

    def _object(self, data: bytes, *, is_cut: bool) -> None:
        etag = f'"{etag_of(data)}"'
        if self.headers.get("If-Match", etag) != etag:
            self._fail(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
            return
        headers = {"ETag": etag, "Last-Modified": _DATE, "Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found is None:
            self._answer(200, data, headers, is_cut=is_cut)
            return
        start, end = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
        if start >= len(data):
            self._fail(416, "InvalidRange", "The requested range is not satisfiable")
            return
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self._answer(206, data[start : end + 1], headers, is_cut=is_cut)

    def _fail(self, status: int, code: str, message: str) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(message)}</Message>'
        self._answer(status, f"{text}<RequestId>1</RequestId></Error>".encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, is_cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
            self.close_connection = is_cut or self.close_connection
