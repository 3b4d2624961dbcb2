"""A Delta table that pipelines fill through the sink's own calls, and three readers that share no code of ours."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from shard_store.store import ShardStore
from support.iceberg_tables import by_id

Row = dict[str, Any]


@dataclass
class DeltaLake:
    """The options of a sink, and its table."""

    store: ShardStore
    options: dict[str, str]

    @property
    def folder(self) -> Path:
        return Path(self.options["delta"])

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    def read(self) -> list[Row]:
        """All rows, equal by all readers."""
        rows = by_id(plain(pa.table(self.table().scan()).to_pylist()))
        assert by_id(pl.read_delta(str(self.folder)).to_dicts()) == rows
        assert sorted(read_with_duckdb(self.folder)) == [row["id"] for row in rows]
        return rows

    def ids(self) -> list[int]:
        return [row["id"] for row in self.read()] if DeltaTable.is_deltatable(str(self.folder)) else []

    def commits(self) -> list[dict[str, Any]]:
        """What the commits with rows tell of themselves, the oldest first."""
        history = reversed(self.table().history())
        return [commit for commit in history if commit["operation"] == "WRITE"]

    def actions(self, kind: str) -> list[dict[str, Any]]:
        return [action[kind] for action in log_of(self.folder) if kind in action]


def log_of(folder: Path) -> list[dict[str, Any]]:
    """All actions of the table's log, as they are written; of a table without a checkpoint."""
    files = sorted((folder / "_delta_log").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").split("\n") if line]


def read_with_duckdb(folder: Path) -> list[int]:
    """The ids in the files that the log names, by DuckDB alone; its extension for Delta is not on the machine."""
    kinds = "{add: 'STRUCT(path VARCHAR, partitionValues JSON)', remove: 'STRUCT(path VARCHAR)'}"
    log = f"read_ndjson('{folder}/_delta_log/*.json', columns = {kinds})"
    live = f"SELECT add.path FROM {log} WHERE add IS NOT NULL EXCEPT SELECT remove.path FROM {log}"
    with duckdb.connect() as connection:
        paths = [str(folder / unquote(path)) for (path,) in connection.execute(live).fetchall()]
        if not paths:
            return []
        some = "read_parquet(?, union_by_name = true, hive_partitioning = false)"
        return [row[0] for row in connection.execute(f"SELECT id FROM {some}", [paths]).fetchall()]


def plain(value: Any) -> Any:
    """The value with maps as polars has them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(inner, tuple) for inner in value):
        return {name: plain(inner) for name, inner in value}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def table_by_hand(
    folder: Path,
    *,
    protocol: dict[str, Any] | None = None,
    configuration: dict[str, str] | None = None,
    fields: list[dict[str, Any]] | None = None,
    partition_by: tuple[str, ...] = (),
) -> None:
    """A table without rows whose log is written as delta-spark would, for what deltalake cannot make."""
    columns = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}] if fields is None else fields
    schema = {"type": "struct", "fields": [{"nullable": True, "metadata": {}, **column} for column in columns]}
    metadata = {
        "id": f"{os.getpid()}-{time.monotonic_ns()}",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": list(partition_by),
        "configuration": configuration or {},
        "createdTime": 1,
    }
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    lines = [{"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    (log / f"{0:020}.json").write_text("\n".join(json.dumps(line) for line in lines) + "\n", "utf-8")


def change_by_hand(folder: Path, column: dict[str, Any]) -> None:
    """A further commit, which adds a column as only other engines can."""
    actions = [action["metaData"] for action in log_of(folder) if "metaData" in action]
    schema = json.loads(actions[-1]["schemaString"])
    schema["fields"].append(column)
    version = len(list((folder / "_delta_log").glob("*.json")))
    line = json.dumps({"metaData": {**actions[-1], "schemaString": json.dumps(schema)}})
    (folder / "_delta_log" / f"{version:020}.json").write_text(line + "\n", "utf-8")
