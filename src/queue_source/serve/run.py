"""Starts the web server over a store."""

from __future__ import annotations

import asyncio

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from queue_source.errors import OptionError
from queue_source.serve.app import create_app
from queue_source.serve.guard import LOOPBACK, SHORTEST_TOKEN, Access
from queue_source.serve.reads import StoreReads
from shard_store.operators.status import StatusLimits
from shard_store.store import ShardStore

_REQUESTS = 64
"""At the same time; more are answered with 503."""

_SILENCE = 10.0
"""Seconds in which a connection has to bring a whole request; it may take twice as long."""


class Connection(H11Protocol):
    """A connection that is closed when no request comes.

    uvicorn would wait for ever, and `_REQUESTS` of them fill it.
    """

    _answered: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_SILENCE, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.transport.is_closing():
            return
        waits = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if waits and self.cycle is self._answered:
            self.transport.close()
            return
        self._answered = self.cycle
        self.loop.call_later(_SILENCE, self._close_if_silent)


def access_of(host: str, token: str | None, allowed_hosts: list[str]) -> Access:
    """Build the access that the command's options ask for. Raises OptionError."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise OptionError(
            "--token",
            f"has fewer than {SHORTEST_TOKEN} characters; make one with: python -c 'import secrets; "
            "print(secrets.token_urlsafe(32))'",
        )
    if host not in LOOPBACK and token is None:
        raise OptionError(
            "--host", f"{host!r} can be reached from elsewhere: set a token with CUESQUEUE_SERVE_TOKEN or --token"
        )
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise OptionError("--token", "has a line end, a space at an end, or a letter that no header can carry")
    # a wildcard needs explicit names; no browser sends the zone of an address (`fe80::1%eth0`)
    own = [] if host in ("0.0.0.0", "::", "") or "%" in host else [host]
    try:
        return Access.to([*own, *allowed_hosts], token)
    except ValueError as error:
        raise OptionError(
            "--allowed-host", f"{error.args[0]!r} is no name of a host; write it as queues.example.com"
        ) from None


def serve(store: ShardStore, *, host: str, port: int, access: Access, limits: StatusLimits, time_out: float) -> None:
    """Answer requests until the process is asked to end (SIGINT, SIGTERM)."""
    reads = StoreReads(store, time_out=time_out)
    try:
        uvicorn.run(
            create_app(reads, access, limits),
            host=host,
            port=port,
            log_level="warning",
            access_log=False,  # queries hold names of objects
            server_header=False,
            http=Connection,
            ws="none",
            limit_concurrency=_REQUESTS,
            h11_max_incomplete_event_size=16_384,
            timeout_graceful_shutdown=5,
        )
    finally:
        reads.close()
