"""Relation (g): an object of any store gives what the same bytes give as a local file.

The stores answer as their makers document (`wire.py`): with `Content-Encoding`, in chunks, cut off, too busy, with more
than was announced; keys are as odd as keys may be, and beside each lies the object that another spelling of it names.
What was announced may be missing, right or wrong. An object that cannot be had is the only one that is not: its
neighbour in the same task is read, and no store, however odd, makes rows fewer or others.
"""

from __future__ import annotations

import atexit
import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock
from urllib.parse import unquote, unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import ObjectStoreError
from queue_source.storage import fetching, files, pauses
from queue_source.uris import climbs
from support.oracle.counting import edges, reached
from support.oracle.rows import Broken, Row, small_blocks
from support.oracle.tasks import Announced, Read, read_task
from support.oracle.values import Strategy
from support.oracle.wire import Stored, Stores, wire

NAME = "each-store-is-the-local-file"
_ROOTS = {
    "s3": ("s3/lake/", "s3://lake/"),
    "gs": ("gs/lake/", "gs://lake/"),
    "azure": ("azure/account/lake/", "abfss://lake@account.dfs.core.windows.net/"),
}
_DDL = "id BIGINT, v STRING"
_SMALL = 4 << 10


@dataclass(frozen=True)
class Kept:
    """An object of `records` records under a key of a store; see `Stored` for encoding, fault and at.

    Attributes:
        size: What is announced: `right`, `none`, or a number that is added to it.
        etag: `right`, `none`, `quoted`, or another one.
        small: Whether requests are as small as if the object were a large one.
    """

    store: str
    key: str
    file_format: str = "csv"
    records: int = 3
    encoding: str = ""
    fault: str = ""
    at: int = 1
    size: str = "right"
    etag: str = "none"
    small: bool = False

    def count(self) -> None:
        for name in ("file_format", "encoding", "fault", "size", "etag", "small"):
            reached(f"{self.store}, {name}: {getattr(self, name)}")

    def data(self, start: int = 0) -> bytes:
        """The content, as a program that knows the encoding sees it."""
        some = range(start, start + self.records)
        if self.file_format == "parquet":
            out = io.BytesIO()
            table = pa.table({"id": pa.array(some, pa.int64()), "v": [f"{n:020}" for n in some]})
            pq.write_table(table, out, row_group_size=100)
            return out.getvalue()
        line = {"csv": "{0},{0:020}\n", "json": '{{"id": {0}, "v": "{0:020}"}}\n'}[self.file_format]
        return "".join(line.format(number) for number in some).encode()

    def stored(self) -> Stored:
        is_packed = self.encoding in ("gzip", "x-gzip", "aws-chunked,gzip")
        data, other = (gzip.compress(one, 1, mtime=0) if is_packed else one for one in (self.data(), self.data(10_000)))
        return Stored(_ROOTS[self.store][0] + self.key, data, self.encoding, self.fault, self.at, other)

    def announced(self) -> Announced:
        stored = self.stored()
        size = {"right": len(stored.data), "none": None}.get(self.size, -1)
        etags = {"right": stored.etag, "none": None, "quoted": f'"{stored.etag}"'}
        size = len(stored.data) + int(self.size) if size == -1 else size
        return Announced(_ROOTS[self.store][1] + self.key, size, etags.get(self.etag, self.etag))


def strategy() -> Strategy:
    piece = st.sampled_from(
        [
            "a",
            "b c",
            "+",
            "%20",
            "%2B",
            "%",
            "ä",
            "#",
            "?",
            "?x=1",
            "&",
            "=",
            "day=01",
            "~",
            "'",
            '"',
            "(x)",
            "*",
            ",",
            ";",
            ":",
            "@",
            "$",
            "!",
            "[1]",
            "{x}",
            "|",
            "^",
            "`",
            "<",
            ">",
            "\\",
            "..a",
            ".",
            "..",
            "a.",
            " ",
            "  ",
            "%2F",
            "%25",
            "e\u0301",
            "\u00e9",
            "\u2028",
            "\U0001f600",
            "\t",
            "x" * 200,
        ]
    )
    odd = st.lists(piece, min_size=1, max_size=4).flatmap(
        lambda some: st.sampled_from(["", "/", "//"]).map(lambda joint: joint.join(some))
    )
    keys = edges("key", plain=st.just("in/object"), odd=odd, odd_too=odd.map(lambda key: f"in/{key}"))
    of_gzip = {"gs": ["gzip"] * 4, "s3": ["gzip", "gzip", "aws-chunked,gzip"], "azure": ["gzip"]}

    def of(store: str) -> Strategy:
        faults = [""] * 6 + ["cut", "reset", "chunked", "unranged", "replaced", "busy"]
        faults += ["long"] if store == "s3" else []
        return st.builds(
            Kept,
            st.just(store),
            keys,
            st.sampled_from(["csv", "json", "parquet"]),
            st.sampled_from([0, 1, 3, 300, 2000]),
            st.sampled_from(["", "", *of_gzip[store], "identity", "aws-chunked"]),
            st.sampled_from(faults),
            st.sampled_from([1, 1, 1, 1, 2, 2, 3, 3, 0]),
            st.sampled_from(["right", "right", "none", "1", "-1"]),
            st.sampled_from(["none", "right", "quoted", "0" * 32]),
            st.booleans(),
        ).filter(_is_sensible)

    return st.sampled_from(["s3", "gs", "gs", "azure"]).flatmap(of)


def _is_sensible(kept: Kept) -> bool:
    if kept.store == "gs" and kept.fault in ("unranged", "chunked", "replaced"):
        return False  # Google keeps ranges, and generations
    if kept.store == "azure" and kept.fault in ("cut", "reset") and kept.at == 0:
        return False  # pyarrow 26 ends the process by a signal
    if kept.store == "gs" and kept.key in (".", ".."):
        return False  # which Google refuses as names
    if kept.store != "s3" and kept.fault == "unranged":
        return False
    is_packed = "gzip" in kept.encoding
    if kept.fault == "long" and not is_packed:
        return False
    return kept.file_format != "parquet" or not is_packed or kept.store == "gs"


_STARTED = ExitStack()


@cache
def _server() -> Stores:
    atexit.register(end)
    return _STARTED.enter_context(wire())


def end() -> None:
    """End the server; the next case starts another."""
    _STARTED.close()
    _server.cache_clear()


def check(kept: Kept) -> None:
    stores = _server()
    one, good = kept.announced(), Kept(kept.store, "last", kept.file_format)
    traps = [Stored(place, kept.data(500_000)) for place in _others(kept)]
    stores.hold(*traps, kept.stored(), good.stored())
    options = {
        "s3.accessKeyId": "test",
        "s3.secretAccessKey": "test",
        "s3.region": "us-east-1",
        "s3.endpointUrl": stores.url,
        "azure.accountName": "account",
        "azure.accessKey": "a2V5",
        "azure.endpointUrl": stores.url,
    }
    with _surroundings(kept, stores):
        try:
            try:
                read = read_task([one, good.announced()], kept.file_format, _DDL, options)
            except ObjectStoreError:  # rows of what is replaced then may end one attempt
                if kept.fault != "replaced":
                    raise
                read = read_task([one, good.announced()], kept.file_format, _DDL, options, again=True)
        except ObjectStoreError as error:
            if kept.fault in ("cut", "reset", "busy"):
                return  # which passes: the task is tried again
            raise Broken(NAME, kept, f"{kept.store}: it ends the task{_cause(kept)}", str(error)) from error
        except Exception as error:
            raise Broken(NAME, kept, f"{kept.store}: {type(error).__name__}", str(error)) from error
    _check_rows(kept, one.uri, read)
    if read.rows[good.announced().uri] != local_rows(good.file_format, good.data()):
        raise Broken(NAME, kept, f"{kept.store}: other rows of a neighbour{_cause(kept)}", str(read.details))


def _check_rows(kept: Kept, uri: str, read: Read) -> None:
    rows, verdict = read.rows[uri], read.verdicts.get(uri)
    detail = f"{verdict}: {read.details.get(uri)}, {len(rows)} of {kept.records} rows"
    expected = [local_rows(kept.file_format, kept.data())] if kept.records or kept.file_format == "parquet" else [[]]
    if kept.fault == "replaced":
        expected.append(local_rows(kept.file_format, kept.data(10_000)))
    if verdict is not None:
        if rows:
            raise Broken(NAME, kept, f"{kept.store}: rows and a verdict{_cause(kept)}", detail)
        if not _may_be_bad(kept, verdict, uri):
            raise Broken(NAME, kept, f"{kept.store}: {verdict}{_cause(kept)}", detail)
    elif rows not in expected:
        raise Broken(NAME, kept, f"{kept.store}: other rows{_cause(kept)}", f"{detail}; the first: {rows[:1]}")
    elif _is_wrong(kept) and kept.fault != "replaced":
        raise Broken(NAME, kept, f"{kept.store}: what was announced is not looked at{_cause(kept)}", detail)


def _cause(kept: Kept) -> str:
    odd = [kept.encoding and f"encoding {kept.encoding}", kept.fault and f"fault {kept.fault}"]
    return "".join(f", {one}" for one in odd if one)


def _is_wrong(kept: Kept) -> bool:
    """Whether another version was announced than is there, and the store has what tells it.

    What a service unpacks on its way has another size than its object: there the ETag alone tells it, or nothing if
    the wrong size is the one of the unpacked content.
    """
    knows_etags = kept.store != "gs"
    if kept.fault == "long" and (kept.etag in ("right", "quoted") or kept.announced().size == len(kept.data())):
        return False
    return kept.size in ("1", "-1") or (knows_etags and kept.etag == "0" * 32)


def _may_be_bad(kept: Kept, verdict: str, uri: str) -> bool:
    if verdict == "object-changed":
        return _is_wrong(kept) or kept.fault in ("replaced", "long")
    if verdict == "unsupported-key":
        key = uri.split("/", 3)[3]
        return kept.store != "s3" and ("//" in f"/{key}/"[:-1] or key.endswith("/"))
    if verdict == "corrupt-object":
        return kept.fault in ("cut", "reset") and kept.at == 0
    if verdict == "missing-object":
        return climbs(uri)
    return False


def _others(kept: Kept) -> list[str]:
    """Where objects are that other spellings of the key name."""
    key = kept.key
    spellings = [
        unquote(key),
        unquote_plus(key),
        key.replace(" ", "+"),
        key.replace("\\", "/"),
        key.strip(),
        key.rstrip("/"),
        key.partition("?")[0],
        key.partition("#")[0],
        key.replace("//", "/"),
        key.replace("/./", "/"),
        key.replace("+", " "),
        key.rstrip("."),
        key.lstrip("/"),
    ]
    return [_ROOTS[kept.store][0] + other for other in dict.fromkeys(spellings) if other not in (key, "last", "")]


@cache
def local_rows(file_format: str, data: bytes) -> list[Row]:
    """What the same bytes give as a local file."""
    with tempfile.TemporaryDirectory(prefix="cuesqueue-oracle-") as folder:
        path = Path(folder, "object")
        path.write_bytes(data)
        return read_task([Announced(f"file://{path}")], file_format, _DDL, {}).rows[f"file://{path}"]


@contextmanager
def _surroundings(kept: Kept, stores: Stores) -> Iterator[None]:
    """Where Google's client finds its server; no long pauses; and requests as small as the case says."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {files.GCS_EMULATOR: stores.url}))
        stack.enter_context(mock.patch.object(pauses, "PATIENCE", 0.5))
        if kept.small:
            stack.enter_context(small_blocks(_SMALL))
            defaults = fetching.Requested.__new__.__defaults__
            assert defaults is not None
            stack.enter_context(mock.patch.object(fetching.Requested.__new__, "__defaults__", (*defaults[:-1], _SMALL)))
            for module, name in ((fetching, "_BLOCK"), (fetching, "LEAST"), (files, "_AHEAD")):
                stack.enter_context(mock.patch.object(module, name, _SMALL))
        yield
