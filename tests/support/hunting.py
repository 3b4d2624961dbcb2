"""Secrets that are made, and looked for in outputs in each form that they may have there; and what operators see."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from urllib.parse import quote, quote_plus, unquote, urlencode, urlsplit

from typer.testing import CliRunner

from queue_source.commands.main import app as program
from support.browser import serving


class Secrets:
    """Makes secrets, and knows all that it has made."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def new(self, name: str) -> str:
        """Plain letters and digits: the same in a URL, a plan and a log."""
        return self.made.setdefault(name, f"hush{len(self.made)}x{name.replace('.', 'x').lower()}")

    def awkward(self, name: str) -> str:
        """As it stands in a URL, percent-encoded: each character has to be, or changes where a password ends."""
        return self.made.setdefault(name, quote(f"hush/{len(self.made)}@{name}:#+%?&=x", safe=""))

    def found_in(self, content: bytes) -> list[str]:
        return [name for name, secret in self.made.items() if any(form in content for form in forms(secret))]


def forms(secret: str) -> set[bytes]:
    """The secret raw, percent-encoded once and twice, and in base64, also as the middle of a longer text."""
    raw = unquote(secret)
    texts = {secret, raw, quote(raw, safe=""), quote_plus(raw), quote(secret, safe="")}
    encoded = {text.encode() for text in texts}
    return encoded | {part for text in encoded for shift in range(3) for part in _in_base64(text, shift)}


def _in_base64(text: bytes, shift: int) -> tuple[bytes, bytes]:
    """What base64 makes of the text behind `shift` other bytes, without the characters that its neighbours change."""
    whole = (len(text) + shift) * 8 // 6
    first = (shift * 8 + 5) // 6
    padded = b"\0" * shift + text
    return base64.b64encode(padded)[first:whole], base64.urlsafe_b64encode(padded)[first:whole]


def with_password(url: str, password: str) -> str:
    """The same database: the server trusts whoever comes from this machine, and asks for no password."""
    parts = urlsplit(url)
    return url.replace(parts.netloc, f"{parts.username}:{password}@{parts.hostname}:{parts.port}")


def pages(store_url: str, token: str, pipeline: str, names: Sequence[str]) -> dict[str, bytes]:
    """Every page of a server in a process of its own, by each way to it, with its headers; and what it prints."""
    said: list[str] = []
    seen: dict[str, bytes] = {}
    with serving(store_url, token=token, said=said) as address:
        paths = ["/", "/?refresh=5", "/?page=2", f"/pipeline?name={pipeline}", "/certificates", "/charts.json"]
        paths += [f"/charts.json?pipeline={pipeline}", "/metrics", "/healthz", "/healthz?pipeline=none", "/login"]
        paths += ["/nothing", "/search"]
        keys = [key[:length] for key in shard_keys(store_url) for length in (4, 12, 64)]
        paths += [f"/search?{urlencode({'q': text})}" for text in (*names, *keys)]
        for path in paths:
            for accept in ("text/html", "application/openmetrics-text", "*/*"):
                seen[f"{path} {accept}"] = fetched(f"{address}{path}", token, accept)
            seen[f"{path} without the token"] = fetched(f"{address}{path}", "", "text/html")
    return seen | {"what the server prints": "".join(said).encode()}


def commands(store_url: str, names: Sequence[str]) -> dict[str, bytes]:
    """What the commands print that show what is in a store."""
    store = ("--store", store_url)
    seen = {
        " ".join(words): command(*words, *store)
        for words in (
            *(("status",), ("status", "--json"), ("status", "--max-errors", "0"), ("status", "--pipeline", "none")),
            *(("shards", "list"), ("shards", "list", "--json"), ("errors", "list"), ("doctor",), ("doctor", "--json")),
            *(("files",), ("files", "--json")),
        )
    }
    seen["errors list --json"] = without_inputs(command("errors", "list", "--json", *store))
    for key in shard_keys(store_url):
        seen[f"show {key}"] = command("shards", "show", key, *store)
        seen[f"show {key} --json"] = without_inputs(command("shards", "show", key, "--json", *store))
    for number, name in enumerate(names):
        seen[f"show the one with the number {number}"] = command("shards", "show", name, *store)
    return seen


def command(*arguments: str) -> bytes:
    """What a command prints, on both streams, also if it fails."""
    done = CliRunner().invoke(program, list(arguments), env={"COLUMNS": "400"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output.encode()


def without_inputs(told: bytes) -> bytes:
    """JSON of errors, without the messages themselves: they are shown as they came, to be mended."""

    def rest(value: object) -> object:
        if isinstance(value, dict):
            return {name: rest(part) for name, part in value.items() if name not in ("input", "input_base64")}
        return [rest(part) for part in value] if isinstance(value, list) else value

    return json.dumps(rest(json.loads(told))).encode()


def shard_keys(store_url: str) -> list[str]:
    told = json.loads(command("shards", "list", "--json", "--store", store_url))
    return [shard["key"] for shard in told["shards"]]


def fetched(url: str, token: str, accept: str) -> bytes:
    """The body and the headers, also of a refusal."""
    headers = {"accept": accept, **({"authorization": f"Bearer {token}"} if token else {})}
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(urllib.request.Request(url, headers=headers)) as answer:
            return bytes(str(answer.headers).encode() + answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return str(refused.headers).encode() + refused.read()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object, **more: object) -> None:
        return None
