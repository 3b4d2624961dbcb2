"""Relation (c): the parts of an object, however it is cut, are the whole; and so it is in blocks of any size."""

from __future__ import annotations

import io
import re

import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import format_of
from support.oracle import cases
from support.oracle.cases import TEXTUAL, Case
from support.oracle.counting import Draw, one_of_these
from support.oracle.rows import Broken, Found, difference, read, read_in_parts, small_blocks

NAME = "parts-are-the-whole"
_MOST = 24  # bytes of an object that is cut everywhere; a longer one is where something begins or ends, and elsewhere
_BLOCKS = (3, 16)


@st.composite
def strategy(draw: Draw) -> Case:
    file_format = draw(one_of_these(("csv", "csv", "json", "json", "text", "parquet", "orc")))
    if file_format not in TEXTUAL:
        return draw(cases.typed_cases(file_format))  # type: ignore[no-any-return]
    scheme = draw(cases.schemes(file_format, ("encoding",)))
    return cases.case_of(scheme, cases.an_object(draw, scheme, 6))


def check(case: Case) -> None:
    whole, data = read(case), case.bytes
    if format_of(case.parsed).may_be_cut("", case.parsed, all_or_nothing=True):
        for cut in places(case, data):
            _same(case, whole, read_in_parts(case, [cut]), f"cut at {cut} of {len(data)}")
        if len(data) > 2:
            third = len(data) // 3
            _same(case, whole, read_in_parts(case, [third, third + 1, 2 * third + 1]), "in four parts")
    is_document = case.options.get("multiLine") == "true" and case.file_format == "json"
    if (
        case.file_format in TEXTUAL and not is_document
    ):  # of a large one the text of a bad record is in its first row only
        for size in _BLOCKS:
            with small_blocks(size):
                _same(case, whole, read(case), f"in blocks of {size}")


def places(case: Case, data: bytes) -> list[int]:
    """Where the object is cut: everywhere, or about where its groups of rows begin and end."""
    if len(data) <= _MOST:
        return list(range(1, len(data)))
    near: set[int] = set(range(1, len(data), max(len(data) // 6, 1)))
    if case.file_format in TEXTUAL:
        end = (case.line_end or "\n").encode()
        ends = [match.end() for match in re.finditer(re.escape(end), data)][:4]
        near |= {place + by for place in ends for by in (-1, 0, 1)}
    if case.file_format == "parquet":
        try:
            footer = pq.ParquetFile(io.BytesIO(data)).metadata
        except OSError as error:
            raise BadObject("corrupt-object", str(error)) from error
        for group in range(footer.num_row_groups):
            column = footer.row_group(group).column(0)
            start = column.dictionary_page_offset or column.data_page_offset
            near |= {start - 1, start, start + 1}
    return sorted(cut for cut in near if 0 < cut < len(data))


def _same(case: Case, whole: Found, others: Found, how: str) -> None:
    if whole.failure and others.failure:
        return  # which of its faults is told first depends on where it is cut
    if (whole.failure or others.failure) in ("corrupt-object", "wrong-columns") and "blocks" in how:
        return  # by the first block, of 16 MB, an object is judged as a whole
    kind, detail = difference(case, whole, others)
    if kind:
        raise Broken(NAME, case, f"{kind}, {' '.join(how.split()[:2])}", f"whole or {how}: {detail}")
