"""For `foreachBatch` with `content=reference`: the objects of a micro-batch, as Spark's own readers take them.

def write(batch, batch_id):
    if paths := references(batch):
        orders = batch.sparkSession.read.parquet(*paths)
        ...
"""

from __future__ import annotations

import re
from typing import Any

from queue_source.announcements.hidden_names import is_hidden
from queue_source.errors import BadObject, OptionError

_PATTERN = re.compile(r"[\\*?\[\]{}]")
_BUCKET = re.compile("[A-Za-z][A-Za-z0-9+.-]*://[^/]*/")


def references(batch: Any) -> list[str]:
    r"""The paths of a micro-batch's objects for Spark's own readers: each once, in the order of the rows.

    They are the URIs of the column `uri`, with a backslash before what Spark would take for a pattern (`*`, `?`, `[`,
    `{`, `\`). Two versions of an object are one path.

    Args:
        batch: The DataFrame that Spark hands to the function, or one made of it with the column `uri`, which is
            collected on the driver (at most `maxFilesPerTrigger`).

    Returns:
        The paths; Spark's readers refuse an empty list.

    Raises:
        OptionError: The rows have no column `uri`.
        BadObject: Spark's readers would leave the object out or read another one: its name is hidden (`_name`,
            `.name`), or its key has an empty segment (`//`). Give it up by hand, or read the URI in another way.

    Process:
        Driver (with Spark Connect, a worker of the server), inside the function of `foreachBatch`.
    """
    if "uri" not in batch.columns:
        columns = ", ".join(batch.columns)
        raise OptionError("batch", f"has no column 'uri', only {columns}; read the stream with content reference")
    return [_path(uri) for uri in dict.fromkeys(uri for (uri,) in batch.select("uri").collect())]


def names_of(uri: str) -> tuple[str, str]:
    """Return the names that a user may have for an object: its URI, and its path for Spark's readers."""
    return uri, _escaped(uri)


def _escaped(uri: str) -> str:
    return _PATTERN.sub(r"\\\g<0>", uri)


def _path(uri: str) -> str:
    """Return the path, or refuse one that Spark's readers would change or skip.

    Hadoop drops empty segments between two slashes, and Spark's readers leave out hidden files silently.
    """
    place = _BUCKET.match(uri)
    key = uri[place.end() :] if place else uri
    problem = ""
    if is_hidden(uri, [uri[: uri.rindex("/") + 1]]):
        problem = "has a hidden name, and Spark's readers leave such objects out"
    elif "//" in key or key.startswith("/") or key.endswith("/"):
        problem = "has an empty segment in its key, and Spark's readers look for another object then"
    if problem:
        raise BadObject(
            "unsupported-key",
            f"{uri!r} {problem}; read it in another way, by the column 'uri', or give it up with `cuesqueue shards "
            "quarantine`",
        )
    return _escaped(uri)
