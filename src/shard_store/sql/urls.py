"""Database URLs: which are taken, and which of them name one and the same database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from shard_store.sql.dialects import DIALECTS

_PORTS = {"postgresql": 5432, "mysql": 3306}


def parse_url(url: str | URL) -> URL:
    """The URL with its driver. Raises ValueError, with what to write instead, for one that cannot be used here."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        # from None: SQLAlchemy's text holds the whole URL, with its password
        raise ValueError(
            "this is not a database URL; write for example sqlite:///cuesqueue.db or "
            "postgresql://user:password@host/database"
        ) from None
    if "@" in (parsed.host or ""):  # what follows the first @ would be shown as the host
        raise ValueError("the password holds an @; write it as %40 (and / as %2F, ? as %3F)")
    backend = parsed.get_backend_name()
    if backend not in DIALECTS:
        raise ValueError(f"{backend!r} is not supported; use one of {', '.join(sorted(DIALECTS))}")
    if backend == "sqlite" and (parsed.database or ":memory:") == ":memory:":
        raise ValueError("SQLite needs a file here, because several processes share it: sqlite:///PATH")
    return parsed.set(drivername=DIALECTS[backend].driver) if parsed.drivername == backend else parsed


def with_whole_path(url: URL) -> URL:
    """The URL with the whole path of a SQLite file, as SQLAlchemy opens it: `link/..` is the folder of the link."""
    path = url.database or ""
    if url.get_backend_name() != "sqlite" or path in ("", ":memory:") or url.query.get("uri"):
        return url
    return url.set(database=os.path.abspath(path))  # noqa: PTH100 - it is not `Path.resolve`


def same_database(one: URL, other: URL) -> bool:
    """Whether one transaction can change what is behind both URLs.

    Drivers and passwords may differ, and the names of one SQLite file. Everything else must be written alike: a user or
    a parameter may lead to another schema, and two names of one host cannot be recognised.
    """
    return _place(one) == _place(other)


def _place(url: URL) -> tuple[Any, ...]:
    kind = url.get_backend_name().replace("mariadb", "mysql")
    if kind == "sqlite" and not url.query.get("uri"):
        return kind, Path(with_whole_path(url).database or "").resolve()
    host = (url.host or "").lower()
    return kind, host, url.port or _PORTS.get(kind), url.database, url.username, sorted(url.query.items())
