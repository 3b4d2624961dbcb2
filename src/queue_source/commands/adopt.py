"""`cuesqueue adopt`: takes over the files that another reader has read: as finished.

From a list, or from a checkpoint of Spark's file source. Its log is a folder of JSON lines, one file for each of its
batches, and now and then (`N.compact`) one with all earlier batches. An offset of the query names the last of these
batches that it has reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

from pyarrow import fs as pafs

from queue_source.commands.output import Json, print_change, progress
from queue_source.commands.parameters import DryRun, Store, argument, option
from queue_source.errors import MalformedNotification, OptionError
from queue_source.storage.files import resolve
from queue_source.storage.open_files import raise_mapped
from queue_source.uris import plain_uri
from shard_store import open_store
from shard_store.sql.database import chunks
from shard_store.store import ShardStore

_LOG = re.compile(r"([0-9]+)(\.compact)?")


def adopt_command(
    source: Annotated[str, option("S", "The source, as in the reader's option source.")],
    store: Store,
    checkpoint: Annotated[
        str | None, argument("CHECKPOINT", "Folder or URI that the query had as checkpointLocation.")
    ] = None,
    list_: Annotated[
        Path | None, option("FILE", "Instead of a checkpoint: a file with a URI or path a line.", "--list")
    ] = None,
    stream: Annotated[int, option("N", "Which source of a query that reads several.", min=0)] = 0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take over the list of files that another reader, such as Spark's file source, has read: none is read again.

    Stop that query first, after its last micro-batch has ended. The checkpoint is only read.
    """
    if (checkpoint is None) == (list_ is None):
        raise OptionError("CHECKPOINT", "or --list FILE says what was read: give one of them")
    with ExitStack() as opened, progress("files", None, not as_json) as advance:
        target = None if dry_run else opened.enter_context(open_store(store))
        if list_ is not None:
            result = adopt_list(target, source, opened.enter_context(list_.open(encoding="utf-8")), progress=advance)
        else:
            folder = str(checkpoint) if "://" in str(checkpoint) else str(Path(str(checkpoint)).absolute())
            result = adopt(target, source, folder, stream=stream, progress=advance)
    counts = {"files": result.files} if dry_run else {"files": result.files, "new": result.new}
    print_change(counts, "adopted", dry_run=dry_run, as_json=as_json)


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

    def uris() -> Iterator[str]:
        try:
            yield from _Checkpoint(checkpoint).uris(stream)
        except OSError as error:
            raise_mapped(checkpoint.rstrip("/"), error)

    return _adopt(store, source, uris(), "read by Spark's file source", progress)


def adopt_list(
    store: ShardStore | None, source: str, lines: Iterable[str], *, progress: Callable[[int], None] = lambda files: None
) -> AdoptResult:
    """Adopt files as `adopt`, from lines with a URI or an absolute path each; empty lines are skipped.

    Raises:
        OptionError: A line is neither; those of the pages before it are adopted.
    """

    def uris() -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            if text := line.strip("\r\n"):
                try:
                    yield plain_uri(text)
                except MalformedNotification as error:
                    hint = "write a URI or an absolute path a line"
                    raise OptionError("--list", f"line {number}: {error}; {hint}") from None

    return _adopt(store, source, uris(), "read by another reader", progress)


def _adopt(
    store: ShardStore | None, source: str, uris: Iterator[str], origin: str, progress: Callable[[int], None]
) -> AdoptResult:
    files = new = 0
    for page in chunks(uris):
        files += len(page)
        if store is not None:
            new += store.adopt(source, list(page), origin)
        progress(files)
    return AdoptResult(files, new)


class _Checkpoint:
    """Files of a checkpoint, on any store that objects are read from."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")
        self._filesystem, self._inner = resolve(self._folder)

    def uris(self, stream: int) -> Iterator[str]:
        """Yield the URIs that the query has read, in their one form, each once."""
        last = self._last_batch(stream)
        logs = self._names(f"sources/{stream}")
        compacted = max((number for number, compact in logs if compact and number <= last), default=-1)
        seen: set[str] = set()
        read = False
        for (number, compact), name in sorted(logs.items()):
            if (number == compacted and compact) or compacted < number <= last:
                read = True
                for line in self._lines(f"sources/{stream}/{name}"):
                    try:  # Spark writes encoded URIs, also for stores whose URIs are not encoded elsewhere
                        path = unquote(json.loads(line)["path"], errors="strict")
                        if path.startswith("file:"):
                            path = "/" + path.removeprefix("file:").lstrip("/")
                        uri = plain_uri(path)
                    except (KeyError, TypeError, ValueError, AttributeError, MalformedNotification) as error:
                        raise self._wrong(f"{line[:200]!r} is no entry of a log of files ({error})") from None
                    if uri not in seen:
                        seen.add(uri)
                        yield uri
        if not read:
            raise self._wrong(f"there is no log in sources/{stream}; is its source a folder of files?")

    def _last_batch(self, stream: int) -> int:
        """Return the last finished batch of the source's log. An offset has one line for each source of the query."""
        begun = max((number for number, compact in self._names("offsets") if not compact), default=None)
        if begun is None:
            raise self._wrong("it has no offsets; name the folder that the query had as checkpointLocation")
        if begun != max((number for number, compact in self._names("commits") if not compact), default=None):
            raise self._wrong(
                f"micro-batch {begun} has begun and not ended, so nobody knows what its sink has of it; run the old "
                "query once more until it ends (trigger availableNow), and then this command"
            )
        _, *offsets = self._lines(f"offsets/{begun}")
        try:
            return int(json.loads(offsets[stream])["logOffset"])
        except (IndexError, KeyError, TypeError, ValueError):
            raise self._wrong(
                f"source {stream} of its query is no folder of files; name another one with --stream"
            ) from None

    def _names(self, folder: str) -> dict[tuple[int, bool], str]:
        """Return the files in one of its folders by number and form, without unfinished copies and checksums."""
        selector = pafs.FileSelector(f"{self._inner}/{folder}", allow_not_found=True)
        names = [i.base_name for i in self._filesystem.get_file_info(selector) if i.type == pafs.FileType.File]
        return {(int(log[1]), bool(log[2])): log[0] for log in map(_LOG.fullmatch, names) if log}

    def _lines(self, file: str) -> Iterator[str]:
        """Yield the lines after the first one, which has the version of the log."""
        with self._filesystem.open_input_stream(f"{self._inner}/{file}") as opened:
            version, _, entries = opened.read().decode().partition("\n")
        if not re.fullmatch(r"v[0-9]+", version.strip()):
            raise self._wrong(f"{file} does not begin with the version of a log")
        yield from filter(None, entries.split("\n"))

    def _wrong(self, problem: str) -> OptionError:
        return OptionError("CHECKPOINT", f"{self._folder}: {problem}")
