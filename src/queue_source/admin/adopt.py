"""Takes over the files that another reader has read, from a checkpoint of Spark's file source or a list: as finished.

The log of Spark's file source is a folder of JSON lines, one file for each of its batches, and now and then
(`N.compact`) one with all earlier batches. An offset of the query names the last of these batches that it has reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyarrow import fs as pafs

from queue_source.errors import MalformedNotification, OptionError
from queue_source.options.connections import StorageOptions
from queue_source.storage.files import raise_mapped, resolve
from queue_source.uris import plain_uri
from shard_store.sql.transaction import chunks
from shard_store.store import ShardStore

_LOG = re.compile(r"([0-9]+)(\.compact)?")
_ORIGIN = "read by Spark's file source"
_LISTED = "read by another reader"


@dataclass(frozen=True, slots=True)
class AdoptResult:
    """How many files the checkpoint names, and how many of them were new to the store."""

    files: int = 0
    new: int = 0


def adopt(
    store: ShardStore | None,
    source: str,
    checkpoint: str,
    *,
    stream: int = 0,
    storage: StorageOptions | None = None,
    progress: Callable[[int], None] = lambda files: None,
) -> AdoptResult:
    """Record as finished what the query of a checkpoint has read; may be run again. Without a store it counts.

    Args:
        checkpoint: The folder that the query had as `checkpointLocation`; it is only read.
        stream: The number of the file source in its query, where that reads several.

    Raises:
        OptionError: It is no such checkpoint, or its last micro-batch has not ended.
        ObjectStoreError: It cannot be read.
    """
    return _adopt(store, source, _files(_Checkpoint(checkpoint, storage), stream), _ORIGIN, progress)


def adopt_list(
    store: ShardStore | None, source: str, lines: Iterable[str], *, progress: Callable[[int], None] = lambda files: None
) -> AdoptResult:
    """Adopt files as `adopt`, from lines with a URI or an absolute path each; empty lines are skipped.

    Raises:
        OptionError: A line is neither; those of the pages before it are adopted.
    """
    return _adopt(store, source, _listed(lines), _LISTED, progress)


def _adopt(
    store: ShardStore | None, source: str, uris: Iterator[str], origin: str, progress: Callable[[int], None]
) -> AdoptResult:
    files = new = 0
    for page in chunks(uris):
        files += len(page)
        if store is not None:
            new += store.adopt(source, list(page), origin)
        progress(len(page))
    return AdoptResult(files, new)


def _listed(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if text := line.strip("\r\n"):
            try:
                yield plain_uri(text)
            except MalformedNotification as error:
                raise OptionError("--list", f"line {number}: {error}; write a URI or an absolute path a line") from None


class _Checkpoint:
    """Files of a checkpoint, on any store that objects are read from."""

    def __init__(self, folder: str, storage: StorageOptions | None) -> None:
        self.folder = folder.rstrip("/")
        with self._mapped():
            self._filesystem, self._inner = resolve(self.folder, storage)

    def names(self, folder: str) -> list[str]:
        """List the names of the files in one of its folders, without unfinished copies and checksums."""
        with self._mapped():
            selector = pafs.FileSelector(f"{self._inner}/{folder}", allow_not_found=True)
            infos = self._filesystem.get_file_info(selector)
        return [info.base_name for info in infos if info.type == pafs.FileType.File and _LOG.fullmatch(info.base_name)]

    def lines(self, file: str) -> Iterator[str]:
        """Yield the lines after the first one, which has the version of the log."""
        with self._mapped(), self._filesystem.open_input_stream(f"{self._inner}/{file}") as opened:
            text = opened.read().decode()
        version, _, entries = text.partition("\n")
        if not re.fullmatch(r"v[0-9]+", version.strip()):
            raise self.wrong(f"{file} does not begin with the version of a log")
        yield from filter(None, entries.splitlines())

    def wrong(self, problem: str) -> OptionError:
        return OptionError("CHECKPOINT", f"{self.folder}: {problem}")

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise_mapped(self.folder, error)


def _files(checkpoint: _Checkpoint, stream: int) -> Iterator[str]:
    """Yield the URIs that the query has read, in their one form, each once."""
    last = _last_batch(checkpoint, stream)
    logs = sorted(
        (int(match[1]), match[2] is not None, match[0])
        for match in map(_LOG.fullmatch, checkpoint.names(f"sources/{stream}"))
        if match is not None
    )
    compacted = max((number for number, compact, _ in logs if compact and number <= last), default=-1)
    log_names = [
        name for number, compact, name in logs if (number == compacted and compact) or compacted < number <= last
    ]
    if not log_names:
        raise checkpoint.wrong(f"there is no log in sources/{stream}; is its source a folder of files?")
    seen: set[str] = set()
    for name in log_names:
        for line in checkpoint.lines(f"sources/{stream}/{name}"):
            uri = _uri(checkpoint, line)
            if uri not in seen:
                seen.add(uri)
                yield uri


def _last_batch(checkpoint: _Checkpoint, stream: int) -> int:
    """Return the last finished batch of the source's log. An offset has one line for each source of the query."""
    begun = [int(name) for name in checkpoint.names("offsets") if name.isdigit()]
    ended = [int(name) for name in checkpoint.names("commits") if name.isdigit()]
    if not begun:
        raise checkpoint.wrong("it has no offsets; name the folder that the query had as checkpointLocation")
    if max(begun) != max(ended, default=-1):
        raise checkpoint.wrong(
            f"micro-batch {max(begun)} has begun and not ended, so nobody knows what its sink has of it; run the old "
            "query once more until it ends (trigger availableNow), and then this command"
        )
    _, *offsets = checkpoint.lines(f"offsets/{max(begun)}")
    try:
        return int(json.loads(offsets[stream])["logOffset"])
    except (IndexError, KeyError, TypeError, ValueError):
        raise checkpoint.wrong(
            f"source {stream} of its query is no folder of files; name another one with --stream"
        ) from None


def _uri(checkpoint: _Checkpoint, line: str) -> str:
    """Decode a path, which Spark writes as an encoded URI, also for stores whose URIs are not encoded elsewhere."""
    try:
        entry: dict[str, Any] = json.loads(line)
        path = unquote(entry["path"], errors="strict")
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        return plain_uri(path)
    except (KeyError, TypeError, ValueError, AttributeError, MalformedNotification) as error:
        raise checkpoint.wrong(f"{line[:200]!r} is no entry of a log of files ({error})") from None
