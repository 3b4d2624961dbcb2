"""Paths and files of this machine: where relative paths in options count from, and locks that tell who still runs.

Spark starts the Python processes of a query in the working folder of the driver's JVM. With Spark Connect those that
plan, commit and read views start in a folder of the session instead, which is deleted with it: one relative path would
be several files, and files written there would be deleted. So a relative path is refused there.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote_plus

from shard_store.redaction import redact_url

_SESSION = "SPARK_JOB_ARTIFACT_UUID"
"""Spark sets it for its Python workers; one for which it is not `default` starts in a folder of the session."""
_CONTAINER = "CONTAINER_ID"
"""YARN sets it for what runs in a container, which starts in a folder of this name."""

_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/[^/].*|/)", re.DOTALL)
_SQLITE = re.compile(
    r"(?is)(?P<before>(?:sql\+)?sqlite(?:\+\w+)?:///)(?!file:/)(?P<uri>file:)?(?P<path>[^:?][^?]*)(?P<after>\?.*|)"
)
"""The URL of a file by its path, or by a URI of SQLite's own that has a relative path."""
_SIM = re.compile(r"(?is)(sim://.*?[?&]dir=)(?!/|%2F)([^&]+)(.*)")
"""A simulated queue whose folder has a relative path."""


def working_folder() -> Path:
    """Return the folder from which relative paths count in all processes of a query.

    Raises ValueError where this process is not in it, and where it does not outlive the query.
    """
    _check_session()
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise ValueError("the working folder of the driver has been deleted") from None
    if folder.name == os.environ.get(_CONTAINER):
        raise ValueError("the driver runs in a container of YARN, whose folder is deleted with it")
    return folder


def absolute_path(text: str) -> str:
    """Return the URI of a folder, or its absolute path, without a slash at its end. Raises ValueError."""
    path = text.strip()
    if not path:
        raise ValueError("the value is empty; write a path or a URI, or leave the option out")
    if "://" in path:
        return re.sub("^file://", "file://", path, flags=re.IGNORECASE).rstrip("/")
    if (parts := _ONE_SLASH.fullmatch(path)) is not None:
        scheme, path = parts.groups()
        if scheme.lower() != "file":
            raise ValueError(f"{_quoted(text)} has one slash after its scheme; write {scheme}://...")
    if not path.startswith("/"):
        path = str(_counted_from(working_folder, text, "/data/published or s3://lake/published") / path)
    return str(Path(path))


def absolute_url(url: str, folder: Callable[[], Path] = working_folder) -> str:
    """Return the URL of a database or a queue, with the whole path of its file or folder.

    A relative path counts from `folder()`. A URL without a path on this machine stays as it is. Raises ValueError.
    """
    if (parts := _SIM.fullmatch(url)) is not None:
        before, path, after = parts.groups()
        whole = _counted_from(folder, url, "sim://files?dir=/data/queues") / unquote_plus(path)
        return f"{before}{quote(str(whole))}{after}"
    if (parts := _SQLITE.fullmatch(url)) is not None:
        before, is_uri, path = parts["before"], parts["uri"], parts["path"]
        if is_uri or not path.startswith("/"):
            example = "jobs.db?queue=files" if before.startswith("sql+") else "cuesqueue.db"
            start = str(_counted_from(folder, url, f"{before}/data/{example}"))
            path = f"{quote(start) if is_uri else start}/{path}"
        return f"{before}{is_uri or ''}{posixpath.normpath(path)}{parts['after']}"
    return url


def check_file(path: str) -> str:
    """Refuse a relative path in a folder of the session; elsewhere each process resolves it by itself."""
    if not path.startswith("/"):
        try:
            _check_session()
        except ValueError as problem:
            raise ValueError(_refused(path, problem, "/run/secrets/key")) from None
    return path


def _check_session() -> None:
    if os.environ.get(_SESSION, "default") != "default":
        raise ValueError("with Spark Connect it would count from a temporary folder of the Spark session")


def _counted_from(folder: Callable[[], Path], text: str, example: str) -> Path:
    try:
        return folder()
    except ValueError as problem:
        raise ValueError(_refused(text, problem, example)) from None


def _refused(text: str, problem: ValueError, example: str) -> str:
    return f"{_quoted(text)} is relative, and {problem}; write absolute paths or URIs in all options, as in {example}"


def _quoted(text: str) -> str:
    return repr(redact_url(text)[:200])


with suppress(ImportError):  # Windows has none: a file is never found free there
    import fcntl


# files by which one process knows that another one still runs: the system releases a lock when its holder ends


def hold(file: Path) -> int:
    """Lock the file, which is made, until `release` of the handle that is returned, or the end of this process.

    Raises OSError where the folder takes no file, or its file system has no locks.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        with suppress(NameError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # who checks it at the moment releases the lock at once
    except OSError:
        os.close(handle)
        raise
    return handle


def release(file: Path, handle: int) -> None:
    """Remove the file of a lock that this process holds, and end the lock."""
    file.unlink(missing_ok=True)
    os.close(handle)


def is_held(file: Path) -> bool:
    """Tell whether a process holds the file; removes the file of one that has ended."""
    try:
        handle = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, NameError):
        return True
    except OSError:  # no locks here: no process holds one
        return False
    else:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return False
    finally:
        os.close(handle)
