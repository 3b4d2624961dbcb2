"""The kinds of queues, and pure functions on their URLs: the kind, its parameters, the short name, one canonical text.

Nothing here needs an adapter or its library.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from queue_source.errors import QueueConfigurationError
from shard_store.redaction import HIDDEN, redact_url

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\?.*)?", re.DOTALL)

NAMES_CODE = (
    "names a Python function, which no URL does any more: declare it as an entry point of the group cuesqueue.queues, "
    "or call cuesqueue.register_queue, and write SCHEME://...; see docs/how-to/sql-queue.md"
)
_SHOWN_PASSWORD = f":{HIDDEN}@"  # a URL parser would misread it: left out while the URL is taken apart
KAFKA_PORT = 9092

LOG_ID_HEADER = "log_id_header"
"""The parameter of every URL that names the header of log ids (`adapter.py`)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of queue: its module here, the class in it, and the form of its URLs.

    `page`: for users, named with errors; `extra`: what `pip` is to install; `parameters`: what its URLs take besides
    `log_id_header`; `instead`: what says the others; `prefixes`: of the options that it takes as keywords, of which the
    first that is given wins.
    """

    module: str
    factory: str
    form: str
    page: str
    extra: str | None = None
    parameters: tuple[str, ...] = ()
    instead: str = "and nothing else"
    prefixes: tuple[str, ...] = ()

    @property
    def takes(self) -> tuple[str, ...]:
        return (*self.parameters, LOG_ID_HEADER)


_POOLS = ("pool", "listener", "tags", "mandatory")
# fmt: off
_SQS = Kind("sqs", "SqsQueue", "sqs://NAME", "docs/how-to/sqs.md", "aws",
    instead="the options sqs.* say the rest", prefixes=("sqs", "aws"))
_AMQP = Kind("amqp", "AmqpQueue", "amqp://HOST/VHOST?source=S&pool=P", "docs/how-to/rabbitmq.md", "amqp",
    ("source", *_POOLS, "queue_type", "consumer_timeout"), "and what pika takes")
KINDS: Mapping[str, Kind] = {
    "sqs": _SQS,
    "https": _SQS,
    "http": _SQS,  # an emulator of SQS
    "azurequeue": Kind("azurequeue", "AzureQueue", "azurequeue://ACCOUNT/NAME", "docs/how-to/azure.md", "azure",
        instead="the options azureQueue.* say the rest", prefixes=("azureQueue", "azure")),
    "pubsub": Kind("pubsub", "PubSubQueue", "pubsub://PROJECT/SUBSCRIPTION", "docs/how-to/pubsub.md", "pubsub",
        instead="the options gcp.* say the rest", prefixes=("gcp",)),
    "amqp": _AMQP,
    "amqps": replace(_AMQP, form="amqps://HOST/VHOST?source=S&pool=P"),
    "kafka": Kind("kafka", "KafkaQueue", "kafka://HOST:PORT/TOPIC?group=GROUP", "docs/how-to/kafka.md", "kafka",
        ("group",), "settings of librdkafka are options kafka.SETTING", ("kafka",)),
    "sim": Kind("sim", "SimQueue", "sim://NAME?dir=PATH", "docs/how-to/testing.md", None, ("dir", *_POOLS)),
    "sql+": Kind("sql", "SqlQueue", "sql+SQLALCHEMY-URL?queue=NAME", "docs/how-to/sql-queue.md", None,
        ("queue",), "and what the driver of the database takes"),
}
# fmt: on
"""The kinds of queues by the scheme of their URLs. A new adapter is one line here."""
_PORTS = {"amqp": 5672, "amqps": 5671, "postgresql": 5432, "mysql": 3306}


def scheme(url: str) -> str:
    """Return the scheme that picks the adapter: `sqs`, `https`, `sql+sqlite`, ..., "" for none."""
    head, separator, _ = url.partition("://")
    return head.lower() if separator else ""


def kind_of(url: str) -> Kind | None:
    """Return the kind of a URL; None for a queue of the user's own, and for an unknown one."""
    name = scheme(url)
    return KINDS.get("sql+" if name.startswith("sql+") else name)


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
    name: str, pairs: Iterable[tuple[str, str]], drivers: Collection[str] | None = ()
) -> dict[str, str]:
    """Return the parameters of the URL `name` (without secrets); repeated `tags` are one list.

    Raises QueueConfigurationError for what neither this kind of queue nor its driver takes, and for a second value.
    `drivers`: the names that the driver takes; None where it refuses by itself what it does not know, such as a second
    value: then only the names of other kinds of queues are refused.
    """
    kind = kind_of(name)
    takes = kind.takes if kind else ()
    parameters: dict[str, str] = {}
    for key, value in pairs:
        others = {other.module: None for other in KINDS.values() if key in other.takes}
        is_ours = key in takes
        if not is_ours and (others if drivers is None else key not in drivers):
            close = get_close_matches(key, [*takes, *(drivers or ())], n=1)
            if close:
                hint = f"did you mean {close[0]!r}? "
            elif key == "tags":
                hint = "for this kind of queue a filter is the option tagFilter; "
            else:
                hint = f"it is for {' and '.join(others)} queues; " if others else ""
            takes_only = f"this URL takes {', '.join(takes)}; {kind.instead if kind else ''}"
            raise QueueConfigurationError(name, f"unknown parameter {key!r}; {hint}{takes_only}")
        if key in parameters and key != "tags" and (drivers is not None or is_ours):
            raise QueueConfigurationError(name, f"the URL has several {key}= parameters; name one")
        parameters[key] = f"{parameters[key]},{value}" if key in parameters else value
    return parameters


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
    if kind == "kafka":  # the topic of any brokers in this list; its groups have the same messages
        hosts = _split(url).netloc.lower().split(",")
        with_ports = sorted(host if re.search(r":\d+$", host) else f"{host}:{KAFKA_PORT}" for host in hosts)
        return f"kafka://{','.join(with_ports)}{_split(url).path}"
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


def _split(url: str) -> SplitResult:
    return urlsplit(without_fragment(redact_url(url).replace(_SHOWN_PASSWORD, "@")))


def _host(host: str | None, port: int | None, kind: str) -> str:
    """Return the host in small letters, with a port that is not the default of the kind."""
    return (host or "localhost") if port in (None, _PORTS.get(kind)) else f"{host or 'localhost'}:{port}"


# --- librdkafka's settings, which are the options kafka.SETTING ------------------------------------------------------

_KAFKA_COMMITS = "offsets are committed when their messages are done; leave it out"
_KAFKA_CODE = "names code that would run in this process, which no option does; leave it out"
_KAFKA_LOG = "what librdkafka writes to its log is not shown, its errors are; leave it out"
KAFKA_REFUSED: Mapping[str, str] = {
    "bootstrap.servers": "write the hosts into the queue's URL, kafka://HOST:PORT,HOST:PORT/TOPIC",
    "metadata.broker.list": "write the hosts into the queue's URL, kafka://HOST:PORT,HOST:PORT/TOPIC",
    "group.id": f"name the group in the queue's URL, {KINDS['kafka'].form}",
    "auto.offset.reset": "set option 'startingOffsets'",
    "enable.auto.commit": _KAFKA_COMMITS,
    "enable.auto.offset.store": _KAFKA_COMMITS,
    "auto.commit.interval.ms": _KAFKA_COMMITS,
    "enable.partition.eof": "the adapter needs it; leave it out",
    "partition.assignment.strategy": "readers keep their partitions where they can (cooperative-sticky); leave it out",
    "allow.auto.create.topics": "topics are created by `cuesqueue queue create`, or by other tools; leave it out",
    "transactional.id": "messages are sent without transactions; leave it out",
    "plugin.library.paths": _KAFKA_CODE,
    "ssl.engine.location": _KAFKA_CODE,
    "ssl.providers": _KAFKA_CODE,
    "sasl.kerberos.kinit.cmd": "names a command that would run, which no option does; renew the ticket by other means",
    "debug": _KAFKA_LOG,
    "log_level": _KAFKA_LOG,
    "log.queue": _KAFKA_LOG,
}
"""librdkafka's settings that are ours, and what to write instead."""

_KAFKA_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|key\.pem|oauthbearer\.config|jaas", re.IGNORECASE
)


def is_kafka_secret(setting: str) -> bool:
    """Tell whether the value of this setting of librdkafka must not be shown."""
    return _KAFKA_SECRET.search(setting) is not None
