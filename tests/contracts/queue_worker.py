"""A consumer in a process of its own: takes and acknowledges until the queue stays empty; prints what it got.

Run as `python queue_worker.py URL BATCH`. With BATCH 0 it takes one message and dies without a word, lease held.
"""

from __future__ import annotations

import json
import os
import sys

from queue_source.queues import open_queue


def main(url: str, batch: int) -> None:
    queue = open_queue(url)
    if batch == 0:
        assert queue.receive(1, lease=60, wait=10)
        os._exit(9)
    bodies: list[str] = []
    while taken := queue.receive(batch, lease=60, wait=0.5):
        assert not queue.acknowledge([message.receipt for message in taken])
        bodies += [message.body.decode() for message in taken]
    queue.close()
    sys.stdout.write(json.dumps(bodies))


main(sys.argv[1], int(sys.argv[2]))
