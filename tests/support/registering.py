"""Parquet objects that are registered in an Iceberg table through the sink's own calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from queue_source.read.fixed_rows import REFERENCE_SCHEMA
from shard_store.model import BEGINNING, Content, Range, Reference, end_at
from support.iceberg_tables import Query, by_id
from support.store_backends import rows


@dataclass
class Referencing(Query):
    """A query of references into a sink; `announced` has the size of each object as it was announced."""

    lake: Any
    announced: dict[str, int | None] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)

    def objects(self, *tasks: Sequence[Path | str]) -> None:
        """A micro-batch: the objects of each task."""
        self.announce(*(one for task in tasks for one in task))
        self.attempt(*map(self.references, tasks))
        self.end()

    def announce(self, *objects: Path | str) -> None:
        self.batch_id += 1
        contents = [self._content(uri_of(one)) for one in objects]
        opened = self.pipeline.store.open_shards(self.pipeline.token, self.pipeline.source, contents)
        self.pipeline.write(*[
            Range(shard.key, shard.content, BEGINNING, end_at(shard.content.size or 0)) for shard in opened.values()
        ])  # fmt: skip

    def _content(self, uri: str) -> Content:
        if uri not in self.announced:
            path = Path(uri.removeprefix("file://"))
            self.announced[uri] = path.stat().st_size if path.exists() else None
        return Content(
            uri, uri, self.announced[uri], self.etags.get(uri), "q", f"m{self.batch_id}", reference=Reference()
        )

    def references(self, objects: Sequence[Path | str]) -> pa.Table:
        """The rows of the reader."""
        uris = [uri_of(one) for one in objects]
        known: dict[str, Any] = {
            "uri": uris,
            "size": [self.announced.get(uri) for uri in uris],
            "etag": [self.etags.get(uri) for uri in uris],
        }
        columns = [pa.array(known.get(f.name, [None] * len(uris)), f.type) for f in REFERENCE_SCHEMA]
        return pa.Table.from_arrays(columns, schema=REFERENCE_SCHEMA)

    def causes(self) -> dict[str, str]:
        """The cause of each object that is recorded as bad, by its file's name."""
        return {row["subject"].rpartition("/")[2]: row["cause"] for row in self._rows("errors")}

    def details(self) -> list[str]:
        return [row["detail"] for row in self._rows("errors")]

    def states(self) -> dict[str, str]:
        return {row["shard_id"].rpartition("/")[2]: row["state"] for row in self._rows("shards")}

    def _rows(self, view: str) -> list[dict[str, Any]]:
        return [row for row in rows(self.lake.store, view) if row["source"] == self.pipeline.source]

    def files(self) -> dict[str, DataFile]:
        """The table's data files by their paths."""
        return {task.file.file_path: task.file for task in self.lake.table().scan().plan_files()}


class Registering(Referencing):
    """The objects become data files of the table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options = {"register": "uri", **self.options}


class Loading(Referencing):
    """The sink's tasks read the objects; with a path in the options of the lake into files, else into its table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options = {"load": "json", "schema": "id BIGINT, name STRING", **self.options}

    def rows(self) -> list[dict[str, Any]]:
        if "path" not in self.lake.options:
            read: list[dict[str, Any]] = self.lake.read()
            return read
        paths = [row["path"] for row in rows(self.lake.store, "splits")]
        return by_id([row for path in paths for row in pq.read_table(path).to_pylist()])

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]


def uri_of(one: Path | str) -> str:
    return f"file://{one}" if isinstance(one, Path) else one


def parquet(path: Path, columns: pa.Table | dict[str, Any], **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **how)
    return path


def with_ids(table: pa.Table, **ids: int) -> pa.Table:
    """The table with field ids of its columns."""
    fields = [f.with_metadata({"PARQUET:field_id": str(ids[f.name])}) if f.name in ids else f for f in table.schema]
    return table.cast(pa.schema(fields))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Everything in a folder: nothing of a user's own objects is ever changed or removed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
