"""A real MariaDB: `with mariadb_server() as url:`; under two seconds, from the binaries of the system's package.

There is no MariaDB on PyPI, so `make test` does without; `make integration` installs Debian's `mariadb-server` where it
may, and skips with a reason where it may not.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, exc

from servers import debian
from servers.debian import NotInstalled

_START_SECONDS = 60


@contextmanager
def mariadb_server(*, install: bool = False) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a server of one's own; the data is gone when the block ends."""
    server, initialise = _programs(install)
    folder = Path(tempfile.mkdtemp(prefix="cuesqueue-mariadb-"))
    try:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": "mysql", "group": "mysql", "extra_groups": []}
            shutil.chown(folder, "mysql", "mysql")
        data = folder / "data"
        options = [f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        done = subprocess.run([initialise, "--no-defaults", *options], capture_output=True, check=False, **user)
        if done.returncode:
            raise RuntimeError(f"{initialise} failed:\n{(done.stdout + done.stderr).decode(errors='replace')}")
        with _running(server, data, folder, user) as port:
            yield f"mysql+pymysql://root@127.0.0.1:{port}/mysql"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(server: str, data: Path, folder: Path, user: dict[str, Any]) -> Iterator[int]:
    port = _free_port()
    command = [server, "--no-defaults", f"--datadir={data}", "--bind-address=127.0.0.1", f"--port={port}"]
    command += [f"--socket={folder / 's.sock'}", "--max-connections=200", "--innodb-flush-log-at-trx-commit=2"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, **user)
    try:
        if not _answers(process, port):
            raise RuntimeError(f"MariaDB did not start:\n{log.read_text(errors='replace')}")
        yield port
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    engine = create_engine(f"mysql+pymysql://root@127.0.0.1:{port}/mysql")
    deadline = time.monotonic() + _START_SECONDS
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with engine.connect():
                    return True
            except exc.OperationalError:
                time.sleep(0.02)
        return False
    finally:
        engine.dispose()


def _programs(install: bool) -> tuple[str, str]:
    if install and _found("mariadbd") is None:
        debian.install("mariadb-server")
    server, initialise = _found("mariadbd"), _found("mariadb-install-db")
    if server is None or initialise is None:
        raise NotInstalled("mariadb-server is not installed; install it, or name a server in CUESQUEUE_TEST_MYSQL_URL")
    return server, initialise


def _found(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin"]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
