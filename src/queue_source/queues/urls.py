"""Pure functions on queue URLs: the kind, the short name, and the text without secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from queue_source.errors import QueueConfigurationError
from shard_store.redaction import HIDDEN, redact_url

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\?.*)?", re.DOTALL)

NAMES_CODE = (
    "names a Python function, which no URL does any more: declare it as an entry point of the group cuesqueue.queues, "
    "or call cuesqueue.register_queue, and write SCHEME://...; see docs/how-to/own-queues.md"
)
# characters that a URL parser would misread: hidden only while the URL is taken apart
_SHOWN_PASSWORD = f":{HIDDEN}@"
_KAFKA_PORT = 9092

LOG_ID_HEADER = "log_id_header"
_POOLS = ("pool", "listener", "tags", "mandatory", LOG_ID_HEADER)
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "sqs": (LOG_ID_HEADER,),
    "pubsub": (LOG_ID_HEADER,),
    "azurequeue": (LOG_ID_HEADER,),
    "kafka": ("group", LOG_ID_HEADER),
    "amqp": ("source", *_POOLS, "queue_type", "consumer_timeout"),
    "sim": ("dir", *_POOLS),
    "sql": ("queue", LOG_ID_HEADER),
}
"""The parameters of the URLs of each kind of queue."""

_INSTEAD = {
    "sqs": "the options sqs.* say the rest",
    "pubsub": "the options gcp.* say the rest",
    "azurequeue": "the options azureQueue.* say the rest",
    "kafka": "settings of librdkafka are options kafka.SETTING",
    "sql": "and what the driver of the database takes",
    "amqp": "and what pika takes",
}
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


def query_of(url: str) -> list[tuple[str, str]]:
    """Return the parameters of a URL, in their order."""
    return parse_qsl(urlsplit(without_fragment(url)).query, keep_blank_values=True)


def checked_parameters(
    kind: str, pairs: Iterable[tuple[str, str]], name: str, drivers: Collection[str] | None = ()
) -> dict[str, str]:
    """Return the parameters of a queue's URL by name; repeated `tags` are one list.

    Raises QueueConfigurationError, for the queue `name`, for what neither this kind of queue nor its driver takes, and
    for what is given twice. `drivers`: the names that the driver takes; None where it refuses by itself what it does
    not know, such as a second value: then only the names of other kinds of queues are refused.
    """
    parameters: dict[str, str] = {}
    for key, value in pairs:
        others = [other for other, takes in PARAMETERS.items() if key in takes]
        if kind not in others and (others if drivers is None else key not in drivers):
            raise QueueConfigurationError(name, _unknown(key, kind, others, drivers or ()))
        if key in parameters and key != "tags" and (drivers is not None or kind in others):
            raise QueueConfigurationError(name, f"the URL has several {key}= parameters; name one")
        parameters[key] = f"{parameters[key]},{value}" if key in parameters else value
    return parameters


def _unknown(key: str, kind: str, others: list[str], drivers: Collection[str]) -> str:
    close = get_close_matches(key, [*PARAMETERS[kind], *drivers], n=1)
    if close:
        hint = f"did you mean {close[0]!r}? "
    elif key == "tags":
        hint = "for this kind of queue a filter is the option tagFilter; "
    else:
        hint = f"it is for {' and '.join(others)} queues; " if others else ""
    takes = ", ".join(PARAMETERS[kind])
    return f"unknown parameter {key!r}; {hint}this URL takes {takes}; {_INSTEAD.get(kind, 'and nothing else')}"


def queue_name(url: str) -> str:
    """Return the short name of a queue, which is the option `source` of a reader that sets none.

    Args:
        url: The queue's URL; nothing is opened.

    Returns:
        The name without host, user and password; for SQL the table's queue, for Kafka the topic.

    Raises:
        ValueError: It is no URL.

    Process:
        Any.
    """
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
