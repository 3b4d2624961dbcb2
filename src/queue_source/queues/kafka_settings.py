"""librdkafka's settings that are not the user's to make, and those that are secrets. Known without the library."""

from __future__ import annotations

import re
from collections.abc import Mapping

FORM = "kafka://HOST:PORT/TOPIC?group=GROUP"
_COMMITTED = "offsets are committed when their messages are done; leave it out"
_CODE = "names code that would run in this process, which no option does; leave it out"
_LOG = "what librdkafka writes to its log is not shown, its errors are; leave it out"
REFUSED: Mapping[str, str] = {
    "bootstrap.servers": "write the hosts into the queue's URL, kafka://HOST:PORT,HOST:PORT/TOPIC",
    "metadata.broker.list": "write the hosts into the queue's URL, kafka://HOST:PORT,HOST:PORT/TOPIC",
    "group.id": f"name the group in the queue's URL, {FORM}",
    "auto.offset.reset": "set option 'startingOffsets'",
    "enable.auto.commit": _COMMITTED,
    "enable.auto.offset.store": _COMMITTED,
    "auto.commit.interval.ms": _COMMITTED,
    "enable.partition.eof": "the adapter needs it; leave it out",
    "partition.assignment.strategy": "readers keep their partitions where they can (cooperative-sticky); leave it out",
    "allow.auto.create.topics": "topics are created by `cuesqueue queue create`, or by other tools; leave it out",
    "transactional.id": "messages are sent without transactions; leave it out",
    "plugin.library.paths": _CODE,
    "ssl.engine.location": _CODE,
    "ssl.providers": _CODE,
    "sasl.kerberos.kinit.cmd": "names a command that would run, which no option does; renew the ticket by other means",
    "debug": _LOG,
    "log_level": _LOG,
    "log.queue": _LOG,
}
"""librdkafka's settings that are ours, and what to write instead."""

_SECRET = re.compile(r"password|passphrase|secret|token|credential|key\.pem|oauthbearer\.config|jaas", re.IGNORECASE)


def is_secret(setting: str) -> bool:
    """Tell whether the value of this setting of librdkafka must not be shown."""
    return _SECRET.search(setting) is not None
