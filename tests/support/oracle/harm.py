"""An object that is bad, wherever that shows, harms only itself (invariant 7).

Objects have several blocks (made small here, so that few lines fill them), and are spoiled somewhere: cut off, with
other bytes in them, with a record that is too large, or with less memory than it takes. A task that reads one between
two good ones gives the rows of the good ones, and of the spoiled one either rows or a verdict, never both; and no error
ends it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.read import task
from queue_source.read.objects import read_object
from queue_source.storage.memory import BoundedMemory
from support.oracle.counting import reached
from support.oracle.rows import Broken, small_blocks
from support.oracle.tasks import Announced, read_task
from support.oracle.values import Strategy

NAME = "a-bad-object-harms-only-itself"
_TEXTUAL = ("csv", "json", "text")


@dataclass(frozen=True)
class Spoiled:
    """An object of so many `records`. It is spoiled at so many thousandths of its bytes (`at`) by `how`.

    `large`: values of the large record, where `how` is one. `memory`: tables of it for which there is enough, where it
    is `no memory`.
    """

    file_format: str
    records: int
    how: str
    at: int
    options: dict[str, str] = field(default_factory=dict)
    packing: str = "plain"
    large: int = 0
    memory: int = 0
    block: int = 8 << 10

    @property
    def ddl(self) -> str:
        if self.file_format == "text":
            return "value STRING"
        return "id BIGINT, v STRING" if self.file_format == "csv" else "id BIGINT, v STRING, w ARRAY<BIGINT>"

    def count(self) -> None:
        reached(f"spoiled: {self.how}", f"spoiled format: {self.file_format}", f"spoiled packing: {self.packing}")

    def bytes(self) -> bytes:
        data = _content(self.file_format, self.records, self.how, self.at, self.large)
        data = PACKINGS[self.packing](data)
        return SPOILING[self.how](data, len(data) * self.at // 1000)


SPOILING: dict[str, Callable[[bytes, int], bytes]] = {
    "nothing": lambda data, at: data,
    "no memory": lambda data, at: data,
    "cut off": lambda data, at: data[:at],
    "zeros": lambda data, at: data[:at] + b"\0" * 64 + data[at + 64 :],
    "a bit": lambda data, at: data[:at] + bytes(byte ^ 16 for byte in data[at : at + 1]) + data[at + 1 :],
    "noise": lambda data, at: data[:at] + random.Random(at).randbytes(200) + data[at + 200 :],
    "more": lambda data, at: data[:at] + b"more" + data[at:],
    "a quote": lambda data, at: data[:at] + b'"' + data[at:],
    "many values": lambda data, at: data,
    "a long text": lambda data, at: data,
    "deep": lambda data, at: data,
    "many fields": lambda data, at: data,
}
_RECORDS = ("many values", "a long text", "deep", "many fields")
"""Ways that are a record."""

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gz": lambda data: gzip.compress(data, 1),
    "bz2": bz2.compress,
    "zip": lambda data: _zip(data),
}


def _zip(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", data[: len(data) // 2])
        archive.writestr("b", data[len(data) // 2 :])
    return out.getvalue()


@lru_cache(maxsize=8)
def _content(file_format: str, count: int, how: str, at: int, large: int) -> bytes:
    if file_format in _TEXTUAL:
        line = {"csv": "{0},{0:040}", "json": '{{"id": {0}, "v": "{0:040}"}}', "text": "{0:040}"}[file_format]
        lines = [line.format(number) for number in range(count)]
        if how in _RECORDS:
            lines.insert(len(lines) * at // 1000, _record(file_format, how, large))
        return "".join(f"{line}\n" for line in lines).encode()
    rows = [{"id": number, "v": f"{number:040}", "w": [number]} for number in range(count)]
    if how in _RECORDS:
        text = "x" * large if how == "a long text" else "x"
        rows.insert(count * at // 1000, {"id": -1, "v": text, "w": [0] * (1 if how == "a long text" else large)})
    return _typed(file_format, rows)


def _record(file_format: str, how: str, large: int) -> str:
    if file_format == "json":
        values = {
            "many values": lambda: f'{{"id": -1, "w": [{",".join(["1"] * large)}]}}',
            "a long text": lambda: f'{{"id": -1, "v": "{"x" * large}"}}',
            "deep": lambda: f'{{"id": -1, "v": {"[" * min(large, 100_000)}{"]" * min(large, 100_000)}}}',
            "many fields": lambda: "{" + ",".join(f'"k{n}":{n}' for n in range(min(large, 10_000))) + ', "id": -1}',
        }
        return values[how]()
    if file_format == "csv" and how == "many fields":
        return "-1" + ",x" * large
    return ("-1," if file_format == "csv" else "") + ("x" if how == "a long text" else '\\"x') * large


def _typed(file_format: str, rows: list[dict[str, object]]) -> bytes:
    out = io.BytesIO()
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("w", pa.list_(pa.int64()))])
    if file_format == "avro":
        kinds = {"id": "long", "v": "string", "w": {"type": "array", "items": "long"}}
        fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
        fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, rows, codec="deflate",
            sync_interval=4000)  # fmt: skip
    elif file_format == "parquet":
        pq.write_table(pa.Table.from_pylist(rows, schema), out, row_group_size=100)
    else:
        orc.write_table(pa.Table.from_pylist(rows, schema), out, stripe_size=10_000)
    return out.getvalue()


def strategy() -> Strategy:
    def of(file_format: str) -> Strategy:
        textual = file_format in _TEXTUAL
        packings = st.sampled_from(["plain"] * 4 + [*PACKINGS]) if textual else st.just("plain")
        options: dict[str, Strategy] = {}
        if textual:
            options |= {
                "mode": st.sampled_from(["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]),
                "maxRecordBytes": st.sampled_from(["1k", "1m", "48m"]),
                "encoding": st.sampled_from(["UTF-8", "ISO-8859-1", "UTF-16"]),
            }
        if file_format in ("csv", "json"):
            options["multiLine"] = st.sampled_from(["true", "false"])
        if file_format == "csv":
            options["header"] = st.sampled_from(["true", "false"])
        few = st.lists(st.sampled_from(sorted(options)), max_size=2, unique=True) if options else st.just([])
        chosen = few.flatmap(lambda names: st.fixed_dictionaries({name: options[name] for name in names}))
        memory = st.sampled_from([{"maxDecodeMemory": "64m"}, {"maxDecodeMemory": "64m"}, {}])
        chosen = st.builds(lambda some, more: some | more, chosen, memory)
        large = st.sampled_from([1_000, 10_000, 300_000])
        counts, places = st.sampled_from([0, 1, 30, 400, 400]), st.integers(0, 1000)
        how = st.one_of(st.sampled_from([*SPOILING]), st.sampled_from(_RECORDS))
        return st.builds(Spoiled, st.just(file_format), counts, how, places, chosen, packings, large, st.integers(1, 4))

    return st.sampled_from(["csv", "json", "json", "text", "avro", "parquet", "orc"]).flatmap(of)


def check(spoiled: Spoiled) -> None:
    good = Spoiled(spoiled.file_format, 3, "nothing", 0, _of_all(spoiled))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cuesqueue-oracle-"))
        stack.enter_context(small_blocks(spoiled.block))
        paths = [Path(folder, name) for name in ("first", "spoiled", "last")]
        for path, one in zip(paths, (good, spoiled, good), strict=True):
            path.write_bytes(one.bytes())
        objects = [Announced(f"file://{path}", path.stat().st_size) for path in paths]
        try:
            stack.enter_context(_memory_ends(objects[1].uri, spoiled.memory if spoiled.how == "no memory" else 0))
            alone = read_task(objects[:1], spoiled.file_format, spoiled.ddl, spoiled.options)
            read = read_task(objects, spoiled.file_format, spoiled.ddl, spoiled.options)
        except Exception as error:  # whatever ends the task is what is looked for
            kind = f"{spoiled.file_format}: {type(error).__name__} ends the task"
            raise Broken(NAME, spoiled, kind, str(error)[:500]) from error
    first, middle, last = (one.uri for one in objects)
    expected = alone.rows[first]
    for neighbour in (first, last):
        verdicts = read.verdicts.get(neighbour), alone.verdicts.get(first)
        if read.rows[neighbour] != expected or verdicts[0] != verdicts[1]:
            detail = f"{expected}\n  or\n{read.rows[neighbour]}, {verdicts}"
            raise Broken(NAME, spoiled, f"{spoiled.file_format}: other rows of a neighbour", detail)
    if middle in read.verdicts and read.rows[middle]:
        raise Broken(NAME, spoiled, f"{spoiled.file_format}: rows and a verdict", read.details[middle])


@contextmanager
def _memory_ends(uri: str, tables: int) -> Iterator[None]:
    """Let the memory end after so many tables of this object: where it really ends depends on the machine."""
    left = {"": 0}

    def read(of: str, *arguments: Any, **more: Any) -> Any:
        left[""] = tables if of == uri else 0
        return read_object(of, *arguments, **more)

    def each(memory: BoundedMemory, items: Iterator[Any], first: Any) -> Iterator[Any]:
        for item in real(memory, items, first):
            left[""] -= 1
            yield item
            if left[""] == 0:
                raise BadObject("too-large-for-memory", "as a test says")

    real = BoundedMemory.each
    with mock.patch.object(task, "read_object", read), mock.patch.object(BoundedMemory, "each", each):
        yield


def _of_all(spoiled: Spoiled) -> dict[str, str]:
    return {name: text for name, text in spoiled.options.items() if name in ("header", "multiLine")}
