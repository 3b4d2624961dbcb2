"""`cuesqueue compact`: joins small data files of the sink with `path` into large ones.

Each new file takes the place of its originals in one transaction of the store. A run that was killed has done nothing
or all for each of them, and left at most a file that vacuum removes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import typer

from queue_source.commands.output import FAILED, Json, print_change, progress, tell, without_unknown
from queue_source.commands.parameters import DryRun, Pipeline, Store, option
from queue_source.errors import CuesqueueError, ObjectStoreError, OptionError
from queue_source.formats.types import fields_of, inner_types
from queue_source.options.connections import StorageOptions
from queue_source.options.types import parse_size
from queue_source.sinks.splits import write_split
from queue_source.spark.published import rows_of
from queue_source.storage.files import resolve
from shard_store import open_store
from shard_store.failpoints import reach
from shard_store.operators.compacting import CurrentFile
from shard_store.store import ShardStore

_MOST_FILES = 10_000
"""Files that one file takes the place of: so the transaction is short, and so is the list in memory."""
_AHEAD = 64 << 20
"""Bytes that are read before their turn; a bucket answers late, and many requests at once."""
_THREADS = 16


def compact_command(
    store: Store,
    pipeline: Pipeline = None,
    smaller_than: Annotated[str, option("SIZE", "Join only smaller files.")] = "32m",
    target: Annotated[str, option("SIZE", "About how large they become, at most.")] = "256m",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Join small files of the sink with path into large ones: views show the same rows at each moment.

    Queries, readers, and vacuum, which removes what was replaced, may run meanwhile. Exit code 1: some files cannot
    be read or written; they stay.
    """
    small, large = _size("--smaller-than", smaller_than), _size("--target", target)
    if large < small:
        raise OptionError("--target", f"is below --smaller-than ({smaller_than}): write at least that")
    with open_store(store, create=False) as opened, progress("files", None, not as_json) as advance:
        result = compact(opened, pipeline, smaller_than=small, target=large, dry_run=dry_run, progress=advance)
    counts = {name: getattr(result, name) for name in ("files", "into", "bytes", "bytes_after", "overtaken")}
    failures = {"failures": list(result.failures)} if as_json else {}
    print_change({**without_unknown(counts), **failures}, "joined", dry_run=dry_run, as_json=as_json)
    for sentence in result.failures:
        tell(sentence)
    if result.failures:
        raise typer.Exit(FAILED)


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise OptionError(name, str(error)) from None


@dataclass(frozen=True, slots=True)
class CompactResult:
    """How many files were joined into how many (with dry_run: would be), and their bytes before and after.

    `overtaken`: files that something else has replaced or removed meanwhile. `failures`: a sentence for each new file
    that was not made.
    """

    files: int = 0
    into: int = 0
    bytes: int = 0
    bytes_after: int | None = None
    overtaken: int = 0
    failures: tuple[str, ...] = ()


class _Group(NamedTuple):
    """Files that one file is made of: all of one source and folder, whose columns go together in `schema`."""

    files: list[CurrentFile]
    schema: pa.Schema
    compression: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def compact(
    store: ShardStore,
    pipeline: str | None = None,
    *,
    smaller_than: int,
    target: int,
    dry_run: bool = False,
    storage: StorageOptions | None = None,
    progress: Callable[[int], None] = lambda files: None,
) -> CompactResult:
    """Join the data files with fewer than `smaller_than` bytes into files of about `target` bytes.

    Args:
        store: The store of the sink; others may publish to it meanwhile.
        pipeline: Only the files of this pipeline; else of each one.
        smaller_than: Files of this size and larger stay as they are.
        target: How large the files are together that become one.
        dry_run: Read the columns of the files, and write nothing.
        storage: How the files are reached.
        progress: Called with the number of files that were looked at so far.

    Raises:
        OptionError: The store knows no data files of this pipeline.

    Process:
        Any, without Spark. Memory holds 64 MB of files that are read ahead, and the row group that is written: the
        process took up to 388 MB, with files of 24 MB.
    """
    names = store.pipelines_with_files()
    if pipeline is not None and pipeline not in names:
        raise OptionError("--pipeline", f"the store has no data files of {pipeline!r}; it has those of {names[:10]}")
    files = into = size = size_after = overtaken = seen = 0
    failures = []
    with ThreadPoolExecutor(_THREADS) as threads:
        for name in names if pipeline is None else [pipeline]:
            for neighbours in _neighbours(store.small_files(name, smaller_than), target):
                seen += len(neighbours)
                try:
                    for group in _groups(neighbours, storage, threads):
                        if not dry_run:
                            after = _join(store, name, group, storage, threads)
                            if after is None:
                                overtaken += len(group.files)
                                continue
                            size_after += after
                        files, into, size = files + len(group.files), into + 1, size + group.size
                except CuesqueueError as error:
                    failures.append(f"{error}; this file and its neighbours stay as they are")
                progress(seen)
    return CompactResult(files, into, size, None if dry_run else size_after, overtaken, tuple(failures))


def _neighbours(files: Iterable[CurrentFile], target: int) -> Iterator[list[CurrentFile]]:
    """Yield files that were published one after the other, in lists of about `target` bytes.

    So a new file has rows of about one age, for `cuesqueue prune --data-older-than`.
    """
    listed: list[CurrentFile] = []
    size = 0
    for file in files:
        if listed and (
            len(listed) == _MOST_FILES
            or size + file.size > target
            or (file.source, _folder(file)) != (listed[-1].source, _folder(listed[-1]))
        ):
            yield listed
            listed, size = [], 0
        listed.append(file)
        size += file.size
    yield listed


def _folder(file: CurrentFile) -> str:
    return file.path.rpartition("/")[0]


def _groups(
    files: Sequence[CurrentFile], storage: StorageOptions | None, threads: ThreadPoolExecutor
) -> Iterator[_Group]:
    """Divide files where columns do not go together. One that some files lack is null for their rows.

    Of a file whose neighbours have other types there is no group.
    """

    def look(file: CurrentFile) -> tuple[pa.Schema, str]:
        with _reading(file):
            filesystem, inner = resolve(file.path, storage)
            with pq.ParquetFile(inner, filesystem=filesystem) as opened:
                # what is missing in another file is null there
                schema = pa.schema([field.with_nullable(True) for field in opened.schema_arrow])
                compression = opened.metadata.row_group(0).column(0).compression.lower()
                return schema, compression if compression in ("zstd", "snappy") else "zstd"  # what the sink writes

    if len(files) < 2:
        return
    groups: list[_Group] = []
    for file, (schema, compression) in zip(files, threads.map(look, files), strict=True):
        if not groups or (merged := _unified(groups[-1].schema, schema)) is None:
            groups.append(_Group([], schema, compression))
            merged = schema
        groups[-1].files.append(file)
        groups[-1] = groups[-1]._replace(schema=merged, compression=compression)
    yield from (group for group in groups if len(group.files) > 1)


def _unified(first: pa.Schema, second: pa.Schema) -> pa.Schema | None:
    """Return the columns of both; None where a column has another type, or parts of it that are never null are new.

    Neither where names differ in case alone: a view gives all rows the one that was published last.
    """
    try:
        both = pa.unify_schemas([first, second])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    if _same_names(both) > max(_same_names(first), _same_names(second)):
        return None
    required = [field for field in both if _has_required(field.type)]
    return both if all(field in schema for field in required for schema in (first, second)) else None


def _same_names(schema: pa.Schema) -> int:
    """Return how many names are there in another case too."""
    return len(schema.names) - len({name.casefold() for name in schema.names})


def _has_required(kind: pa.DataType) -> bool:
    """Tell whether a struct in it has a field that is never null, as VARIANT: Arrow writes no null struct of such."""
    if pt.is_struct(kind) and not all(field.nullable for field in fields_of(kind)):
        return True
    return any(map(_has_required, inner_types(kind)))


def _join(
    store: ShardStore, pipeline: str, group: _Group, storage: StorageOptions | None, threads: ThreadPoolExecutor
) -> int | None:
    """Write the rows of a group into one file, and show that in its place; return its bytes, None if it is overtaken.

    What the store knows of the originals has to be true: a file that was changed is not replaced.
    """
    names = "\n".join(file.path for file in group.files)
    prefix = f"split-{hashlib.sha256(names.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    rows = _rows(group, storage, threads)
    (joined,) = write_split(rows, group.schema, _folder(group.files[0]), prefix, group.compression, storage)
    reach("files-joined")
    is_shown = store.replace_files(pipeline, group.files, joined)
    reach("files-compacted")
    return joined.size if is_shown else None


def _rows(group: _Group, storage: StorageOptions | None, threads: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file after the other, while the next ones are fetched."""

    def fetch(file: CurrentFile) -> pa.NativeFile:
        with _reading(file):
            filesystem, inner = resolve(file.path, storage)
            opened = filesystem.open_input_file(inner)
            if file.size > _AHEAD:
                return opened
            with opened:
                return pa.BufferReader(opened.read_buffer())

    fetched: deque[tuple[CurrentFile, Future[pa.NativeFile]]] = deque()
    size = 0
    try:
        for file in chain(group.files, [None]):
            if file is not None:
                fetched.append((file, threads.submit(fetch, file)))
                size += file.size
            while fetched and (file is None or size > _AHEAD):
                first, content = fetched.popleft()
                size -= first.size
                with _reading(first), content.result() as source, pq.ParquetFile(source) as opened:
                    if opened.metadata.num_rows != first.rows:
                        problem = f"it has {opened.metadata.num_rows} rows, and was published with {first.rows}"
                        raise ObjectStoreError(f"{first.path!r} was changed: {problem}")
                    yield from rows_of(opened, first.path, group.schema)
    finally:
        for _, content in fetched:
            content.cancel()


@contextmanager
def _reading(file: CurrentFile) -> Iterator[None]:
    """Say of a failure which file it is of."""
    try:
        yield
    except CuesqueueError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow raises these
        raise ObjectStoreError(f"{file.path!r} cannot be read: {error}") from error
