"""Many objects of one bucket at once: listed, deleted, moved; a module for each kind of store."""

from __future__ import annotations

from queue_source.errors import BadObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets.base import PAGE, Bucket, Known, Outcome, Page
from queue_source.storage.files import is_local
from queue_source.storage.open_files import AZURE_SCHEMES, S3_SCHEMES
from queue_source.uris import climbs

__all__ = ["PAGE", "Bucket", "Known", "Outcome", "Page", "open_bucket"]


def open_bucket(prefix: str, storage: StorageOptions | None = None) -> Bucket:
    """Open the bucket of a prefix (a URI in its one form, see `uris.plain_prefix`). No request is made.

    Raises BadObject("missing-object") for a prefix that can be that of no object, ObjectStoreError when the library of
    its store is not installed.
    """
    storage = storage or StorageOptions()
    if climbs(prefix):
        raise BadObject("missing-object", f"{prefix!r} has a segment '.' or '..'; write the path that it stands for")
    if is_local(prefix):
        from queue_source.storage.buckets.local import LocalBucket

        return LocalBucket(storage)
    scheme, _, location = prefix.partition("://")
    bucket = location.partition("/")[0]
    if not bucket:
        raise BadObject("missing-object", f"{prefix!r} names no bucket; write scheme://bucket/ or file:///folder/")
    if scheme in S3_SCHEMES:
        from queue_source.storage.buckets.s3 import S3Bucket

        return S3Bucket(f"{scheme}://{bucket}/", storage)
    if scheme == "gs":
        from queue_source.storage.buckets.gcs import GcsBucket

        return GcsBucket(f"gs://{bucket}/", storage)
    if scheme in AZURE_SCHEMES:
        from queue_source.storage.buckets.azure import AzureBucket

        return AzureBucket(f"{scheme}://{bucket}/", storage)
    raise BadObject("missing-object", f"the scheme of {prefix!r} is not one of file, s3, gs, abfs, abfss, az")
