"""One process of several that use a store at once: `python store_worker.py ACTION URL ARGUMENT...`.

It waits for a line on standard input, so that all begin together, and prints its result as JSON.
"""

from __future__ import annotations

import json
import os
import sys

from shard_store.model import PublishToken, shard_key
from shard_store.store import open_store


def acquire(url: str, now: str, pipeline: str, owner: str, *ids: str) -> object:
    with open_store(url, clock=lambda: float(now)) as store:
        token = store.start("s", pipeline).token
        ready()
        won = store.acquire(token, {shard_key("s", i): PublishToken(owner, 1) for i in ids})
        return [i for i in ids if shard_key("s", i) in won]


def win(url: str, now: str, then: str) -> object:
    with open_store(url, clock=lambda: float(now)) as store:
        ready()
        won = store.win_interval("work", 60.0)
        if won and then == "die":
            sys.stdout.write("true")
            sys.stdout.flush()
            os._exit(9)
        return won


def create(url: str) -> object:
    ready()
    with open_store(url) as store:
        return store.start("s", f"p{os.getpid()}").token.incarnation


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


ACTIONS = {"acquire": acquire, "win": win, "create": create}
sys.stdout.write(json.dumps(ACTIONS[sys.argv[1]](*sys.argv[2:])))
