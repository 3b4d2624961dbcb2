"""A table is put back to an earlier version, in each way in which clients of Delta Lake or Iceberg do that."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

Action = dict[str, Any]


def by_version(folder: Path, version: int) -> None:
    DeltaTable(str(folder)).restore(version)


def by_time(folder: Path, version: int) -> None:
    """As deltalake does: by when the files of the log were changed last, and not by what the commits say."""
    for file in (folder / "_delta_log").glob("*.json"):
        changed = 1_700_000_000 + 60 * int(file.stem)  # long before the times in the commits
        os.utime(file, (changed, changed))
    DeltaTable(str(folder)).restore(datetime.fromtimestamp(1_700_000_000 + 60 * version + 30, timezone.utc))


def _by_hand(about: Callable[[int], Action | None]) -> Callable[[Path, int], None]:
    """Return what writes the commit itself: the files of the version are added again, those of now are removed."""

    def put_back(folder: Path, version: int) -> None:
        then, now = (files_of(DeltaTable(str(folder), version=number)) for number in (version, None))
        stamp = time.time_ns() // 1_000_000
        lines: list[Action] = [
            {"remove": {**file, "deletionTimestamp": stamp, "extendedFileMetadata": True}}
            for path, file in now.items()
            if path not in then
        ]
        lines += [{"add": file} for path, file in then.items() if path not in now]
        info = about(version)
        if info is not None:
            lines.insert(0, {"commitInfo": {"timestamp": stamp, **info}})
        commit(folder, lines)

    return put_back


def commit(folder: Path, lines: list[Action]) -> None:
    version = DeltaTable(str(folder)).version() + 1
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "_delta_log" / f"{version:020}.json").write_text(text, "utf-8")


def files_of(table: DeltaTable) -> dict[str, Action]:
    files = {}
    for row in pa.table(table.get_add_actions()).to_pylist():
        about = {"path": row["path"], "size": row["size_bytes"], "partitionValues": {}, "dataChange": True}
        files[row["path"]] = about | {"modificationTime": row["modification_time"]}
    return files


def _restore(parameters: Action) -> Action:
    return {"operation": "RESTORE", "operationParameters": parameters, "engineInfo": "Apache-Spark/4.0.0"}


DELTA: dict[str, Callable[[Path, int], None]] = {
    "deltalake, version": by_version,
    "deltalake, time": by_time,
    "delta-spark, version": _by_hand(lambda version: _restore({"version": str(version), "timestamp": None})),
    "delta-spark, number": _by_hand(lambda version: _restore({"version": version, "timestamp": None})),
    "delta-spark, time": _by_hand(lambda _: _restore({"version": None, "timestamp": "2026-11-28 20:00:00.0"})),
    "wrong version": _by_hand(lambda version: _restore({"version": str(version + 1)})),
    "without parameters": _by_hand(lambda _: {"operation": "RESTORE"}),
    "of another name": _by_hand(lambda _: {"operation": "ROLLBACK"}),
    "manual": _by_hand(lambda _: {"operation": "Manual Update", "operationParameters": {}}),
    "without a name": _by_hand(lambda _: {}),
    "without information": _by_hand(lambda _: None),
}
"""How it is spelled -> what does it, of a table in a folder."""


def roll_back(table: Table, snapshot: int) -> None:
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(snapshot)


def roll_back_to_time(table: Table, snapshot: int) -> None:
    then = table.metadata.snapshot_by_id(snapshot)
    assert then is not None
    with table.manage_snapshots() as manage:
        manage.rollback_to_timestamp(then.timestamp_ms + 1)


def set_current(table: Table, snapshot: int) -> None:
    with table.manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot)


def replace_by_branch(table: Table, snapshot: int) -> None:
    """A branch that was made of the earlier snapshot takes the place of the main one, and goes."""
    with table.manage_snapshots() as manage:
        manage.create_branch(snapshot, "other")
    with table.manage_snapshots() as manage:
        manage.set_current_snapshot(ref_name="other")
    with table.manage_snapshots() as manage:
        manage.remove_branch("other")


ICEBERG: dict[str, Callable[[Table, int], None]] = {
    "rollback_to_snapshot": roll_back,
    "rollback_to_timestamp": roll_back_to_time,
    "set_current_snapshot": set_current,
    "branch": replace_by_branch,
}
"""How it is spelled -> what does it, to a snapshot of the table."""


def expire(table: Table) -> None:
    """All snapshots but the current one."""
    table = table.refresh()
    gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != table.metadata.current_snapshot_id]
    if gone:
        table.maintenance.expire_snapshots().by_ids(gone).commit()


def compact(table: Table) -> None:
    """All rows go to a new file, in one snapshot."""
    table = table.refresh()
    rows = table.scan().to_arrow()
    transaction = table.transaction()
    with transaction.update_snapshot().overwrite() as rewrite:
        for task in table.scan().plan_files():
            rewrite.delete_data_file(task.file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            rewrite.append_data_file(file)
    transaction.commit_transaction()
