"""A store that a Python process of Spark keeps open from one micro-batch to the next.

Spark reuses the processes in which it plans a writer and commits, and ends one that was idle for a minute.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shard_store.errors import ShardStoreError, StoreUnavailable
from shard_store.sql.install import ensure
from shard_store.store import QUERY_PATIENCE, ShardStore, open_store

_MOST_STORES = 4


class _Kept:
    """The unused stores of this process, by URL, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._stores: OrderedDict[str, tuple[ShardStore, object]] = OrderedDict()

    def take(self, url: str) -> ShardStore | None:
        """Return a store that is still the one behind the URL; it is the caller's from now on."""
        with self._lock:
            if self._process != os.getpid():  # forked: what is open belongs to the parent
                self._process, self._stores = os.getpid(), OrderedDict()
            store, file = self._stores.pop(url, (None, None))
        if store is None:
            return None
        try:
            if _file_of(store) == file:
                ensure(store.database, create=False)
                return store
        except StoreUnavailable:  # it was waited for, for as long as a query waits
            store.close()
            raise
        except ShardStoreError:
            pass  # opening it anew says what is wrong
        store.close()
        return None

    def give(self, url: str, store: ShardStore) -> None:
        with self._lock:
            replaced, _ = self._stores.pop(url, (None, None))
            self._stores[url] = store, _file_of(store)
            surplus = [self._stores.popitem(last=False)[1][0] for _ in range(len(self._stores) - _MOST_STORES)]
        for old in [replaced, *surplus]:
            if old is not None:
                old.close()


_kept = _Kept()


@contextmanager
def kept_store(url: str) -> Iterator[ShardStore]:
    """Yield the store behind `url`, which stays open for the next micro-batch unless the block fails.

    Its connections, and the statements that are compiled already, save most of a small publication. It is looked at
    anew each time: the schema's revision by a statement, and a file by what the path names now.
    """
    store = _kept.take(url) or open_store(url, create=False, patience=QUERY_PATIENCE)
    try:
        yield store
    except BaseException:
        store.close()
        raise
    _kept.give(url, store)


def _file_of(store: ShardStore) -> object:
    """Return what distinguishes a file from another that comes to its place; None for a server."""
    file = store.database.file()
    if file is None:
        return None
    with suppress(FileNotFoundError):
        status = file.stat()
        return status.st_dev, status.st_ino
    return "absent"
