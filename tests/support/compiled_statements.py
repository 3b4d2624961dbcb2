"""Compiled statements shared by all engines of a test process: thousands of tests make an engine of their own each.

SQLAlchemy keeps what it has compiled for each engine, by the engine's dialect object. A test's engine is new, so it
compiled every statement again: a third of the processor time of a test of the store. What is compiled depends on the
kind of dialect and on the server's version only. Processes that tests start compile for themselves, as users' do.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.util import LRUCache

Key = tuple[Any, ...]


class SharedStatements(MutableMapping[Key, Any]):
    """A `compiled_cache` of SQLAlchemy with one entry for all dialect objects that compile alike."""

    def __init__(self) -> None:
        self._compiled: LRUCache[Key, Any] = LRUCache(3000)

    def __getitem__(self, key: Key) -> Any:
        return self._compiled[_shared(key)]

    def get(self, key: Key, default: Any = None) -> Any:
        return self._compiled.get(_shared(key), default)

    def __setitem__(self, key: Key, compiled: Any) -> None:
        self._compiled[_shared(key)] = compiled

    def __delitem__(self, key: Key) -> None:
        del self._compiled[_shared(key)]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._compiled)

    def __len__(self) -> int:
        return len(self._compiled)


def _shared(key: Key) -> Key:
    dialect: Dialect = key[0]
    return (type(dialect), dialect.paramstyle, dialect.server_version_info, *key[1:])


def share() -> None:
    """Have every connection of this process look for its statements among those of all others."""
    statements = SharedStatements()

    @event.listens_for(Engine, "engine_connect")
    def use_shared(connection: Connection) -> None:
        connection.execution_options(compiled_cache=statements)
