"""Object stores as their makers document them, over HTTP, in a process of their own: `with wire() as stores:`.

It answers S3's, Cloud Storage's and Azure's requests for objects that are there, each with what can be told of it. Of
Cloud Storage that is the transcoding of what was stored with `Content-Encoding: gzip`: unpacked, without a length, and
whatever Range says, unless the request takes gzip. It has a process of its own, since pyarrow may hold Python's lock
while it asks.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import google_crc32c

DATE = "Sun, 22 Nov 2026 04:00:00 GMT"


@dataclass(frozen=True)
class Stored:
    """An object: where it is (`s3/bucket/key`, `gs/...`, `azure/...`), its bytes, and what is odd about its answers.

    Attributes:
        encoding: What it was stored with as `Content-Encoding`.
        fault: "", or what becomes of an answer with its content: `cut` (half of it), `reset`, `busy` (503), `long`
            (more than was announced, without a length or a range: of a service that unpacks), `unranged` (all of it,
            with its length, whatever Range says), `chunked` (as asked, without a length), `replaced` (from then on
            there is another version, whose bytes are `other`).
        at: Of which of its answers, counted from 1; 0: of all.
    """

    place: str
    data: bytes
    encoding: str = ""
    fault: str = ""
    at: int = 1
    other: bytes = b""

    @property
    def etag(self) -> str:
        return _etag(self.place, self.data)


def _etag(place: str, data: bytes) -> str:
    """Without quotes, as the store spells it."""
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return {"s3": digest, "gs": f"C{_generation(data)}E=", "azure": f"0x8D{digest[:13].upper()}"}[place.split("/")[0]]


def _generation(data: bytes) -> int:
    return int(hashlib.md5(data, usedforsecurity=False).hexdigest()[:12], 16)


class Stores:
    """The running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def hold(self, *objects: Stored) -> None:
        """Hold these objects, and no others."""
        texts = []
        for one in objects:
            fields = asdict(one)
            texts.append({name: v.decode("latin-1") if isinstance(v, bytes) else v for name, v in fields.items()})
        request = urllib.request.Request(f"{self.url}/hold", json.dumps(texts).encode(), method="PATCH")
        with urllib.request.urlopen(request, timeout=30):
            pass


@contextmanager
def wire() -> Iterator[Stores]:
    folder = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.oracle.wire"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        assert process.stdout is not None
        yield Stores(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Stored] = {}
        self.answers: Counter[str] = Counter()
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing is said of clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""

    def do_PATCH(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        objects = [
            Stored(**{n: v.encode("latin-1") if n in ("data", "other") else v for n, v in one.items()}) for one in texts
        ]
        with self.server.lock:
            self.server.objects = {one.place: one for one in objects}
            self.server.answers.clear()
        self._answer(200, {}, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit("http://host" + self.path)
        if parts.path.startswith("/storage/v1/b/") or parts.path.startswith("/download/storage/v1/b/"):
            _, _, rest = parts.path.partition("/v1/b/")
            bucket, _, name = rest.partition("/o/")
            self._google(f"gs/{unquote(bucket)}/{unquote(name)}", "alt=media" in parts.query)
        elif self.headers.get("x-ms-version"):
            self._azure("azure/" + unquote(parts.path).lstrip("/"))
        else:
            self._amazon("s3" + unquote(parts.path))

    # --- the makers ---

    def _google(self, place: str, media: bool) -> None:
        if (found := self._found(place, media)) is None:
            error = {"error": {"code": 404, "message": "No such object", "errors": [{"message": "No such object"}]}}
            self._answer(404, {"Content-Type": "application/json"}, json.dumps(error).encode())
            return
        one, data, fault = found
        checksum = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        if not media:
            bucket, _, name = place[3:].partition("/")
            said: dict[str, Any] = {
                "kind": "storage#object",
                "name": name,
                "bucket": bucket,
                "size": str(len(data)),
                "etag": _etag(place, data),
                "generation": str(_generation(data)),
                "metageneration": "1",
                "crc32c": checksum,
                "timeCreated": "2026-11-22T04:00:00.000Z",
                "updated": "2026-11-22T04:00:00.000Z",
            }
            if one.encoding:
                said["contentEncoding"] = one.encoding
            self._answer(200, {"Content-Type": "application/json"}, json.dumps(said).encode())
            return
        headers = {
            "X-Goog-Generation": str(_generation(data)),
            "X-Goog-Metageneration": "1",
            "X-Goog-Hash": f"crc32c={checksum}",
            "X-Goog-Stored-Content-Length": str(len(data)),
            "X-Goog-Stored-Content-Encoding": one.encoding or "identity",
        }
        if one.encoding == "gzip" and "gzip" not in self.headers.get("Accept-Encoding", ""):
            headers["Warning"] = "214 UploadServer gunzipped"
            headers["X-Guploader-Response-Body-Transformations"] = "gunzipped"  # by which clients know: no checksum
            with suppress(OSError, EOFError):
                self._content(200, headers, gzip.decompress(data), fault or "chunked")
                return
        self._ranged(one, data, headers, fault)

    def _amazon(self, place: str) -> None:
        if (found := self._found(place, self.command == "GET")) is None:
            text = "<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"
            self._answer(404, {"Content-Type": "application/xml"}, text.encode())
            return
        one, data, fault = found
        etag = f'"{_etag(place, data)}"'
        if self.headers.get("If-Match", etag) != etag:
            text = "<Error><Code>PreconditionFailed</Code><Message>no</Message></Error>"
            self._answer(412, {"Content-Type": "application/xml"}, text.encode())
            return
        self._ranged(one, data, {"ETag": etag, "Last-Modified": DATE, "Accept-Ranges": "bytes"}, fault)

    def _azure(self, place: str) -> None:
        if "HierarchicalNamespace" in self.path or "action=" in self.path:
            self._answer(400, {"x-ms-error-code": "HierarchicalNamespaceNotEnabled"}, b"")
            return
        if "restype=container" in self.path:
            self._answer(200, {"ETag": '"1"', "Last-Modified": DATE}, b"")
            return
        if (found := self._found(place, self.command == "GET")) is None:
            self._answer(404, {"x-ms-error-code": "BlobNotFound"}, b"")
            return
        one, data, fault = found
        headers = {
            "ETag": f'"{_etag(place, data)}"',
            "Last-Modified": DATE,
            "x-ms-blob-type": "BlockBlob",
            "x-ms-creation-time": DATE,
            "Content-Type": "application/octet-stream",
            "x-ms-version": "2024-01-01",
            "x-ms-server-encrypted": "true",
            "Accept-Ranges": "bytes",
        }
        self._ranged(one, data, headers, fault)

    # --- answers ---

    def _found(self, place: str, content: bool) -> tuple[Stored, bytes, str] | None:
        """The object, its bytes as they are now, and the fault of this answer."""
        server = self.server
        with server.lock:
            if (one := server.objects.get(place)) is None:
                return None
            if content:
                server.answers[place] += 1
            number = server.answers[place]
        if one.fault == "replaced":
            return one, one.other if number > one.at or (number == one.at and not content) else one.data, ""
        return one, one.data, one.fault if content and one.at in (0, number) else ""

    def _ranged(self, one: Stored, data: bytes, headers: dict[str, str], fault: str) -> None:
        if one.encoding:
            headers["Content-Encoding"] = one.encoding
        if fault == "long":
            with suppress(OSError, EOFError):
                data = gzip.decompress(data)
            self._content(200, headers, data, "chunked")
            return
        wanted = self.headers.get("x-ms-range") or self.headers.get("Range") or ""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        if asked is None or self.command == "HEAD" or fault == "unranged":
            self._content(200, headers, data, fault)
            return
        start, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            text = b"<Error><Code>InvalidRange</Code><Message>no</Message></Error>"
            self._answer(416, {"Content-Type": "application/xml", "x-ms-error-code": "InvalidRange"}, text)
            return
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._content(206, headers, data[start:end], fault)

    def _content(self, status: int, headers: dict[str, str], data: bytes, fault: str) -> None:
        if fault == "busy":
            text = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"
            self._answer(503, {"Content-Type": "application/xml", "x-ms-error-code": "ServerBusy"}, text)
        elif fault == "chunked" and self.command != "HEAD":
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:7], data[7:]) if part)
            self._answer(status, headers | {"Transfer-Encoding": "chunked"}, chunks + b"0\r\n\r\n")
        elif fault in ("cut", "reset"):
            self._answer(status, headers | {"Content-Length": str(len(data))}, data[: len(data) // 2])
            self.close_connection = True
        else:
            self._answer(status, headers, data)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        self.close_connection = True
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name, value)
        if not {"Transfer-Encoding", "Content-Length"} & headers.keys():
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main() -> None:
    server = _Server()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)  # noqa: T201 - who started it reads it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server.serve_forever(0.1)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
