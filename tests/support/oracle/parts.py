"""Relation (c): the parts of an object, however it is cut, are the whole; and so it is in blocks of any size."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
from hypothesis import strategies as st

from queue_source.errors import BadObject
from queue_source.formats.base import format_of
from support.oracle import cases
from support.oracle.cases import TEXTUAL, Case
from support.oracle.rows import Broken, Found, difference, read, read_in_parts, small_blocks
from support.oracle.values import Strategy

NAME = "parts-are-the-whole"
_MOST = 160  # bytes of an object that is cut everywhere
_BLOCKS = (1, 3, 16, 50)


def strategy() -> Strategy:
    def of(file_format: str) -> Strategy:
        if file_format in TEXTUAL:
            return cases.schemes(file_format, without=("encoding",)).flatmap(
                lambda scheme: cases.objects(scheme, 6).map(lambda content: cases.case_of(scheme, content))
            )
        return cases.typed_cases(file_format)

    return st.sampled_from(["csv", "csv", "json", "json", "text", "parquet", "orc"]).flatmap(of)


def check(case: Case) -> None:
    whole, data = read(case), case.bytes
    if format_of(case.parsed).may_be_cut("", case.parsed, all_or_nothing=True):
        for cut in places(case, data):
            _same(case, whole, read_in_parts(case, [cut]), f"cut at {cut} of {len(data)}")
        if len(data) > 2:
            third = len(data) // 3
            _same(case, whole, read_in_parts(case, [third, third + 1, 2 * third + 1]), "in four parts")
    if case.file_format in TEXTUAL:
        for size in _BLOCKS:
            with small_blocks(size):
                _same(case, whole, read(case), f"in blocks of {size}")


def places(case: Case, data: bytes) -> list[int]:
    """Where the object is cut: everywhere, or about where its groups of rows begin and end."""
    if len(data) <= _MOST:
        return list(range(1, len(data)))
    near: set[int] = set(range(1, len(data), max(len(data) // 20, 1)))
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
    kind, detail = difference(case, whole, others)
    if kind:
        raise Broken(NAME, case, f"{kind}, {' '.join(how.split()[:2])}", f"whole or {how}: {detail}")
