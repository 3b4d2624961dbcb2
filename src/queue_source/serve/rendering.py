"""Templates: everything is escaped, secrets are hidden, and control characters are written out."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from queue_source.commands.output import number, size_text, time_text
from queue_source.commands.status import amounts, since, status_lines
from shard_store.model import time_of
from shard_store.redaction import redact_text, visible

_LONGEST = 1_024  # as long as keys of objects may be


def _readable(value: Any) -> Any:
    """Hide secrets and control characters: URIs may be signed, and some characters change the direction of text."""
    return visible(redact_text(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _moment(micros: int) -> str:
    """Format a time of the store, in UTC, to the minute."""
    return time_of(micros).strftime("%Y-%m-%d %H:%M")


def _cut(value: Any) -> Any:
    """Shorten a text to what people read: senders of messages choose names, and a page has many."""
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}... ({len(value):,} characters)"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("queue_source.serve"),
        autoescape=True,
        finalize=_readable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"time": time_text, "number": number, "size": size_text, "cut": _cut}
    environment.globals |= {"since": since, "amounts": amounts, "lines": status_lines, "moment": _moment}
    return environment


_TEMPLATES = _environment()


def page(template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status_code)
