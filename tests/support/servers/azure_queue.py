"""The queues of a storage account over HTTP, in a process of their own: `with azure_queue_server() as server:`.

There is no emulator of it on PyPI; integration runs the same contracts over Azurite. What the queues do is in
`azure_queue_model.py`. What no client of Azure can do (move the clock, break calls) is asked for at `/_control`.
Requests must be signed with a shared key or carry a token; signatures are not checked, but who signed is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from support.servers.azure_queue_model import Account, Message, Refused
from support.servers.programs import end

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"a key of an account").decode("ascii")
TOKEN = "sv=2024-01-01&sp=raup&sig=secret"
_NEVER = "Fri, 31 Dec 9999 23:59:59 GMT"
_REASONS = {200: "OK", 201: "Created", 202: "Accepted", 204: "No Content"}


class AzureQueueServer:
    """A running server; `url` is what the option `azureQueue.endpointUrl` takes."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def access(self) -> dict[str, str]:
        """The keywords of the adapter."""
        return {"endpoint_url": self.url, "access_key": KEY}

    @property
    def connection_string(self) -> str:
        return f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint={self.url}/{ACCOUNT};"

    def advance(self, seconds: float) -> None:
        """Let the server's clock jump."""
        self._control({"advance": seconds})

    def fail(self, method: str, status: int, code: str, times: int = 1) -> None:
        """Answer the next requests of a method with an error, without serving them."""
        self._control({"fail": [method, status, code, times]})

    def lose_answer(self, method: str, times: int = 1) -> None:
        """Serve the next requests of a method, and close the connection instead of an answer."""
        self._control({"lose": [method, times]})

    def calls(self) -> dict[str, int]:
        """How many requests there were, by method."""
        return dict(self._control({}))

    def _control(self, order: Mapping[str, object]) -> Any:
        request = urllib.request.Request(f"{self.url}/_control", json.dumps(order).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


@contextmanager
def azure_queue_server() -> Iterator[AzureQueueServer]:
    """A server on a free port of 127.0.0.1 that keeps everything in memory."""
    command = [sys.executable, "-m", "support.servers.azure_queue"]
    folder = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield AzureQueueServer(process.stdout.readline().decode().strip())
        finally:
            end(process)


class _Server:
    """All connections' state."""

    def __init__(self) -> None:
        self.jumped = 0.0
        self.accounts: dict[str, Account] = {}
        self.failing: list[list[Any]] = []
        self.losing: list[list[Any]] = []
        self.calls: dict[str, int] = {}

    def now(self) -> float:
        return time.time() + self.jumped

    def control(self, order: Mapping[str, Any]) -> bytes:
        self.jumped += order.get("advance", 0)
        self.failing += [order["fail"]] if "fail" in order else []
        self.losing += [order["lose"]] if "lose" in order else []
        return json.dumps(self.calls).encode()

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes | None:
        """The bytes of the answer; None: the connection is closed."""
        path, _, query = target.partition("?")
        if path == "/_control":
            return _response(200, {}, self.control(json.loads(body)))
        self.calls[method] = self.calls.get(method, 0) + 1
        try:
            for failure in self.failing:
                if failure[0] == method and failure[3] > 0:
                    failure[3] -= 1
                    raise Refused(failure[1], failure[2])
            answer = self._served(method, path.split("/")[1:], dict(parse_qsl(query)), headers, body)
        except Refused as error:
            text = f"<Error><Code>{error.code}</Code><Message>{error.code}\nRequestId:0</Message></Error>"
            more = {"x-ms-error-code": error.code, "Content-Type": "application/xml"}
            return _response(error.status, more, text.encode())
        for loss in self.losing:
            if loss[0] == method and loss[1] > 0:
                loss[1] -= 1
                return None
        return answer

    def _served(
        self, method: str, path: list[str], query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> bytes:
        name = path[0]
        if not headers.get("authorization", "").startswith(f"SharedKey {name}:") and query.get("sig") != "secret":
            raise Refused(403, "AuthenticationFailed")
        account = self.accounts.setdefault(name, Account(self.now))
        return _respond(account, method, path[1:], query, body)


def _respond(account: Account, method: str, path: list[str], query: Mapping[str, str], body: bytes) -> bytes:
    seconds = int(query.get("visibilitytimeout", 30 if method == "GET" else 0))
    if len(path) == 1:
        return _of_queue(account, method, path[0], query)
    if path[1:] == ["messages"]:
        if method == "GET":
            peeks = query.get("peekonly") == "true"
            most = int(query.get("numofmessages", 1))
            messages = account.peek(path[0], most) if peeks else account.get(path[0], most, seconds)
            return _listed(200, messages, shows="text" if peeks else "all")
        if method == "POST":
            life = int(query.get("messagettl", 7 * 86_400))
            return _listed(201, [account.put(path[0], _text(body), seconds, life)], shows="receipt")
        account.clear(path[0])
        return _response(204)
    name, _, message_id = path
    pop_receipt = query.get("popreceipt", "")
    if method == "DELETE":
        account.remove(name, unquote(message_id), pop_receipt)
        return _response(204)
    message = account.update(name, unquote(message_id), pop_receipt, seconds, _text(body) if body else None)
    more = {"x-ms-popreceipt": message.pop_receipt, "x-ms-time-next-visible": formatdate(message.visible, usegmt=True)}
    return _response(204, more)


def _of_queue(account: Account, method: str, name: str, query: Mapping[str, str]) -> bytes:
    if method == "PUT":
        return _response(account.create(name))
    if method == "DELETE":
        account.delete(name)
        return _response(204)
    return _response(200, {"x-ms-approximate-messages-count": str(account.count(name))})


def _text(body: bytes) -> str:
    return ElementTree.fromstring(body).findtext("MessageText") or ""


def _listed(status: int, messages: list[Message], shows: str) -> bytes:
    items = "".join(_item(message, shows) for message in messages)
    body = f'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList>{items}</QueueMessagesList>'
    return _response(status, {"Content-Type": "application/xml"}, body.encode())


def _item(message: Message, shows: str) -> str:
    expires = _NEVER if message.expires == float("inf") else formatdate(message.expires, usegmt=True)
    item = f"<MessageId>{message.id}</MessageId><InsertionTime>{formatdate(message.inserted, usegmt=True)}"
    item += f"</InsertionTime><ExpirationTime>{expires}</ExpirationTime>"
    if shows != "text":
        item += f"<PopReceipt>{message.pop_receipt}</PopReceipt>"
        item += f"<TimeNextVisible>{formatdate(message.visible, usegmt=True)}</TimeNextVisible>"
    if shows != "receipt":
        item += f"<DequeueCount>{message.count}</DequeueCount><MessageText>{escape(message.text)}</MessageText>"
    return f"<QueueMessage>{item}</QueueMessage>"


def _response(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}", "x-ms-version: 2024-01-01", "x-ms-request-id: 0"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [] if status == 204 else [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end_of_head := self._received.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._received[:end_of_head].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            start = end_of_head + 4
            size = int(headers.get("content-length", 0))
            if len(self._received) < start + size:
                return
            body, self._received = self._received[start : start + size], self._received[start + size :]
            method, target, _ = first.split(" ")
            answer = self._server.answer(method, target, headers, body)
            if answer is None:
                self._transport.close()
                return
            self._transport.write(answer)


async def _serve() -> None:
    server = _Server()
    listening = await asyncio.get_running_loop().create_server(lambda: _Connection(server), "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - what starts this reads it
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
