"""PySpark's daemon for the sessions of `cuesqueue load`: its workers end silently when Spark has closed their socket.

When a session ends, Spark closes the sockets of its idle workers, and ends them a moment later. On a busy machine a
worker notices the first before the second: PySpark's own daemon then prints the trace of a BrokenPipeError, below a
load that has succeeded. The workers are forked from this process, so it imports nothing that starts a thread.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Work as PySpark's does: only what is written to a closed socket raises an error there."""
    try:
        return _work(sock, authenticated)
    except ConnectionError:
        return 1  # the daemon's own code for a worker that is not used again


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
