"""The store of a plan, for tasks: they never create one, and use no other than the one that the plan is in."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from queue_source.options import SecretUrl
from shard_store.errors import StoreConfigurationError
from shard_store.sql.shared_file import SharedFile

if TYPE_CHECKING:
    from shard_store.store import ShardStore


@dataclass(frozen=True, slots=True)
class PlanStore:
    """Made by the driver, and pickled into every task. `file`: the store's file, if it is one."""

    url: SecretUrl
    store_id: str
    file: SharedFile | None = None

    @classmethod
    def of(cls, url: SecretUrl, store: ShardStore) -> PlanStore:
        """Describe the driver's open store for tasks."""
        file = store.database.file()
        return cls(url, store.store_id(), None if file is None else SharedFile.of(file))

    def check(self) -> None:
        """Refuse a store that this process cannot use, before anything is read. Makes no request to a server.

        A store on a server is checked when it is used: by a plan's first task, by repeated ones, and for errors.
        """
        if self.file is not None and (problem := self.file.problem()):
            raise StoreConfigurationError(f"option 'storeUrl': {problem}")

    def open(self) -> ShardStore:
        """Open the store. Raises StoreConfigurationError where there is none, or another one."""
        from shard_store.store import QUERY_PATIENCE, open_store  # most tasks have nothing to write, and need no SQL

        self.check()
        with self._explained():
            store = open_store(self.url.reveal(), create=False, patience=QUERY_PATIENCE)
        try:
            self._compare(store)
        except BaseException:
            store.close()
            raise
        return store

    @contextmanager
    def kept(self) -> Iterator[ShardStore]:
        """Yield the store for writes in each micro-batch: its compiled statements are kept for the next one.

        No connection to a server is kept: each process of a large cluster would have one.
        """
        from shard_store.store import kept_store  # as above

        self.check()
        with ExitStack() as stack:
            with self._explained():
                store = stack.enter_context(kept_store(self.url.reveal()))
            self._compare(store)
            yield store
            if self.file is None:
                store.database.engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StoreConfigurationError as error:
            raise StoreConfigurationError(
                f"option 'storeUrl': a task on {platform.node()!r} cannot use the store of its query: {error}. The URL "
                "has to lead to the same database from all machines, for the same user"
            ) from error

    def _compare(self, store: ShardStore) -> None:
        if (store_id := store.store_id()) != self.store_id:
            raise StoreConfigurationError(
                f"option 'storeUrl': {self.url} is another store for a task on {platform.node()!r} ({store_id}) than "
                f"for the driver ({self.store_id}); the URL has to lead to the same database from all machines"
            )
