"""Converts rows to messages: the meaning of columns, and the stamp by which a message is recognised."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from queue_source.errors import OptionError
from queue_source.formats.metadata import METADATA_COLUMN
from queue_source.messages import Outgoing
from queue_source.read.message_rows import MESSAGE_SCHEMA

HASH_HEADER = "Delivery-Hash"
"""Which batch a message belongs to: the delivery hash of its plan."""
INDEX_HEADER = "Delivery-Index"
"""Which row of that batch it is: messages that agree in both headers are the same row."""

_TEXT = ("STRING", (pa.string(), pa.large_string()))
_COLUMNS = {
    "value": ("BINARY or STRING", (pa.binary(), pa.large_binary(), *_TEXT[1])),
    "tag": _TEXT,
    "headers": ("MAP<STRING, STRING>", ()),
    "group": _TEXT,
}
_UNSENT = {*MESSAGE_SCHEMA.names, METADATA_COLUMN} - _COLUMNS.keys()
"""The reader's columns about a message beside its content: rows that it read may be written as they are."""

_STAMPS = {HASH_HEADER: re.compile("[0-9a-f]{64}"), INDEX_HEADER: re.compile(r"[0-9]+\.[0-9]+\.[0-9a-f.]+")}


class RowRefused(ValueError):
    """A row that cannot be a message; `row` counts from 0 in its task."""

    def __init__(self, row: int, problem: str) -> None:
        self.row = row
        super().__init__(problem)


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that a message does not have. Planning; raises OptionError naming the column."""
    takes = ", ".join(f"{name} {kind}" for name, (kind, _) in _COLUMNS.items())
    for field in schema:
        if field.name in _UNSENT:
            continue
        if field.name not in _COLUMNS:
            raise OptionError(
                "queueUrl",
                f"a message has no place for the column {field.name!r}; it takes {takes}: put other columns into "
                "value, as in select(to_json(struct('*')).alias('value'))",
            )
        kind, types = _COLUMNS[field.name]
        if schema.names.count(field.name) > 1:
            raise OptionError("queueUrl", f"the column {field.name!r} is there twice; leave one of them out")
        if not (_is_text_map(field.type) if field.name == "headers" else field.type in types):
            raise OptionError(
                "queueUrl", f"the column {field.name!r} of a message is {kind}, not {field.type}; cast it before"
            )
    if "value" not in schema.names:
        raise OptionError(
            "queueUrl",
            "a message needs the column 'value' (BINARY or STRING); make it of others, as in "
            "select(to_json(struct('*')).alias('value'))",
        )


def _is_text_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and {kind.key_type, kind.item_type} <= set(_TEXT[1])


class Messages:
    """The rows of one task as messages, stamped with the delivery hash and an index.

    `by_content`: the index depends on the content of the row and on the number of equal rows before it in the task, not
    on the row's number. It is needed where messages may be sent a second time: rows of a repeated task may come in
    another order, and consumers that drop duplicates would take two different rows with one stamp for one. It costs
    some 100 bytes of memory a row.
    """

    def __init__(self, digest: str, task: str, *, by_content: bool) -> None:
        self._digest, self._task, self._by_content = digest, task, by_content
        self._rows = 0
        self._seen: dict[bytes, int] = {}

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outgoing]:
        """Yield the messages. Raises RowRefused for rows that lack what a message needs."""
        for batch in batches:
            for values in zip(*(_column(batch, name) for name in _COLUMNS), strict=True):
                yield self._message(*values)
                self._rows += 1

    def _message(
        self, value: bytes | None, tag: str | None, headers: list[tuple[str, str | None]] | None, group: str | None
    ) -> Outgoing:
        if value is None:
            raise RowRefused(self._rows, "its value is null; filter such rows, or give them a value with coalesce")
        named = self._headers(headers) if headers else {}
        row = self._equal(value, tag or "", named, group or "") if self._by_content else str(self._rows)
        index = f"{self._task}.{row}"
        stamped = {**named, HASH_HEADER: self._digest, INDEX_HEADER: index}
        return Outgoing(value, tag or "", stamped, group or None, f"{self._digest}.{index}")

    def _headers(self, headers: list[tuple[str, str | None]]) -> Mapping[str, str]:
        """Return the headers without the stamp of an earlier pipeline, when a received message is sent on."""
        named = {}
        for name, text in headers:
            if text is None:
                raise RowRefused(self._rows, f"its header {name!r} is null; filter it out with map_filter")
            stamp = _STAMPS.get(name)
            if stamp is None:
                named[name] = text
            elif not stamp.fullmatch(text):
                raise RowRefused(
                    self._rows,
                    f"its header {name!r} is the name of a stamp that every message gets; give it another name",
                )
        return named

    def _equal(self, value: bytes, tag: str, headers: Mapping[str, str], group: str) -> str:
        digest = hashlib.sha256(json.dumps([tag, group, sorted(headers.items())]).encode() + b"\0" + value).digest()[
            :16
        ]
        before = self._seen.get(digest, 0)
        self._seen[digest] = before + 1
        return f"{digest.hex()}.{before}"


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if name == "value" and column.type not in (pa.binary(), pa.large_binary()):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())
