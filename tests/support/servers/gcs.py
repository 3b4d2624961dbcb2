"""Google Cloud Storage from `gcp-storage-emulator`, in a process of its own: `with gcs_server() as gcs:`.

It ignores preconditions, so nothing may rest on them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.servers.programs import end, free_port, start

VARIABLE = "STORAGE_EMULATOR_HOST"
"""What names such a server to Google's clients, and to ours."""
_START_SECONDS = 60


class GcsServer:
    """A running server: `url` names it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create_bucket(self, name: str) -> None:
        self._post("/storage/v1/b?project=p", {"name": name})

    def put(self, bucket: str, key: str, body: bytes) -> dict[str, str]:
        """Returns the object's resource, which is the payload of a notification."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        resource: dict[str, str] = self._post(path, body)
        return resource

    def _post(self, path: str, content: object) -> Any:
        kind, body = "application/octet-stream", content  # the server parses whatever calls itself JSON
        if not isinstance(body, bytes):
            kind, body = "application/json", json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    """A server on a free port of 127.0.0.1 that keeps everything in memory."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cuesqueue-gcs-") as folder:
        arguments = ["start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
        process = start([sys.executable, "-m", "gcp_storage_emulator", *arguments], Path(folder), {})
        try:
            url = f"http://127.0.0.1:{port}"
            if not _answers(process, url):
                raise RuntimeError(f"the GCS server did not start:\n{(Path(folder) / 'log').read_text()}")
            yield GcsServer(url)
        finally:
            end(process)


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{url}/storage/v1/b?project=p", timeout=5):
            return True
        time.sleep(0.05)
    return False
