"""Structs of Parquet in Thrift's compact form: the headers of pages, and how most writers write what is in a footer.

Structs as most writers write them are recognized by one regular expression each, which is quicker than any loop here;
all others are walked. Nothing else is different about them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Types of fields and items."""
WHOLE_OR_BINARY = (I16, I32, I64, BINARY)
"""Types whose values begin with a number."""
OF_64_BITS = (1 << 64) - 1
"""Ten bytes of seven bits are more: pyarrow drops the rest."""


class Forms(NamedTuple):
    """How most writers write some structs.

    Attributes:
        struct: Any struct of plain fields, and a few structs in it, such as an element of the schema.
        column: A column of a row group; its groups are the attributes of `Column`.
        page: The header of a page, of each type with groups of its own: its sizes, and what is in `Page` after them.
    """

    struct: re.Pattern[bytes]
    column: re.Pattern[bytes]
    page: re.Pattern[bytes]


@cache
def forms() -> Forms:
    """Numbers of fields are written as steps from the one before, so none that is skipped can be one that we read."""
    n = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    binary = b"(?:" + b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(128)) + b")"

    def field(*kinds: int) -> bytes:
        """The beginnings of fields of such types."""
        return b"[" + b"".join(rb"\x%02x" % (step << 4 | kind) for step in range(1, 16) for kind in kinds) + b"]"

    def list_of(kind: int, value: bytes, most: int) -> bytes:
        sizes = [rb"\x%02x(?:%b){%d}" % (size << 4 | kind, value, size) for size in range(1, most + 1)]
        return b"(?:" + b"|".join([*sizes, rb"\x%02x" % kind]) + b")"

    def any_of(*ways: bytes) -> bytes:
        return b"(?:" + b"|".join(ways) + b")"

    numbers, flags = field(I16, I32, I64) + n, field(TRUE, FALSE)
    texts = field(BINARY) + binary
    # nothing below is matched in two ways, which would take a time without end where it is not as usual
    statistics = any_of(texts, numbers, flags) + rb"*\x00"
    nested = field(STRUCT) + any_of(numbers, flags) + rb"*\x00"
    for _ in range(2):
        nested = field(STRUCT) + any_of(numbers, flags, nested) + rb"*\x00"
    struct = any_of(numbers, flags, texts, nested) + rb"*\x00"
    sizes = field(STRUCT) + any_of(numbers, field(LIST) + list_of(I64, n, 14)) + rb"*\x00"
    counts = field(LIST) + list_of(STRUCT, rb"\x15%b\x15%b\x15%b\x00" % (n, n, n), 6)
    rest = any_of(numbers, counts, sizes, flags) + b"*"
    column = b"".join([
        rb"\x26", n, rb"\x1c\x15", n, rb"\x19", list_of(I32, n, 6), rb"\x19", list_of(BINARY, binary, 6),
        rb"\x15(", n, rb")\x16", n, rb"\x16(", n, rb")\x16(", n, rb")",  # codec, values, sizes
        rb"\x26(", n, rb")(?:\x26(", n, rb")|(?![\x10-\x2f]))(?:[\x1c\x3c]", statistics, b")?", rest,
        rb"\x00(?:", numbers, rb")*\x00",
    ])  # fmt: skip
    end = rb"(?:[\x1c\x2c]" + statistics + rb")?\x00\x00"
    sizes = rb"\x15(%b)\x15(%b)" % (n, n)
    page = rb"\x15" + any_of(
        rb"\x00%b(?:\x15%b\x1c|\x2c)\x15(%b)\x15(.)\x15.\x15(.)" % (sizes, n, n) + end,
        rb"\x04%b(?:\x15%b\x3c|\x4c)\x15(%b)\x15(.)[\x11\x12]?\x00\x00" % (sizes, n, n),
        rb"\x06%b(?:\x15%b\x4c|\x5c)\x15(%b)\x15%b\x15%b\x15(.)\x15%b\x15(%b)[\x11\x12]?" % (sizes, n, n, n, n, n, n)
        + end,
    )
    return Forms(*[re.compile(form, re.DOTALL) for form in (struct, column, page)])


V1, DICTIONARY, V2 = 0, 2, 3
"""Types of pages."""
_OF_PAGES = {V1: (0x51, 0x52, 0x54), DICTIONARY: (0x71, 0x72, 0), V2: (0x81, 0x84, 0x86)}


class Page(NamedTuple):
    """What the header of a page says.

    Attributes:
        stored: Bytes of the page as it is stored, after its header.
        levels: Of V1 the encoding of the levels of repetition; of V2 how many bytes they have.
    """

    kind: int
    decoded: int
    stored: int
    values: int = 0
    encoding: int = 0
    levels: int = 0


def page_header(data: bytes) -> tuple[Page, int]:
    """The header of a page, and its length. Raises IndexError where there is more of it."""
    usual = forms().page.match(data)
    if usual is None:
        found, length = _page_numbers(data)
        kind = found.get(1, 0)
        more = _OF_PAGES.get(kind, ())
        return Page(kind, found.get(2, 0), found.get(3, 0), *[found.get(number, 0) for number in more]), length
    last = usual.lastindex
    if last == 5:
        page = Page(V1, *map(signed, usual.group(1, 2, 3, 4, 5)))
    elif last == 9:
        page = Page(DICTIONARY, *map(signed, usual.group(6, 7, 8, 9)))
    else:
        page = Page(V2, *map(signed, usual.group(10, 11, 12, 13, 14)))
    return page, usual.end()


def _page_numbers(data: bytes) -> tuple[dict[int, int], int]:
    """The whole numbers of a struct in Thrift's compact form, by number, and its length. Raises IndexError.

    Those of a struct in it are at 16 times the struct's number and theirs. What is deeper, or has larger numbers, is
    not needed of a page's header. Thousands of pages are common: one loop, without calls.
    """
    found: dict[int, int] = {}
    outer: list[tuple[int, int]] = []
    place = number = 0
    base = 0  # -1: nothing of it is wanted
    while True:
        kind = data[place] & 0x0F
        delta = data[place] >> 4
        place += 1
        if not kind:
            if not outer:
                return found, place
            base, number = outer.pop()
            continue
        if delta:
            number += delta
        else:
            value, place = varint(data, place)
            number = (value >> 1) ^ -(value & 1)
        known = base >= 0 and 0 < number < 16
        if kind in WHOLE_OR_BINARY:
            value = data[place]
            place += 1
            if value > 0x7F:
                value, place = varint(data, place - 1)
            if kind == BINARY:
                place += value
            elif known:
                found[base + number] = (value >> 1) ^ -(value & 1)
        elif kind == STRUCT:
            if len(outer) >= 4:
                raise ValueError("a page has no header")
            outer.append((base, number))
            base = 16 * number if known and not base else -1
            number = 0
        elif kind in (BYTE, DOUBLE):
            place += 1 if kind == BYTE else 8
        elif kind not in (TRUE, FALSE):  # there is nothing more of them
            raise ValueError("a page has no header")


def varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number has no end")


def signed(data: bytes) -> int:
    """A number of which these are all bytes."""
    size = len(data)
    if size == 1:
        value = data[0]
    elif size == 2:
        value = data[0] & 0x7F | data[1] << 7
    elif size == 3:
        value = data[0] & 0x7F | (data[1] & 0x7F) << 7 | data[2] << 14
    else:
        value = varint(data, 0)[0] & OF_64_BITS
    return (value >> 1) ^ -(value & 1)
