"""`cuesqueue vacuum`: removes what was never published, and what no transaction will publish any more.

Data files (splits) that attempts which died have left in the sink's folder: only the store knows which are published,
and it never forgets one. And those that `cuesqueue compact` has replaced some time ago. They are recognised by their
names, which are unique: so the spelling of the folder does not matter. A file that was announced to a source of the
store is an object, and may be registered in a table where it is: it stays, whatever its name is.

And messages that tasks have staged for a SQL queue in the store's database: a pipeline removes those of its own failed
attempts after its next batch, so those are left whose pipelines were given up, or write to another place now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import sqlalchemy as sa
from pyarrow import fs as pafs

from queue_source.commands.output import Json, print_result, progress
from queue_source.commands.parameters import DryRun, Store, duration_of, option
from queue_source.errors import OptionError
from queue_source.options.connections import StorageOptions
from queue_source.queues.sql.database import messages
from queue_source.queues.sql.staging import hidden_queue, remove, staged
from queue_source.storage.files import resolve
from queue_source.storage.open_files import S3_SCHEMES, file_time, is_local, raise_mapped
from shard_store import open_store
from shard_store.model import MICROSECOND
from shard_store.sql.database import ROWS_PER_STATEMENT, Transaction, chunks
from shard_store.sql.schema import attempts, pipelines
from shard_store.store import ShardStore

# as `sinks.splits` names them; other files stay
_NAME = re.compile(r"split-[0-9a-f]{12}-[0-9a-f]{32}\.parquet")
_PAGE = 1000
_THREADS = 16


def vacuum_command(
    store: Store,
    path: Annotated[
        str | None,
        option("P", "Folder of the data files; else only staged messages are removed."),
    ] = None,
    older_than: Annotated[str, option("D", "What is younger stays: longer than any micro-batch takes.")] = "2 days",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove what was never published: files in the sink's folder, and messages staged in the store's database.

    And files that compact replaced longer ago than --older-than: the past before that cannot be read any more.
    """
    age = duration_of("--older-than", older_than)
    counts: dict[str, int] = {}
    with open_store(store, create=False) as opened:
        if path is not None:
            folder = path if "://" in path else str(Path(path).absolute())
            with progress("files", None, not as_json) as advance:
                counts = asdict(vacuum(opened, folder, older_than=age, dry_run=dry_run, progress=advance))
        staged_messages = vacuum_staged(opened, older_than=age, dry_run=dry_run)
    counts |= {"staged_messages": staged_messages.found, "staged_removed": staged_messages.removed}
    print_result({**counts, "dry_run": dry_run}, as_json, title="would be removed" if dry_run else "vacuum")


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """How many split files exist, which of them stay, and what was removed (with dry_run: would be).

    `announced` ones are not published, and are objects of a source.
    """

    files: int = 0
    published: int = 0
    announced: int = 0
    too_young: int = 0
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

    And those that others have replaced (`compact`) for that long: the store forgets them first, so that it refuses
    views of that past before a file is gone. `older_than` must be longer than any micro-batch takes: its files are not
    published before it ends. Refuses a folder if the store knows none of its files: they belong to another store, which
    must not lose them. `progress` is called with the number of files that were compared so far.
    """
    filesystem, inner = resolve(f"{folder.rstrip('/')}/x", storage)
    inner = inner.rpartition("/")[0]
    limit = datetime.now(timezone.utc) - older_than
    replaced_since = store.database_time() - older_than // MICROSECOND
    split_files = 0
    for page in _pages(filesystem, inner, folder):
        if store.published_names([file.path for file in page]):
            break
        split_files += len(page)
    else:
        if split_files:
            knows = f"the store {store.database.name!r} knows none of the {split_files} split files in {folder}"
            hint = "if nothing was ever published to it, remove the folder by hand"
            raise OptionError("--path", f"{knows}: name the store whose sink writes to this folder; {hint}")
    if moved := store.moved_sources():
        raise OptionError(
            "--store",
            f"source {moved[0]!r} was moved from {store.database.name} to another store by version 0.3, and only that "
            "one knows what it has published since; name that one",
        )
    while not dry_run and store.forget_replaced(replaced_since) == ROWS_PER_STATEMENT:
        pass
    compared = published = announced = young = removed = size = 0
    with ThreadPoolExecutor(_THREADS) as threads:
        for page in _pages(filesystem, inner, folder):
            published_names = store.published_names([file.path for file in page], replaced_since)
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


def _pages(filesystem: pafs.FileSystem, inner: str, folder: str) -> Iterator[list[_File]]:
    """Yield the split files of the folder. A local folder is read step by step; pyarrow holds other listings whole."""
    try:
        if is_local(folder):
            files = _local(inner)
        else:
            infos = filesystem.get_file_info(pafs.FileSelector(inner))
            files = (_File(info.path, info.size, info.mtime) for info in infos if info.type == pafs.FileType.File)
        named = (file for file in files if _NAME.fullmatch(file.path.rpartition("/")[2]))
        while page := list(islice(named, _PAGE)):
            yield page
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow raises these
        raise_mapped(folder, error)


def _local(folder: str) -> Iterator[_File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another run removed it
                    stat = entry.stat(follow_symlinks=False)
                    yield _File(entry.path, stat.st_size, file_time(stat.st_mtime))


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


@dataclass(frozen=True, slots=True)
class StagedResult:
    """How many messages wait to be shown, or for their removal, and how many of them were (would be) removed."""

    found: int = 0
    removed: int = 0


def vacuum_staged(store: ShardStore, *, older_than: timedelta, dry_run: bool = False) -> StagedResult:
    """Remove the messages that were staged longer than `older_than` ago and that no running batch may still show.

    Such a batch belongs to a pipeline with a heartbeat since then that has published nothing since they were staged.
    The batch of a driver that was paused for longer fails when it wakes up: `show` notices the missing messages.
    """
    database = store.database
    if not database.read(lambda transaction: sa.inspect(transaction.connection).has_table(staged.name)):
        return StagedResult()

    def dead(transaction: Transaction) -> list[str]:
        limit = transaction.now() - older_than // MICROSECOND
        # its batches follow one another: entries older than the last one belong to no later one
        after = attempts.c.published_at > staged.c.staged_at
        published = sa.exists().where(attempts.c.pipeline == staged.c.owner, after)
        alive = sa.exists().where(pipelines.c.pipeline == staged.c.owner, pipelines.c.heartbeat_at >= limit)
        is_dead = sa.or_(staged.c.abandoned == 1, published, sa.not_(alive))
        return list(transaction.execute(sa.select(staged.c.name).where(staged.c.staged_at < limit, is_dead)).scalars())

    def abandon(transaction: Transaction) -> None:
        """Mark the attempts as abandoned: nothing is added to them any more, and no batch shows them."""
        for chunk in chunks(names):
            transaction.execute(staged.update().where(staged.c.name.in_(chunk)).values(abandoned=1))

    waiting = database.read(lambda t: _count(t, list(t.execute(sa.select(staged.c.name)).scalars())))
    names = database.read(dead)
    if dry_run:
        return StagedResult(waiting, database.read(lambda transaction: _count(transaction, names)))
    database.write(abandon)
    return StagedResult(waiting, remove(database, names))


def _count(transaction: Transaction, names: list[str]) -> int:
    hidden = [messages.c.queue.in_([hidden_queue(name) for name in chunk]) for chunk in chunks(names)]
    return sum(transaction.execute(sa.select(sa.func.count()).where(some)).scalar_one() for some in hidden)
