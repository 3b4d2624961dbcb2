"""A Delta table as a target with a commit of its own: its log, its application transactions (decision 0082)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from queue_source.errors import OptionError
from queue_source.sinks.base import Batch
from queue_source.sinks.delta.files import TaskFiles
from queue_source.sinks.delta.tables import OpenTable, TableMaker, is_conflict
from queue_source.sinks.marks import END, HASH, STORE, Commit, Mark
from shard_store.errors import ShardStoreError
from shard_store.model import PlanIdentity
from shard_store.redaction import redact_text
from shard_store.sql import database as sql

_PROGRESS, _DELIVERY = "cuesqueue", "cuesqueue-delivery"
_DIGITS = 15
"""Of the delivery hash: a version is a number of 64 bits with a sign."""
_RECENT = 20


class DeltaTarget:
    """The files of one attempt at a batch, and the table to which they go."""

    bound: int | None = _RECENT

    def __init__(self, maker: TableMaker, store_id: str, batch: Batch, written: Sequence[TaskFiles]) -> None:
        self._maker, self._store_id, self._prefix = maker, store_id, batch.digest[:12]
        self.files = [file for task in written for file in task.files]
        self._targets = {(task.target.table_id, task.target.partition_by): task.target for task in written}
        self.uri = next((target.uri for target in self._targets.values()), "")
        self.name = f"the Delta table {self.uri}"
        self.brought = sum(file.rows for file in self.files), sum(file.size for file in self.files)
        self._versions: dict[str, int] = {}
        self._newest = ""
        self._table: OpenTable | None = None

    def open(self, transaction: sql.Transaction) -> bool:
        self._table = self._maker.open()
        if self._table is None and self.files:
            raise ShardStoreError(f"{self.name} has gone while the batch was written; start again")
        return self._table is not None

    def noted(self, mark: Mark) -> Commit | None:
        """Return it from the application transactions, which stay where commits are undone or forgotten."""
        batches: dict[str, tuple[str, int]] = {}
        for plan in mark.plans:
            progress, delivery = _id(_PROGRESS, self._store_id, plan), _id(_DELIVERY, self._store_id, plan)
            self._versions |= {progress: plan.end_seq, delivery: int(mark.delivery_hash[:_DIGITS], 16)}
            end, newest = map(self._opened.handle.transaction_version, (progress, delivery))
            if end is not None and newest is not None:
                batches[plan.token.pipeline] = f"{newest:0{_DIGITS}x}", end
        noted = Commit.of(batches)
        self._newest = "" if noted is None else noted.delivery_hash
        return noted

    def lineage(self) -> Iterator[Commit]:
        below: int | None = None
        for commit in self._history():
            if below is not None and commit["version"] > below:
                continue
            operation = commit.get("operation") or ""
            undoes = operation == "RESTORE"
            if undoes:
                below = self._restored(commit)
            mode = (commit.get("operationParameters") or {}).get("mode")
            replaces = mode == "Overwrite" or "REPLACE" in operation or operation == "TRUNCATE"
            mark = {name: str(value) for name, value in commit.items() if name.startswith("cuesqueue.")}
            if STORE not in mark and not mark.get(HASH, "").startswith(self._newest):
                mark.pop(END, None)  # up to 0.3.0 a mark did not name its store, and may be that of another one
            is_ours = mark.get(STORE, self._store_id) == self._store_id
            yield Commit(mark if is_ours else {}, replaces or (undoes and below is None), undoes)

    def was_undone(self, delivery_hash: str) -> bool:
        return any(c.get(HASH, "").startswith(delivery_hash) for c in self._opened.handle.history()) and not any(
            commit.delivery_hash.startswith(delivery_hash) for commit in self.lineage()
        )

    def has_files(self) -> bool:
        names = (uri.rpartition("/")[2] for uri in self._opened.handle.file_uris())
        return any(name.startswith(self._prefix) for name in names)

    def choose(self, transaction: sql.Transaction) -> None:
        for target in self._targets.values() if self.files else ():
            if change := self._opened.changed_since(target):
                raise ShardStoreError(
                    f"{self.name} {change} while the batch was written; start the query again: its next attempt is "
                    "written for the table as it is now"
                )

    def append(self, mark: Mapping[str, str]) -> None:
        """Append in one commit, on exactly the version that was checked; else raise CommitFailedError."""
        table = self._opened
        before = table.handle.version()
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, file.partition, file.modified, data_change=True, stats=file.statistics)
            for file in self.files
        ]
        properties = CommitProperties(
            custom_metadata=dict(mark),
            max_commit_retries=0,  # each try begins with a look at the newest version: it may have the batch already
            app_transactions=[Transaction(name, version) for name, version in self._versions.items()],
        )
        try:
            table.handle.create_write_transaction(
                actions,
                mode="append",
                schema=table.handle.schema(),
                partition_by=list(table.partition_by),
                commit_properties=properties,
            )
        except Exception as error:  # of any kind: `is_conflict` tells whether to try again
            if is_conflict(error) or "Unsupported table features" not in str(error):
                raise
            raise OptionError(
                "delta", f"names {table.uri}, which deltalake cannot write to: {redact_text(str(error))}"
            ) from error
        table.handle.update_incremental()
        table.sync_log(before)

    @property
    def _opened(self) -> OpenTable:
        assert self._table is not None
        return self._table

    def _history(self) -> Iterator[dict[str, Any]]:
        """Yield what commits tell of themselves, the newest first: mostly that one is enough."""
        handle = self._opened.handle
        yield from handle.history(1)
        yield from handle.history(_RECENT)[1:]
        yield from handle.history()[_RECENT:]

    def _restored(self, restore: Mapping[str, Any]) -> int | None:
        """Return the version to which this commit has put the table back; None where nothing tells."""
        parameters = restore.get("operationParameters") or {}
        version = str(parameters.get("version"))
        if version.isdigit():
            return int(version)
        until = str(parameters.get("datetime"))
        if not until.isdigit():
            return None
        before = (c for c in self._opened.handle.history() if c["version"] < restore["version"])
        return next((c["version"] for c in before if c["timestamp"] <= int(until)), None)


def _id(kind: str, store_id: str, plan: PlanIdentity) -> str:
    return f"{kind}/{store_id}/{plan.source}/{plan.token.pipeline}"
