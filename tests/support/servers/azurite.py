"""Microsoft's own emulator of Azure's blobs and queues, where it is installed or npm can install it.

It is looked for in the folder that CUESQUEUE_AZURITE names, and on the path (`npm install -g azurite`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.servers.programs import end, free_port, start

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those that Microsoft publishes for it: they open nothing else."""
VERSION = "3.37.0"
VARIABLE = "CUESQUEUE_AZURITE"
_START_SECONDS = 60
_INSTALL_SECONDS = 600


class NoAzurite(Exception):
    """It is not installed, and cannot be installed here; the text says why."""


class Azurite(NamedTuple):
    """A running server: the URL of its blobs, and that of its queues."""

    blobs: str
    queues: str


def install() -> None:
    """Install it into a folder of the system's temporary files, which later runs use too. Raises NoAzurite."""
    if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
        raise NoAzurite(f"Azurite needs {' and '.join(missing)}, which is not installed")
    folder = _own_folder()
    if _program() is None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"azurite@{VERSION}"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS
        )
        if done.returncode:
            raise NoAzurite(f"npm could not install Azurite: {done.stderr[-300:]}")


def _own_folder() -> Path:
    default = Path("/tmp") / f"cuesqueue-azurite-{VERSION}-{os.getuid()}"
    return Path(os.environ.get(VARIABLE) or default)


def _program() -> str | None:
    own = _own_folder() / "node_modules" / ".bin" / "azurite"
    return str(own) if own.exists() else shutil.which("azurite")


@contextmanager
def azurite_server() -> Iterator[Azurite]:
    """A server of one's own that keeps everything in memory. Raises NoAzurite where it is not installed."""
    program = _program()
    if program is None or shutil.which("node") is None:
        raise NoAzurite("there is no program 'azurite'; integration installs it with npm")
    ports = {name: free_port() for name in ("blob", "queue", "table")}
    command = [program, "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    for name, port in ports.items():
        command += [f"--{name}Host", "127.0.0.1", f"--{name}Port", str(port)]
    with tempfile.TemporaryDirectory(prefix="cuesqueue-azure-") as folder:
        process = start(command, Path(folder), {})
        try:
            server = Azurite(*(f"http://127.0.0.1:{ports[name]}" for name in ("blob", "queue")))
            deadline = time.monotonic() + _START_SECONDS
            while not all(map(_answers, server)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"azurite did not start:\n{(Path(folder) / 'log').read_text()}")
                time.sleep(0.1)
            yield server
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
