"""Tests talk to this machine only: a connection to anywhere else is refused, and fails the test that tried."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Generator
from typing import Any

import pytest

_attempts: list[str] = []
_connect, _connect_ex = socket.socket.connect, socket.socket.connect_ex


def is_local(family: int, address: Any) -> bool:
    """Whether a socket address is on this machine. Names count only when they are `localhost`."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True  # Unix sockets and the like
    host = str(address[0]).split("%")[0]
    if host in ("localhost", ""):
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_unspecified


def _check(own: socket.socket, address: Any) -> None:
    if not is_local(own.family, address):
        _attempts.append(f"{address[0]}:{address[1]}")
        raise ConnectionRefusedError(f"tests may not connect to {address[0]!r}; use a server on 127.0.0.1")


def _guarded_connect(self: socket.socket, address: Any) -> None:
    _check(self, address)
    _connect(self, address)


def _guarded_connect_ex(self: socket.socket, address: Any) -> int:
    _check(self, address)
    return _connect_ex(self, address)


def guard() -> None:
    """Watch Python's own sockets. Those of C libraries (Arrow, libpq, gRPC) and of the JVM are not seen."""
    socket.socket.connect = _guarded_connect  # type: ignore[method-assign,assignment]
    socket.socket.connect_ex = _guarded_connect_ex  # type: ignore[method-assign,assignment]


class LoopbackPlugin:
    """Fails a test that tried to leave the machine even if it swallowed the refusal."""

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        result = yield
        tried, _attempts[:] = _attempts[:], []
        if tried:
            pytest.fail(f"{item.nodeid} tried to connect to {', '.join(tried)}; use 127.0.0.1", pytrace=False)
        return result
