"""S3 Inventory: the objects of a bucket as Amazon lists them once a day or week, in files of CSV, ORC or Parquet.

A manifest names the files, their columns and their checksums. No part of a file is used before its checksum is
verified: so each is copied to a temporary file first, one at a time. Of a bucket with versions only the latest of each
object counts, and no delete marker.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from queue_source.errors import BadObject, OptionError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets.base import PAGE, Page
from queue_source.storage.files import is_local, open_object, stat_object
from queue_source.uris import climbs
from shard_store.model import EPOCH

_READ = 8 << 20  # bytes at a time
_LARGEST_MANIFEST = 256 << 20

_NAMES = {
    "bucket": "bucket",
    "key": "key",
    "versionid": "version",
    "islatest": "latest",
    "isdeletemarker": "deleted",
    "size": "size",
    "lastmodifieddate": "modified",
    "etag": "etag",
}
"""Columns as CSV (VersionId) and the other formats (version_id) name them, without case and underscores."""

_NEEDED = ("bucket", "key", "size", "modified", "etag")


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """One file of an inventory; picklable, so that tasks read files in parallel.

    Attributes:
        columns: For CSV, which has no header: our names of its columns, "" for those that are not read.
    """

    uri: str
    md5: str
    format: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of a manifest. `created`: when S3 began to list; later changes are not in it."""

    manifest: str
    bucket: str
    created: datetime
    files: tuple[InventoryFile, ...]
    has_versions: bool


def open_inventory(uri: str, storage: StorageOptions | None = None) -> Inventory:
    """Read a manifest, whose checksum is in the file `manifest.checksum` in its folder.

    Raises BadObject (`corrupt-object`: a checksum is wrong, or it is no manifest; `missing-object`), ObjectStoreError,
    and OptionError for an inventory whose form or columns are not enough.
    """
    folder, _, name = uri.rpartition("/")
    body = _content(uri, storage)
    checksum_uri = f"{folder}/{name.removesuffix('.json')}.checksum"
    expected = _content(checksum_uri, storage).decode("ascii", "replace").split()
    actual = hashlib.md5(body, usedforsecurity=False).hexdigest()
    if expected[:1] != [actual]:
        raise BadObject("corrupt-object", f"{uri!r} has the MD5 {actual}, and {checksum_uri!r} says {expected[:1]}")
    try:
        manifest = json.loads(body)
        return _inventory(uri, manifest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OptionError):
            raise
        raise BadObject("corrupt-object", f"{uri!r} is no manifest of an S3 Inventory: {error!r:.200}") from None


def pages(inventory: Inventory, storage: StorageOptions | None = None) -> Generator[Page, None, None]:
    """Yield all objects of the inventory; memory holds a part of one file. Raises BadObject and ObjectStoreError.

    The first page is empty, and costs no request: it has the time of the inventory.
    """
    yield Page((), "", inventory.created)
    for file in inventory.files:
        with closing(read_file(inventory, file, storage)) as parts:
            for objects in parts:
                for start in range(0, len(objects), PAGE):
                    yield Page(objects[start : start + PAGE], "", inventory.created)
    yield Page((), None, inventory.created)


def read_file(
    inventory: Inventory, file: InventoryFile, storage: StorageOptions | None = None
) -> Generator[list[ListedObject], None, None]:
    """Yield the objects of one file, some thousands at a time, once its checksum is verified."""
    with tempfile.TemporaryDirectory(prefix="cuesqueue-inventory-") as folder:
        path = Path(folder) / "file"
        _fetch(file, path, storage)
        try:
            for batch in _READERS[file.format](path, file):
                yield _objects(inventory, file, batch)
        except (pa.ArrowException, OSError, EOFError, UnicodeError, ValueError) as error:
            raise BadObject("corrupt-object", f"{file.uri!r}: {error}") from error


def _inventory(uri: str, manifest: dict[str, Any]) -> Inventory:
    kind = str(manifest["fileFormat"]).lower()
    if kind not in _READERS:
        raise OptionError(
            "--inventory", f"{uri!r} is of the format {kind[:40]!r}; those that are read: CSV, ORC, Parquet"
        )
    names = [_our_name(name) for name in _columns(kind, manifest["fileSchema"])]
    if missing := [name for name in _NEEDED if name not in names]:
        words = {"modified": "LastModifiedDate", "etag": "ETag"}
        missing_columns = ", ".join(words.get(name, name.capitalize()) for name in missing)
        raise OptionError(
            "--inventory",
            f"{uri!r} has no column {missing_columns}; add it to the fields of the inventory's configuration",
        )
    if "version" in names and "latest" not in names:
        raise OptionError(
            "--inventory", f"{uri!r} lists versions without IsLatest, so nobody can tell which are current"
        )
    created = EPOCH + timedelta(milliseconds=int(manifest["creationTimestamp"]))
    files = [
        InventoryFile(_place(uri, manifest, file["key"]), str(file["MD5checksum"]).lower(), kind, tuple(names))
        for file in manifest["files"]
    ]
    return Inventory(uri, str(manifest["sourceBucket"]), created, tuple(files), "version" in names)


def _columns(kind: str, schema: str) -> list[str]:
    """Return the names of columns: of CSV a list, of ORC `struct<name:type,...>`, of Parquet a message of fields."""
    if kind == "csv":
        return [name.strip() for name in schema.split(",")]
    if kind == "orc":
        return re.findall(r"(\w+)\s*:", schema)
    return re.findall(r"(?:required|optional)\s+\w+(?:\(\d+\))?\s+(\w+)", schema)


def _our_name(name: str) -> str:
    return _NAMES.get(name.replace("_", "").lower(), "")


def _place(manifest_uri: str, manifest: dict[str, Any], key: str) -> str:
    """Return where a file is: in the manifest's bucket, or for a copy in `data` next to the manifest's folder.

    Never anywhere else, whatever the manifest says.
    """
    folder, _, name = key.rpartition("/")
    destination = str(manifest.get("destinationBucket", "")).rpartition(":")[2]
    scheme, _, location = manifest_uri.partition("://")
    if location.partition("/")[0] == destination and not is_local(manifest_uri):
        place = f"{scheme}://{destination}/{key}"
    else:
        above = manifest_uri.rpartition("/")[0].rpartition("/")[0]
        place = f"{above}/{folder.rpartition('/')[2]}/{name}"
    if climbs(place) or ".." in place.split("/"):
        raise ValueError(f"the key {key[:200]!r} leads elsewhere")
    return place


def _content(uri: str, storage: StorageOptions | None) -> bytes:
    if (size := stat_object(uri, storage).size) > _LARGEST_MANIFEST:
        raise BadObject("corrupt-object", f"{uri!r} has {size:,} bytes; no manifest is so large")
    with open_object(uri, storage) as file:
        return file.read()


def _fetch(file: InventoryFile, path: Path, storage: StorageOptions | None) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with open_object(file.uri, storage) as source, path.open("wb") as target:
        while data := source.read(_READ):
            digest.update(data)
            target.write(data)
    if digest.hexdigest() != file.md5:
        raise BadObject(
            "corrupt-object", f"{file.uri!r} has the MD5 {digest.hexdigest()}, and the manifest says {file.md5!r}"
        )


def _csv(path: Path, file: InventoryFile) -> Iterator[pa.RecordBatch]:
    names = [name or f"column {place}" for place, name in enumerate(file.columns)]
    present = [name for name in file.columns if name]
    with gzip.open(path) as text:
        if not text.peek(1):
            return  # an empty file: pyarrow needs a first line
        yield from pa_csv.open_csv(
            pa.PythonFile(text, mode="r"),
            read_options=pa_csv.ReadOptions(column_names=names, block_size=4 << 20),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(present, pa.string()), include_columns=present, strings_can_be_null=False
            ),
        )


def _orc(path: Path, file: InventoryFile) -> Iterator[pa.RecordBatch]:
    opened = pa_orc.ORCFile(path)
    names = _column_names(opened.schema, file)
    for stripe in range(opened.nstripes):
        batch = opened.read_stripe(stripe, columns=list(names))
        yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], list(names.values()))


def _parquet(path: Path, file: InventoryFile) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as opened:
        names = _column_names(opened.schema_arrow, file)
        for batch in opened.iter_batches(batch_size=65_536, columns=list(names)):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], list(names.values()))


_READERS: dict[str, Callable[[Path, InventoryFile], Iterator[pa.RecordBatch]]] = {
    "csv": _csv,
    "orc": _orc,
    "parquet": _parquet,
}


def _column_names(schema: pa.Schema, file: InventoryFile) -> dict[str, str]:
    """Return name in the file -> our name. Raises BadObject where the manifest's columns are missing in the file."""
    names = {name: ours for name in schema.names if (ours := _our_name(name))}
    if missing := set(file.columns) - {""} - set(names.values()):
        raise BadObject("corrupt-object", f"{file.uri!r} lacks the columns {sorted(missing)} that the manifest names")
    return names


class _Row(NamedTuple):
    """One row of an inventory, in whatever form its file has the values; None for columns that it has not."""

    bucket: Any
    key: Any
    size: Any
    modified: Any
    etag: Any
    version: Any
    latest: Any
    deleted: Any


def _objects(inventory: Inventory, file: InventoryFile, batch: pa.RecordBatch) -> list[ListedObject]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    empty: Sequence[None] = [None] * batch.num_rows
    objects = []
    for row in map(_Row._make, zip(*(columns.get(name, empty) for name in _Row._fields), strict=True)):
        if not _is(row.latest, missing=True) or _is(row.deleted, missing=False):
            continue
        if (bucket := _text(row.bucket)) != inventory.bucket:
            raise BadObject(
                "corrupt-object", f"{file.uri!r} lists the bucket {bucket[:100]!r}, not {inventory.bucket!r}"
            )
        name = _text(row.key)
        name = unquote_plus(name, errors="strict") if file.format == "csv" else name
        version = _text(row.version)
        objects.append(
            ListedObject(
                f"s3://{inventory.bucket}/{name}",
                int(row.size),
                _text(row.etag).strip('"') or None,
                _time(row.modified),
                None if version in ("", "null") else version,
            )
        )
    return objects


def _is(value: object, *, missing: bool) -> bool:
    if value is None or value == "":
        return missing
    return value if isinstance(value, bool) else _text(value).lower() == "true"


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return "" if value is None else str(value)


def _time(value: object) -> datetime:
    """Parse a time: ISO text in CSV, a timestamp in the others; a naive one is UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value))
    if isinstance(value, int):  # a Parquet file without the annotation of its milliseconds
        return EPOCH + timedelta(milliseconds=value)
    if not isinstance(value, datetime):
        raise ValueError(f"{value!r:.60} is not the time of an object")
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
