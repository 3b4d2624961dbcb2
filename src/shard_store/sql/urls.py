"""Whether two URLs name one database, so that one transaction can be over what is behind both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

_PORTS = {"postgresql": 5432, "mysql": 3306}


def same_database(one: URL, other: URL) -> bool:
    """Drivers and passwords may differ, and the names of one SQLite file. All else must be written alike: a user or
    a parameter may lead to another schema, and what names a host differently cannot be told to be the same.
    """
    return _place(one) == _place(other)


def _place(url: URL) -> tuple[Any, ...]:
    kind = url.get_backend_name().replace("mariadb", "mysql")
    if kind == "sqlite" and not url.query.get("uri"):
        return kind, Path(url.database or "").resolve()
    host = (url.host or "").lower()
    return kind, host, url.port or _PORTS.get(kind), url.database, url.username, sorted(url.query.items())
