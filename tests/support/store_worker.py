"""One process of several that use a store at once: `python store_worker.py ACTION URL ARGUMENT...`.

It says when it is ready, acts at each line of standard input, and prints each result as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator

from shard_store.model import PublishToken, shard_key
from shard_store.store import open_store


def acquire(url: str, now: str, pipeline: str, owner: str, *ids: str) -> None:
    """Take what the first incarnation of `owner` has."""
    with open_store(url, clock=lambda: float(now)) as store:
        token = store.start("s", pipeline).token
        for _ in orders():
            won = store.acquire(token, {shard_key("s", i): PublishToken(owner, 1) for i in ids})
            answer([i for i in ids if shard_key("s", i) in won])


def win(url: str) -> None:
    """Try to win the interval at the time that is told; `die` when told to."""
    clock = [0.0]
    with open_store(url, clock=lambda: clock[0]) as store:
        for now, then in orders():
            clock[0] = float(now)
            won = store.win_interval("work", 60.0)
            answer(won)
            if won and then == "die":
                os._exit(9)


def create(url: str) -> None:
    """Open a store that others open at the same time."""
    for _ in orders():
        with open_store(url) as store:
            answer(store.start("s", f"p{os.getpid()}").token.incarnation)


def identify(url: str) -> None:
    """Open a store that others make at the same time, and say which it is."""
    for _ in orders():
        with open_store(url) as store:
            answer(store.store_id())


def orders() -> Iterator[list[str]]:
    answer("ready")
    for line in sys.stdin:
        yield line.split()


def answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


ACTIONS: dict[str, Callable[..., None]] = {"acquire": acquire, "win": win, "create": create, "identify": identify}
ACTIONS[sys.argv[1]](*sys.argv[2:])
