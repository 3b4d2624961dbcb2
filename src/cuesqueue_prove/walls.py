"""The walls around a job under proof: what Python is about to do to another machine, or to files elsewhere, is refused.

An audit hook of Python, in the job's process and in those of Python that Spark starts, where functions of SQL, of
`foreach` and of data sources run (`cuesqueue_prove.workers`).
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cuesqueue_prove.folder import Settings

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
