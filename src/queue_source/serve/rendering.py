"""Templates: everything is escaped, secrets are hidden, and what no terminal or page should obey is written out."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from queue_source.admin import wording
from shard_store.redaction import redact_text, visible

_LONGEST = 1_024  # as long as keys of objects may be


def _shown(value: Any) -> Any:
    """Names of objects may be signed URLs; characters that change the direction of text would make one another name."""
    return visible(redact_text(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _cut(value: Any) -> Any:
    """A text as long as people read it: senders of messages choose names, and a page has many."""
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}... ({len(value):,} characters)"


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("queue_source.serve"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"time": wording.time_text, "number": wording.number, "size": wording.size_text, "cut": _cut}
    found.globals |= {"since": wording.since, "amounts": wording.amounts, "lines": wording.status_lines}
    return found


_TEMPLATES = _environment()


def page(template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status_code)
