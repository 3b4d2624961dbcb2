"""A TCP proxy that cuts a PostgreSQL client's connection right at a COMMIT: before it, or before its answer.

with commit_cutter(port) as proxy:      # connect to proxy.port
    proxy.cut = "before"                # the next COMMIT never reaches the server
    proxy.cut = "after"                 # the next COMMIT is carried out, and the client never hears of it
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"  # PostgreSQL's message (not the word: it is in READ COMMITTED too)


class CommitCutter:
    """Forwards connections to `target`; cuts one at the next COMMIT when `cut` says so, then clears it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cut: Literal["before", "after"] | None = None
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: the end
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            thread = threading.Thread(target=self._forward, args=(client, server), name="proxy connection")
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(ConnectionError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    cut = self.cut if ready is client and COMMIT in data else None
                    if cut is not None:
                        self.cut, self.cuts = None, self.cuts + 1
                        if cut == "after":
                            server.sendall(data)
                            server.recv(65536)  # the server has carried it out
                        return
                    (server if ready is client else client).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def commit_cutter(target: int) -> Iterator[CommitCutter]:
    """Close the clients' connections before the block ends."""
    proxy = CommitCutter(target)
    try:
        yield proxy
    finally:
        proxy.close()
