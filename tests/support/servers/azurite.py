"""Microsoft's own emulator of Azure's Blob Storage, where it is installed (`npm install -g azurite`)."""

from __future__ import annotations

import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.servers.programs import end, free_port, start

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those that Microsoft publishes for it: they open nothing else."""
_START_SECONDS = 60


class NoAzurite(Exception):
    """It is not installed."""


@contextmanager
def azurite_server() -> Iterator[str]:
    """The URL of a server of one's own that keeps everything in memory. Raises NoAzurite."""
    program = shutil.which("azurite-blob")
    if program is None:
        raise NoAzurite("there is no program 'azurite-blob'")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cuesqueue-azure-") as folder:
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        process = start([*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"], Path(folder), {})
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + _START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"azurite did not start:\n{(Path(folder) / 'log').read_text()}")
                time.sleep(0.1)
            yield url
        finally:
            end(process)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True
