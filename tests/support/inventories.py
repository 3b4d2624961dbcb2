"""S3 Inventories as Amazon writes them: a manifest, its checksum, and files of CSV, ORC or Parquet."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

FORMATS = ("CSV", "ORC", "Parquet")
CREATED = datetime(2026, 11, 21, tzinfo=timezone.utc)
_VERSIONS = ("VersionId", "IsLatest", "IsDeleteMarker")
_SCHEMA = pa.schema(
    [
        ("Bucket", pa.string()),
        ("Key", pa.string()),
        ("VersionId", pa.string()),
        ("IsLatest", pa.bool_()),
        ("IsDeleteMarker", pa.bool_()),
        ("Size", pa.int64()),
        ("LastModifiedDate", pa.timestamp("ms", "UTC")),
        ("ETag", pa.string()),
        ("StorageClass", pa.string()),
    ]
)
_SNAKE = {"VersionId": "version_id", "IsLatest": "is_latest", "IsDeleteMarker": "is_delete_marker"}
_SNAKE |= {"LastModifiedDate": "last_modified_date", "ETag": "e_tag", "StorageClass": "storage_class"}


@dataclass(frozen=True)
class Entry:
    key: str
    size: int | None = 10
    etag: str | None = "e"
    modified: datetime = datetime(2026, 11, 20, tzinfo=timezone.utc)
    version: str | None = None
    latest: bool = True
    deleted: bool = False


def write_inventory(
    put: Callable[[str, bytes], object],
    entries: Sequence[Entry],
    *,
    bucket: str = "landing",
    format: str = "CSV",
    versions: bool = False,
    without: Sequence[str] = (),
    per_file: int = 1000,
    destination: str = "inventories",
    change: Callable[[dict[str, Any]], None] = lambda manifest: None,
    created: datetime = CREATED,
) -> str:
    """Put all files with `put(name, bytes)`; returns the name of the manifest."""
    base = f"daily/{bucket}/all"
    names = [n for n in _SCHEMA.names if n not in without and (versions or n not in _VERSIONS)]
    files = []
    for number, start in enumerate(range(0, len(entries), per_file)):
        body = _file(entries[start : start + per_file], bucket, format, names)
        name = f"{base}/data/{number}.{'csv.gz' if format == 'CSV' else format.lower()}"
        put(name, body)
        checksum = hashlib.md5(body, usedforsecurity=False).hexdigest()
        files.append({"key": name, "size": len(body), "MD5checksum": checksum})
    manifest = {
        "sourceBucket": bucket,
        "destinationBucket": f"arn:aws:s3:::{destination}",
        "version": "2016-11-30",
        "creationTimestamp": str(round(created.timestamp() * 1000)),
        "fileFormat": format,
        "fileSchema": _schema_text(format, names),
        "files": files,
    }
    change(manifest)
    text = json.dumps(manifest).encode()
    put(f"{base}/2026-11-21T00-00Z/manifest.json", text)
    digest = hashlib.md5(text, usedforsecurity=False).hexdigest()
    put(f"{base}/2026-11-21T00-00Z/manifest.checksum", f"{digest}\n".encode())
    return f"{base}/2026-11-21T00-00Z/manifest.json"


def versions_of(key: str) -> list[Entry]:
    """Two versions, of which the second counts; and beside it an object that was deleted."""
    new = Entry(key, version="v2")
    gone = Entry(f"{key} is gone", size=None, etag=None, version="v4", deleted=True)
    return [replace(new, version="v1", latest=False), new, replace(gone, deleted=False, latest=False, size=1), gone]


def _schema_text(format: str, names: Sequence[str]) -> str:
    if format == "CSV":
        return ", ".join(names)
    columns = [_SNAKE.get(name, name.lower()) for name in names]
    if format == "ORC":
        types = {"size": "bigint", "last_modified_date": "timestamp", "is_latest": "boolean"}
        return "struct<" + ",".join(f"{name}:{types.get(name, 'string')}" for name in columns) + ">"
    kinds = {"size": "int64 size", "last_modified_date": "int64 last_modified_date (TIMESTAMP(MILLIS,true))"}
    kinds |= {name: f"boolean {name}" for name in ("is_latest", "is_delete_marker")}
    fields = [f"optional {kinds.get(name, f'binary {name} (UTF8)')};" for name in columns]
    return "message s3.inventory {  " + "  ".join(fields) + "}"


def _file(entries: Sequence[Entry], bucket: str, format: str, names: Sequence[str]) -> bytes:
    rows = [
        {
            "Bucket": bucket,
            "Key": e.key,
            "VersionId": e.version,
            "IsLatest": e.latest,
            "IsDeleteMarker": e.deleted,
            "Size": e.size,
            "LastModifiedDate": e.modified,
            "ETag": e.etag,
            "StorageClass": "STANDARD",
        }
        for e in entries
    ]
    if format == "CSV":
        lines = [",".join(_quoted(name, row[name]) for name in names) for row in rows]
        return gzip.compress("".join(line + "\n" for line in lines).encode())
    table = pa.Table.from_pylist(rows, schema=_SCHEMA).select(list(names))
    table = table.rename_columns([_SNAKE.get(name, name.lower()) for name in names])
    out = io.BytesIO()
    if format == "ORC":
        pa_orc.write_table(table, out, stripe_size=1 << 16)
    else:
        pq.write_table(table, out, row_group_size=100)
    return out.getvalue()


def _quoted(name: str, value: Any) -> str:
    if value is None:
        text = ""
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, datetime):
        text = value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    else:
        text = quote_plus(value, safe="/") if name == "Key" else str(value)
    return f'"{text}"'
