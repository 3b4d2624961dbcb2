"""Moves a source's progress in a file: from one store to another, between any two databases.

The file is JSON lines, compressed with gzip. The first line names the source, its store, and the store that may import
it; then come the tables, each with a line for its name and columns, and a line for each row; the last line has the
number of rows of each table and a SHA-256 of all lines before. So a truncated file is recognised. Bytes are base64. The
file holds no URL and no password, but content of queues: names of objects, bodies of messages.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from queue_source.errors import OptionError
from shard_store.failpoints import reach
from shard_store.operators import moving
from shard_store.operators.moving import Cargo, Place, Value
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore

FORMAT = 1
"""Raised when a reader of before could not read the file. What this version writes, all later ones read."""

_PAGE_ROWS, _PAGE_BYTES = 1000, 4_000_000
_LONGEST_LINE = 1 << 28
"""Bytes: a few characters of a compressed file can be any number of bytes, and one line is in memory."""
_OF_CARGO: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("export_id", "source", "revision", "from_id"), (str,)),
    "to_id": (str, type(None)),
    **dict.fromkeys(("moves", "written_at"), (int,)),
}


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of a file. `already`: whether the store had imported it before."""

    source: str
    rows: dict[str, int]
    already: bool = False


Progress = Callable[[int, int], None]
"""Called with the number of rows done, and of all."""


def export(
    store: ShardStore,
    source: str,
    file: Path,
    *,
    to: ShardStore | None,
    progress: Progress = lambda done, all_rows: None,
) -> Exported:
    """Export a source into a file. With `to` the source moves to that store; without, this is a copy, and it stays.

    May be run again when it was interrupted: a source that has left is written as it was when it left.

    Raises:
        OptionError: There is such a file already.
        StoreConfigurationError: There is no such source, it is in another store already, or `to` cannot take it.
    """
    if file.exists():
        raise OptionError("FILE", f"{file} is there already; name another one, or remove it")
    copy_id = uuid.uuid4().hex if to is None else None
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    _create(partial).close()  # first: if the file cannot be written, the source does not leave
    try:
        if to is not None:
            to.check_arrival(source)
            store.leave(source, Place(to.database.name, to.store_id()))
            reach("source-left")
        exported = store.database.read_one_state(lambda t: _write(t, source, partial, copy_id, progress))
        reach("rows-exported")
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(file.parent)
    reach("file-written")
    return exported


def import_file(store: ShardStore, file: Path, *, progress: Progress = lambda done, all_rows: None) -> Exported:
    """Import a file of `export` into a store, in one transaction: all of it, or nothing. May be run again.

    Raises:
        OptionError: The file is none of ours, damaged, or incomplete.
        StoreConfigurationError: The source is there already, or the file is for another store.
    """
    complete = check(file)
    try:
        imported = store.database.write(lambda t: _read(t, file, complete, progress))
    except (OverflowError, UnicodeError) as error:  # raised by a database's driver
        raise _damaged(file, f"it has a value that no store has written ({error})") from error
    if not imported.already:
        reach("source-arrived")
    return imported


def check(file: Path) -> Exported:
    """Read a file to its end, without importing it. Raises OptionError unless it is complete and unchanged."""
    lines = _Lines(file)
    for _row in lines:
        pass
    return Exported(lines.cargo.source, lines.rows)


def _write(t: Transaction, source: str, file: Path, copy_id: str | None, progress: Progress) -> Exported:
    cargo, counts = moving.cargo(t, source, copy_id)
    all_rows, done = sum(counts.values()), 0
    written: dict[str, int] = {}
    digest = hashlib.sha256()
    with _create(file) as raw:
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=raw, mtime=0) as opened:

            def put(value: object) -> None:
                line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
                digest.update(line)
                opened.write(line)

            put({"cuesqueue": "source", "format": FORMAT, **asdict(cargo)})
            for table in moving.TABLES:
                names = moving.columns(table)
                put({"table": table.name, "columns": names})
                number = 0
                for number, row in enumerate(moving.rows(t, table, source), 1):
                    put([_encoded(value) for value in row])
                    if number % _PAGE_ROWS == 0:
                        progress(done + number, all_rows)
                written[table.name] = number
                done += number
            progress(done, all_rows)
            put({"end": written, "sha256": digest.hexdigest()})
        raw.flush()
        os.fsync(raw.fileno())
    return Exported(source, written)


def _read(t: Transaction, file: Path, complete: Exported, progress: Progress) -> Exported:
    lines = _Lines(file)
    all_rows, done = sum(complete.rows.values()), 0
    pages = lines.pages()
    if not moving.arrive(t, lines.cargo):
        return Exported(complete.source, complete.rows, already=True)
    for name, names, page in pages:
        moving.insert(t, _TABLES[name], names, page)
        done += len(page)
        progress(done, all_rows)
    if lines.rows != complete.rows:
        raise _damaged(file, "it has changed while it was read")
    moving.arrived(t, lines.cargo)
    reach("rows-imported")
    return complete


_TABLES = {table.name: table for table in moving.TABLES}


class _Row(NamedTuple):
    """A row of an exported table, and the length of its line."""

    table: str
    names: list[str]
    values: list[Any]
    length: int


class _Lines:
    """The lines of a file: its header, then its rows; the end is checked."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._lines = self._read()
        self.rows: dict[str, int] = {}
        self._expected = list(_TABLES)
        first = next(self._lines, None)
        if not isinstance(first, dict) or first.get("cuesqueue") != "source":
            raise _damaged(file, "it was not written by cuesqueue export")
        if first.get("format") != FORMAT:
            raise OptionError("FILE", f"{file}: a newer cuesqueue wrote it (format {first.get('format')})")
        if not all(type(first.get(name, ...)) in types for name, types in _OF_CARGO.items()):
            raise _damaged(file, "its first line does not say what it holds")
        self.cargo = Cargo(**{name: first[name] for name in _OF_CARGO})

    def __iter__(self) -> Iterator[_Row]:
        table, names, place = "", list[str](), -1
        for value in self._lines:
            if isinstance(value, list) and len(value) == len(names) and table:
                if place >= 0 and value[place] != self.cargo.source:
                    raise _damaged(self._file, f"it has a row of {table} of another source")
                self.rows[table] += 1
                yield _Row(table, names, value, self._length)
            elif isinstance(value, dict) and value.get("table") in self._expected:
                table, names = value["table"], _texts(value.get("columns"))
                self._expected.remove(table)  # a second part of the same table would hide the first one's rows
                moving.check_columns(_TABLES[table], names)
                place = names.index("source") if "source" in names else -1
                self.rows[table] = 0
            elif isinstance(value, dict) and "end" in value:
                self._check_end(value)
                return
            else:
                raise _damaged(self._file, f"it has a line that this version does not know: {str(value)[:100]!r}")
        raise _damaged(self._file, "it is cut off: its last line is missing")

    def pages(self) -> Iterator[tuple[str, list[str], list[list[Value]]]]:
        """Yield rows of one table at a time, as many as fit into a statement."""
        kept: tuple[str, list[str]] = ("", [])
        page, size = list[list[Value]](), 0
        for row in self:
            if page and (row.table != kept[0] or len(page) == _PAGE_ROWS or size > _PAGE_BYTES):
                yield (*kept, page)
                page, size = [], 0
            kept = row.table, row.names
            page.append([self._decoded(value) for value in row.values])
            size += row.length
        if page:
            yield (*kept, page)

    def _decoded(self, value: Any) -> Value:
        if type(value) in (int, str, type(None)):
            plain: Value = value
            return plain
        if isinstance(value, dict) and isinstance(value.get("b"), str):
            with suppress(ValueError):
                return base64.b64decode(value["b"], validate=True)
        raise _damaged(self._file, f"it has a value that this version does not know: {str(value)[:100]!r}")

    def _check_end(self, end: dict[str, Any]) -> None:
        if end.get("sha256") != self._before_last or end.get("end") != self.rows:
            raise _damaged(self._file, "its checksum or its number of rows is not that of its last line")
        if next(self._lines, None) is not None:
            raise _damaged(self._file, "something was added to it")

    def _read(self) -> Iterator[Any]:
        try:
            with gzip.open(self._file) as opened:
                while line := opened.readline(_LONGEST_LINE + 1):
                    if len(line) > _LONGEST_LINE:
                        raise ValueError(f"a line has more than {_LONGEST_LINE:,} bytes")
                    self._before_last = self._digest.hexdigest() if line.startswith(b'{"end"') else ""
                    self._digest.update(line)
                    self._length = len(line)
                    yield json.loads(line)
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise _damaged(self._file, f"it is cut off, or no file of cuesqueue export ({error})") from error


def _encoded(value: Value) -> object:
    return {"b": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _texts(value: Any) -> list[str]:
    """Return the names; nothing where a name occurs twice or is no text, which no table has."""
    names = value if isinstance(value, list) and all(isinstance(name, str) for name in value) else []
    return names if len(set(names)) == len(names) else []


def _damaged(file: Path, problem: str) -> OptionError:
    return OptionError("FILE", f"{file}: {problem}; nothing of it was imported")


def _create(file: Path) -> BinaryIO:
    """Create the file for its owner alone: it may hold bodies of messages."""
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _sync(folder: Path) -> None:
    """Make file names durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
