"""S3 Inventory: the objects of a bucket as Amazon lists them once a day or week, in files of CSV, ORC or Parquet.

A manifest names the files, their columns and their checksums. No part of a file is used before its checksum is
verified: so each is copied to a temporary file first, one at a time. Of a bucket with versions only the latest of each
object counts, and no delete marker.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from queue_source.errors import BadObject, OptionError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets import PAGE, Page
from queue_source.storage.files import open_object
from queue_source.storage.open_files import is_local
from queue_source.uris import climbs
from shard_store.model import EPOCH

_READ = 8 << 20  # bytes at a time
_TYPES = {
    "Bucket": pa.string(),
    "Key": pa.string(),
    "VersionId": pa.string(),
    "IsLatest": pa.bool_(),
    "IsDeleteMarker": pa.bool_(),
    "Size": pa.int64(),
    "LastModifiedDate": pa.timestamp("us", "UTC"),
    "ETag": pa.string(),
}
_NEEDED = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag")


def _plain(written: str) -> str:
    """Return our name of a column: CSV says VersionId, the other formats say version_id."""
    return next((name for name in _TYPES if name.lower() == written.replace("_", "").lower()), written)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The content of a manifest.

    Attributes:
        created: When S3 began to list; later changes are not in it.
        files: Their URIs and MD5 checksums.
        words: Of its schema: for CSV, which has no header, the columns in their order.
    """

    manifest: str
    bucket: str
    created: datetime
    format: str
    words: tuple[str, ...]
    files: tuple[tuple[str, str], ...]

    @property
    def has_versions(self) -> bool:
        return "VersionId" in self.words


def open_inventory(uri: str, storage: StorageOptions | None = None) -> Inventory:
    """Read a manifest.

    Raises BadObject (`corrupt-object`: it is no manifest; `missing-object`), ObjectStoreError, and OptionError for an
    inventory whose form or columns are not enough.
    """
    with open_object(uri, storage) as file:
        body = file.read()
    try:
        manifest = json.loads(body)
        inventory = Inventory(
            uri,
            str(manifest["sourceBucket"]),
            EPOCH + timedelta(milliseconds=int(manifest["creationTimestamp"])),
            str(manifest["fileFormat"]).lower(),
            tuple(_plain(word) for word in re.findall(r"\w+", manifest["fileSchema"])),
            tuple((_place(uri, manifest, file["key"]), str(file["MD5checksum"]).lower()) for file in manifest["files"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadObject("corrupt-object", f"{uri!r} is no manifest of an S3 Inventory: {error!r:.200}") from None
    if inventory.format not in _READERS:
        raise OptionError(
            "--inventory", f"{uri!r} is of the format {inventory.format[:40]!r}; those that are read: CSV, ORC, Parquet"
        )
    if missing := [name for name in _NEEDED if name not in inventory.words]:
        raise OptionError(
            "--inventory",
            f"{uri!r} has no column {', '.join(missing)}; add it to the fields of the inventory's configuration",
        )
    if inventory.has_versions and "IsLatest" not in inventory.words:
        raise OptionError(
            "--inventory", f"{uri!r} lists versions without IsLatest, so nobody can tell which are current"
        )
    return inventory


def pages(inventory: Inventory, storage: StorageOptions | None = None) -> Generator[Page, None, None]:
    """Yield all objects of the inventory; memory holds a part of one file. Raises BadObject and ObjectStoreError.

    The first page is empty, and costs no request: it has the time of the inventory.
    """
    yield Page((), "", inventory.created)
    for uri, md5 in inventory.files:
        with tempfile.NamedTemporaryFile(prefix="cuesqueue-inventory-") as copy:
            digest = hashlib.md5(usedforsecurity=False)
            with open_object(uri, storage) as file:
                while data := file.read(_READ):
                    digest.update(data)
                    copy.write(data)
            copy.flush()
            if (actual := digest.hexdigest()) != md5:
                raise BadObject("corrupt-object", f"{uri!r} has the MD5 {actual}, and the manifest says {md5!r}")
            try:
                for batch in _READERS[inventory.format](copy.name, inventory):
                    objects = _objects(inventory, batch)
                    for start in range(0, len(objects), PAGE):
                        yield Page(objects[start : start + PAGE], "", inventory.created)
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                raise BadObject("corrupt-object", f"{uri!r}: {error}") from error
    yield Page((), None, inventory.created)


def _place(manifest_uri: str, manifest: Mapping[str, Any], key: str) -> str:
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


def _csv(path: str, inventory: Inventory) -> Iterator[pa.RecordBatch]:
    if pa.input_stream(path, compression="gzip").read(1):  # pyarrow needs a first line
        types = {**dict.fromkeys(inventory.words, pa.string()), **_TYPES}
        yield from pa_csv.open_csv(
            pa.input_stream(path, compression="gzip"),
            read_options=pa_csv.ReadOptions(column_names=inventory.words, block_size=4 << 20),
            convert_options=pa_csv.ConvertOptions(column_types=types),
        )


_READERS: dict[str, Callable[[str, Inventory], Iterator[pa.RecordBatch]]] = {
    "csv": _csv,
    "orc": lambda path, _: map((opened := pa_orc.ORCFile(path)).read_stripe, range(opened.nstripes)),
    "parquet": lambda path, _: pq.ParquetFile(path).iter_batches(batch_size=65_536),
}


def _objects(inventory: Inventory, batch: pa.RecordBatch) -> list[ListedObject]:
    columns = {_plain(name): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    if missing := [name for name in inventory.words if name in _TYPES and name not in columns]:
        raise ValueError(f"lacks the columns {missing} that the manifest names")
    if pa.types.is_integer(columns["LastModifiedDate"].type):  # a Parquet file that does not say what they count
        columns["LastModifiedDate"] = columns["LastModifiedDate"].cast(pa.timestamp("ms"))
    empty = pa.nulls(batch.num_rows)
    listed = pa.table({name: pc.cast(columns.get(name, empty), kind, safe=False) for name, kind in _TYPES.items()})
    gone = pc.or_(pc.invert(pc.fill_null(listed["IsLatest"], True)), pc.fill_null(listed["IsDeleteMarker"], False))
    objects = []
    for row in listed.filter(pc.invert(gone)).to_pylist():
        if row["Bucket"] != inventory.bucket:
            raise ValueError(f"lists the bucket {str(row['Bucket'])[:100]!r}, not {inventory.bucket!r}")
        if row["Key"] is None or row["LastModifiedDate"] is None:
            raise ValueError("lists an object without a name, or without its time")
        name = unquote_plus(row["Key"], errors="strict") if inventory.format == "csv" else row["Key"]
        objects.append(
            ListedObject(
                f"s3://{inventory.bucket}/{name}",
                row["Size"],
                (row["ETag"] or "").strip('"') or None,
                row["LastModifiedDate"],
                None if row["VersionId"] in ("", "null") else row["VersionId"],
            )
        )
    return objects
