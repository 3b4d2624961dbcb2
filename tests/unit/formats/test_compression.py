"""Every codec is found by suffix or first bytes, read in pieces, and refused when it is damaged or a bomb."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from queue_source.errors import BadObject
from queue_source.formats import compression
from queue_source.formats.text import blocks
from queue_source.options.content import FormatOptions
from support.reading import read_bytes, read_with_problems, refused

TEXT = pa.schema([("value", pa.string())])
LINES = FormatOptions("text")
CONTENT = b"".join(b"%d,%d\n" % (i, i * 7919 % 1000) for i in range(20_000))


def lz4_frame(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".GZIP": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
    ".lz4": lz4_frame,
}
BY_MAGIC = [".gz", ".bz2", ".zst", ".lz4"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_every_codec_is_known_by_its_suffix_and_refused_when_cut_off(suffix: str) -> None:
    packed = PACKERS[suffix](CONTENT)
    expected = CONTENT.decode().splitlines()
    for data, times in ((packed, 1), (packed + packed, 2)):
        rows = read_bytes(data, TEXT, LINES, f"o{suffix}")
        assert [row["value"] for row in rows] == expected * times
    assert read_bytes(b"", TEXT, LINES, f"o{suffix}") == []
    for cut in (packed[:end] for end in (len(packed) - 1, len(packed) // 2, 5)):
        assert refused(cut, TEXT, LINES, f"o{suffix}").cause == "corrupt-object"
        with pytest.raises(BadObject):  # in every mode: an object is the smallest thing that can be packed
            read_with_problems(cut, TEXT, LINES, f"o{suffix}")


@pytest.mark.parametrize("suffix", BY_MAGIC)
@pytest.mark.parametrize("name", ["object", "o.csv", "o.gz.json"])
def test_a_codec_is_known_by_its_first_bytes(suffix: str, name: str) -> None:
    assert len(read_bytes(PACKERS[suffix](CONTENT), TEXT, LINES, name)) == 20_000


@pytest.mark.parametrize("suffix", PACKERS)
def test_where_a_name_and_the_bytes_disagree_the_bytes_win(suffix: str) -> None:
    for text in (b"plain,text\n", "\ufeffé\t1\n".encode(), CONTENT):
        expected = text.decode().removeprefix("\ufeff").splitlines()
        assert [row["value"] for row in read_bytes(text, TEXT, LINES, f"o{suffix}")] == expected
    for other in BY_MAGIC:
        assert len(read_bytes(PACKERS[other](CONTENT), TEXT, LINES, f"o{suffix}")) == 20_000
    for damaged in (b"\0" + PACKERS[suffix](CONTENT)[1:], b"plain\0text", b"\x1f"):
        assert refused(damaged, TEXT, LINES, f"o{suffix}").cause == "corrupt-object"


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "cp037", "windows-1252"])
def test_text_of_another_encoding_under_a_packed_name_is_plain(suffix: str, encoding: str) -> None:
    """Its bytes have zeros, which text in UTF-8 has not."""
    lines = replace(LINES, encoding=encoding)
    for text in ("1,x\n2,\ty", "1,x\n" * 5_000):
        for content in (text.encode(encoding), PACKERS[suffix](text.encode(encoding))):
            assert [row["value"] for row in read_bytes(content, TEXT, lines, f"o{suffix}")] == text.splitlines()
    for damaged in (b"\0" + PACKERS[suffix](CONTENT)[1:], b"\0\0\0\0", b"\x1f"):
        assert refused(damaged, TEXT, lines, f"o{suffix}").cause == "corrupt-object"


def test_gzip_within_gzip_is_unpacked_once_more() -> None:
    """As CloudWatch Logs and Firehose make it: the inner one has many members, and no suffix says that there is one."""
    inner = b"".join(gzip.compress(CONTENT[start : start + 50_000]) for start in range(0, len(CONTENT), 50_000))
    expected = CONTENT.decode().splitlines()
    for name in ("o.gz", "object"):
        for packed in (gzip.compress(inner), gzip.compress(inner[:1]) + gzip.compress(inner[1:])):
            assert [row["value"] for row in read_bytes(packed, TEXT, LINES, name)] == expected
        assert refused(gzip.compress(inner[:-3]), TEXT, LINES, name).cause == "corrupt-object"
        assert refused(gzip.compress(inner)[:-3], TEXT, LINES, name).cause == "corrupt-object"
    thrice = read_with_problems(gzip.compress(gzip.compress(gzip.compress(b"1,2\n"))), TEXT, LINES)
    assert thrice.problems.count, "what is in it is no text"


@pytest.mark.parametrize(
    "content", [b"x\n" * (10 << 20), gzip.compress(b"x\n" * (10 << 20)), gzip.compress(b"") * 500_000]
)
def test_a_bomb_in_either_layer_of_gzip_is_refused(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED", 1 << 20)
    assert "expand to more than" in refused(gzip.compress(content), TEXT, LINES, "o.gz").detail


@pytest.mark.parametrize("suffix", PACKERS)
def test_damage_anywhere_is_a_bad_object_or_other_text_but_no_other_error(suffix: str) -> None:
    packed = PACKERS[suffix](CONTENT[:2000])
    for at in range(0, len(packed), max(1, len(packed) // 60)):
        for byte in (0x00, 0xFF):
            damaged = packed[:at] + bytes([byte]) + packed[at + 1 :]
            with contextlib.suppress(BadObject):  # any other error fails this test, and a crash all of them
                read_with_problems(damaged, TEXT, LINES, f"o{suffix}")


def tar_of(form: int, name: str = "in/a.csv") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(CONTENT)
        archive.addfile(member, io.BytesIO(CONTENT))
    return packed.getvalue()


def zip_of(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            archive.writestr(name, CONTENT)
    return packed.getvalue()


def old_tar() -> bytes:
    """As it was before POSIX: without the word at 257."""
    header = bytearray(tar_of(tarfile.USTAR_FORMAT))
    header[257:265], header[148:156] = bytes(8), b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


ARCHIVES = {
    "zip": zip_of("a.csv"),
    "empty zip": zip_of(),
    "ustar": tar_of(tarfile.USTAR_FORMAT),
    "gnu": tar_of(tarfile.GNU_FORMAT, "long/" * 40),
    "pax": tar_of(tarfile.PAX_FORMAT, "ä" * 200),
    "before posix": old_tar(),
}
TYPED = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize("format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("archive", ARCHIVES)
def test_an_archive_is_refused_by_formats_that_are_no_text_whatever_its_name(archive: str, format: str) -> None:
    for name in ("o.zip", "o", "o.parquet"):
        with pytest.raises(BadObject, match="archive; unpack it") as caught:
            read_with_problems(ARCHIVES[archive], TYPED, FormatOptions(format), name)
        assert caught.value.cause == "archive"


def test_an_archive_is_bytes_to_binary_file_and_what_is_none_is_read() -> None:
    binary = FormatOptions("binaryFile")
    (row,) = read_bytes(ARCHIVES["zip"], pa.schema([("content", pa.binary())]), binary, "o.zip")
    assert row["content"] == ARCHIVES["zip"], "binaryFile hands it on as it is"
    posix = bytearray(ARCHIVES["ustar"])
    posix[0] += 1
    texts = (b"PK\n1\n", b"PK,1\n", b"x" * 257 + b"ustar  \0" + b"x" * 300, b"y" * 148 + b"0001234 " + b"x" * 999)
    for text in (*texts, bytes(posix), ARCHIVES["ustar"][:511], bytes(1024)):
        assert read_bytes(text, TEXT, FormatOptions("text", line_sep="\xff"), "o.tar.zip") == [{"value": text.decode()}]


@pytest.mark.parametrize("padding", [1, 2, 511, 3 << 20])
def test_zeros_behind_gzip_are_padding_and_anything_else_is_damage(padding: int) -> None:
    padded = gzip.compress(CONTENT) + bytes(padding)
    for data, times in ((padded, 1), (padded + padded, 2)):
        assert len(read_bytes(data, TEXT, LINES, "o.gz")) == 20_000 * times
    for data in (padded + b"x", gzip.compress(CONTENT) + b"garbage", bytes(padding)):
        assert refused(data, TEXT, LINES, "o.gz").cause == "corrupt-object"
    assert refused(zlib.compress(CONTENT) + bytes(padding), TEXT, LINES, "o.deflate").cause == "corrupt-object"


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED", 1 << 20)
    bomb = gzip.compress(b"x\n" * (10 << 20))
    error = refused(bomb, TEXT, LINES, "o.gz")
    assert "expand to more than" in error.detail
    assert len(read_bytes(gzip.compress(b"x\n" * 1000), TEXT, LINES, "o.gz")) == 1000


@pytest.mark.parametrize("most", [2**31, 2**62, 2**63 + 1])
def test_a_document_may_be_as_large_as_anybody_likes_to_allow(most: int) -> None:
    """What it asks the codec for is never more than a little: pyarrow makes room for all of it at once."""
    options = FormatOptions("text", whole_text=True, max_record_bytes=most)
    assert read_bytes(gzip.compress(CONTENT), TEXT, options, "o.gz") == [{"value": CONTENT.decode()}]


def test_a_bomb_is_refused_before_much_of_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is checked, and not only all that was asked for."""
    monkeypatch.setattr(compression, "ALWAYS_ALLOWED", 1 << 20)
    pieces: list[int] = []
    content = compression._content

    def counted(*arguments: Any) -> Iterator[bytes]:
        for piece in content(*arguments):
            pieces.append(len(piece))
            yield piece

    monkeypatch.setattr(compression, "_content", counted)
    options = FormatOptions("text", whole_text=True, max_record_bytes=1 << 30, max_expansion=1)
    error = refused(gzip.compress(bytes(100 << 20), 1), TEXT, options, "o.gz")
    assert "a larger maxExpansion" in error.detail
    assert sum(pieces) <= 1 << 20


def test_a_record_that_never_ends_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1 << 20)
    bomb = gzip.compress(b"0" * (100 << 20), 1)
    tracemalloc.start()
    try:
        found = read_with_problems(
            bomb + gzip.compress(b"\nlast\n"), TEXT, replace(LINES, max_record_bytes=1 << 20), "o.gz"
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ([row["value"] for row in found.rows], found.problems.count) == (["last"], 1)
    assert peak < 20 << 20


def test_packed_objects_that_only_their_bytes_give_away_are_read_with_their_first_range() -> None:
    from queue_source.formats.base import Part

    packed = gzip.compress(CONTENT)
    parts = [Part(0, 100), Part(100, 2000), Part(2000, None)]
    counts = [len(read_with_problems(packed, TEXT, LINES, "object", part=part).rows) for part in parts]
    assert counts == [20_000, 0, 0]


@pytest.mark.parametrize(
    ("name", "data", "codec"),
    [
        ("o.snappy", struct.pack(">II", 3, 5) + b"\3\x08a,b", "snappy"),
        ("o.csv.sz", b"\xff\x06\0\0sNaPpY", "snappy"),
        ("object", b"\xff\x06\0\0sNaPpY", "snappy"),
        ("o.deflate", zlib.compress(CONTENT), "deflate"),
        ("o.lz4", struct.pack(">II", 3, 4) + b"0a,b", "lz4 without frames"),
    ],
)
def test_a_codec_that_is_not_read_any_longer_is_refused_with_what_to_do(name: str, data: bytes, codec: str) -> None:
    error = refused(data, TEXT, LINES, name)
    assert (error.cause, codec in error.detail, "compress it with gzip" in error.detail) == (
        "corrupt-object",
        True,
        True,
    )


def test_members_of_gzip_of_any_length_follow_each_other() -> None:
    """Also empty ones, and one whose content or whose end is longer than what is read at once."""
    parts = [b"", b"a\n", CONTENT * 20, b"", b"z\n"] + [b"x\n"] * 3_000
    packed = b"".join(gzip.compress(part, 0 if len(part) > 100 else 6) for part in parts)
    rows = read_bytes(packed, TEXT, LINES, "o.gz")
    assert [row["value"] for row in rows] == b"".join(parts).decode().splitlines()


@pytest.mark.parametrize("suffix", BY_MAGIC)
def test_an_empty_member_anywhere_is_no_row(suffix: str) -> None:
    first, empty, last = map(PACKERS[suffix], (b"a\nb\n", b"", b"c\n"))
    for data in (first + empty + last, empty + first + last, first + last + empty, first + empty * 1000 + last):
        assert [row["value"] for row in read_bytes(data, TEXT, LINES, f"o{suffix}")] == ["a", "b", "c"]


def test_of_empty_members_any_number_is_no_row_and_no_memory() -> None:
    """Each takes a microsecond."""
    packed = gzip.compress(b"") * 100_000
    assert read_bytes(packed + gzip.compress(b"a\n"), TEXT, LINES, "o.gz") == [{"value": "a"}]
    tracemalloc.start()
    assert read_bytes(packed, TEXT, LINES, "o.gz") == []
    assert tracemalloc.get_traced_memory()[1] < (8 << 20) + len(packed)
    tracemalloc.stop()
