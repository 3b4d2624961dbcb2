"""Pure functions on queue URLs: what kind it is, its short name, its text and nothing secret."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from shard_store.redaction import HIDDEN, redact_url

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\?.*)?", re.DOTALL)

NAMES_CODE = (
    "names a Python function, which no URL does any more: declare it as an entry point of the group cuesqueue.queues, "
    "or call cuesqueue.register_queue, and write SCHEME://...; see docs/how-to/own-queues.md"
)
# what a URL parser would stumble over: hidden before the URL is taken apart, and only there
_SHOWN_PASSWORD = f":{HIDDEN}@"


def scheme(url: str) -> str:
    """What picks the adapter: `sqs`, `https`, `sql+sqlite`, ..., "" for none."""
    head, separator, _ = url.partition("://")
    return head.lower() if separator else ""


def names_code(url: str) -> bool:
    """Whether it has the form `package.module:factory?...`, which version 0.1.0 imported and called."""
    return _CODE.fullmatch(url) is not None


def without_fragment(url: str) -> str:
    """The URL for a parser: a `#` in it is a wildcard of a tag filter, and starts no fragment."""
    return url.replace("#", "%23")


def queue_name(url: str) -> str:
    """The short name that stands for the queue where the user gives none (the default of option `source`)."""
    kind = scheme(url)
    parts = urlsplit(without_fragment(redact_url(url).replace(_SHOWN_PASSWORD, "@")))
    parameters = dict(parse_qsl(parts.query))
    last = unquote(parts.path.rstrip("/").rpartition("/")[2])
    host = parts.netloc.rpartition("@")[2]
    if kind.startswith("sql+"):
        name = parameters.get("queue")
    elif kind.startswith("amqp"):
        name = parameters.get("pool") or parameters.get("source")
    elif kind == "sim":
        name = parameters.get("pool") or last or host
    else:
        name = last or host
    return name or last or host or redact_url(url)
