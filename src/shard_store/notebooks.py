"""Tables for notebooks: what the store returns is shown field by field, and not as one line of thousands of letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from html import escape
from typing import Any

from shard_store.model import time_of
from shard_store.redaction import redact_text, visible

_MICROSECONDS = 10**14
"""A number above this, in a field whose name ends in `_at`, is a time in microseconds since 1970."""

_ENTRIES = 20
"""Of a list; more are counted."""


class NotebookTable:
    """A dataclass that notebooks show as a table of its fields; those without a value are left out."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return fields_table(self)


def fields_table(value: Any) -> str:
    """Return the fields of a dataclass as a table in HTML: everything escaped, secrets hidden."""
    named = [(field.name, getattr(value, field.name)) for field in fields(value)]
    rows = [
        f"<tr><th style='text-align:left'>{_text(name.replace('_', ' '))}</th>"
        f"<td style='text-align:left'>{_cell(name, inner)}</td></tr>"
        for name, inner in named
        if inner is not None and inner not in ("", (), {}, [])
    ]
    return f"<table>{''.join(rows)}</table>"


def rows_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as a table in HTML with a header."""
    header = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, value: Any) -> str:
    if is_dataclass(value):
        return fields_table(value)
    if isinstance(value, Mapping):
        return _text(", ".join(f"{key}: {inner}" for key, inner in value.items() if inner))
    if isinstance(value, list | tuple):
        entries = [_cell(name, inner) for inner in value[:_ENTRIES]]
        more = [f"and {len(value) - _ENTRIES:,} more"] if len(value) > _ENTRIES else []
        return "<br>".join([*entries, *more])
    if isinstance(value, bytes):
        return value.hex()[:12]
    if isinstance(value, int) and name.endswith("_at") and value > _MICROSECONDS:
        value = time_of(value)
    if isinstance(value, datetime):
        return _text(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, float):
        return _text(f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}")
    return _text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value)


def _text(value: object) -> str:
    return escape(visible(redact_text(str(value))))
