"""Members of archives are read as objects are, in one task; an archive is read whole, or it is one bad object."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import posixpath
import re
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats import compression
from queue_source.formats.base import BadRecords, OpenObject, Part, format_named
from queue_source.formats.text import archives
from queue_source.options import parse_reader_options
from queue_source.options.content import FormatOptions
from queue_source.read.objects import read_object
from queue_source.storage.files import open_object
from support.reading import read_bytes, read_with_problems, refused
from support.servers.s3 import s3_server

CSV = FormatOptions("csv", header=True)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
FILES = {
    "a.csv": b"id,name\n1,a\n2,b\n",
    "./sub/b.csv": b"name,id\nc,3\n",
    "empty.csv": b"",
    "d/day=1/_x=2/c.csv.gz": gzip.compress(b"id,name\n4,d\n"),
    "../up.csv": b"id,name\r\n5,e",
    "_hidden.csv": b"\0no csv",
    "__MACOSX/._a.csv": b"\0\1\2",
}
ROWS = [{"id": at, "name": name} for at, name in enumerate("abcde", 1)]


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED, folders: Iterable[str] = ()) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for folder in folders:
            archive.writestr(folder, b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def tar_of(files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT, more: Iterable[tarfile.TarInfo] = ()) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member)
    return packed.getvalue()


def before_posix(files: Mapping[str, bytes]) -> bytes:
    """As tar was without the word at 257."""
    data = bytearray(tar_of(files, tarfile.USTAR_FORMAT))
    place = data.find(b"ustar")
    while place >= 0:
        start = place - 257
        data[place : place + 8], data[start + 148 : start + 156] = bytes(8), b" " * 8
        data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
        place = data.find(b"ustar")
    return bytes(data)


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "a.csv"
    member.size = 7 * (kind == tarfile.LNKTYPE)  # of what the link leads to: no byte follows
    return member


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def zip_with_a_link(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO(zip_of(files))
    link = zipfile.ZipInfo("link.csv")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(link, "a.csv")
    return packed.getvalue()


OTHERS = [
    special("folder", tarfile.DIRTYPE), special("link.csv", tarfile.SYMTYPE), special("same.csv", tarfile.LNKTYPE),
    special("pipe", tarfile.FIFOTYPE),
]  # fmt: skip
ARCHIVES = {
    "zip": zip_of(FILES, folders=("sub/",)),
    "tar with links first": tar_of({}, more=OTHERS)[: 4 * 512] + tar_of(FILES),
    "stored zip": zip_with_a_link(FILES),
    "tar": tar_of(FILES, more=OTHERS),
    "ustar": tar_of(FILES, tarfile.USTAR_FORMAT),
    "before posix": before_posix(FILES),
    "gnu": tar_of(FILES, tarfile.GNU_FORMAT),
    "tar.gz": gzip.compress(tar_of(FILES)),
    "tar.gz.gz": gzip.compress(gzip.compress(tar_of(FILES))),
    "tar.bz2": bz2.compress(tar_of(FILES)),
    "tar.zst": zstd(tar_of(FILES)),
}


@pytest.mark.parametrize("archive", ARCHIVES)
def test_members_are_read_one_after_another_whatever_the_archives_name(archive: str) -> None:
    """Each has its own header and compression; hidden ones, folders, links and pipes are left out."""
    for name in ("o", "o.csv", "o.csv.gz", "o.zip"):
        assert read_bytes(ARCHIVES[archive], SCHEMA, CSV, name) == ROWS


@pytest.mark.parametrize("archive", ARCHIVES)
def test_an_archive_is_read_with_its_first_part_and_never_cut_where_its_name_tells(archive: str) -> None:
    data = ARCHIVES[archive]
    parts = [Part(0, 10), Part(10, 100), Part(100, None)]
    plain = FormatOptions("csv")
    counts = [len(read_with_problems(data, SCHEMA, plain, part=part).rows) for part in parts]
    assert counts[0] > 5, "headers are rows here"
    assert counts[1:] == [0, 0]
    cut = [format_named("csv").may_be_cut(f"s3://b/o{end}", plain, all_or_nothing=True) for end in (".zip", ".tar", "")]
    assert cut == [False, False, True]


@pytest.mark.parametrize("pack", [zip_of, tar_of], ids=["zip", "tar"])
def test_a_member_is_read_as_an_object_of_its_format_is(pack: Callable[[Mapping[str, bytes]], bytes]) -> None:
    one = pa.schema([("a", pa.int64())])
    documents = {"a": b'{"Records":[{"a":1},{"a":2}]}', "b": gzip.compress(b'{"Records":[{"a":3}]}')}
    cases: list[tuple[Mapping[str, bytes], FormatOptions, pa.Schema, list[Any]]] = [
        ({"a": b'{"a":1}\n{"a":2}', "b": b'{"A":3}'}, FormatOptions("json"), one, [1, 2, 3]),
        ({"a": b'[{"a":1},\n{"a":2}]', "b": b'{"a":\n3}'}, FormatOptions("json", multi_line=True), one, [1, 2, 3]),
        (documents, FormatOptions("json", records_path="Records"), one, [1, 2, 3]),
        (
            {"a": "1\n".encode("utf-16"), "b": "2".encode("utf-16")},
            FormatOptions("csv", encoding="utf-16"),
            one,
            [1, 2],
        ),
        ({"a": b"\xef\xbb\xbf1\n", "b": b"\xef\xbb\xbf2\n"}, FormatOptions("csv"), one, [1, 2]),
    ]
    for files, options, schema, expected in cases:
        assert [row["a"] for row in read_bytes(pack(files), schema, options)] == expected
    text = pa.schema([("value", pa.string())])
    files = {"a": b"x\ny\n", "ä/b": b"z"}
    assert [row["value"] for row in read_bytes(pack(files), text, FormatOptions("text"))] == ["x", "y", "z"]
    whole = FormatOptions("text", whole_text=True)
    assert [row["value"] for row in read_bytes(pack(files), text, whole)] == ["x\ny\n", "z"]
    assert read_bytes(zip_of({}), text, whole) == []


def test_metadata_names_the_member_of_each_row(tmp_path: Path) -> None:
    schema = SCHEMA.append(
        pa.field("_metadata", pa.struct([("file_name", pa.string()), ("archive_member", pa.string())]))
    )
    for name, data in {"o.zip": ARCHIVES["zip"], "o.tgz": ARCHIVES["tar.gz"], "o.csv": FILES["a.csv"]}.items():
        (tmp_path / name).write_bytes(data)
        batches = read_object(f"file://{tmp_path / name}", schema, CSV, BadRecords("PERMISSIVE"))
        metadata = {row["id"]: row["_metadata"] for batch in batches for row in batch.to_pylist()}
        if name == "o.csv":
            assert metadata == {at: {"file_name": name, "archive_member": None} for at in (1, 2)}
            continue
        members = {1: "a.csv", 2: "a.csv", 3: "./sub/b.csv", 4: "d/day=1/_x=2/c.csv.gz", 5: "../up.csv"}
        assert metadata == {at: {"file_name": name, "archive_member": member} for at, member in members.items()}


@pytest.mark.parametrize("archive", ["zip", "tar"])
def test_a_large_archive_in_a_bucket_is_read_although_an_answer_is_cut_off(archive: str) -> None:
    lines = [b"id,name\n" + b"".join(b"%d,%s\n" % (at, b"x" * 1000) for at in range(k, 30_000, 3)) for k in range(3)]
    files = {f"{k}.csv": data for k, data in enumerate(lines)}
    data = zip_of(files, zipfile.ZIP_STORED) if archive == "zip" else tar_of(files)
    with s3_server(keeps=True) as s3:
        s3.objects["b/k"] = data
        s3.cuts["b/k"] = {3}
        csv = {"queueUrl": "sim://q", "allowedPrefixes": "s3://b/", "fileFormat": "csv", "header": "true"}
        options = parse_reader_options({**csv, **s3.options})
        content, bad = options.content, BadRecords("PERMISSIVE")
        assert content.format is not None
        batches = list(read_object("s3://b/k", SCHEMA, content.format, bad, storage=content.storage))
        assert sorted(at for batch in batches for at in batch.column("id").to_pylist()) == [*range(30_000)]
        assert s3.requests["GET", "b/k"] < 16


def test_columns_are_inferred_from_all_members_within_the_limit(tmp_path: Path) -> None:
    files = {"a": b"id,name\n1,a\n", "b": b"name,price\nb,1.5\n", "c": b"id,later\n9999999999,x\n"}
    documents = {"a": b'{"id":1}\n', "b": b'{"price":1.5}', "c": b'{"id":9999999999,"later":"x"}'}
    path = tmp_path / "o"
    for format, members, two in (("csv", files, 29), ("json", documents, 22)):
        for data in (zip_of(members), gzip.compress(tar_of(members))):
            path.write_bytes(data)
            names = []
            for limit in (1 << 20, two):
                with open_object(f"file://{path}") as file:
                    source = OpenObject(f"file://{path}", file, file.size())
                    options = FormatOptions(format, header=format == "csv")
                    columns = format_named(format).infer(source, options, limit, types=True)
                assert columns.field("price").type == pa.float64()
                names.append(set(columns.names))
            assert names[0] - names[1] == {"later"}


def test_a_bad_record_is_told_with_its_member_at_a_place_of_its_own() -> None:
    files = {
        "a.csv": b"id,name\n1,a\nx,b\n",
        "b.csv.gz": gzip.compress(b"id,name\n" + b"2,a\n" * 9),
        "c.csv": b"id,name\nx,c\n",
    }
    for data in (zip_of(files), tar_of(files)):
        result = read_with_problems(data, SCHEMA, CSV)
        assert (len(result.rows), result.problems.count) == (12, 2)
        assert result.offsets == [12, 16 + 44 + 8], "behind the unpacked bytes of the members before"
        assert re.findall("member '(.*?)'", result.reasons) == ["a.csv", "c.csv"]
        error = refused(data, SCHEMA, CSV)
        assert (error.cause, error.offset) == ("corrupt-object", 12)
        assert "member 'a.csv': record at byte 12" in error.detail


def damaged_zip() -> bytes:
    data = bytearray(zip_of(THREE, zipfile.ZIP_STORED))
    data[data.index(b"3,c")] = ord("4")
    return bytes(data)


THREE = {f"{name}.csv": b"id,name\n%d,%s\n" % (at, name.encode()) for at, name in enumerate("abc", 1)}
UNREAD_THIRD = {
    "corrupt-object": {
        "checksum": damaged_zip(),
        "member cut in gzip": zip_of({**THREE, "c.csv": gzip.compress(THREE["c.csv"])[:-3]}),
        "member cut in zstd": tar_of({**THREE, "c.csv": zstd(THREE["c.csv"] * 99)[:-3]}),
        "cut within the member": tar_of(THREE)[: 5 * 512 + 5],
        "cut between members": tar_of(THREE)[: 4 * 512],
        "cut without a directory": zip_of(THREE)[:-30],
        "damaged header": tar_of(THREE).replace(b"c.csv", b"d.csv"),
        "joined": tar_of(THREE) + tar_of(THREE),
        "joined zips": zip_of(THREE) + zip_of(THREE),
    },
    "wrong-columns": {"other header": zip_of({**THREE, "c.csv": b"x,y\n1,2\n"})},
    "archive": {
        "nested": zip_of({**THREE, "c.csv": zip_of(THREE)}),
        "nested in gzip": tar_of({**THREE, "c.csv": gzip.compress(tar_of(THREE))}),
        "sparse": tar_of(THREE, more=[special("d.csv", tarfile.GNUTYPE_SPARSE)]),
        "continued": tar_of(THREE, more=[special("d.csv", b"M")]),
        "a workbook": zip_of({**THREE, "[Content_Types].xml": b"<xml/>"}),
        "a long name": tar_of({**THREE, "c" * 1025: b"id,name\n1,a\n"}),
    },
}  # fmt: skip


@pytest.mark.parametrize(("cause", "kind"), [(cause, kind) for cause, kinds in UNREAD_THIRD.items() for kind in kinds])
def test_a_member_that_cannot_be_read_makes_the_object_bad_and_no_row_goes_out(
    tmp_path: Path, cause: str, kind: str
) -> None:
    data = UNREAD_THIRD[cause][kind]
    (tmp_path / "o").write_bytes(data)
    batches = read_object(f"file://{tmp_path / 'o'}", SCHEMA, CSV, BadRecords("DROPMALFORMED"))
    with pytest.raises(BadObject) as caught:
        next(batches)
    assert caught.value.cause == cause
    if kind.startswith(("checksum", "member", "cut within", "other", "nested")):
        assert "member 'c.csv'" in caught.value.detail


def encrypted() -> bytes:
    data = bytearray(zip_of(THREE))
    for magic, at in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        for match in re.finditer(magic, data):
            data[match.start() + at] |= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (encrypted(), "encrypted"),
        *((zip_of(THREE, method), f"method {method}") for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)),
        (gzip.compress(zip_of(THREE)), "compressed once more"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(99), "7z"),
        (b"Rar!\x1a\x07\x00" + bytes(99), "rar"),
        (lzma.compress(tar_of(THREE)), "xz"),
    ],
)
def test_what_is_no_archive_of_records_is_refused_as_one(data: bytes, words: str) -> None:
    error = refused(data, SCHEMA, CSV)
    assert error.cause == "archive"
    assert words in error.detail


@pytest.mark.parametrize("format", ["csv", "json", "text"])
@pytest.mark.parametrize("archive", ["zip", "tar", "tar.gz", "tar.zst"])
def test_the_body_of_a_message_is_no_archive(format: str, archive: str) -> None:
    schema = pa.schema([("value", pa.string())])
    with pytest.raises(BadObject) as caught:
        list(format_named(format).read_body(ARCHIVES[archive], schema, FormatOptions(format), BadRecords("PERMISSIVE")))
    assert caught.value.cause == "archive"


def test_all_members_share_one_limit_of_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED", 1 << 20)
    lines = b"1,a\n" * (100 << 10)
    few, many = ({f"{at}.csv": lines for at in range(count)} for count in (2, 3))
    packed = {"a.csv.gz": gzip.compress(lines), "b.csv.gz": gzip.compress(lines), "c.csv.gz": gzip.compress(lines)}
    options = FormatOptions("csv", max_expansion=1)
    for pack in (zip_of, lambda files: gzip.compress(tar_of(files))):
        assert len(read_bytes(pack(few), SCHEMA, options)) == 2 * (100 << 10)
        for bomb in (pack(many), pack(packed)):
            assert "expand to more than" in refused(bomb, SCHEMA, options).detail


def test_members_and_what_is_told_of_them_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    for pack in (zip_of, tar_of):
        assert len(read_bytes(pack(THREE), SCHEMA, CSV)) == 3
        error = refused(pack({**THREE, "d.csv": b""}), SCHEMA, CSV)
        assert (error.cause, "more than 3 members" in error.detail) == ("archive", True)
    monkeypatch.setattr(archives, "MOST_BYTES", 1 << 10)
    assert "directory" in refused(zip_of({name * 200: data for name, data in THREE.items()}), SCHEMA, CSV).detail
    long = special("a", tarfile.XHDTYPE)
    long.size = 2 << 10
    assert "extended header" in refused(long.tobuf(tarfile.USTAR_FORMAT) + bytes(4 << 10), SCHEMA, CSV).detail


def pax(body: bytes) -> bytes:
    header = special("x", tarfile.XHDTYPE)
    header.size = len(body)
    return header.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)


def test_extended_headers_of_any_form_are_read_or_refused() -> None:
    member = tar_of({"a.csv": b"id,name\n1,a\n"})
    assert read_bytes(pax(b"12 path=b.c\n") + member, SCHEMA, CSV) == [{"id": 1, "name": "a"}]
    assert read_bytes(pax(b"11 size=12\n") + member, SCHEMA, CSV) == [{"id": 1, "name": "a"}]
    numbers = (b"12 size=-99\n", b"0 a=b\n", b"-5 a=b\n", b"x a=b\n", b"99 a=b\n", b"9 size=x\n")
    for body in (*numbers, b"1" * 5000, b"7 path\n"):
        assert refused(pax(body) + member, SCHEMA, CSV).cause == "corrupt-object"
    sparse = pax(b"22 GNU.sparse.major=1\n") + member
    assert refused(sparse, SCHEMA, CSV).cause == "archive"
    assert len(read_bytes(pax(b"") * 2_000 + member, SCHEMA, CSV)) == 1, "one behind another, as many as there are"
    size = bytearray(member)
    size[124:136], size[148:156] = b"\xff" * 12, b" " * 8
    size[148:156] = b"%06o\0 " % sum(size[:512])
    assert refused(bytes(size), SCHEMA, CSV).cause == "corrupt-object", "a size below 0"


@pytest.mark.parametrize("times", [30, pytest.param(150, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("archive", ["zip", "stored zip", "tar", "gnu", "tar.gz"])
def test_a_cut_or_damaged_archive_is_a_bad_object_or_other_rows_but_no_other_error(archive: str, times: int) -> None:
    data = ARCHIVES[archive]
    padding = len(data.rstrip(b"\0"))  # of a tar, the end marker and what fills the last block
    for end in range(4 if "zip" in archive else 600, len(data), max(1, len(data) // times)):
        if end <= padding:
            assert refused(data[:end], SCHEMA, CSV).cause in ("corrupt-object", "archive"), end
    for at in range(0, min(len(data), padding + 600), max(1, padding // (2 * times))):
        for byte in (0x00, 0xFF, data[at] ^ 1):
            damaged = data[:at] + bytes([byte]) + data[at + 1 :]
            with contextlib.suppress(BadObject):  # any other error fails this test
                read_with_problems(damaged, SCHEMA, CSV)


def test_a_zip_whose_members_share_their_bytes_is_refused_and_no_row_comes_twice() -> None:
    """Both entries of the directory lead to the same member."""
    body = zlib.compress(b"1,a\n" * 1000, 9)[2:-4]
    sizes = struct.pack("<III", zlib.crc32(b"1,a\n" * 1000), len(body), 4000)
    how = struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", 1, 0)
    local, entry = b"PK\3\4" + how + b"a" + body, b"PK\1\2\0\0" + how + bytes(14) + b"a"

    def zipped(entries: int) -> bytes:
        end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, entries, entries, entries * len(entry), len(local), 0)
        return local + entry * entries + end

    assert len(read_bytes(zipped(1), SCHEMA, FormatOptions("csv"))) == 1000
    assert refused(zipped(2), SCHEMA, FormatOptions("csv")).cause == "corrupt-object"


versions = st.lists(
    st.tuples(
        st.sampled_from(["a.csv", "./a.csv", "b.csv", ".//b.csv", "d/a.csv", "./d/./a.csv", "é.csv"]),
        st.one_of(st.none(), st.lists(st.integers(0, 99), max_size=3)),  # None: nothing of it can be read
    ),
    max_size=7,
)


def last_rows(members: list[tuple[str, list[int] | None]]) -> list[dict[str, Any]] | None:
    """What reading the files gives that unpacking leaves; None where one of them is bad."""
    left: dict[str, list[int] | None] = {}
    for name, ids in members:
        path = posixpath.normpath(name)
        left.pop(path, None)
        left[path] = ids
    if any(ids is None for ids in left.values()):
        return None
    return [{"id": number, "name": "n"} for ids in left.values() for number in ids or ()]


@settings(max_examples=120, deadline=None)
@given(versions, st.sampled_from(["tar", "gnu", "tar.gz", "zip"]), st.sampled_from(["PERMISSIVE", "FAILFAST"]))
@example([("a.csv", [1]), ("b.csv", [2]), ("./a.csv", [3])], "tar", "PERMISSIVE")
@example([("a.csv", None), ("a.csv", [3])], "tar.gz", "FAILFAST")
@example([("a.csv", [1]), ("a.csv", [])], "zip", "PERMISSIVE")
def test_of_several_versions_of_a_member_the_last_is_read_as_unpacking_leaves_it(
    members: list[tuple[str, list[int] | None]], form: str, mode: str
) -> None:
    contents = [
        (name, b"other,header\n1,x\n" if ids is None else b"" if not ids else csv_of(ids)) for name, ids in members
    ]
    packed = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(packed, "w") as zipped, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that a name is there twice
            for name, data in contents:
                zipped.writestr(name, data)
    else:
        kind = tarfile.GNU_FORMAT if form == "gnu" else tarfile.PAX_FORMAT
        with tarfile.open(fileobj=packed, mode="w:gz" if form == "tar.gz" else "w", format=kind) as archive:
            for name, data in contents:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    expected, options = last_rows(members), FormatOptions("csv", header=True, mode=mode)
    if expected is None:
        with pytest.raises(BadObject, match="wrong-columns"):
            read_with_problems(packed.getvalue(), SCHEMA, options)
    else:
        assert read_bytes(packed.getvalue(), SCHEMA, options) == expected


def csv_of(ids: list[int]) -> bytes:
    return b"id,name\n" + b"".join(b"%d,n\n" % number for number in ids)


def test_bad_records_of_a_version_that_was_replaced_do_not_count() -> None:
    members = [("a.csv", b"id,name\nx,1\n"), ("a.csv", csv_of([7]))]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert read_bytes(packed.getvalue(), SCHEMA, CSV) == [{"id": 7, "name": "n"}]


def test_a_link_or_a_folder_of_its_name_is_what_it_is_when_unpacked() -> None:
    """A link to itself, as tar writes a file that it is given twice, replaces nothing; another link does."""
    files = {"a.csv": csv_of([1]), "b.csv": csv_of([2])}
    itself = special("a.csv", tarfile.LNKTYPE)
    itself.linkname = "./a.csv"
    assert len(read_bytes(tar_of(files, more=[itself, special("b.csv/", tarfile.DIRTYPE)]), SCHEMA, CSV)) == 2
    assert read_bytes(tar_of(files, more=[special("a.csv", tarfile.SYMTYPE)]), SCHEMA, CSV) == [{"id": 2, "name": "n"}]


def test_two_names_that_are_no_text_are_not_one() -> None:
    packed = tar_of({f"{chr(0xDC00 + byte)}.csv": csv_of([byte]) for byte in (0xFE, 0xFF)}, tarfile.GNU_FORMAT)
    assert len(read_bytes(packed, SCHEMA, CSV)) == 2
