"""TCP proxies that disturb: they cut connections, at any time or at a PostgreSQL client's COMMIT, delay, or refuse.

with tcp_proxy(port) as proxy:          # connect to proxy.port
    proxy.cut_all()                     # every connection that is open now
    proxy.swallows = True               # nothing arrives any more, on either side, and connections stay open
with commit_cutter(port) as proxy:
    proxy.cut = "before"                # the next COMMIT never reaches the server
    proxy.cut = "after"                 # the next COMMIT is carried out, and the client never hears of it
with slow_proxy(port) as proxy:
    proxy.delay = 0.2                   # whatever a client sends arrives so many seconds later
with failing_proxy(port) as proxy:
    proxy.fails = True                  # each HTTP request is answered with 503
"""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"  # PostgreSQL's message (not the word: it is in READ COMMITTED too)


class TcpProxy:
    """Forwards connections to `target`, a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.swallows = False
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
                    if not data or (ready is client and self._cuts_at(data, client, server)):
                        return
                    if not self.swallows:
                        (server if ready is client else client).sendall(data)

    def _cuts_at(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Whether the connection ends here, with what a client has just sent."""
        return False

    def cut_all(self) -> None:
        """End every connection; new ones are forwarded."""
        while self._open:
            with suppress(OSError):  # it has ended by itself
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def lead_to(self, target: int) -> None:
        """From now on another port answers, as after a failover; connections that are open end."""
        self._target = target
        self.cut_all()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            while thread.is_alive():  # a process of Spark, and one that plays it, keeps a connection for the next batch
                self.cut_all()
                thread.join(0.1)


class CommitCutter(TcpProxy):
    """Cuts a connection at the next COMMIT when `cut` says so, then clears it."""

    def __init__(self, target: int) -> None:
        self.cut: Literal["before", "after"] | None = None
        self.cuts = 0
        super().__init__(target)

    def _cuts_at(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        cut = self.cut if COMMIT in data else None
        if cut is None:
            return False
        self.cut, self.cuts = None, self.cuts + 1
        if cut == "after":
            server.sendall(data)
            server.recv(65536)  # the server has carried it out
        return True


class SlowProxy(TcpProxy):
    """Holds back what clients send, each connection by itself: a statement of a database is one packet."""

    def __init__(self, target: int) -> None:
        self.delay = 0.0
        super().__init__(target)

    def _cuts_at(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        time.sleep(self.delay)
        return False


class FailingProxy(TcpProxy):
    """Answers HTTP requests by itself while `fails`, as a load balancer does whose service is away."""

    def __init__(self, target: int) -> None:
        self.fails = False
        self.refused = 0
        super().__init__(target)

    def _cuts_at(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        if not self.fails:
            return False
        while not _is_whole(data):
            more = client.recv(65536)
            if not more:
                return True
            data += more
        client.sendall(_UNAVAILABLE)
        self.refused += 1
        return True


_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return bool(end) and len(body) >= int(length[1] if length else 0)


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


@contextmanager
def slow_proxy(target: int) -> Iterator[SlowProxy]:
    """Close the clients' connections before the block ends."""
    proxy = SlowProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def failing_proxy(target: int) -> Iterator[FailingProxy]:
    """Connections that clients keep for later end with the block."""
    proxy = FailingProxy(target)
    try:
        yield proxy
    finally:
        proxy.cut_all()
        proxy.close()
