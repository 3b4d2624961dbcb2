"""A consumer in a process of its own: takes and acknowledges until the queue stays empty; prints what it got.

Run as `python queue_worker.py URL OPTIONS BATCH LEASE`, OPTIONS as JSON. With BATCH 0 it takes one message and dies
without a word, lease held.
"""

from __future__ import annotations

import json
import os
import sys

from queue_source.queues import open_queue


def main(url: str, options: str, batch: int, lease: float) -> None:
    queue = open_queue(url, **json.loads(options))
    if batch == 0:
        assert queue.receive(1, lease, wait=10)
        os._exit(9)
    bodies: list[str] = []
    while taken := queue.receive(batch, lease, wait=0.5):
        assert not queue.acknowledge([message.receipt for message in taken])
        bodies += [message.body.decode() for message in taken]
    queue.close()
    sys.stdout.write(json.dumps(bodies))


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
