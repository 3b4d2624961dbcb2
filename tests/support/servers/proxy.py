"""TCP proxies that cut connections: whenever the test says so, or at a PostgreSQL client's COMMIT.

with tcp_proxy(port) as proxy:          # connect to proxy.port
    proxy.cut_all()                     # every connection that is open now
with commit_cutter(port) as proxy:
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


class TcpProxy:
    """Forwards connections to `target`, a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: the end
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                client.close()
                continue
            thread = threading.Thread(target=self._forward, args=(client, server), name="proxy connection")
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(ConnectionError):
            self._open.add(client)
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data or (ready is client and self._cuts_at(data, server)):
                        return
                    (server if ready is client else client).sendall(data)

    def _cuts_at(self, data: bytes, server: socket.socket) -> bool:
        """Whether the connection ends here, with what a client has just sent."""
        return False

    def cut_all(self) -> None:
        """End every connection; new ones are forwarded."""
        while self._open:
            with suppress(OSError):  # it has ended by itself
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


class CommitCutter(TcpProxy):
    """Cuts a connection at the next COMMIT when `cut` says so, then clears it."""

    def __init__(self, target: int) -> None:
        self.cut: Literal["before", "after"] | None = None
        self.cuts = 0
        super().__init__(target)

    def _cuts_at(self, data: bytes, server: socket.socket) -> bool:
        cut = self.cut if COMMIT in data else None
        if cut is None:
            return False
        self.cut, self.cuts = None, self.cuts + 1
        if cut == "after":
            server.sendall(data)
            server.recv(65536)  # the server has carried it out
        return True


@contextmanager
def tcp_proxy(target: int) -> Iterator[TcpProxy]:
    """Close the clients' connections before the block ends."""
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def commit_cutter(target: int) -> Iterator[CommitCutter]:
    """Close the clients' connections before the block ends."""
    proxy = CommitCutter(target)
    try:
        yield proxy
    finally:
        proxy.close()
