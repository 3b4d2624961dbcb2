"""Relation (o): Avro's headers and blocks as any writer may make them are read as by Spark, where Spark reads them.

Schemas are JSON of one's own, and values are encoded here: a library would put in order what is odd.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from queue_source.formats.typed import written_varint
from queue_source.schema.columns import format_columns
from support.oracle import inferred
from support.oracle.cases import Case
from support.oracle.counting import Draw, pick, reached
from support.oracle.differences import excuse
from support.oracle.differs import Differs, all_types
from support.oracle.rows import Broken, Found, read
from support.oracle.spark import compared, the_reader

NAME = "avro-headers-as-spark"
_SYNC = b"0123456789abcdef"
_NUMBERS: tuple[Any, ...] = (None, -1, 0, 1, 2, 9, 18, 38, 39, 2.0, "4", True)
_LOGICAL = ("date", "decimal", "uuid", "duration", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros",
            "timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos", "other",
            "", None, 1)  # fmt: skip
_BASES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMES = ("R", "S", "n.R", "n.m.S", ".R", "a-b", "int")
_SPACES = (None, None, "", "n", "n.m", "n.m")


@dataclass(frozen=True)
class Header:
    """The text of a schema, how the header and the blocks are written, and the records of each block."""

    schema: str
    blocks: tuple[tuple[bytes, ...], ...]
    head: str = "plain"

    def count(self) -> None:
        reached(f"avro headers: {self.head}")

    @property
    def case(self) -> Case:
        return Case("avro", None, {}, self.bytes)

    @property
    def bytes(self) -> bytes:
        pairs = [(b"avro.schema", self.schema.encode())]
        if self.head != "no codec":
            pairs.insert(0, (b"avro.codec", b"null"))
        entries = [_text(name) + _text(value) for name, value in pairs]
        if self.head == "blocks":
            head = b"".join(_long(1) + entry for entry in entries)
        elif self.head == "sizes":
            head = _long(-len(entries)) + _long(sum(map(len, entries))) + b"".join(entries)
        else:
            head = _long(len(entries)) + b"".join(entries)
        blocks = (_long(len(some)) + _text(b"".join(some)) + _SYNC for some in self.blocks)
        return b"Obj\x01" + head + b"\0" + _SYNC + b"".join(blocks)


def _long(value: int) -> bytes:
    return written_varint((value << 1) ^ (value >> 63) if value >= 0 else (-value << 1) - 1)


def _text(data: bytes) -> bytes:
    return _long(len(data)) + data


Encode = Callable[[Draw], bytes]


class _Drawn:
    """Draws types, each with what draws the bytes of a value."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.named: dict[str, Encode] = {}
        self.count = 0

    def type(self, depth: int, space: str) -> tuple[Any, Encode]:
        ways = ["plain", "plain", "logical", "fixed", "enum", "wrapped"]
        ways += ["array", "map", "record", "record", "union", "union", "union"] if depth else []
        ways += ["named"] * 2 if self.named else []
        way = pick(self.draw, "avro headers", *ways)
        return getattr(self, f"_{way}")(depth, space)  # type: ignore[no-any-return]

    def _plain(self, depth: int, space: str) -> tuple[Any, Encode]:
        kind = self.draw(st.sampled_from(_BASES))
        return kind, _VALUES[kind]

    def _logic(self) -> dict[str, Any]:
        draw = self.draw
        logic = {"logicalType": draw(st.sampled_from((*_LOGICAL, "decimal", "decimal")))}
        some = {name: draw(st.sampled_from(_NUMBERS)) for name in ("precision", "scale") if draw(st.booleans())}
        return {**logic, **some}

    def _logical(self, depth: int, space: str) -> tuple[Any, Encode]:
        kind = self.draw(st.sampled_from(_BASES))
        return {"type": kind, **self._logic()}, _VALUES[kind]

    def _wrapped(self, depth: int, space: str) -> tuple[Any, Encode]:
        kind, encode = self.type(depth, space)
        logic = self._logic() if self.draw(st.booleans()) else {}
        return {"type": kind, **logic, **self._more()}, encode

    def _array(self, depth: int, space: str) -> tuple[Any, Encode]:
        kind, encode = self.type(depth - 1, space)
        return {"type": "array", "items": kind, **self._more()}, lambda draw: _blocks(draw, encode)

    def _map(self, depth: int, space: str) -> tuple[Any, Encode]:
        kind, encode = self.type(depth - 1, space)
        keys = st.sampled_from((b"", b"k", "ä".encode(), b"k"))
        return {"type": "map", "values": kind}, lambda draw: _blocks(draw, lambda d: _text(d(keys)) + encode(d))

    def _union(self, depth: int, space: str) -> tuple[Any, Encode]:
        some = [self.type(depth - 1, space) for _ in range(self.draw(st.sampled_from((1, 1, 2, 2, 3))))]
        some += [("null", lambda draw: b"")] if self.draw(st.booleans()) else []
        if self.draw(st.booleans()):
            some.reverse()

        def encode(draw: Draw) -> bytes:
            at = draw(st.integers(0, len(some) - 1))
            return _long(at) + some[at][1](draw)

        return [kind for kind, _ in some], encode

    def _name(self, space: str) -> tuple[dict[str, Any], str]:
        """The names of a new type, as written, and its full name."""
        draw = self.draw
        self.count += 1
        name, own = draw(st.sampled_from(_NAMES)), draw(st.sampled_from(_SPACES))
        if draw(st.sampled_from((True, True, True, False))):  # else it may be defined twice
            name += str(self.count)
        written = {"name": name} | ({} if own is None else {"namespace": own})
        space = space if own is None else own
        return written, name if "." in name or not space else f"{space}.{name}"

    def _fixed(self, depth: int, space: str) -> tuple[Any, Encode]:
        written, full = self._name(space)
        size = self.draw(st.sampled_from((0, 1, 2, 4, 8, 12, 16, 17)))
        logic = self._logic() if self.draw(st.booleans()) else {}
        self.named[full] = lambda draw: draw(st.binary(min_size=size, max_size=size))
        return {"type": "fixed", **written, "size": size, **logic, **self._more()}, self.named[full]

    def _enum(self, depth: int, space: str) -> tuple[Any, Encode]:
        written, full = self._name(space)
        symbols = self.draw(st.sampled_from((["a"], ["a", "b"], ["b", "a-b", ""], ["1", "ä"], ["a", "a"])))
        default = self.draw(st.sampled_from(({}, {}, {"default": "a"}, {"default": "c"})))
        most = len(symbols) - 1
        self.named[full] = lambda draw: _long(draw(st.integers(0, most)))
        return {"type": "enum", **written, "symbols": symbols, **default, **self._more()}, self.named[full]

    def _record(self, depth: int, space: str, most: int = 2) -> tuple[Any, Encode]:
        written, full = self._name(space)
        inner = full.rpartition(".")[0]
        fields: list[tuple[dict[str, Any], Encode]] = []

        def encode(draw: Draw) -> bytes:
            return b"".join(one(draw) for _, one in fields)

        if self.draw(st.sampled_from((False, False, True))):
            self.named[full] = encode  # it may be within itself: values would have no end but for unions
        for at in range(self.draw(st.integers(0 if most < 3 else 1, most))):
            kind, one = self.type(depth - 1, inner)
            name = self.draw(st.sampled_from((f"f{at}", f"f{at}", "ä", "a b", "a.b", "F0", "f0", "0")))
            default = self.draw(st.sampled_from(({}, {}, {"default": None}, {"default": 1}, {"default": "x"})))
            fields.append(({"name": name, "type": kind, **default, **self._more()}, one))
        self.named[full] = encode
        kind = self.draw(st.sampled_from(("record", "record", "record", "error")))
        return {"type": kind, **written, "fields": [field for field, _ in fields], **self._more()}, encode

    def _named(self, depth: int, space: str) -> tuple[Any, Encode]:
        full = self.draw(st.sampled_from([*self.named]))
        name = full.rpartition(".")[2] if self.draw(st.booleans()) else full
        return name, lambda draw: self.named[full](draw)

    def _more(self) -> dict[str, Any]:
        some: tuple[Any, ...] = ({}, {}, {}, {"doc": "x"}, {"aliases": ["x"]}, {"aliases": "x"},
            {"order": "ignore"}, {"order": "other"}, {"props": {"a": 1}}, {"avro.java.string": "String"})  # fmt: skip
        return self.draw(st.sampled_from(some))  # type: ignore[no-any-return]


def _blocks(draw: Draw, encode: Encode) -> bytes:
    out = b""
    for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
        items = [encode(draw) for _ in range(draw(st.sampled_from((1, 1, 2))))]
        data = b"".join(items)
        out += (_long(len(items)) if draw(st.booleans()) else _long(-len(items)) + _long(len(data))) + data
    return out + b"\0"


_VALUES: dict[str, Encode] = {
    "null": lambda draw: b"",
    "boolean": lambda draw: draw(st.sampled_from((b"\0", b"\1"))),
    "int": lambda draw: _long(draw(st.sampled_from((0, 1, -1, 18262, -719163, (1 << 31) - 1, -(1 << 31))))),
    "long": lambda draw: _long(draw(st.sampled_from((0, 1, -1, 1 << 40, -(1 << 50), 1_600_000_000_000)))),
    "float": lambda draw: struct.pack("<f", draw(st.sampled_from((0.0, -0.0, 1.5, float("nan"), float("inf"))))),
    "double": lambda draw: struct.pack("<d", draw(st.sampled_from((0.0, -0.0, 1e300, float("nan"), float("-inf"))))),
    "bytes": lambda draw: _text(draw(st.sampled_from((b"", b"\0", b"\xff", b"\x01\x00", b"\xff\xff\x00")))),
    "string": lambda draw: _text(draw(st.sampled_from(("", "x", "ä\U0001f600", "1"))).encode()),
}


@st.composite
def strategy(draw: Draw) -> Header:
    made = _Drawn(draw)
    schema, encode = made._record(2, "", 3)
    head = draw(st.sampled_from(("plain", "plain", "blocks", "sizes", "no codec")))
    try:
        blocks = tuple(tuple(encode(draw) for _ in range(draw(st.sampled_from((0, 1, 2))))) for _ in range(2))
    except RecursionError:  # a record that is within itself, and not in a union
        blocks = ()
    return Header(json.dumps(schema, ensure_ascii=draw(st.booleans())), blocks, head)


def _is_nothing(kind: pa.DataType) -> bool:
    """Whether no value of it says anything: such columns are STRING here."""
    return bool(pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields))


def check(header: Header) -> None:
    """Raises Broken."""
    case = header.case
    inferred_by_spark = the_reader().inferred(case)
    theirs = [(name, kind) for name, kind in inferred_by_spark if not any(map(_is_nothing, all_types(kind)))]
    if not theirs:
        return
    all_here = inferred.here(case)
    ours = [(name, kind) for name, kind in all_here if name in dict(theirs)]
    if all_here and (own := read(Case("avro", format_columns(pa.schema(all_here)), {}, case.content))).failure:
        raise Broken(NAME, header, "not read as it is inferred", str(own))
    for name, their, our in inferred._differing(theirs, ours):
        differs = Differs(case, Found(), Found(), "type", their=their, our=our)
        if excuse(differs) is None:
            raise Broken(NAME, header, differs.kind, f"{name}: Spark {their}, here {our}")
    ddl = format_columns(pa.schema(theirs))
    if (broken := compared([Case("avro", ddl, {}, case.content)])[0]) is not None:
        raise Broken(NAME, header, broken.kind, f"{ddl}\n{broken.detail}")
