"""Queues on servers, for tests that run one program over several kinds of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.servers.ministack import KEYS, ministack_server, new_queue


@dataclass(frozen=True)
class Service:
    """A queue on a server: `options` of a reader or receiver and `keywords` of `open_queue` reach it."""

    url: str
    options: Mapping[str, str]
    keywords: Mapping[str, Any]


@contextmanager
def sqs() -> Iterator[Service]:
    with ministack_server() as server:
        keys = {"aws.accessKeyId": "test", "aws.secretAccessKey": "test"}
        yield Service(new_queue(server), keys, KEYS)
