"""Tables of Delta Lake and Iceberg, which have a commit of their own before that of the store: the real ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from queue_source.options import SinkOptions, parse_sink_options

ROWS = pa.schema([("row_id", pa.string())])


class Table(Protocol):
    """One table. `state` is equal while nothing is committed; `restore` brings such a state back."""

    def options(self, pipelines: Sequence[str]) -> SinkOptions: ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...

    def rows(self) -> list[str]: ...


class DeltaLake:
    """A folder. It is restored by a command, which is one more commit in its log."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self._folder, self._store_url = folder, store_url
        self._read: tuple[int, list[str]] = (-1, [])

    def options(self, pipelines: Sequence[str]) -> SinkOptions:
        return parse_sink_options(
            {"storeUrl": self._store_url, "pipeline": ",".join(pipelines), "delta": str(self._folder)}
        )

    def state(self) -> int:
        log = self._folder / "_delta_log"
        return max((int(file.stem) for file in log.glob("*.json")), default=-1)

    def restore(self, state: int) -> None:
        """To before its first commit with rows it is restored as to its making, which has none."""
        if self.state() > max(state, 0):
            DeltaTable(str(self._folder)).restore(max(state, 0))

    def rows(self) -> list[str]:
        state = self.state()
        if state != self._read[0]:
            rows = pa.table(DeltaTable(str(self._folder)).scan()).column("row_id").to_pylist()
            self._read = state, rows
        return self._read[1]


class Iceberg:
    """A table in a catalog elsewhere, which is a database. Restored, that leads to what the table was."""

    _NAME = "db.rows"

    def __init__(self, folder: Path, store_url: str) -> None:
        self._folder, self._store_url = folder, store_url
        folder.mkdir()
        self._file = folder / "catalog.db"
        self._catalog = {"type": "sql", "uri": f"sqlite:///{self._file}"}
        self._read: tuple[str | None, list[str]] = (None, [])

    def options(self, pipelines: Sequence[str]) -> SinkOptions:
        return parse_sink_options(
            {
                "storeUrl": self._store_url,
                "pipeline": ",".join(pipelines),
                "table": self._NAME,
                "warehouse": str(self._folder / "warehouse"),
                **{f"catalog.{name}": value for name, value in self._catalog.items()},
            }
        )

    def state(self) -> str | None:
        if not self._file.exists():
            return None
        with closing(sqlite3.connect(self._file)) as catalog:
            return next((place for (place,) in catalog.execute("SELECT metadata_location FROM iceberg_tables")), None)

    def restore(self, state: str | None) -> None:
        """To before it was made it is restored as what it was first."""
        if state is not None:
            with closing(sqlite3.connect(self._file)) as catalog, catalog:
                catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", [state])

    def rows(self) -> list[str]:
        state = self.state()
        if state != self._read[0]:
            table = StaticTable.from_metadata(str(state))
            self._read = state, table.scan().to_arrow().column("row_id").to_pylist()
        return self._read[1]


def open_table(sink: str, folder: Path, store_url: str) -> Table:
    """Open the table that a query of this kind of sink has for itself."""
    tables: dict[str, Callable[[Path, str], Table]] = {"delta": DeltaLake, "iceberg": Iceberg}
    return tables[sink](folder, store_url)
