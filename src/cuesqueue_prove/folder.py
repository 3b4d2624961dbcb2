"""The folder that a run writes into, and the walls that refuse everything outside."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url

SETTINGS = "CUESQUEUE_PROVE_SETTINGS"
"""Environment variable with the file of the settings, set in the job's process."""
FOLDER = "CUESQUEUE_PROVE"
"""Environment variable with the folder of the run, for jobs that look for it."""


_PATH_TABLE = re.compile(r"^(\w+)\.`([^`]*[/:][^`]*)`$")
_WRITING = re.compile(
    r"\b(INSERT|MERGE|UPDATE|DELETE|TRUNCATE|DROP|ALTER|REPLACE|CREATE\s+(?:OR\s+REPLACE\s+)?(?:EXTERNAL\s+)?"
    r"(?:TABLE|DATABASE|SCHEMA))\s",
    re.IGNORECASE,
)
_WRITTEN_PATH = re.compile(
    r"(?P<before>\b(?:LOCATION|DIRECTORY)\s+|\bpath['\"]?\s*=?\s*|"
    r"\b(?:INTO|OVERWRITE|UPDATE|DELETE\s+FROM|TABLE)\s+(?:TABLE\s+)?(?:IF\s+NOT\s+EXISTS\s+)?\w+\.)"
    r"(?P<quote>['\"`])(?P<path>[^'\"`]*[/:][^'\"`]*)(?P=quote)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run. All fields are texts and numbers, so that another process can read them.

    Attributes:
        folder: Everything that the job reads and writes is below it; also its working folder.
        samples: Files whose copies are the objects, or whose records are the messages.
        objects: How many objects are made for each queue; of messages as many times the sample.
        batch: How many objects a micro-batch has at most.
        key: Column that is made unique; "" to choose one.
        tag: Tag of the messages.
        allowed: Hosts other than this machine that the job may connect to.
        pause_at_effect: After which write in a function of foreachBatch the job stands still, counted from 1; 0: none.
    """

    folder: str
    job: str
    samples: tuple[str, ...]
    objects: int = 12
    batch: int = 2
    key: str = ""
    tag: str = ""
    allowed: tuple[str, ...] = ()
    pause_at_effect: int = 0

    @property
    def root(self) -> Path:
        return Path(self.folder)

    @property
    def marker(self) -> Path:
        """The file that exists while a process stands still at a step."""
        return self.root / "prove" / "paused"

    def write(self) -> Path:
        """Write the settings to a file in the run's folder, and return it."""
        file = self.root / "prove" / "settings.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)), "utf-8")
        return file

    @classmethod
    def read(cls, file: str | Path) -> Settings:
        """Read what `write` wrote."""
        values: dict[str, Any] = json.loads(Path(file).read_text("utf-8"))
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)


class Journal:
    """Lines of JSON that several processes append to; each has `what` and `start`, the number of the job's start."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "prove" / "journal.jsonl"
        self.start = 0

    def note(self, what: str, **details: Any) -> None:
        """Append an entry, durable for readers even if this process is killed next."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"what": what, "start": self.start, **details}, default=str) + "\n"
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())  # in one call: lines of several processes do not mix
        finally:
            os.close(descriptor)

    def entries(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of these kinds, or all, in their order."""
        if not self._file.exists():
            return
        for line in self._file.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if not kinds or entry["what"] in kinds:
                yield entry


class Places:
    """Translates the job's paths and URLs. What is relative stays as it is: the folder is the job's working folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    @property
    def objects(self) -> Path:
        """The folder of the made objects."""
        return self._folder / "objects"

    def path(self, text: str) -> str:
        """Return the path that stands for a path or URI."""
        parts = urlsplit(text)
        if parts.scheme in ("", "file"):
            local = Path(unquote(parts.path) if parts.scheme else text)
            if (self._folder / local).resolve().is_relative_to(self._folder):
                return text
        return str(self._elsewhere(parts.scheme or "file", parts.netloc, unquote(parts.path)))

    def table(self, name: str) -> str:
        """Return the name of a table; where it is a path, as in delta.`s3://lake/orders`, one that stands for it."""
        return _PATH_TABLE.sub(lambda match: f"{match[1]}.`{self.path(match[2])}`", name)

    def statement(self, text: str) -> str:
        """Return a statement of SQL with other paths where it writes to one; what it reads stays."""
        if not self.is_writing(text):
            return text

        def led(match: re.Match[str]) -> str:
            return f"{match['before']}{match['quote']}{self.path(match['path'])}{match['quote']}"

        return _WRITTEN_PATH.sub(led, text)

    @staticmethod
    def is_writing(text: str) -> bool:
        """Tell whether a statement of SQL changes something."""
        return _WRITING.search(text) is not None

    def database(self, url: str) -> str:
        """Return the SQLAlchemy URL that stands for another one: always SQLite, a file of its own for each database."""
        address = make_url(url)
        backend, name = address.get_backend_name(), address.database or ""
        if backend == "sqlite":
            file = Path(name.removeprefix("file:"))
            if name in ("", ":memory:") or (self._folder / file).resolve().is_relative_to(self._folder):
                return url
        file = self._elsewhere(backend, address.host or "", f"{name}.db" if backend != "sqlite" else name)
        file.parent.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{file}"

    def queue(self, name: str) -> str:
        """Return the URL of the queue that stands for the one with this name."""
        return f"sql+sqlite:///{self._folder}/queue.db?queue={re.sub(r'[^A-Za-z0-9._-]', '-', name)}"

    def _elsewhere(self, *parts: str) -> Path:
        names = [name for part in parts for name in part.split("/") if name not in ("", ".", "..")]
        return self._folder.joinpath("elsewhere", *names)


_OURS = tuple(
    f"{Path(__file__).parents[1] / name}{os.sep}"
    for name in ("cuesqueue", "cuesqueue_prove", "queue_source", "shard_store")
)
_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")
_CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
_IN_C = ("psycopg.pq", "psycopg2", "MySQLdb", "pyodbc", "confluent_kafka", "grpc")
"""Modules of libraries in C, whose connections no hook sees."""
_REMOVING = ("os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.move")
_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_APPLICATION_", "GCLOUD_", "CLOUDSDK_")
_NO_CREDENTIAL = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_DEFAULT_OUTPUT")


class Walls:
    """Refuses with PermissionError; `check` is the hook."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.root.resolve()
        self._temporary = Path(tempfile.gettempdir()).resolve()  # asked for before the hook is: it takes a lock
        self._addresses: set[str] | None = None  # of the hosts that are allowed, asked for once

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse connections to other machines, libraries whose connections are not seen, and files elsewhere."""
        if event in _CONNECTING:
            if isinstance(address := arguments[1], tuple):
                self._check_host(str(address[0]))
        elif event == "import":
            self._check_module(str(arguments[0]))
        elif event == "sqlite3.connect":
            self._check_database(str(arguments[0]))
        elif event == "open":
            if is_written(arguments):
                self._check_file(os.fsdecode(arguments[0]), "write")
        elif event in _REMOVING:
            for name in arguments[:2]:
                if isinstance(name, (str, bytes, os.PathLike)):
                    self._check_file(os.fsdecode(name), "remove or move")

    def place_in_job(self) -> str:
        """Return file and line in the job's folder that this code was called from; empty where there is none."""
        folder, frame = str(Path(self._settings.job).parent), sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            is_beside = name.startswith(f"{folder}{os.sep}") and "site-packages" not in name
            if name == self._settings.job or (is_beside and not name.startswith(_OURS)):
                return f"{Path(name).name}:{frame.f_lineno}"
            if frame.f_back is None:
                break
            frame = frame.f_back
        return ""

    def _check_host(self, host: str) -> None:
        if host.startswith(_LOOPBACK) or host in self._settings.allowed:
            return
        if self._addresses is None:
            self._addresses = set()
            for name in self._settings.allowed:
                with suppress(OSError):
                    self._addresses |= {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
        if host not in self._addresses:
            raise PermissionError(
                f"cuesqueue prove lets the job connect to no other machine, and {host} is one; give it a test "
                f"server with --allow {host}, or nothing to connect to where CUESQUEUE_PROVE is set"
            )

    def _check_module(self, name: str) -> None:
        if name in _IN_C and not self._settings.allowed and self.place_in_job():
            raise PermissionError(
                f"cuesqueue prove does not see the connections of {name}, a library in C: name its test server with "
                "--allow HOST, use SQLAlchemy, or do not import it where CUESQUEUE_PROVE is set"
            )

    def _check_database(self, name: str) -> None:
        file = Path(name.removeprefix("file:").partition("?")[0])
        if self._is_elsewhere(file) and self.place_in_job():
            raise PermissionError(
                f"cuesqueue prove lets the job open no database outside of its folder, and {name} is one; open it by a "
                "relative path, or by SQLAlchemy"
            )

    def _check_file(self, name: str, verb: str) -> None:
        file = Path(name)
        if not self._is_elsewhere(file) or not self.place_in_job():
            return
        if verb == "write" and file.exists() and not file.is_file():
            return  # a device, or a folder, as which tempfile opens a file without a name
        if verb != "write" and file.resolve().is_relative_to(self._temporary):
            return  # what libraries put there they also take away
        raise PermissionError(
            f"cuesqueue prove lets the job {verb} no file outside of its folder, and {name} is one; use a relative "
            "path, which is below the working folder"
        )

    def _is_elsewhere(self, file: Path) -> bool:
        return not file.resolve().is_relative_to(self._root)


def is_written(arguments: tuple[Any, ...]) -> bool:
    """Tell from the arguments of the event `open` whether the file, which has a name, is opened to write it."""
    name, mode = arguments[:2]
    return isinstance(mode, str) and bool(set("wax+") & set(mode)) and not isinstance(name, int)


def without_credentials(environment: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return the environment with nothing by which libraries in C, Java or Rust would get into a real cloud."""
    kept = {
        name: text for name, text in environment.items() if name in _NO_CREDENTIAL or not name.startswith(_CREDENTIALS)
    }
    return kept | {
        "AWS_ACCESS_KEY_ID": "prove",
        "AWS_SECRET_ACCESS_KEY": "prove",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AZURE_CONFIG_DIR": str(root / "prove" / "azure"),
        "CLOUDSDK_CONFIG": str(root / "prove" / "gcloud"),
    }
