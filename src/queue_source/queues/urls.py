"""Pure functions on queue URLs: the kind, the short name, and the text without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from shard_store.redaction import HIDDEN, redact_url

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\?.*)?", re.DOTALL)

NAMES_CODE = (
    "names a Python function, which no URL does any more: declare it as an entry point of the group cuesqueue.queues, "
    "or call cuesqueue.register_queue, and write SCHEME://...; see docs/how-to/own-queues.md"
)
# characters that a URL parser would misread: hidden only while the URL is taken apart
_SHOWN_PASSWORD = f":{HIDDEN}@"
_KAFKA_PORT = 9092
_PORTS = {"amqp": 5672, "amqps": 5671, "postgresql": 5432, "mysql": 3306}


def scheme(url: str) -> str:
    """Return the scheme that picks the adapter: `sqs`, `https`, `sql+sqlite`, ..., "" for none."""
    head, separator, _ = url.partition("://")
    return head.lower() if separator else ""


def names_code(url: str) -> bool:
    """Tell whether it has the form `package.module:factory?...`, which version 0.1.0 imported and called."""
    return _CODE.fullmatch(url) is not None


def without_fragment(url: str) -> str:
    """Escape `#` for a parser: it is a wildcard of a tag filter, and starts no fragment."""
    return url.replace("#", "%23")


def queue_name(url: str) -> str:
    """Return the short name of the queue where the user gives none (the default of option `source`)."""
    kind = scheme(url)
    parts = _split(url)
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


def canonical(url: str) -> str:
    """Return one text for all URLs that are visibly the same queue's.

    It has no user, password, usual port and parameters. What no URL shows is left to the queue's own `identity`. For
    SQS only the queue's name is kept: its message ids are unique everywhere, so two queues with one text do no harm.
    """
    kind = scheme(url)
    if kind == "kafka":
        return _kafka(_split(url))
    try:
        parts = _split(url)
        port = parts.port
    except ValueError:
        return redact_url(url)
    if kind in ("sqs", "https", "http"):
        return f"sqs:{queue_name(url)}"
    if kind == "azurequeue":
        return f"azurequeue://{parts.netloc.lower()}/{queue_name(url)}"
    if kind == "pubsub":
        return redact_url(url).partition("?")[0]
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if kind == "sim":
        folder = Path(parameters.get("dir", "")).resolve()
        return f"sim://{parts.netloc}?dir={folder}&pool={parameters.get('pool', parts.netloc)}"
    if kind.startswith("sql+"):
        database = kind.removeprefix("sql+").partition("+")[0].replace("mariadb", "mysql")
        place = f"{_host(parts.hostname, port, database)}/{unquote(parts.path[1:])}"
        if database == "sqlite":  # three slashes before a relative path, and four before an absolute one
            place = str(Path(unquote(parts.path[1:])).resolve())
        return f"sql:{database}:{place}?queue={parameters.get('queue', '')}"
    if kind in ("amqp", "amqps"):
        place = f"amqp://{_host(parts.hostname, port, kind)}/{quote(unquote(parts.path[1:]) or '/', safe='')}"
        if parameters.get("listener", "").lower() == "true":
            return f"{place}?source={parameters.get('source', '')}&listener=true&tags={parameters.get('tags', '')}"
        return f"{place}?pool={parameters.get('pool', '')}"
    return redact_url(url)


def _kafka(parts: SplitResult) -> str:
    """Return the topic of any brokers in this list; its groups have the same messages."""
    hosts = sorted(
        host if re.search(r":\d+$", host) else f"{host}:{_KAFKA_PORT}" for host in parts.netloc.lower().split(",")
    )
    return f"kafka://{','.join(hosts)}{parts.path}"


def _split(url: str) -> SplitResult:
    return urlsplit(without_fragment(redact_url(url).replace(_SHOWN_PASSWORD, "@")))


def _host(host: str | None, port: int | None, kind: str) -> str:
    """Return the host in small letters, with a port that is not the default of the kind."""
    return (host or "localhost") if port in (None, _PORTS.get(kind)) else f"{host or 'localhost'}:{port}"
