"""Local files as a bucket: the whole machine. Only regular files whose real path may be read are listed or touched."""

from __future__ import annotations

import errno
import heapq
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from hashlib import sha256
from itertools import islice

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.messages import ListedObject
from queue_source.options.connections import StorageOptions
from queue_source.storage.buckets import PAGE, Bucket, Known, Outcome, Page, if_changed, occupied
from queue_source.storage.open_files import LocalObject, allowed_places, file_time, is_version, real_path, version_of
from shard_store.failpoints import reach

logger = logging.getLogger("cuesqueue")

_NAMES = 50_000
"""Names of one folder that are in memory; a larger one is read again for each so many."""
_BLOCK = 8 << 20
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
"""What says that a folder may not be read, or is deeper than a path goes."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What says that this file cannot have a second name, though it stays in its file system."""


class LocalBucket(Bucket):
    """The files of this machine, in the order of their whole paths as bytes, which is that of object stores.

    Links to folders are not followed, since they may lead in a circle; links to files are files. A folder below the
    prefix that may not be read, `lost+found` for one, is left out, logged and counted.
    """

    def __init__(self, storage: StorageOptions) -> None:
        self._prefixes = storage.local_prefixes
        self._allowed: tuple[str, ...] = allowed_places(self._prefixes)
        self._skipped = 0
        self._walk: tuple[str, str, Iterator[ListedObject]] | None = None  # (prefix, cursor, what follows)

    def _page(self, prefix: str, cursor: str | None, versions: bool) -> Page:
        """List a page; the cursor is the path of the last file. The next page continues the walk of the last one."""
        now, skipped = datetime.now(timezone.utc), self._skipped
        opened, self._walk = self._walk, None
        with _mapped(prefix, "listed"):
            if opened is not None and opened[:2] == (prefix, cursor):
                walk = opened[2]
            else:
                path = _path(prefix)
                if "//" in path:
                    problem = "has an empty segment ('//'), which no path of a file has"
                    raise BadObject("missing-object", f"{prefix!r} {problem}")
                folder, _, beginning = path.rpartition("/")
                start = f"{folder}/"
                os.scandir(start).close()  # a folder that is absent is an error, unlike one that vanishes meanwhile
                real = os.path.realpath(start).rstrip("/") + "/"
                after = "" if cursor is None else cursor[len(start) :]
                uri = prefix[: len(prefix) - len(beginning)]
                walk = self._below(uri, os.fsencode(real), os.fsencode(beginning), os.fsencode(after))
            objects = list(islice(walk, PAGE))
        skipped = self._skipped - skipped
        if len(objects) < PAGE:
            return Page(objects, None, now, skipped)
        last = _path(objects[-1].uri)
        self._walk = (prefix, last, walk)
        return Page(objects, last, now, skipped)

    def now(self, uri: str) -> datetime:
        """Return the time of this machine; the folder of the file may be gone or closed, which is that file's alone."""
        return datetime.now(timezone.utc)

    def delete(self, objects: Sequence[Known]) -> list[Outcome]:
        """Delete the files. One could be exchanged in the moment between its check and its removal."""

        def delete(planned: Known) -> Outcome:
            with self._folder(planned.uri) as (folder, name):
                if (changed := _if_changed(planned, os.stat(name, dir_fd=folder))) is None:
                    os.unlink(name, dir_fd=folder)
                return changed

        return [_outcome(planned.uri, "deleted", partial(delete, planned)) for planned in objects]

    def move(self, objects: Sequence[tuple[Known, str]]) -> list[Outcome]:
        """Move by a second name and the removal of the first, which never overwrites.

        Between file systems it is a copy.
        """
        return [_outcome(planned.uri, "moved", partial(self._move, planned, target)) for planned, target in objects]

    def close(self) -> None:
        self._walk = None

    def _below(self, uri: str, real: bytes, beginning: bytes, after: bytes) -> Iterator[ListedObject]:
        """Yield the files in the folder `real` after `after` (a path in it).

        Folders are deeper than functions may call each other, so the open ones are in a list.
        """
        prefixes = (b"", beginning + b"/")  # there an unreadable folder is an error
        opened = [(b"", after, _names(real, beginning, after))]
        while opened:
            folder, after, names = opened[-1]
            name, path, status = None, folder, None
            try:
                if (name := next(names, None)) is not None:
                    path = folder + name
                    status = None if name.endswith(b"/") else self._stat(os.fsdecode(real + path))
            except OSError as error:
                if folder in prefixes or error.errno not in _CLOSED:
                    raise
                if error.errno != errno.ENAMETOOLONG:
                    name, path = None, folder  # no other file of it can be checked
                self._skipped += 1
                logger.warning("listing %s: %r is left out: %s", uri, os.fsdecode(real + path), error.strerror)
            if name is None:
                opened.pop()
            elif name.endswith(b"/"):
                after_in_folder = after[len(name) :] if after.startswith(name) else b""
                opened.append((path, after_in_folder, _names(real + path, b"", after_in_folder)))
            elif status is not None:
                modified, appeared = file_time(status.st_mtime), file_time(status.st_ctime)
                yield ListedObject(uri + os.fsdecode(path), status.st_size, None, modified, appeared=appeared)

    def _stat(self, path: str) -> os.stat_result | None:
        """Return the status of a regular file that may be read; None for anything else, and for vanished files."""
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                try:
                    path, status = os.path.realpath(path), os.stat(path)  # noqa: PTH116 - costs less
                except OSError:  # leads nowhere, in a circle, or where access is denied
                    return None
            if stat.S_ISREG(status.st_mode) and (not self._allowed or path.startswith(self._allowed)):
                return status
        return None

    def _move(self, planned: Known, target: str) -> Outcome:
        with self._folder(planned.uri) as (folder, name):
            status = os.stat(name, dir_fd=folder)
            changed = _if_changed(planned, status)
            if changed is not None:
                return changed
            with self._folder(target, make=True) as (target_folder, target_name):
                unnamed = f".cuesqueue-{sha256(os.fsencode(target)).hexdigest()[:16]}"
                outcome: Outcome = None
                try:
                    present = os.stat(target_name, dir_fd=target_folder, follow_symlinks=False)
                except FileNotFoundError:
                    if not self._named_again(folder, name, target_folder, target_name):
                        outcome = self._copied(planned, status, unnamed, target_folder, target_name)
                else:
                    # the same name in the same folder; or, where the file system ignores case, a file with one name
                    same_folder = os.path.samestat(os.fstat(folder), os.fstat(target_folder))
                    is_alone = present.st_nlink == 1 and os.path.samestat(os.lstat(name, dir_fd=folder), present)
                    if (name == target_name and same_folder) or is_alone:
                        return BadObject("target-exists", f"{target!r} is {planned.uri!r} itself")
                    if not os.path.samestat(present, status):
                        if not self._is_copy(planned, status, present, target_folder, target_name):
                            return occupied(planned.uri, target)
                        outcome = _if_changed(planned, os.stat(name, dir_fd=folder))
                    with suppress(FileNotFoundError):  # from a crash between two names
                        os.unlink(unnamed, dir_fd=target_folder)
                os.fsync(target_folder)
                if outcome is None:
                    reach("object-copied", planned.uri)
                    with suppress(FileNotFoundError):  # renamed
                        os.unlink(name, dir_fd=folder)
                return outcome

    def _named_again(self, folder: int, name: str, target_folder: int, target_name: str) -> bool:
        """Tell whether the file has the other name now; links, and files of another file system, have to be copied."""
        if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            return False
        try:
            os.link(name, target_name, src_dir_fd=folder, dst_dir_fd=target_folder, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return False
            if error.errno not in _NO_LINKS:
                raise
            os.rename(name, target_name, src_dir_fd=folder, dst_dir_fd=target_folder)
        return True

    def _copied(self, planned: Known, status: os.stat_result, unnamed: str, folder: int, name: str) -> Outcome:
        """Copy the file completely and durably before it has its name, under a name that a repetition uses again."""
        source = LocalObject(planned.uri, _path(planned.uri), self._prefixes)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            copy = os.open(unnamed, flags, stat.S_IMODE(status.st_mode) & 0o777, dir_fd=folder)
            try:
                for block in _blocks(source):
                    written = 0
                    while written < len(block):
                        written += os.write(copy, block[written:])
                os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
                os.fsync(copy)
            finally:
                os.close(copy)
        finally:
            source.close()
        if (changed := _if_changed(planned, os.stat(_path(planned.uri)))) is not None:  # noqa: PTH116
            os.unlink(unnamed, dir_fd=folder)
            return changed
        if self._named_again(folder, unnamed, folder, name):
            with suppress(FileNotFoundError):
                os.unlink(unnamed, dir_fd=folder)
        return None

    def _is_copy(self, planned: Known, status: os.stat_result, present: os.stat_result, folder: int, name: str) -> bool:
        """Tell whether a file is the result of an earlier move.

        Only its bytes can show that: files of one size have one time where their writer sets whole seconds.
        """
        if not stat.S_ISREG(present.st_mode) or present.st_size != status.st_size:
            return False
        source = LocalObject(planned.uri, _path(planned.uri), self._prefixes)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as copy:
                for block in _blocks(source):
                    if copy.read(len(block)) != block:
                        return False
                return not copy.read(1)
        finally:
            source.close()

    @contextmanager
    def _folder(self, uri: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a file, and return it with the file's name there.

        All work uses the folder that was checked: no link can be put in its place in between. That of a target is made
        where there is none, and may be anywhere. Raises BadObject (`forbidden-object`, `target-exists`) and OSError.
        """
        folder, _, name = _path(uri).rpartition("/")
        try:
            if make:
                os.makedirs(folder or "/", exist_ok=True)  # noqa: PTH103 - as the rest of this module
            descriptor = os.open(folder or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError) as error:
            if not make:
                raise
            raise BadObject("target-exists", f"{uri!r} needs folders where there is a file: {error}") from error
        try:
            real = f"{real_path(descriptor, folder or '/').rstrip('/')}/{name}"
            if self._allowed and not make and not real.startswith(self._allowed):
                raise BadObject("forbidden-object", f"{uri!r} leads to {real!r}, which no allowed prefix begins")
            yield descriptor, name
        finally:
            os.close(descriptor)


def _blocks(source: LocalObject) -> Iterator[bytes]:
    return (source.read_range(at, min(at + _BLOCK, source.size)) for at in range(0, source.size, _BLOCK))


def _names(folder: bytes, beginning: bytes, after: bytes) -> Iterator[bytes]:
    """Yield names in order that come after `after` or hold it; folders end with a slash, as in whole paths."""
    last = b""
    while True:
        chunk: list[bytes] = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            names = (entry.name + b"/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries)
            later_names = (
                name
                for name in names
                if name > last
                and (name > after or (name[-1:] == b"/" and after.startswith(name)))
                and name.startswith(beginning)
            )
            chunk = heapq.nsmallest(_NAMES, later_names)
        yield from chunk
        if len(chunk) < _NAMES:
            return
        last = chunk[-1]


def _path(uri: str) -> str:
    return uri if uri.startswith("/") else uri[len("file://") :]


def _if_changed(planned: Known, status: os.stat_result) -> BadObject | None:
    if not stat.S_ISREG(status.st_mode):
        return BadObject("object-changed", f"{planned.uri!r} is no regular file by now")
    version = version_of(status) if planned.etag is not None and is_version(planned.etag) else None
    return if_changed(planned, status.st_size, version, file_time(status.st_mtime))


def _outcome(uri: str, done: str, act: Callable[[], Outcome]) -> Outcome:
    """Map the error of one file to its outcome; a missing file needs nothing more."""
    try:
        with _mapped(uri, done):
            return act()
    except (BadObject, ObjectStoreError) as error:
        return None if isinstance(error, BadObject) and error.cause == "missing-object" else error


@contextmanager
def _mapped(uri: str, done: str) -> Iterator[None]:
    """Map the errors of the operating system in the block to BadObject and ObjectStoreError."""
    try:
        yield
    except FileExistsError as error:
        raise BadObject("target-exists", f"{uri!r} cannot be {done}: {error}") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadObject("missing-object", f"{uri!r} cannot be {done}: {error}") from error
    except PermissionError as error:
        raise ObjectRefused(f"{uri!r} cannot be {done}: {error}", own=False) from error
    except OSError as error:
        raise ObjectStoreError(f"{uri!r} cannot be {done}: {error}") from error
