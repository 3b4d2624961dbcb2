"""Relation (f): the same records give the same rows, however they are packed.

Packed is by codecs (in several members, twice, under a wrong name), in archives (with members that came later under a
name that was there, as `tar -r` and `zip` add them: unpacking gives the last), with each line end, with or without the
last one, as a json document and as records within one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from hypothesis import strategies as st

from support.oracle import cases
from support.oracle.cases import Case, Scheme
from support.oracle.counting import reached
from support.oracle.rows import Broken, Found, difference, read
from support.oracle.values import Strategy

NAME = "any-packing-is-the-same"

Members = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Packed:
    """An object (and those beside it) in another form. `names`: of the members of an archive, which may be the same."""

    case: Case
    way: str
    names: tuple[str, ...] = ()

    @property
    def members(self) -> list[tuple[str, bytes]]:
        contents = [self.case.bytes, *self.case.beside]
        return [(name, contents[at % len(contents)]) for at, name in enumerate(self.names)]

    def count(self) -> None:
        self.case.count()
        reached(f"packed: {self.way}")
        if len(_unpacked(self.members)) < len(self.members):
            reached("packed: a member twice")


def strategy() -> Strategy:
    return st.sampled_from(["csv", "csv", "json", "json", "text"]).flatmap(cases.schemes).flatmap(_of_scheme)


def _of_scheme(scheme: Scheme) -> Strategy:
    case = st.builds(
        lambda content, others: cases.case_of(scheme, content, beside=others),
        cases.objects(scheme, 5), st.lists(cases.objects(scheme, 2), max_size=3),
    )  # fmt: skip
    names = st.lists(st.sampled_from(_MEMBERS), min_size=1, max_size=4)
    return st.builds(Packed, case, st.sampled_from([*CODECS, *ARCHIVES, *ARCHIVES, *LINES]), names.map(tuple))


_MEMBERS = ("a", "b", "c.csv", "d/e.json", "a", "./a", "d//e.json", "d/./e.json", "ä b", "x" * 120, ".hidden", "_h/a")


def check(packed: Packed) -> None:
    case, way = packed.case, packed.way
    if way in CODECS:
        if way.startswith("plain") and not _is_text(case):
            return  # what is no text may be damaged
        name, data = CODECS[way](case.bytes)
        if case.bytes:  # an object of no bytes has no rows in any format; of no content it has those of the format
            found = read(replace(case, content=data, name=name))
            rows = tuple(tuple(cell.replace(f"file:///{name}", "file:///object") for cell in row) for row in found.rows)
            _same(packed, read(case), replace(found, rows=rows))
    elif way in ARCHIVES:
        _check_archive(packed)
    elif (other := LINES[way](case)) is not None:
        known, found = read(case), read(other)
        names = [] if way == "Records" else [case.options.get("columnNameOfCorruptRecord", cases.CORRUPT)]
        _same(packed, _rows_alone(case, known, names), _rows_alone(case, found, names))


def _is_text(case: Case) -> bool:
    try:
        text = case.bytes.decode(case.options.get("encoding", "UTF-8"))
    except UnicodeError:
        return False
    return text.isprintable() or all(c.isprintable() or c in "\t\n\r\x1e\ufeff\xa0" for c in text)


def _same(packed: Packed, plain: Found, found: Found) -> None:
    kind, detail = difference(packed.case, plain, found)
    if kind:
        is_twice = packed.way in ARCHIVES and len(_unpacked(packed.members)) < len(packed.names)
        way = "a name twice" if is_twice else packed.way
        raise Broken(NAME, packed, f"{way}: {kind}", f"plain or {packed.way}: {detail}")


def _rows_alone(case: Case, found: Found, hidden: Sequence[str]) -> Found:
    """Without places, which are others in other bytes, and without columns whose text is that of the packing."""
    places = [at for at, name in enumerate(case.schema.names) if name not in hidden]
    rows = tuple(tuple(cell if at in places else "-" for at, cell in enumerate(row)) for row in found.rows)
    return Found(rows, ((0, f"{len(found.bad)} bad"),) if found.bad else (), found.failure, found.detail)


# --- codecs ---


def _halves(data: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    return compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


def _arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return bytes(sink.getvalue())

    return compress


_ZSTD, _LZ4 = _arrow("zstd"), _arrow("lz4")


_EMPTY_BZ2 = bz2.compress(b"")


def _skippable(data: bytes) -> bytes:
    """A frame that a reader of zstd or lz4 passes over."""
    return bytes.fromhex("502a4d18") + len(data).to_bytes(4, "little") + data


def _bgzip(data: bytes) -> bytes:
    """As `bgzip` writes it: a member for each piece, with its size in an extra field, and an empty one at the end."""
    members = []
    for piece in [*(data[at : at + 40] for at in range(0, len(data), 40)), b""]:
        packer = zlib.compressobj(wbits=-15)
        body = packer.compress(piece) + packer.flush()
        head = bytes.fromhex("1f8b08040000000000ff0600424302 00".replace(" ", "")) + (len(body) + 25).to_bytes(
            2, "little"
        )
        members.append(head + body + zlib.crc32(piece).to_bytes(4, "little") + len(piece).to_bytes(4, "little"))
    return b"".join(members)


CODECS: dict[str, Callable[[bytes], tuple[str, bytes]]] = {
    "gz": lambda data: ("object.gz", gzip.compress(data)),
    "gz in two members": lambda data: ("object.gz", _halves(data, gzip.compress)),
    "gz without a suffix": lambda data: ("object", gzip.compress(data)),
    "gz in gz": lambda data: ("object.csv.gz", gzip.compress(gzip.compress(data))),
    "gz under another name": lambda data: ("object.zst", gzip.compress(data)),
    "gz, zeros behind it": lambda data: ("object.gz", gzip.compress(data) + b"\0" * 512),
    "gz of bgzip": lambda data: ("object.gz", _bgzip(data)),
    "gz, an empty member first": lambda data: ("object.gz", gzip.compress(b"") + gzip.compress(data)),
    "zst, a frame to skip first": lambda data: ("object.zst", _skippable(b"x") + _ZSTD(data)),
    "zst, a frame to skip behind": lambda data: ("object.zst", _ZSTD(data) + _skippable(b"xyz")),
    "lz4 in two frames": lambda data: ("object.lz4", _halves(data, _LZ4)),
    "zst": lambda data: ("object.zst", _ZSTD(data)),
    "zst in two frames": lambda data: ("object.zst", _halves(data, _ZSTD)),
    "bz2": lambda data: ("object.bz2", bz2.compress(data)),
    "bz2 in two streams": lambda data: ("object", _halves(data, bz2.compress)),
    "bz2 with empty streams": lambda data: (
        "object",
        _halves(data, lambda half: bz2.compress(half) + bz2.compress(b"")),
    ),
    "lz4": lambda data: ("object.lz4", _LZ4(data)),
    "plain under a packed name": lambda data: ("object.gz", data),
    "plain under another packed name": lambda data: ("object.zst", data),
}


# --- archives ---


def _tar(members: Members, form: int) -> bytes:
    out = io.BytesIO()
    for number, (name, data) in enumerate(members):  # the first one made, the others added as `tar -r` does
        with tarfile.open(fileobj=out, mode="a" if number else "w", format=form) as archive:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        out.seek(0)
    return out.getvalue()


def _zip(members: Members, method: int) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        for number, (name, data) in enumerate(members):
            with zipfile.ZipFile(out, "a" if number else "w", method) as archive:
                archive.writestr(name, data)
    return out.getvalue()


def _streamed_zip(members: Members) -> bytes:
    """As a program writes it to a pipe: sizes stand behind the members; with folders, and a comment."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    out = Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("folder/", b"")
            for name, data in members:
                with archive.open(name, "w") as member:
                    member.write(data)
            archive.comment = b"a comment"
    return out.getvalue()


def _tar_with_folders(members: Members) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("d", "_h"):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _packed_members(members: Members) -> Members:
    return [(name, gzip.compress(data)) for name, data in members]


ARCHIVES: dict[str, Callable[[Members], bytes]] = {
    "zip of a pipe": _streamed_zip,
    "tar with folders": _tar_with_folders,
    "tar of gz": lambda members: _tar(_packed_members(members), tarfile.GNU_FORMAT),
    "zip of gz": lambda members: _zip(_packed_members(members), zipfile.ZIP_STORED),
    "tar": lambda members: _tar(members, tarfile.PAX_FORMAT),
    "tar of gnu": lambda members: _tar(members, tarfile.GNU_FORMAT),
    "tar.gz": lambda members: gzip.compress(_tar(members, tarfile.GNU_FORMAT)),
    "tar.bz2": lambda members: bz2.compress(_tar(members, tarfile.PAX_FORMAT)),
    "tar.zst": lambda members: _ZSTD(_tar(members, tarfile.PAX_FORMAT)),
    "zip": lambda members: _zip(members, zipfile.ZIP_DEFLATED),
    "zip, stored": lambda members: _zip(members, zipfile.ZIP_STORED),
}


def _unpacked(members: Members) -> dict[str, bytes]:
    """What is on the disk after unpacking: the last of each name, as the disk takes it."""
    files: dict[str, bytes] = {}
    for name, data in members:
        path = "/".join(part for part in name.split("/") if part not in ("", "."))
        files.pop(path, None)
        files[path] = data
    return files


def _check_archive(packed: Packed) -> None:
    case = packed.case
    files = {
        name: data
        for name, data in _unpacked(packed.members).items()
        if not any(part[0] in "._" for part in name.split("/"))
    }
    alone = [read(replace(case, content=data, beside=())) for data in files.values()]
    found = read(replace(case, content=ARCHIVES[packed.way](packed.members), beside=()))
    if bad := [one for one in alone if one.failure]:
        if not found.failure:
            raise Broken(NAME, packed, f"{packed.way}: {bad[0].failure} alone", f"{bad[0]}\n  or\n{found}")
        return
    rows = sorted(row for one in alone for row in one.rows)
    count = sum(len(one.bad) for one in alone)
    expected = Found(tuple(rows), ((0, f"{count} bad"),) if count else ())
    _same(packed, expected, replace(_rows_alone(case, found, ()), rows=tuple(sorted(found.rows))))


# --- lines, and documents of json ---


def _with_ends(end: str, *, last: bool = True) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        data = case.bytes
        if not case.is_lines or case.line_end is not None or "encoding" in case.options or b"\r" in data:
            return None
        if case.file_format == "csv" and _may_have_inner_ends(case):
            return None
        lines = data.split(b"\n")
        if last == bool(lines[-1]):
            lines = [*lines, b""] if last else lines[:-1]
        if case.file_format == "text" and (not data.strip(b"\n") or data.endswith(b"\n\n")):
            return None  # one line end more is one line more where the last line is empty
        return replace(case, content=end.encode().join(lines), beside=())

    return change


def _may_have_inner_ends(case: Case) -> bool:
    """Whether a line end may be data: only with multiLine."""
    return case.options.get("multiLine") == "true"


def _records(case: Case) -> list[str] | None:
    """The records of an object of lines, where each is an object of json; None where one is anything else."""
    plain = case.file_format == "json" and case.is_lines and case.line_end is None
    if not plain or "encoding" in case.options:
        return None
    try:
        texts = [line for line in case.bytes.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n") if line]
        if not texts or not all(isinstance(json.loads(text, parse_constant=_refuse), dict) for text in texts):
            return None
    except ValueError:
        return None
    return texts


def _refuse(text: str) -> float:
    raise ValueError(text)


def _as_records(case: Case) -> Case | None:
    if (texts := _records(case)) is None:
        return None
    content = f'{{"n": 1, "Records": [{", ".join(texts)}], "z": []}}\n'.encode()
    return replace(case, content=content, beside=(), options={**case.options, "recordsPath": "Records"})


def _as_documents(case: Case) -> Case | None:
    """Each record in a document of its own, all of them in one object."""
    if (texts := _records(case)) is None:
        return None
    content = "".join(f'{{"Records": [\n{text}\n]}}' for text in texts).encode()
    return replace(case, content=content, beside=(), options={**case.options, "recordsPath": "Records"})


def _as_array(case: Case) -> Case | None:
    if (texts := _records(case)) is None:
        return None
    content = f"[\n{', '.join(texts)}\n]".encode()
    return replace(case, content=content, beside=(), options={**case.options, "multiLine": "true"})


def _without_ends(case: Case) -> Case | None:
    """Records without line ends between them, as Firehose writes them."""
    if (texts := _records(case)) is None:
        return None
    return replace(case, content="".join(texts).encode(), beside=())


LINES: dict[str, Callable[[Case], Case | None]] = {
    "CR LF": _with_ends("\r\n"),
    "CR": _with_ends("\r"),
    "LF": _with_ends("\n"),
    "CR LF, not the last": _with_ends("\r\n", last=False),
    "CR, not the last": _with_ends("\r", last=False),
    "LF, not the last": _with_ends("\n", last=False),
    "Records": _as_records,
    "documents of Records": _as_documents,
    "array": _as_array,
    "no line ends": _without_ends,
}
