"""As much of Google Cloud Storage's JSON interface as buckets ask for, in this process: `with gcs_model() as gcs:`.

Unlike the emulator it lists in pages, keeps conditions and generations, and unpacks what is stored with
`Content-Encoding: gzip`, as the service does: then there is no length, and `Range` is ignored. It keeps the buckets'
configurations of notifications, and tells which messages an object has: to publish them is the test's.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

PROJECT = "1"
"""The number of the project of most buckets."""
PROJECT_NUMBERS = {"my-project": PROJECT, "other-project": "2"}
_TOPICS = "//pubsub.googleapis.com/"


class Blob(NamedTuple):
    """One object."""

    body: bytes
    generation: int
    created: str
    metageneration: int = 1  # rises with each change of metadata or storage class
    encoding: str = ""
    cache_control: str = ""  # `no-transform`: it is never unpacked


class GcsModel:
    """A running server: `url` names it, `blobs` is what it holds, by (bucket, name)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.buckets: set[str] = set()
        self.blobs: dict[tuple[str, str], Blob] = {}
        self.denied: set[str] = set()
        self.listings = 0
        self.requests: list[str] = []
        self._generations = itertools.count(1)
        self.owners: dict[str, str] = {}  # bucket -> number of its project, else PROJECT
        self.notifications: dict[str, list[dict[str, Any]]] = defaultdict(list)  # by bucket
        self.may_publish: Callable[[str, str], bool] = lambda topic, agent: True  # topic: projects/P/topics/T

    def agent(self, project: str) -> str:
        """The account by which Cloud Storage acts for a project: its number, or its name in `PROJECT_NUMBERS`."""
        number = PROJECT_NUMBERS.get(project, project)
        return f"service-{number}@gs-project-accounts.iam.gserviceaccount.com"

    def messages(self, bucket: str, name: str) -> Iterator[tuple[str, bytes, dict[str, str]]]:
        """Topic, body and attributes of each message about a new object."""
        for one in self.notifications[bucket]:
            is_meant = "OBJECT_FINALIZE" in one.get("event_types", ["OBJECT_FINALIZE"])
            if not is_meant or not name.startswith(one.get("object_name_prefix", "")):
                continue
            resource = _resource(bucket, name, self.blobs[bucket, name])
            attributes = {
                "notificationConfig": f"projects/_/buckets/{bucket}/notificationConfigs/{one['id']}",
                "eventType": "OBJECT_FINALIZE",
                "payloadFormat": one["payload_format"],
                "bucketId": bucket,
                "objectId": name,
                "objectGeneration": resource["generation"],
                "eventTime": resource["timeCreated"],
            }
            body = json.dumps(resource).encode() if one["payload_format"] == "JSON_API_V1" else b""
            yield one["topic"].removeprefix(_TOPICS), body, attributes

    def put(self, bucket: str, name: str, body: bytes, encoding: str = "", cache_control: str = "") -> Blob:
        self.buckets.add(bucket)
        created = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        blob = Blob(body, next(self._generations), created, encoding=encoding, cache_control=cache_control)
        self.blobs[bucket, name] = blob
        return blob

    def describe(self, bucket: str, name: str) -> None:
        """Change an object's metadata, and not its content."""
        blob = self.blobs[bucket, name]
        self.blobs[bucket, name] = blob._replace(metageneration=blob.metageneration + 1)


@contextmanager
def gcs_model() -> Iterator[GcsModel]:
    """A server on a free port of 127.0.0.1 that keeps everything in memory."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    gcs = GcsModel(f"http://127.0.0.1:{server.server_address[1]}")
    server.gcs = gcs  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield gcs
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""

    def do_GET(self) -> None:
        self._request("GET")

    def do_DELETE(self) -> None:
        self._request("DELETE")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._request("POST", body)

    def _request(self, method: str, sent: bytes = b"") -> None:
        gcs: GcsModel = self.server.gcs  # type: ignore[attr-defined]
        gcs.requests.append(f"{method} {self.path}")
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if (project := re.fullmatch(r"/storage/v1/projects/([^/]+)/serviceAccount", parts.path)) is not None:
            self._service_account(gcs, unquote(project[1]))
            return
        _, _, _, _, bucket, *rest = parts.path.split("/")  # /storage/v1/b/BUCKET/o/...
        of_objects, part, rest = bool(rest), rest[0] if rest else "", rest[1:]
        name = unquote(rest[0]) if rest else ""
        if bucket in gcs.denied:
            self._fail(403, "reader does not have storage.objects.list access")
        elif bucket not in gcs.buckets:
            self._fail(404, "The specified bucket does not exist.")
        elif not of_objects:  # the library asks for the bucket by itself, on a thread
            owner = gcs.owners.get(bucket, PROJECT)
            self._answer(200, {"kind": "storage#bucket", "name": bucket, "projectNumber": owner})
        elif part == "notificationConfigs" and method == "POST":
            self._notify(gcs, bucket, json.loads(sent))
        elif part == "notificationConfigs":
            items = gcs.notifications[bucket]
            self._answer(200, {"kind": "storage#notifications", **({"items": items} if items else {})})
        elif not rest:
            self._list(gcs, bucket, asked)
        elif (bucket, name) not in gcs.blobs:
            self._fail(404, f"No such object: {bucket}/{name}")
        elif len(rest) > 1:  # NAME/rewriteTo/b/BUCKET/o/NAME
            self._rewrite(gcs, bucket, name, unquote(rest[-1]), asked)
        elif method == "GET" and asked.get("generation") not in (None, str(gcs.blobs[bucket, name].generation)):
            self._fail(404, f"No such object: {bucket}/{name}#{asked['generation']}")
        elif method == "GET" and asked.get("alt") == "media":
            self._content(gcs.blobs[bucket, name])
        elif method == "GET":
            self._answer(200, _resource(bucket, name, gcs.blobs[bucket, name]))
        elif asked.get("ifGenerationMatch") not in (None, str(gcs.blobs[bucket, name].generation)):
            self._fail(412, "At least one of the pre-conditions you specified did not hold.")
        else:
            del gcs.blobs[bucket, name]
            self._answer(204, None)

    def _service_account(self, gcs: GcsModel, project: str) -> None:
        if project in gcs.denied:
            self._fail(403, f"setup does not have resourcemanager.projects.get access to {project}.")
        elif PROJECT_NUMBERS.get(project, project) not in PROJECT_NUMBERS.values():
            self._fail(404, f"Unknown project id: {project}")
        else:
            self._answer(200, {"kind": "storage#serviceAccount", "email_address": gcs.agent(project)})

    def _notify(self, gcs: GcsModel, bucket: str, wanted: dict[str, Any]) -> None:
        """Makes a configuration; one that is there already is made once more."""
        topic, agent = wanted.get("topic", ""), gcs.agent(gcs.owners.get(bucket, PROJECT))
        if re.fullmatch(rf"{_TOPICS}projects/[^/]+/topics/[^/]+", topic) is None:
            self._fail(400, f"Invalid Google Cloud Pub/Sub topic: {topic}")
        elif wanted.get("payload_format") not in ("JSON_API_V1", "NONE"):
            self._fail(400, "Invalid value for payload_format")
        elif not gcs.may_publish(topic.removeprefix(_TOPICS), agent):
            self._fail(
                403,
                f"The service account '{agent}' does not have permission to publish messages to to the Cloud Pub/Sub "
                f"topic '{topic}', or that topic does not exist.",
            )
        else:
            made = {
                **wanted,
                "kind": "storage#notification",
                "id": str(len(gcs.notifications[bucket]) + 1),
                "etag": "1",
            }
            gcs.notifications[bucket].append(made)
            self._answer(200, made)

    def _list(self, gcs: GcsModel, bucket: str, asked: dict[str, str]) -> None:
        gcs.listings += 1
        prefix, start, most = asked.get("prefix", ""), asked.get("startOffset", ""), int(asked.get("maxResults", 1000))
        token = base64.b64decode(asked.get("pageToken", "")).decode()
        names = sorted((name for of, name in gcs.blobs if of == bucket and name.startswith(prefix)), key=str.encode)
        names = [name for name in names if name.encode() >= start.encode() and name.encode() > token.encode()]
        page: dict[str, Any] = {"items": [_resource(bucket, name, gcs.blobs[bucket, name]) for name in names[:most]]}
        if len(names) > most:
            page["nextPageToken"] = base64.b64encode(names[most - 1].encode()).decode()
        self._answer(200, page)

    def _rewrite(self, gcs: GcsModel, bucket: str, name: str, target: str, asked: dict[str, str]) -> None:
        source, there = gcs.blobs[bucket, name], gcs.blobs.get((bucket, target))
        wanted = asked.get("ifSourceGenerationMatch")
        if wanted not in (None, str(source.generation)) or (
            asked.get("ifGenerationMatch") == "0" and there is not None
        ):
            self._fail(412, "At least one of the pre-conditions you specified did not hold.")
        elif "rewriteToken" not in asked and source.body:  # each takes two requests
            written = {"totalBytesRewritten": "0", "objectSize": str(len(source.body)), "done": False}
            self._answer(200, {**written, "rewriteToken": "go-on"})
        else:
            made = _resource(bucket, target, gcs.put(bucket, target, source.body))
            size = str(len(source.body))
            self._answer(200, {"totalBytesRewritten": size, "objectSize": size, "done": True, "resource": made})

    def _content(self, blob: Blob) -> None:
        body, is_packed = blob.body, blob.encoding == "gzip"
        accepts = "gzip" in self.headers.get("Accept-Encoding", "") or "no-transform" in blob.cache_control
        if is_packed and not accepts:
            self._unpacked(body)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, len(body)) if asked and asked[2] else len(body)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self.wfile.write(body[start:end])

    def _unpacked(self, body: bytes) -> None:
        """Answer with all of it, whatever was asked for, in chunks."""
        self.protocol_version, self.close_connection = "HTTP/1.1", True
        self.send_response(200)
        checksum = base64.b64encode(google_crc32c.value(body).to_bytes(4, "big")).decode()
        for name, value in {
            "X-Goog-Stored-Content-Encoding": "gzip",
            "X-Goog-Stored-Content-Length": str(len(body)),
            "X-Goog-Hash": f"crc32c={checksum}",  # of what is stored
            "X-Guploader-Response-Body-Transformations": "gunzipped",
            "Warning": "214 UploadServer gunzipped",
            "Transfer-Encoding": "chunked",
            "Connection": "close",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # who has asked for less goes away
            content = gzip.decompress(body)
            for at in range(0, len(content), 1 << 16):
                chunk = content[at : at + (1 << 16)]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")

    def _fail(self, status: int, message: str) -> None:
        self._answer(status, {"error": {"code": status, "message": message, "errors": [{"message": message}]}})

    def _answer(self, status: int, content: object) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _resource(bucket: str, name: str, blob: Blob) -> dict[str, Any]:
    checksum = base64.b64encode(google_crc32c.value(blob.body).to_bytes(4, "big")).decode()
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": bucket,
        "size": str(len(blob.body)),
        "etag": f"C{blob.generation}M{blob.metageneration}=",
        "generation": str(blob.generation),
        "metageneration": str(blob.metageneration),
        "crc32c": checksum,
        "timeCreated": blob.created,
        "updated": blob.created,
        **({"contentEncoding": blob.encoding} if blob.encoding else {}),
        **({"cacheControl": blob.cache_control} if blob.cache_control else {}),
    }


@dataclass
class GcsProcess:
    """A model in a process of its own: pyarrow keeps Python from running while it waits for some of its answers."""

    url: str
    _process: subprocess.Popen[str]

    def put(self, bucket: str, name: str, body: bytes, encoding: str = "", cache_control: str = "") -> None:
        self._ask(["put", bucket, name, base64.b64encode(body).decode(), encoding, cache_control])

    def requests(self) -> list[str]:
        """Return what was asked since the last call."""
        found: list[str] = self._ask(["requests"])
        return found

    def _ask(self, question: list[str]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def gcs_process() -> Iterator[GcsProcess]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield GcsProcess(process.stdout.readline().strip(), process)
        process.stdin.close()


def _serve() -> None:
    with gcs_model() as gcs:
        print(gcs.url, flush=True)  # noqa: T201 - to who has started this process
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            if what == "put":
                bucket, name, body, *facts = arguments
                gcs.put(bucket, name, base64.b64decode(body), *facts)
            asked, gcs.requests[:] = [*gcs.requests], []
            print(json.dumps(asked), flush=True)  # noqa: T201


if __name__ == "__main__":
    _serve()
