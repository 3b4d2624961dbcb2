"""Relation (d): a record, an object or a message changes nothing about its neighbours, however bad it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hypothesis import strategies as st

from support.oracle import cases
from support.oracle.cases import Case
from support.oracle.counting import Draw, one_of_these
from support.oracle.rows import Broken, Found, Row, difference, read, read_beside, read_messages
from support.oracle.values import good_text

NAME = "nothing-changes-neighbours"
_PLACE = re.compile(r',"_file_path":"file:///object"')
"""What is rescued of an object says where it is."""

_BEGINNINGS = (*[b""] * 12, b"PK\x03\x04", b"BZh91AY&SY", b'\x04"M\x18', b"Rar!\x1a\x07", b"\x1f\x8b")
"""Of what is packed, but is no more than that: alone or not, it is bad."""


@st.composite
def strategy(draw: Draw) -> Case:
    """Draw an object of lines, and objects beside it of the same columns."""
    scheme = draw(cases.schemes(draw(one_of_these(("csv", "csv", "json", "json", "text")))))
    contents = [
        draw(one_of_these(_BEGINNINGS)) + cases.an_object(draw, scheme, most)
        for most in (5, 2, 2, 2)[: draw(one_of_these((1, 2, 4)))]
    ]
    return cases.case_of(scheme, contents[0], beside=contents[1:])


def check(case: Case) -> None:
    if case.parsed.mode == "FAILFAST":
        case = replace(case, options={**case.options, "mode": "PERMISSIVE"})
    if case.is_lines and case.parsed.plain_utf8:
        _check_records(case)
    contents = [case.bytes, *case.beside]
    alone = [read(replace(case, content=content, beside=())) for content in contents]
    rows = [row for found in alone for row in found.rows]
    together = [row for found in read_beside(case) for row in found.rows]
    _same(case, rows, together, "objects")
    if case.file_format == "text" or not case.parsed.header:
        bodies = [read_messages(replace(case, content=content, beside=())) for content in contents]
        for found, body in zip(alone, bodies, strict=True):
            if not found.failure and not body.bad and not found.bad:
                rows_alone = [tuple(_PLACE.sub("", cell) for cell in row) for row in found.rows]
                _same(case, rows_alone, list(body.rows), "a message")
        _same(case, [row for found in bodies for row in found.rows], list(read_messages(case).rows), "messages")
        first, *others = [content.partition(b"\n")[0].rstrip(b"\r") for content in contents]  # as most messages are
        bodies = [read_messages(replace(case, content=line, beside=())) for line in (first, *others)]
        lines = replace(case, content=first, beside=tuple(others))
        _same(lines, [row for found in bodies for row in found.rows], list(read_messages(lines).rows), "messages")


def _check_records(case: Case) -> None:
    """Each record of an object is read as it is where it is alone, behind one that is good."""
    data = case.bytes.removeprefix(b"\xef\xbb\xbf")
    end = case.line_end
    pattern = rb"\r\n|\n|\r" if end is None else re.escape(end.encode())
    joint = b"\n" if end is None else end.encode()
    lines = re.split(pattern, data)
    header: list[bytes] = []
    if case.parsed.header:
        while lines and not header:
            line = lines.pop(0)
            header = [line] if _is_record(case, line) else []
        if not header:
            return
    good = _good_record(case)
    if good is None:
        return

    def reading(some: list[bytes]) -> Found:
        return read(replace(case, content=joint.join([*header, good, *some]) + joint, beside=()))

    first = reading([])
    if first.failure or len(first.rows) != 1 or first.bad:
        return
    expected: list[Row] = [*first.rows]
    for line in lines:
        found = reading([line])
        if found.failure:
            return
        expected += found.rows[1:]
    if lines and lines[-1] == b"" and case.file_format == "text":
        expected.pop()  # what the last line end ends is one line
        lines.pop()
    _same(case, expected, list(reading(lines).rows), "records")


def _is_record(case: Case, line: bytes) -> bool:
    comment = case.options.get("comment", "").encode()
    return bool(line.strip(bytes(range(33)))) and not (comment and line.startswith(comment))


def _good_record(case: Case) -> bytes | None:
    """A record without a fault; None where the options or columns leave none."""
    if case.file_format == "text":
        return b"x"
    if case.file_format == "json":
        return b"{%s:null}" % json.dumps(case.data.names[0], ensure_ascii=False).encode()
    if any(name.endswith("Format") for name in case.options):
        return None
    sep = case.options.get("sep", ",").replace("\\t", "\t")
    return sep.join(good_text(field.type) for field in case.data).encode()


def _same(case: Case, alone: list[Row], together: list[Row], what: str) -> None:
    kind, detail = difference(case, Found(tuple(alone)), Found(tuple(together)))
    if kind:
        raise Broken(NAME, case, f"{what}: {kind}", f"alone or beside others: {detail}")
