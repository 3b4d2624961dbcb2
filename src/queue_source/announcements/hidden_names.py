"""Names that Spark's file sources do not read: unfinished files, and metadata in addition to data. Pure.

The rule is Spark's own (`HadoopFSUtils.shouldFilterOutPathName` for folders, `isDataPath` for files): names that begin
with `.` or `_`, and copies under way. A folder of a partition column (`_year=2026`) is none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

_FOLDERS_OF_METADATA = ("_metadata", "_common_metadata")  # Spark lists names that begin with these
_COPYING = "._COPYING_"


def is_hidden(uri: str, prefixes: Iterable[str]) -> bool:
    """Tell whether a name below each prefix that allows the URI is hidden.

    Names within a prefix are never hidden: a prefix `s3://lake/_staging/` asks for its content.
    """
    below = [uri[len(prefix) :] if prefix.endswith("/") else f"~{uri[len(prefix) :]}" for prefix in prefixes]
    return all(_is_hidden_below(path) for path in below)


def _is_hidden_below(path: str) -> bool:
    if path[:1] not in ("_", ".") and "/_" not in path and "/." not in path and _COPYING not in path:
        return False  # nearly all, and listings check a million
    *folders, name = path.split("/")
    return _is_hidden_file(name) or any(map(_is_hidden_folder, folders))


def _is_hidden_file(name: str) -> bool:
    return _begins_hidden(name) or name.endswith(_COPYING)


def _is_hidden_folder(name: str) -> bool:
    hidden = _begins_hidden(name) or name.endswith(_COPYING)
    return hidden and not name.startswith(_FOLDERS_OF_METADATA)


def _begins_hidden(name: str) -> bool:
    if name in (".", ".."):  # no names: a climbing path is refused, not left out
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
