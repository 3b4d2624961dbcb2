"""Tables of Delta Lake and Iceberg, which have a commit of their own before that of the store: the real ones.

Each has the spellings in which its clients put it back (`SPELLINGS`), and commits of others, and clean-ups.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import StaticTable

from queue_source.options import SinkOptions, parse_sink_options

ROWS = pa.schema([("row_id", pa.string())])


class Table(Protocol):
    """One table. `state` is equal while nothing is committed; `restore` brings such a state back.

    `spellings`: the ways in which `put_back` does so. `others` is so many commits of other programs.
    """

    @property
    def spellings(self) -> Sequence[str]: ...

    def options(self, pipelines: Sequence[str]) -> SinkOptions: ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...

    def put_back(self, state: Any, spelling: str, choose: random.Random) -> bool: ...

    def others(self, number: int, /) -> None: ...

    def clean_up(self) -> None: ...

    def rows(self) -> list[str]: ...


class DeltaLake:
    """A folder. It is restored by a command, which is one more commit in its log."""

    spellings = (
        "deltalake-version",
        "deltalake-datetime",
        "spark-version",
        "spark-timestamp",
        "without-commit-info",
    )

    def __init__(self, folder: Path, store_url: str) -> None:
        self._folder, self._store_url = folder, store_url
        self._log = folder / "_delta_log"
        self._read: tuple[int, list[str]] = (-1, [])

    def options(self, pipelines: Sequence[str]) -> SinkOptions:
        return parse_sink_options(
            {"storeUrl": self._store_url, "pipeline": ",".join(pipelines), "delta": str(self._folder)}
        )

    def state(self) -> int:
        return max((int(file.stem) for file in self._log.glob("*.json")), default=-1)

    def restore(self, state: int) -> None:
        """To before its first commit with rows it is restored as to its making, which has none."""
        if self.state() > max(state, 0):
            DeltaTable(str(self._folder)).restore(max(state, 0))

    def put_back(self, state: int, spelling: str, choose: random.Random) -> bool:
        """As `restore`, in one spelling; returns whether there was anything to put back."""
        version, newest = max(state, 0), self.state()
        if newest <= version:
            return False
        if spelling.endswith(("datetime", "timestamp")):
            moment = self._age_log(version, choose)
            DeltaTable(str(self._folder)).restore(moment)
        else:
            moment = datetime.now(timezone.utc)
            DeltaTable(str(self._folder)).restore(version)
        lines = [json.loads(line) for line in self._file(newest + 1).read_text("utf-8").splitlines()]
        text = moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        for action in lines:
            if spelling.startswith("spark") and (info := action.get("commitInfo")) is not None:
                by_version = spelling == "spark-version"
                parameters = {"version": version if by_version else None, "timestamp": None if by_version else text}
                info["operationParameters"] = parameters
                info["engineInfo"] = "Apache-Spark/4.0.0 Delta-Lake/4.0.0"
        if spelling == "without-commit-info":
            lines = [action for action in lines if "commitInfo" not in action]
        self._file(newest + 1).write_text("".join(json.dumps(action) + "\n" for action in lines), "utf-8")
        return True

    def _age_log(self, version: int, choose: random.Random) -> datetime:
        """Give the files of the log times of their own, as another file system does; returns one of the version.

        deltalake goes by these times alone; those within the commits are earlier, or later by up to a second.
        """
        now = time.time()
        newest = self.state()
        for number in range(newest + 1):
            at = now - 1.0 * (newest + 1 - number)
            os.utime(self._file(number), (at, at))
            self._move_commit(number, at + choose.uniform(-0.9, 0.9))
        return datetime.fromtimestamp(now - 1.0 * (newest + 1 - version) + choose.uniform(0.0, 0.95), timezone.utc)

    def _move_commit(self, number: int, at: float) -> None:
        file = self._file(number)
        status = file.stat()
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        for action in lines:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(at * 1000)
        file.write_text("".join(json.dumps(action) + "\n" for action in lines), "utf-8")
        os.utime(file, (status.st_mtime, status.st_mtime))

    def others(self, number: int) -> None:
        """Commits of other programs, which change nothing of the rows."""
        for _ in range(number):
            if (newest := self.state()) < 0:
                return
            info = {"timestamp": int(time.time() * 1000), "operation": "SET TBLPROPERTIES", "operationParameters": {}}
            self._file(newest + 1).write_text(json.dumps({"commitInfo": info}) + "\n", "utf-8")

    def clean_up(self) -> None:
        """Files that the table does not have any more are deleted."""
        if self.state() >= 0:
            DeltaTable(str(self._folder)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def rows(self) -> list[str]:
        state = self.state()
        if state != self._read[0]:
            rows = pa.table(DeltaTable(str(self._folder)).scan()).column("row_id").to_pylist()
            self._read = state, rows
        return self._read[1]

    def _file(self, version: int) -> Path:
        return self._log / f"{version:020}.json"


class Iceberg:
    """A table in a catalog elsewhere, which is a database. Restored, that leads to what the table was."""

    spellings: Sequence[str] = ("metadata", "rollback", "set-current", "timestamp")
    _NAME = "db.rows"

    def __init__(self, folder: Path, store_url: str) -> None:
        self._folder, self._store_url = folder, store_url
        folder.mkdir()
        self._file = folder / "catalog.db"
        self._name = "cuesqueue"
        self._catalog = {"type": "sql", "uri": f"sqlite:///{self._file}"}
        self._read: tuple[str | None, list[str]] = (None, [])

    def options(self, pipelines: Sequence[str]) -> SinkOptions:
        elsewhere = {f"catalog.{name}": value for name, value in self._catalog.items()}
        return parse_sink_options(
            {
                "storeUrl": self._store_url,
                "pipeline": ",".join(pipelines),
                "table": self._NAME,
                "warehouse": str(self._folder / "warehouse"),
                **self._elsewhere(elsewhere),
            }
        )

    def _elsewhere(self, catalog: dict[str, str]) -> dict[str, str]:
        return catalog

    def state(self) -> str | None:
        if not self._file.exists():
            return None
        with closing(sqlite3.connect(self._file)) as catalog:
            if not catalog.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
                return None
            return next((place for (place,) in catalog.execute("SELECT metadata_location FROM iceberg_tables")), None)

    def restore(self, state: str | None) -> None:
        """To before it was made it is restored as what it was first."""
        if state is not None:
            with closing(sqlite3.connect(self._file)) as catalog, catalog:
                catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", [state])

    def put_back(self, state: str | None, spelling: str, choose: random.Random) -> bool:
        """As `restore`, in one spelling; returns whether there was anything to put back."""
        if state is None or state == self.state():
            return False
        if spelling == "metadata":
            self.restore(state)
            return True
        metadata = StaticTable.from_metadata(state).metadata
        snapshot = metadata.current_snapshot_id
        if snapshot is None:
            return False
        with closing(self._open()) as catalog:
            table = catalog.load_table(self._NAME)
            if table.metadata.current_snapshot_id == snapshot:
                return False
            match spelling:
                case "rollback":
                    table.manage_snapshots().rollback_to_snapshot(snapshot).commit()
                case "set-current":
                    table.manage_snapshots().set_current_snapshot(snapshot).commit()
                case _:
                    found = table.metadata.snapshot_by_id(snapshot)
                    assert found is not None
                    table.manage_snapshots().rollback_to_timestamp(found.timestamp_ms + 1).commit()
        return True

    def others(self, number: int) -> None:
        """Commits of other programs: each a snapshot without rows."""
        if self.state() is not None and number:
            with closing(self._open()) as catalog:
                table = catalog.load_table(self._NAME)
                for _ in range(number):
                    table.append(pa.table({"row_id": pa.array([], pa.string())}))

    def clean_up(self) -> None:
        """Snapshots that are not those of the table now expire."""
        if self.state() is None:
            return
        with closing(self._open()) as catalog:
            table = catalog.load_table(self._NAME)
            now = set[int]()
            snapshot = table.current_snapshot()
            while snapshot is not None and snapshot.snapshot_id not in now:
                now.add(snapshot.snapshot_id)
                snapshot = table.metadata.snapshot_by_id(snapshot.parent_snapshot_id or 0)
            if old := [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in now]:
                table.maintenance.expire_snapshots().by_ids(old).commit()

    def _open(self) -> Catalog:
        properties = {"type": "sql", "uri": f"sqlite:///{self._file}", "warehouse": f"file://{self._folder}/warehouse"}
        return load_catalog(self._name, **properties)

    def rows(self) -> list[str]:
        state = self.state()
        if state != self._read[0]:
            rows = [] if state is None else StaticTable.from_metadata(state).scan().to_arrow()["row_id"].to_pylist()
            self._read = state, rows
        return self._read[1]


class IcebergInside(Iceberg):
    """A table in the catalog in the store's database, which goes back with it."""

    spellings = ("rollback", "set-current", "timestamp")

    def __init__(self, folder: Path, store_url: str) -> None:
        super().__init__(folder, store_url)
        self._file = folder.parent / "store.db"

    def _elsewhere(self, catalog: dict[str, str]) -> dict[str, str]:
        return {}


def open_table(sink: str, folder: Path, store_url: str) -> Table:
    """Open the table that a query of this kind of sink has for itself."""
    tables: dict[str, Callable[[Path, str], Table]]
    tables = {"delta": DeltaLake, "iceberg": Iceberg, "iceberg-inside": IcebergInside}
    return tables[sink](folder, store_url)
