"""The members of archives of text, zip and tar: each a name and a stream, read forward and within bounds.

No file is written, so a name is a text and leads nowhere: `../a.csv` is read, and its name is reported as it stands.
Folders, links, devices, and hidden members as in a bucket are left out. Of several members of one name the last is
read, as unpacking leaves it: `tar -r`, `tar -u` and appending to a zip keep the earlier ones. What cannot be read to
its end raises, so that an archive is read as a whole: zip by its checksums, tar by its end marker, behind which nothing
but zeros may follow.
"""

from __future__ import annotations

import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

from queue_source.common.globs import is_hidden
from queue_source.errors import BadObject
from queue_source.formats.base import EarlierVersions
from queue_source.formats.compression import CHUNK, Expansion, Stream
from queue_source.formats.types import shorten
from queue_source.storage.open_files import AT_LEAST, ObjectFile

MOST_MEMBERS = 100_000
"""Entries of an archive: one that has a record costs up to a millisecond, as a small object does."""
MOST_BYTES = 16 << 20
"""Bytes of what is read at once: the directory of a zip, an extended header of a tar."""
_LONGEST_NAME = 1024  # as of keys in buckets; rows repeat it
_MARK = 4  # bytes that may come before the first member: "PK00", of a zip that might have been split
_LOCAL_HEADER = 30  # bytes of a zip before the name and data of a member
_ANY_BYTES = "surrogateescape"  # two names that are no UTF-8 are not one
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of bzip2 zipfile unpacks 4 KB at once, which may be gigabytes
_KINDS_OF_DOCUMENTS = {"[Content_Types].xml": "an Office document", "META-INF/MANIFEST.MF": "a jar"}

Member = tuple[str, Stream]


def read_members(
    kind: str, file: ObjectFile | Stream, expansion: Expansion, left_out: frozenset[int] | None = frozenset()
) -> Iterator[Member]:
    """Yield name and content of each member with data, which is read to its end before the next one is asked for.

    `kind`: that of `archive_of`. A zip is an object that is stored as it is; a tar may be within a codec.
    Raises BadObject, as each content does: `archive` for what is not read, `corrupt-object` for damage. `left_out`: the
    numbers of members that are not read; None: raise EarlierVersions, in the end, for a tar in which they are found.
    """
    if kind == "zip" and isinstance(file, ObjectFile):
        members = _zip_members(file, expansion)
    elif kind == "tar":
        members = _tar_members(file, left_out)
    else:
        what = "a zip that is compressed once more" if kind == "zip" else kind
        raise BadObject("archive", f"it is {what}, which is not read; unpack it, and announce what is in it")
    for name, content in members:
        if name in _KINDS_OF_DOCUMENTS:
            raise BadObject("archive", f"it is {_KINDS_OF_DOCUMENTS[name]}, by its member {name!r}")
        if len(name) > _LONGEST_NAME:
            raise BadObject("archive", f"the name of a member has more than {_LONGEST_NAME} characters")
        if not is_hidden(f"/{name}", ["/"]):
            yield name, content
        else:
            for _ in content.pieces():  # a tar goes on behind it
                pass


def require_no_versions(kind: str | None, file: ObjectFile | Stream) -> None:
    """Raise EarlierVersions for a tar in which a name is there twice. Raises BadObject."""
    for _ in _tar_members(file, None, names_alone=True) if kind == "tar" else ():
        pass


def _place(name: str) -> bytes:
    """Return what is the same for all names of one place, `a.csv` and `./a.csv`, and is short."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return blake2b("/".join(parts).encode("utf-8", _ANY_BYTES), digest_size=16).digest()


def _count(number: int) -> None:
    if number >= MOST_MEMBERS:
        raise BadObject("archive", f"it has more than {MOST_MEMBERS} members")


class _ZipFile:
    """An object as zipfile reads it: bytes, in requests of some size, and never very many at once."""

    def __init__(self, file: ObjectFile) -> None:
        file.at_least = AT_LEAST
        self._file = file
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        if size > MOST_BYTES:
            raise BadObject("archive", f"the directory of the zip has {size} bytes, more than {MOST_BYTES}")
        return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        before = self._file.tell()
        if (place := self._file.seek(offset, whence)) < 0:
            self._file.seek(before)
            raise OSError(f"no place {place}")
        return place

    def seekable(self) -> bool:
        return True


def _zip_members(file: ObjectFile, expansion: Expansion) -> Iterator[Member]:
    """Yield the members in the order of their bytes: so requests follow each other, however the directory is sorted."""
    damage = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, struct.error)

    def pieces(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        try:
            with archive.open(entry) as content:
                yield from expansion.bounded(iter(partial(content.read, CHUNK), b""), "zip")
        except damage as error:
            raise BadObject("corrupt-object", f"zip: {error}") from error

    try:
        archive = zipfile.ZipFile(_ZipFile(file))
    except damage as error:
        raise BadObject("corrupt-object", f"zip: {error}") from error
    end, last = 0, {_place(entry.filename): entry for entry in archive.infolist() if not entry.filename.endswith("/")}
    for number, entry in enumerate(sorted(archive.infolist(), key=lambda info: info.header_offset)):
        _count(number)
        if number == 0 and entry.header_offset > _MARK:
            raise BadObject("corrupt-object", "zip: there are bytes before its first member, as where zips are joined")
        if entry.header_offset < end:
            raise BadObject("corrupt-object", "zip: two members of its directory share their bytes")
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
        if entry.filename.endswith("/") or stat.S_ISLNK(entry.external_attr >> 16):
            continue
        if last[_place(entry.filename)] is not entry:
            continue
        if entry.flag_bits & 1:
            raise BadObject("archive", shorten(f"member {entry.filename!r} is encrypted"))
        if entry.compress_type not in _METHODS:
            method = f"method {entry.compress_type}, which is not read; use stored or deflated"
            raise BadObject("archive", shorten(f"member {entry.filename!r} is compressed by {method}"))
        if entry.file_size or entry.CRC:  # as an empty object, an empty member has no rows, and no bytes to be damaged
            yield entry.filename, Stream(pieces(archive, entry))


def _tar_members(
    file: ObjectFile | Stream, left_out: frozenset[int] | None, *, names_alone: bool = False
) -> Iterator[Member]:
    """Yield the members of a tar; its headers are tarfile's, and the way from one to the next is not.

    TarFile ends in silence at a damaged header, and takes any number and size of extended ones. From the first name on
    that is there twice, no member is yielded, as with `names_alone`: which are the last ones, the end tells.
    """

    def pieces(size: int) -> Iterator[bytes]:
        while size:
            if not (data := stream.read(min(size, CHUNK))):
                raise BadObject("corrupt-object", f"tar: it is cut off, {size} bytes before the end of a member")
            size -= len(data)
            yield data

    file.at_least = AT_LEAST
    stream = file if isinstance(file, Stream) else Stream(map(bytes, iter(partial(file.read, CHUNK), b"")))
    number, fields = 0, dict[str, str]()
    places, earlier = dict[bytes, int](), set[int]()
    while (block := stream.read(tarfile.BLOCKSIZE)).strip(b"\0"):
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", _ANY_BYTES)
            size = int(fields.get("size", header.size))
        except (tarfile.HeaderError, ValueError) as error:
            raise BadObject("corrupt-object", f"tar: a header at byte {stream.tell() - len(block)}: {error}") from error
        if min(size, header.size) < 0:
            raise BadObject("corrupt-object", f"tar: a member of {min(size, header.size)} bytes")
        name = fields.get("path", header.name)
        if header.type in (
            tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE,
            tarfile.XGLTYPE,
        ):  # fmt: skip
            if header.size > MOST_BYTES:
                raise BadObject("archive", f"an extended header has {header.size} bytes, more than {MOST_BYTES}")
            body = b"".join(pieces(header.size))
            stream.read(-header.size % tarfile.BLOCKSIZE)
            if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                named = "path" if header.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
                fields[named] = body.partition(b"\0")[0].decode("utf-8", _ANY_BYTES)
            elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                fields |= _pax_fields(body)
            continue
        _count(number)
        number += 1
        if header.type == tarfile.GNUTYPE_SPARSE or any(field.startswith("GNU.sparse.") for field in fields):
            raise BadObject("archive", shorten(f"member {name!r} is sparse"))
        linked, fields = fields.get("linkpath", header.linkname), {}
        if left_out is None and not header.isdir() and not (header.islnk() and _place(linked) == _place(name)):
            if (before := places.get(place := _place(name))) is not None:
                earlier.add(before)
            places[place] = number
        if header.isreg():
            if size:
                if names_alone or earlier or (left_out and number in left_out):
                    for _ in pieces(size):
                        pass
                else:
                    yield name.encode("utf-8", _ANY_BYTES).decode("utf-8", "replace"), Stream(pieces(size))
                stream.read(-size % tarfile.BLOCKSIZE)
        elif not (header.isdir() or header.issym() or header.islnk() or header.isdev()):
            raise BadObject("archive", shorten(f"member {name!r} is of type {header.type!r}, which is not read"))
    if not block:
        raise BadObject("corrupt-object", "tar: it is cut off, its end marker is not there")
    if any(piece.strip(b"\0") for piece in stream.pieces()):
        raise BadObject("corrupt-object", "tar: there are bytes behind its end; archives are not joined one to another")
    if earlier:
        raise EarlierVersions(frozenset(earlier))


def _pax_fields(body: bytes) -> dict[str, str]:
    """Return the records `LENGTH KEY=VALUE\\n` of an extended header."""
    fields, place = {}, 0
    body = body.rstrip(b"\0")
    while place < len(body):
        length, blank, _ = body[place : place + 10].partition(b" ")
        end = place + int(length) if blank and length.isdigit() else 0
        key, equals, value = body[place + len(length) + 1 : end].partition(b"=")
        if not equals or not value.endswith(b"\n") or end > len(body):
            raise BadObject("corrupt-object", "tar: an extended header is damaged")
        fields[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", _ANY_BYTES)
        place = end
    return fields
