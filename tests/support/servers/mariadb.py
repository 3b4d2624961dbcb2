"""A real MariaDB: `with mariadb_server() as url:`; under two seconds, from the binaries of the system's package.

There is no MariaDB on PyPI, so `make test` does without; `make integration` installs Debian's `mariadb-server` where it
may, and skips with a reason where it may not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.servers import debian, programs
from support.servers.debian import NotInstalled


@contextmanager
def mariadb_server(*, install: bool = False) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a server of one's own; the data is gone when the block ends."""
    server, initialise = _found_programs(install)
    folder = Path(tempfile.mkdtemp(prefix="cuesqueue-mariadb-"))
    try:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": "mysql", "group": "mysql", "extra_groups": []}
            shutil.chown(folder, "mysql", "mysql")
        data = f"--datadir={folder / 'data'}"
        options = ["--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db"]
        programs.run([initialise, *options], folder, user)
        port = programs.free_port()
        url = f"mysql+pymysql://root@127.0.0.1:{port}/mysql"
        command = [server, "--no-defaults", data, "--bind-address=127.0.0.1", f"--port={port}"]
        command += [f"--socket={folder / 's.sock'}", "--max-connections=200", "--innodb-flush-log-at-trx-commit=2"]
        process = programs.start(command, folder, user)
        try:
            if not programs.answers(process, url):
                raise RuntimeError(f"MariaDB did not start:\n{(folder / 'log').read_text(errors='replace')}")
            yield url
        finally:
            programs.end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _found_programs(install: bool) -> tuple[str, str]:
    if install and _found("mariadbd") is None:
        debian.install("mariadb-server")
    server, initialise = _found("mariadbd"), _found("mariadb-install-db")
    if server is None or initialise is None:
        raise NotInstalled("mariadb-server is not installed; install it, or name a server in CUESQUEUE_TEST_MYSQL_URL")
    return server, initialise


def _found(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin"]))
