"""The guard of every page: the hosts and methods that are answered, who may read, and the headers of each answer."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
LOGIN = "/login"
COOKIE = "cuesqueue_session"
SESSION = 12 * 3600
"""Seconds for which a login lasts."""
SHORTEST_TOKEN = 16
LONGEST_QUERY = 8_192
_LONGEST_BODY = 4_096

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer, also of refusals and failures."""

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]/@\s]+))(?::\d{1,5})?")


def host_name(host: str) -> str | None:
    """Return the name in a header `Host`, without its port; None if there is none."""
    parts = _HOST.fullmatch(host)
    return None if parts is None else str(parts["six"] or parts["name"]).lower().rstrip(".")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may read. `hosts`: names in the header `Host` that are answered; `token`: None where none is asked for."""

    hosts: frozenset[str] = LOOPBACK
    token: str | None = field(default=None, repr=False)
    clock: Callable[[], float] = time.time

    @classmethod
    def to(cls, more_hosts: Iterable[str], token: str | None) -> Access:
        """Build the access. Raises ValueError with a name that no header `Host` can have."""
        names = set[str]()
        for host in more_hosts:
            name = host_name(f"[{host}]" if host.count(":") > 1 and "[" not in host else host)
            if name is None or "*" in name:
                raise ValueError(host)
            names.add(name)
        return cls(LOOPBACK | names, token)

    def knows(self, host: str) -> bool:
        """Tell whether the header names this server, and not a foreign page whose name leads here (DNS rebinding)."""
        return host_name(host) in self.hosts

    def may_read(self, request: Request) -> bool:
        if self.token is None:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(token.strip()):
            return True
        until, _, signature = request.cookies.get(COOKIE, "").partition(".")
        if not re.fullmatch(r"[0-9]{1,12}", until):
            return False
        is_ours = hmac.compare_digest(_digest(signature), _digest(self._signature(until)))
        return is_ours and int(until) > self.clock()

    def is_token(self, text: str) -> bool:
        """Compare a text with the token, in a time that does not show how much of it is right."""
        return self.token is not None and hmac.compare_digest(_digest(text), _digest(self.token))

    def session(self) -> str:
        """Return the value of a cookie that is good for some hours, and does not hold the token."""
        until = str(int(self.clock()) + SESSION)
        return f"{until}.{self._signature(until)}"

    def _signature(self, until: str) -> str:
        key = (self.token or "").encode("utf-8", "surrogatepass")
        return hmac.new(key, f"cuesqueue serve session {until}".encode(), hashlib.sha256).hexdigest()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Guard:
    """The application, for readers with access. `open_paths` are answered without a token."""

    def __init__(self, app: ASGIApp, access: Access, open_paths: Iterable[str] = ()) -> None:
        self._app = app
        self._access = access
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.decode().lower() not in HEADERS]
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._access.knows(hosts[0]):
            return PlainTextResponse("this host name is not served here; see --allowed-host\n", 421)
        path = request.scope["path"]
        if request.method not in ("GET", "HEAD") and not (request.method == "POST" and path == LOGIN):
            return PlainTextResponse("this page is only read\n", 405, {"allow": "GET, HEAD"})
        if len(request.scope["query_string"]) > LONGEST_QUERY:
            return PlainTextResponse("the query is too long\n", 414)
        if path in self._open or self._access.may_read(request):
            return None
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(LOGIN, 303)
        return PlainTextResponse("a token is needed\n", 401, {"www-authenticate": "Bearer"})


async def given_token(request: Request) -> str | None:
    """Return the token in the body of the login form; None if the body is something else."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _LONGEST_BODY:
                return None
    except ClientDisconnect:
        return None
    try:
        tokens = parse_qs(body.decode("ascii"), max_num_fields=4).get("token", [])
    except ValueError:  # not ASCII, or too many fields
        return None
    return tokens[0] if len(tokens) == 1 else None


def logged_in(request: Request, access: Access) -> Response:
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE,
        access.session(),
        max_age=SESSION,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response
