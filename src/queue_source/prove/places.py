"""Where a job under proof reads and writes instead of its real places: in the folder of the run, always the same."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url


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
            if not local.is_absolute() or local.resolve().is_relative_to(self._folder):
                return text
        return str(self._elsewhere(parts.scheme or "file", parts.netloc, unquote(parts.path)))

    def database(self, url: str) -> str:
        """Return the SQLAlchemy URL that stands for another one: always SQLite, a file of its own for each database."""
        address = make_url(url)
        backend, name = address.get_backend_name(), address.database or ""
        if backend == "sqlite":
            file = Path(name.removeprefix("file:"))
            if name in ("", ":memory:") or not file.is_absolute() or file.resolve().is_relative_to(self._folder):
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
