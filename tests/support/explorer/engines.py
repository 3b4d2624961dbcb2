"""One dialect of SQLAlchemy for all engines of an exploration, so that each statement is compiled once.

A reader, a command and a queue has an engine of its own each time, and an exploration has hundreds of them: compiling
was a third of its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from sqlalchemy.engine import URL, Engine

from shard_store.sql import database
from shard_store.sql.dialects import Dialect
from shard_store.sql.engines import make_engine

_FIRST: dict[str, Engine] = {}
"""By driver the engine whose dialect the others have; it has been connected, which tells it what its server can do."""


def _made(url: URL, dialect: Dialect, patience: float) -> Engine:
    engine = make_engine(url, dialect, patience)
    first = _FIRST.get(url.drivername)
    if first is None or first.dialect.server_version_info is None:
        _FIRST[url.drivername] = engine
    else:
        engine.dialect = first.dialect
        engine._compiled_cache = first._compiled_cache
    return engine


@contextmanager
def shared_dialects() -> Iterator[None]:
    """Let the engines that are made meanwhile share it."""
    with mock.patch.object(database, "make_engine", _made):
        yield
