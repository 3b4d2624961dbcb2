"""One CSV record as its fields, as Spark's parser takes what is not well formed.

A field that begins with a quote ends with the quote before the next separator. Where a quote stands in the middle, the
field is taken as it is written, up to the next separator; where no quote closes it, it goes to the record's end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from queue_source.formats.base import FormatOptions

Field = tuple[str, bool]
"""The text, and whether it was quoted."""


def tokenizer(options: FormatOptions) -> Callable[[str], tuple[list[Field], bool]]:
    """A function from a record (without its line end) to its fields, and whether every quote is closed."""
    sep, quote, escape = options.sep, options.quote, options.escape
    leading, trailing = options.ignore_leading_white_space, options.ignore_trailing_white_space
    if not quote:
        return lambda record: ([(_trimmed(text, leading, trailing), False) for text in record.split(sep)], True)
    s, q = re.escape(sep), re.escape(quote)
    e = re.escape(escape) if escape and escape != quote else None
    inner = rf"[^{q}{e}]|{e}[\s\S]|{q}{q}" if e else rf"[^{q}]|{q}{q}"
    blank = "[ \t]*"  # spaces behind a closing quote are no data
    closed = re.compile(rf"{q}((?:{inner})*){q}{blank}(?={s}|$(?![\r\n]))")
    unclosed = re.compile(rf"{q}((?:{inner})*){e or '(?!)'}?$(?![\r\n])")
    begun = re.compile(rf"{q}(?:{inner})*")
    pairs = re.compile(rf"{e}({e}|{q})|{q}({q})" if e else rf"{q}({q})")

    def unescaped(text: str) -> str:
        return pairs.sub(lambda pair: pair.group(pair.lastindex or 0), text)

    def tokenize(record: str) -> tuple[list[Field], bool]:
        fields: list[Field] = []
        all_closed = True
        place = 0
        while True:
            if leading:
                while place < len(record) and record[place] <= " " and record[place] != sep:
                    place += 1
            if record.startswith(quote, place):
                found = closed.match(record, place)
                if not found and (found := unclosed.match(record, place)):
                    all_closed = False
                if found:
                    fields.append((unescaped(found.group(1)), True))
                    place = found.end()
                else:  # a quote in the middle: what is behind it is taken as it stands
                    start = begun.match(record, place)
                    end = record.find(sep, start.end() if start else place)
                    end = len(record) if end < 0 else end
                    fields.append((record[place:end], False))
                    place = end
            else:
                end = record.find(sep, place)
                end = len(record) if end < 0 else end
                fields.append((_trimmed(record[place:end], False, trailing), False))
                place = end
            if place >= len(record):
                return fields, all_closed
            place += len(sep)

    return tokenize


def _trimmed(text: str, leading: bool, trailing: bool) -> str:
    controls = "".join(map(chr, range(33)))
    if leading:
        text = text.lstrip(controls)
    return text.rstrip(controls) if trailing else text
