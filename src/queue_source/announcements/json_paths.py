"""Notifications of a user's own: JSON in which `bucketPath`, `keyPath` and `uriPath` lead to the objects. Pure.

A path is names separated by dots: `detail.file.key`. A list on the way means each of its elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from queue_source.errors import MalformedNotification


@dataclass(frozen=True, slots=True)
class JsonPaths:
    """Either `uri`, or `key` with `bucket`; a bucket without a scheme is one of S3. Else ValueError."""

    bucket: str | None = None
    key: str | None = None
    uri: str | None = None

    def __post_init__(self) -> None:
        if (self.bucket is None) != (self.key is None) or (self.uri is None) == (self.key is None):
            raise ValueError("either the path of the URI, or those of bucket and key")


def uris_at(value: object, paths: JsonPaths) -> list[str]:
    """Return the URIs of all objects that the document announces; raises MalformedNotification when there are none."""
    if paths.uri is not None:
        return _texts(value, paths.uri)
    assert paths.key is not None
    assert paths.bucket is not None
    keys, buckets = _texts(value, paths.key), _texts(value, paths.bucket)
    if len(buckets) == 1:
        buckets *= len(keys)
    if len(buckets) != len(keys):
        raise MalformedNotification(
            f"{len(keys)} values at keyPath {paths.key!r}, but {len(buckets)} at bucketPath {paths.bucket!r}"
        )
    return [
        f"{bucket.rstrip('/') if '://' in bucket else f's3://{bucket}'}/{key}"
        for bucket, key in zip(buckets, keys, strict=True)
    ]


def _texts(value: object, path: str) -> list[str]:
    values = list(_walk(value, path.split(".")))
    if not values:
        raise MalformedNotification(f"nothing stands at {path!r}")
    texts = [item for item in values if isinstance(item, str) and item]
    if len(texts) < len(values):
        raise MalformedNotification(f"what stands at {path!r} has to be text")
    return texts


def _walk(value: object, names: list[str]) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, names)
    elif not names:
        yield value
    elif isinstance(value, dict) and names[0] in value:
        yield from _walk(value[names[0]], names[1:])
    else:  # an element of several without it must be noticed
        raise MalformedNotification(f"{names[0]!r} is missing")
