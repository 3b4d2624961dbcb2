"""Removes data files (splits) that no transaction has published: attempts that died left them in the sink's folder.

Only the store knows which files are published, and it never forgets one. They are recognised by their names, which are
unique: so the spelling of the folder does not matter. A file that was announced to a source of the store is an object,
and may be registered in a table where it is: it stays, whatever its name is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import NamedTuple

from pyarrow import fs as pafs

from queue_source.errors import OptionError
from queue_source.options.connections import StorageOptions
from queue_source.storage.files import is_local, raise_mapped, resolve
from queue_source.storage.local import file_time
from queue_source.storage.refusals import S3_SCHEMES
from shard_store.store import ShardStore

# as `sinks.splits` names them; other files stay
_NAME = re.compile(r"split-[0-9a-f]{12}-[0-9a-f]{32}\.parquet")
_PAGE = 1000
_THREADS = 16


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """How many split files exist, which of them stay, and what was removed (with dry_run: would be).

    `announced` ones are not published, and are objects of a source.
    """

    found: int = 0
    published: int = 0
    announced: int = 0
    young: int = 0
    removed: int = 0
    bytes: int = 0


class _File(NamedTuple):
    path: str
    size: int
    modified: datetime


def vacuum(
    store: ShardStore,
    folder: str,
    *,
    older_than: timedelta,
    dry_run: bool = False,
    storage: StorageOptions | None = None,
    progress: Callable[[int], None] = lambda files: None,
) -> VacuumResult:
    """Remove the split files in `folder` that are older than `older_than` and not published in `store`.

    `older_than` must be longer than any micro-batch takes: its files are not published before it ends. Refuses a folder
    if the store knows none of its files: they belong to another store, which must not lose them. `progress` is called
    with the number of files that were compared so far.
    """
    filesystem, inner = resolve(f"{folder.rstrip('/')}/x", storage)
    inner = inner.rpartition("/")[0]
    limit = datetime.now(timezone.utc) - older_than
    _check_store(store, folder, _pages(filesystem, inner, folder))
    if moved := store.moved_sources():
        raise OptionError(
            "--store",
            f"source {moved[0]!r} was moved from {store.database.name} to another store by version 0.3, and only that "
            "one knows what it has published since; name that one",
        )
    compared = published = announced = young = removed = size = 0
    with ThreadPoolExecutor(_THREADS) as threads:
        for page in _pages(filesystem, inner, folder):
            published_names = store.published_names([file.path for file in page])
            orphans = [file for file in page if file.path not in published_names]
            old = [file for file in orphans if file.modified < limit]
            fresh = [file for file in orphans if file.modified >= limit]
            objects = _announced(store, folder, old)
            old = [file for file in old if file.path not in objects]
            announced += len(objects)
            gone = old if dry_run else _remove(filesystem, old, folder, threads)
            compared, published, young = compared + len(page), published + len(published_names), young + len(fresh)
            removed, size = removed + len(gone), size + sum(file.size for file in gone)
            progress(compared)
    return VacuumResult(compared, published, announced, young, removed, size)


def _announced(store: ShardStore, folder: str, files: list[_File]) -> set[str]:
    """Return the paths of those that are objects of a source, under any spelling of the folder."""
    if not files:
        return set()
    if is_local(folder):
        plain = folder.removeprefix("file://").rstrip("/")
        folders = [f"file://{place}" for place in {plain, os.path.realpath(plain)}]
    else:
        scheme, _, place = folder.rstrip("/").partition("://")
        schemes = S3_SCHEMES if scheme.lower() in S3_SCHEMES else (scheme,)
        folders = [f"{scheme}://{place}" for scheme in schemes]
    uris = {f"{place}/{file.path.rpartition('/')[2]}": file.path for file in files for place in folders}
    return {uris[uri] for uri in store.announced_uris(list(uris))}


def _check_store(store: ShardStore, folder: str, pages: Iterable[list[_File]]) -> None:
    split_files = 0
    for page in pages:
        if store.published_names([file.path for file in page]):
            return
        split_files += len(page)
    if split_files:
        raise OptionError(
            "--path",
            f"the store {store.database.name!r} knows none of the {split_files} split files in {folder}: name the "
            "store whose sink writes to this folder; if nothing was ever published to it, remove the folder by hand",
        )


def _pages(filesystem: pafs.FileSystem, inner: str, folder: str) -> Iterator[list[_File]]:
    """Yield the split files of the folder. A local folder is read step by step; pyarrow holds other listings whole."""
    try:
        files = _local(inner) if is_local(folder) else _remote(filesystem, inner)
        while page := list(islice(files, _PAGE)):
            yield page
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow raises these
        raise_mapped(folder, error)


def _local(folder: str) -> Iterator[_File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another run removed it
                    stat = entry.stat(follow_symlinks=False)
                    yield _File(entry.path, stat.st_size, file_time(stat.st_mtime))


def _remote(filesystem: pafs.FileSystem, folder: str) -> Iterator[_File]:
    for info in filesystem.get_file_info(pafs.FileSelector(folder)):
        if info.type == pafs.FileType.File and _NAME.fullmatch(info.base_name):
            yield _File(info.path, info.size, info.mtime)


def _remove(filesystem: pafs.FileSystem, files: list[_File], folder: str, threads: ThreadPoolExecutor) -> list[_File]:
    """Delete the files; return those that existed. All are tried before the first failure is raised."""

    def delete(file: _File) -> Exception | None:
        try:
            filesystem.delete_file(file.path)
        except (OSError, ValueError, NotImplementedError) as error:  # pyarrow raises these; sorted below
            return error
        return None

    outcomes = list(zip(files, threads.map(delete, files), strict=True))
    for _, error in outcomes:
        if error is not None and not isinstance(error, FileNotFoundError):
            raise_mapped(folder, error)
    return [file for file, error in outcomes if error is None]
