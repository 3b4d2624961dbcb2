"""Relation (m): the value of a folder (`day=2024-01-02/`) is what a field of csv with the same text gives.

Either is read, or the text is no value of the type: then the object is bad, or the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.metadata import path_columns
from queue_source.options.content import FormatOptions
from queue_source.schema.columns import format_columns
from support.oracle import values as v
from support.oracle.cases import CORRUPT, Case
from support.oracle.counting import Draw, one_of_these, pick, reached
from support.oracle.rows import Broken, cells, read

NAME = "a-folder-is-a-field"
_BAD = "bad"


@dataclass(frozen=True)
class Folder:
    """A folder `p=text`, of a declared type (as DDL), in a zone."""

    text: str
    ddl: str
    zone: str

    @property
    def field(self) -> Case:
        return Case("csv", f"{self.ddl}, {CORRUPT} STRING", {"timeZone": self.zone}, f'"{self.text}"\n'.encode())

    def count(self) -> None:
        reached(f"folder: {self.ddl.split()[1].partition('(')[0]}")


@st.composite
def strategy(draw: Draw) -> Folder:
    kind, zone = draw(v.types(nested=False)), draw(one_of_these(v.ZONES))
    way = pick(draw, "folder's text", "well spelled", "spelled", "spelled", "any")
    text = draw({"well spelled": v.well_spelled, "spelled": v.spelled}.get(way, lambda *_: v.texts())(kind, zone))
    text = "".join(c for c in text if c not in '"\\\r\n') or "x"
    return Folder(text, format_columns([pa.field("p", kind)]), zone)


def check(folder: Folder) -> None:
    found = read(folder.field)
    expected = found.rows[0][0] if found.rows and not found.bad else _BAD
    schema = pa.schema([folder.field.schema.field("p")])
    options = FormatOptions("csv", timezone=folder.zone, partition_columns=("p",))
    try:
        value = path_columns(f"s3://bucket/p={quote(folder.text, safe='')}/object", schema, options)["p"]
        here = cells(pa.array([value.as_py()] if not pa.types.is_temporal(value.type) else [value], value.type))[0]
    except BadObject:
        here = _BAD
    except Exception as error:
        raise Broken(NAME, folder, f"raises {type(error).__name__}", repr(error)) from error
    reached(f"folder, the end: {'bad' if here == _BAD else 'read'}")
    if here != expected:
        raise Broken(NAME, folder, f"{folder.ddl.split()[1].partition('(')[0]}", f"a field {expected}, a folder {here}")
