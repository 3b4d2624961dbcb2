"""A Delta table as a target with a commit of its own: its log, its application transactions (decision 0082)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from queue_source.errors import OptionError
from queue_source.sinks.base import Batch
from queue_source.sinks.delta.files import TaskFiles
from queue_source.sinks.delta.log import Log, LoggedCommit
from queue_source.sinks.delta.tables import OpenTable, TableMaker, is_conflict
from queue_source.sinks.marks import END, HASH, STORE, Commit, Mark
from shard_store.errors import ShardStoreError
from shard_store.model import PlanIdentity
from shard_store.redaction import redact_text
from shard_store.sql import database as sql

_PROGRESS, _DELIVERY = "cuesqueue", "cuesqueue-delivery"
_DIGITS = 15
"""Of the delivery hash: a version is a number of 64 bits with a sign."""
_OF_NAMES = 12
"""Digits of the delivery hash in the names of files."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What lies between a version and the newest one before with a batch of the pipelines. `text`: hashed."""

    version: int
    text: int
    newest: int
    flags: tuple[bool, bool]


_LOOKED: dict[tuple[str, ...], _Looked] = {}
"""By table, store and pipelines: a batch without rows looks only at what others have committed since the one before."""


class DeltaTarget:
    """The files of one attempt at a batch, and the table to which they go."""

    def __init__(self, maker: TableMaker, store_id: str, batch: Batch, written: Sequence[TaskFiles]) -> None:
        self._maker, self._store_id, self._prefix = maker, store_id, batch.digest[:_OF_NAMES]
        self.files = [file for task in written for file in task.files]
        self._targets = {(task.target.table_id, task.target.partition_by): task.target for task in written}
        self.uri = next((target.uri for target in self._targets.values()), "")
        self.name = f"the Delta table {self.uri}"
        self.brought = sum(file.rows for file in self.files), sum(file.size for file in self.files)
        self._versions: dict[str, int] = {}
        self._newest, self._pipelines = "", list[str]()
        self._table: OpenTable | None = None

    def open(self, transaction: sql.Transaction) -> bool:
        self._table = self._maker.open()
        if self._table is not None:
            self._log = Log(self._table.uri, self._maker.storage)
        if self._table is None and self.files:
            raise ShardStoreError(f"{self.name} has gone while the batch was written; start again")
        return self._table is not None

    def noted(self, mark: Mark) -> Commit | None:
        """Return it from the application transactions, which stay where commits are undone or forgotten."""
        self._pipelines = [plan.token.pipeline for plan in mark.plans]
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
        head = self._opened.handle.version()
        key = self._opened.uri, self._store_id, *self._pipelines
        looked, flags, version, is_first = _LOOKED.get(key), (False, False), head, True
        while (logged := self._log.commit(version)) is not None:
            if looked is not None and (looked.version, looked.text) == (version, hash(logged.text)):
                commit, version = Commit({}, *looked.flags), looked.newest
            else:
                back_to = self._log.restored(logged)
                commit = self._as_commit(logged, unknown=back_to is None and logged.puts_back)
                if is_first and not commit.ends.keys().isdisjoint(self._pipelines):
                    is_first, newest = False, self._log.commit(head)
                    if newest is not None and version < head:
                        _LOOKED[key] = _Looked(head, hash(newest.text), version, flags)
                version = version - 1 if back_to is None else back_to
            flags = flags[0] or commit.replaces, flags[1] or commit.undoes
            yield commit

    def was_undone(self, delivery_hash: str, since: int | None) -> bool:
        sure = takewhile(lambda commit: not commit.undoes, self.lineage())
        if any(commit.delivery_hash.startswith(delivery_hash) for commit in sure):
            return False
        names = self._names()
        for logged in self._log.back_from(self._opened.handle.version()):
            if str(logged.info.get(HASH, "")).startswith(delivery_hash):
                return names.isdisjoint(_name(file.path) for file in logged.added)
        if since is None or any(name.startswith(delivery_hash[:_OF_NAMES]) for name in names):
            return False
        # its commit is not in the log any more, and was compacted, or undone: then whatever is there is older
        files = pa.table(self._opened.handle.get_add_actions())
        times = files.column("modification_time").cast(pa.timestamp("ms")).cast(pa.int64())
        newest = pc.max(times).as_py()
        return newest is None or newest * 1_000 < since or any(commit.undoes for commit in self.lineage())

    def has_files(self) -> bool:
        return any(name.startswith(self._prefix) for name in self._names())

    def _names(self) -> set[str]:
        return {_name(uri) for uri in self._opened.handle.file_uris()}

    def _as_commit(self, logged: LoggedCommit, unknown: bool) -> Commit:
        is_other = logged.parameters.get("mode") == "Overwrite" or "REPLACE" in logged.operation
        mark = {name: str(value) for name, value in logged.info.items() if name.startswith("cuesqueue.")}
        if STORE not in mark and not mark.get(HASH, "").startswith(self._newest):
            mark.pop(END, None)  # up to 0.3.0 a mark did not name its store, and may be that of another one
        is_ours = mark.get(STORE, self._store_id) == self._store_id
        return Commit(mark if is_ours else {}, is_other or logged.operation == "TRUNCATE" or unknown, unknown)

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


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _id(kind: str, store_id: str, plan: PlanIdentity) -> str:
    return f"{kind}/{store_id}/{plan.source}/{plan.token.pipeline}"
