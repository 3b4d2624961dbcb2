"""Google's own Pub/Sub emulator, where it is found: `with pubsub_emulator() as host:`; it needs a Java.

It is a part of the Google Cloud CLI (`google-cloud-cli-pubsub-emulator`), which PyPI does not have.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "CUESQUEUE_TEST_PUBSUB_EMULATOR"
"""Names a running emulator (`host:port`) or its jar."""

_JAR = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
_START_SECONDS = 60


class NoEmulator(Exception):
    """There is no emulator here."""


@contextmanager
def pubsub_emulator() -> Iterator[str]:
    """`host:port` of an emulator: the one that is named, else one of one's own that is gone when the block ends."""
    named = os.environ.get(VARIABLE, "")
    if named and not named.endswith(".jar"):
        yield named
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [_java(), "-jar", str(_jar(named)), "--host=127.0.0.1", f"--port={port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if not _answers(process, port):
            raise RuntimeError(f"the Pub/Sub emulator did not start: {' '.join(command)}")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.05)
    return False


def _java() -> str:
    found = shutil.which("java")
    if found is None:
        raise NoEmulator("the Pub/Sub emulator needs a Java on the PATH")
    return found


def _jar(named: str) -> Path:
    gcloud = shutil.which("gcloud")
    homes = [Path("/usr/lib/google-cloud-sdk"), Path("/opt/google-cloud-sdk")]
    if gcloud is not None:
        homes.insert(0, Path(gcloud).resolve().parents[1])
    found = [Path(named)] if named else sorted(jar for home in homes for jar in home.glob(_JAR))
    if not found or not found[-1].is_file():
        raise NoEmulator(
            f"there is no Pub/Sub emulator: install google-cloud-cli-pubsub-emulator, or name its jar in {VARIABLE}"
        )
    return found[-1]
