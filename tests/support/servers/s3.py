"""As much of S3 over HTTP as readers of objects ask for, in this process: `with s3_server() as s3:`.

Unlike the emulators it refuses what a test says, with S3's own codes, and takes keys as they are written, `a//b` too.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
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
class Asked:
    """A request for an object: its number among those for this one (from 1), its path, and its headers."""

    number: int
    method: str
    path: str
    headers: Message[str, str]


@dataclass
class Reply:
    """What would be answered, for a test to change.

    Attributes:
        sent: Bytes of the body after which the connection ends; None: all of it, and the connection stays.
        resets: Whether it ends by a reset; with `says_nothing` before any byte of the answer.
        is_chunked: Whether the body goes in chunks, without its length.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    sent: int | None = None
    resets: bool = False
    says_nothing: bool = False
    is_chunked: bool = False


Change = Callable[[Asked, Reply], Reply | None]
"""Returns what is answered instead; None: the same."""


def fails(status: int, code: str, message: str = "", **headers: str) -> Reply:
    """Return an error of S3; of the headers' names `_` is a hyphen."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(message)}</Message>'
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(
        status, {"Content-Type": "application/xml", **more}, f"{text}<RequestId>1</RequestId></Error>".encode()
    )


@dataclass
class S3Server:
    """A running server: `objects` and `refusals` by `bucket/key`; a refusal of `bucket/` is one of all its objects."""

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    cuts: dict[str, Collection[int]] = field(default_factory=dict)
    """By `bucket/key` which GETs of it, counted from 1, get half of their answer."""
    changes: dict[str, Change] = field(default_factory=dict)
    """By `bucket/key`, or `bucket/` for all its objects, how an answer is another one."""
    asked: list[Asked] = field(default_factory=list)
    connections: Counter[object] = field(default_factory=Counter)
    """How many requests came from each connection."""

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
def s3_server(*, keeps: bool = False) -> Iterator[S3Server]:
    """A server on a free port of 127.0.0.1 that has everything in memory; `keeps`: connections, as S3 does."""
    server = _Server(("127.0.0.1", 0), _Keeping if keeps else _Handler)
    s3 = S3Server(f"http://127.0.0.1:{server.server_address[1]}")
    server.s3 = s3
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        thread.join()
        for connection in [*server.open]:  # those that clients keep
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # as many ask at once
    s3: S3Server

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open: set[socket.socket] = set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing is said of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with suppress(OSError):
            super().finish()

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
        self._answer(fails(*(self.server.s3.refusal(self.command, name) or NOT_IMPLEMENTED)[:3]))

    def _get(self) -> None:
        s3 = self.server.s3
        name = unquote(urlsplit("http://host" + self.path).path)[1:]
        s3.requests[self.command, name] += 1
        s3.connections[self.client_address] += 1
        asked = Asked(s3.requests[self.command, name], self.command, self.path, self.headers)
        s3.asked.append(asked)
        if (refused := s3.refusal(self.command, name)) is not None:
            reply = fails(refused.status, refused.code, refused.message)
        elif name not in s3.objects:
            reply = fails(404, "NoSuchKey", "The specified key does not exist.")
        else:
            reply = self._object(s3.objects[name])
            if self.command == "GET" and asked.number in s3.cuts.get(name, ()):
                reply.sent = len(reply.body) // 2
        change = s3.changes.get(name) or s3.changes.get(name.partition("/")[0] + "/")
        self._answer((change and change(asked, reply)) or reply)

    def _object(self, data: bytes) -> Reply:
        etag = f'"{etag_of(data)}"'
        if self.headers.get("If-Match", etag) != etag:
            return fails(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        headers = {"ETag": etag, "Last-Modified": _DATE, "Accept-Ranges": "bytes"}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found is None or int(found[2] or len(data)) < int(found[1]):  # which is no range, and is ignored
            return Reply(200, headers, data)
        start, end = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
        if start >= len(data):
            return fails(416, "InvalidRange", "The requested range is not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return Reply(206, headers, data[start : end + 1])

    def _answer(self, reply: Reply) -> None:
        if not reply.says_nothing:
            self.send_response(reply.status)
            length = {"Transfer-Encoding": "chunked"} if reply.is_chunked else {"Content-Length": str(len(reply.body))}
            for name, value in (length | reply.headers).items():
                if value:  # an empty one takes a usual one away
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                body = reply.body[: reply.sent]
                if reply.is_chunked:
                    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
                    body += b"" if reply.sent is not None else b"0\r\n\r\n"
                self.wfile.write(body)
        if reply.resets:
            self.wfile.flush()
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
        if reply.resets or reply.says_nothing or reply.sent is not None:
            self.close_connection = True


class _Keeping(_Handler):
    protocol_version = "HTTP/1.1"
