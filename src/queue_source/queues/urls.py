"""Pure functions on queue URLs: what kind it is, its short name, its text and nothing secret."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from shard_store.redaction import HIDDEN, redact_url

_FACTORY = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<attribute>[A-Za-z_]\w*)(?P<query>\?.*)?", re.DOTALL)
# what a URL parser would stumble over: hidden before the URL is taken apart, and only there
_SHOWN_PASSWORD = f":{HIDDEN}@"


def scheme(url: str) -> str:
    """What picks the adapter: `sqs`, `https`, `sql+sqlite`, ..., `factory` for `package.module:name`, "" for none."""
    head, separator, _ = url.partition("://")
    if separator:
        return head.lower()
    return "factory" if _FACTORY.fullmatch(url) else ""


def factory_parts(url: str) -> tuple[str, str]:
    """The module and the attribute of a `package.module:name?...` URL."""
    found = _FACTORY.fullmatch(url)
    if found is None:
        raise ValueError("not of the form package.module:name")
    return found["module"], found["attribute"]


def without_fragment(url: str) -> str:
    """The URL for a parser: a `#` in it is a wildcard of a tag filter, and starts no fragment."""
    return url.replace("#", "%23")


def queue_name(url: str) -> str:
    """The short name that stands for the queue where the user gives none (the default of option `source`)."""
    kind = scheme(url)
    if kind == "factory":
        module, attribute = factory_parts(url)
        parameters = dict(parse_qsl(url.partition("?")[2]))
        return parameters.get("queue") or parameters.get("name") or f"{module}.{attribute}"
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
